//! A rank's own part in PMI: it passes its program's requests to the server, one at a time, and keeps requests and
//! answers here, in the memory of the rank, and so in its images.
//!
//! ```text
//!   program --bytes--> Relay --PmiRequest--> keeper's server
//!   program <--bytes-- Relay <--PmiAnswer--- keeper's server
//! ```
//!
//! In a new life the relay first reports the rank's earlier requests to the new server (R26).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use transport::Epoch;

use super::state::{Answer, Effect, Published, RankState, Request, Text};
use crate::control::Message;
use crate::limits::{PMI_KEPT_BYTES_MAX, PMI_LINE_BYTES_MAX, PMI_REQUEST_BYTES_MAX};
use crate::sabotage::{Rule, Sabotage};

/// Why a rank cannot be saved any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsavable {
    /// It has asked for more processes (`MPI_Comm_spawn`), which no image holds.
    Spawns,
    /// Its program has put more than [`PMI_KEPT_BYTES_MAX`] bytes.
    PutsTooMuch,
}

/// The relay of one rank.
#[derive(Clone, Debug)]
pub struct Relay {
    sabotage: Sabotage,
    /// Bytes of the program that have not been passed on.
    heard: Vec<u8>,
    /// Bytes of it in which no request ends.
    looked: usize,
    /// The program's end is closed, or it sends something other than PMI: nothing more is read.
    deaf: bool,
    state: RankState,
    published_bytes: usize,
    /// How much of the state a new server has got; `None`: all.
    reporting: Option<usize>,
    /// Requests that have still to be sent: one, and an abort.
    unsent: VecDeque<Request>,
    /// An answer that the program has not been given.
    answer: Option<Answer>,
    /// For the program.
    to_program: Vec<u8>,
    unsavable: Option<Unsavable>,
}

impl Relay {
    /// The relay of a program that has not begun.
    #[must_use]
    pub fn new(sabotage: Sabotage) -> Relay {
        Relay {
            sabotage,
            heard: Vec::new(),
            looked: 0,
            deaf: false,
            state: RankState::default(),
            published_bytes: 0,
            reporting: None,
            unsent: VecDeque::new(),
            answer: None,
            to_program: Vec::new(),
            unsavable: None,
        }
    }

    /// Takes bytes from the program.
    pub fn feed(&mut self, bytes: &[u8]) {
        if !self.deaf {
            self.heard.extend_from_slice(bytes);
            self.listen();
        }
    }

    /// Whether there is room for more bytes of the program.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.deaf && self.heard.len() < PMI_REQUEST_BYTES_MAX
    }

    /// The next message to the keeper.
    pub fn poll_message(&mut self) -> Option<Message> {
        if let Some(at) = self.reporting {
            let (part, last) = self.state.part(at);
            self.reporting = (!last).then_some(at + part.published.len());
            return Some(Message::PmiState { part, last });
        }
        let request = self.unsent.pop_front()?;
        Some(Message::PmiRequest { request })
    }

    /// Takes an answer, and returns the epoch to which the rank has to cut before its program may be given it, if it is a higher one (R25).
    pub fn on_answer(&mut self, epoch: Epoch, answer: Answer) -> Option<Epoch> {
        // A server that got a request twice answers twice: once counts.
        if self.state.pending.as_ref().is_none_or(|pending| pending.number != answer.number) {
            return None;
        }
        let needs = answer.depends;
        self.answer = Some(answer);
        (needs > epoch && !self.sabotage.is_out(Rule::PmiAhead)).then_some(needs)
    }

    /// Gives the program the answer that waits, if the rank has cut as far as it needs.
    pub fn hand_over(&mut self, epoch: Epoch) {
        // R25: else an image would know of a request that another lacks, as of an orphan (R6).
        let is_ahead = |answer: &Answer| answer.depends > epoch && !self.sabotage.is_out(Rule::PmiAhead);
        if self.answer.as_ref().is_none_or(is_ahead) {
            return;
        }
        let (Some(answer), Some(pending)) = (self.answer.take(), self.state.pending.take()) else { return };
        self.state.answered = pending.number;
        match answer.effect {
            Effect::Nothing => {}
            Effect::Began { name } => self.state.name = name,
            Effect::Published { place } => self.keep(Published { place, text: pending.text }),
            Effect::Met => self.state.barriers += 1,
            Effect::Finished => self.state.finished = true,
        }
        self.to_program.extend_from_slice(&answer.text.0);
        self.listen();
    }

    /// Bytes for the program.
    #[must_use]
    pub fn to_program(&self) -> &[u8] {
        &self.to_program
    }

    /// The program has got so many of them.
    pub fn written(&mut self, bytes: usize) {
        self.to_program.drain(..bytes);
    }

    /// The program will send nothing more, and reads nothing.
    pub fn close(&mut self) {
        self.deaf = true;
        self.to_program.clear();
    }

    /// The rank has been restored: there is another server, which knows nothing of it.
    pub fn begin_life(&mut self) {
        // An answer of another life does not count (R7).
        self.answer = None;
        // It is a part of the state.
        self.unsent.clear();
        self.reporting = Some(0);
    }

    /// Why the rank cannot be saved any more, if it cannot.
    #[must_use]
    pub fn unsavable(&self) -> Option<Unsavable> {
        self.unsavable
    }

    /// The rank's PMI requests.
    #[must_use]
    pub fn state(&self) -> &RankState {
        &self.state
    }

    /// Makes the next request of the received bytes. The protocol has one at a time; only an abort does not wait.
    fn listen(&mut self) {
        let Some(length) = self.next_length() else { return };
        let is_abort = self.heard.starts_with(b"cmd=abort");
        if self.state.pending.is_some() && !is_abort {
            return;
        }
        let text: Vec<u8> = self.heard.drain(..length).collect();
        self.looked = 0;
        if !text.ends_with(b"\n") {
            // The server, which knows PMI, reports the fault.
            self.deaf = true;
        }
        if text.starts_with(b"mcmd=") {
            self.unsavable = Some(Unsavable::Spawns);
        }
        let number = match &self.state.pending {
            Some(pending) => pending.number + 1,
            None => self.state.answered + 1,
        };
        let pending = Request { number, text: Text(text) };
        self.unsent.push_back(pending.clone());
        self.state.pending = Some(pending);
    }

    /// Bytes of the first request that was heard, if it is whole, or too long to become so.
    fn next_length(&mut self) -> Option<usize> {
        let is_long = self.heard.starts_with(b"mcmd=");
        let (end, bytes_max): (&[u8], usize) =
            if is_long { (b"\nendcmd\n", PMI_REQUEST_BYTES_MAX) } else { (b"\n", PMI_LINE_BYTES_MAX) };
        let from = self.looked.saturating_sub(end.len());
        let found = self.heard[from..].windows(end.len()).position(|window| window == end);
        let length = found.map(|at| from + at + end.len());
        self.looked = self.heard.len();
        match length {
            Some(length) if length <= bytes_max => Some(length),
            None if self.heard.len() < bytes_max => None,
            _ => Some(bytes_max),
        }
    }

    fn keep(&mut self, published: Published) {
        self.published_bytes += published.text.0.len();
        if self.published_bytes > PMI_KEPT_BYTES_MAX {
            self.unsavable = self.unsavable.or(Some(Unsavable::PutsTooMuch));
            return;
        }
        self.state.published.push(published);
    }
}
