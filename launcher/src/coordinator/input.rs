//! Standard input on its way to the ranks that read it.
//!
//! A keeper reports how many bytes a rank has been given (`FromKeeper::InputTaken`), for the first time when the rank is started; it gets more up to
//! a window beyond that. So a rank that does not read costs the window, and nobody waits for it.

use std::collections::BTreeMap;
use std::io;

use ckpt_glue::control::{Decision, ImageReport};
use ckpt_glue::names::GenerationId;
use transport::{Life, Rank};

use super::super::input::positions::{self, Positions};
use super::super::input::{Ask, InputEvent, Reader, Retention, Start};
use super::super::limits::{INPUT_WINDOW_BYTES, READ_BYTES};
use super::super::notice::Notice;
use super::super::wire::ToKeeper;
use super::super::{Encryption, Plan, Purpose, Verdict};
use super::Shell;
use crate::error::LauncherError;

/// A rank that reads, in the life that runs.
#[derive(Debug)]
struct Feed {
    /// Behind the last byte in its pipe.
    taken: u64,
    /// Behind the last byte that the thread was asked for, and behind the last one that was sent to the keeper.
    asked: u64,
    sent: u64,
    /// The keeper knows where the input ends.
    is_ended: bool,
}

/// The state of standard input. Absent if no rank reads.
#[derive(Debug)]
pub(super) struct Input {
    reader: Reader,
    retention: Retention,
    /// The life in which ranks are fed.
    life: Option<Life>,
    feeds: BTreeMap<Rank, Feed>,
    /// Behind the last byte that was read, and whether more may come.
    end: u64,
    is_over: bool,
    /// Bytes read by each rank at the cuts of generations of this run.
    positions: BTreeMap<GenerationId, Positions>,
}

impl Input {
    /// `None`: no rank reads, or there is nothing to be read.
    pub(super) fn start(plan: &Plan) -> Result<Option<Input>, LauncherError> {
        let any = !plan.input.readers.ranks(plan.ranks).is_empty();
        if plan.purpose != Purpose::Run || !any {
            return Ok(None);
        }
        let is_encrypted = plan.encryption.as_ref().and_then(Encryption::image_key).is_some();
        let (retention, limit) = plan.input.retention(&plan.directory, is_encrypted);
        let started = Reader::start(&retention, limit, plan.input.has_terminal)?;
        Ok(started.map(|(reader, Start { end, is_over })| Input {
            reader,
            retention,
            life: None,
            feeds: BTreeMap::new(),
            end,
            is_over,
            positions: BTreeMap::new(),
        }))
    }

    /// A rank reads, and there may be something for it.
    pub(super) fn is_read(&self) -> bool {
        !self.feeds.is_empty() && !self.is_over
    }

    pub(super) fn bell(&self) -> std::os::fd::BorrowedFd<'_> {
        self.reader.bell()
    }

    /// The readers' positions at a generation's cut.
    fn positions_of(&self, plan: &Plan, generation: GenerationId) -> io::Result<Option<Positions>> {
        match (self.positions.get(&generation), &self.retention) {
            (Some(positions), _) => Ok(Some(positions.clone())),
            (None, Retention::Files(_)) => positions::read(&plan.directory, generation),
            (None, _) => Ok(None),
        }
    }

    /// Where each rank that reads begins in a life.
    fn begin(&self, plan: &Plan, restore: Option<GenerationId>) -> Result<Positions, String> {
        let from_start = || plan.input.readers.ranks(plan.ranks).map(|rank| (rank, 0)).collect();
        let Some(generation) = restore else { return Ok(from_start()) };
        match self.positions_of(plan, generation) {
            Ok(Some(positions)) => {
                let readers = plan.input.readers.ranks(plan.ranks);
                Ok(positions.into_iter().filter(|(rank, _)| readers.contains(rank)).collect())
            }
            // Nothing was read before.
            Ok(None) if self.end == 0 => Ok(from_start()),
            Ok(None) => Err(format!(
                "how much of standard input its ranks had read at generation {generation} is not known; `stillwire restart --stdin none` goes on \
                 without any"
            )),
            Err(error) => Err(format!(
                "the positions of its ranks in standard input at generation {generation}: {error}"
            )),
        }
    }

    /// Asks for as much as the ranks have room for.
    fn feed(&mut self) {
        let Some(life) = self.life else { return };
        for (rank, feed) in &mut self.feeds {
            let until = self.end.min(feed.taken + INPUT_WINDOW_BYTES);
            while feed.asked < until {
                let bytes = usize::try_from(until - feed.asked).unwrap_or(usize::MAX).min(READ_BYTES);
                // Without room it is asked again after the thread's next answer, of which some are open then.
                if !self.reader.ask(Ask { rank: rank.0, life, from: feed.asked, bytes }) {
                    break;
                }
                feed.asked += bytes as u64;
            }
        }
        if let (Some(most), Some(least)) = (
            self.feeds.values().map(|feed| feed.taken).max(),
            self.feeds.values().map(|feed| feed.taken).min(),
        ) {
            self.reader.allow(most + INPUT_WINDOW_BYTES, least);
        }
    }

    /// The ranks whose keepers do not know yet that nothing follows, each with the input's end.
    fn take_ended(&mut self) -> Vec<(Rank, u64)> {
        let is_over = self.is_over;
        let end = self.end;
        let ended = self.feeds.iter_mut().filter(|(_, feed)| is_over && feed.sent == end && !feed.is_ended);
        ended
            .map(|(rank, feed)| {
                feed.is_ended = true;
                (*rank, end)
            })
            .collect()
    }
}

impl Shell<'_> {
    /// A life begins: keepers learn which of their ranks read, and where they begin.
    pub(super) fn begin_input(&mut self, decision: &Decision) {
        let Some(input) = &mut self.input else { return };
        input.feeds.clear();
        input.life = Some(decision.life);
        let replay_end = input.end;
        let begun = input.begin(self.plan, decision.restore);
        let begun = begun.unwrap_or_else(|words| {
            self.end.verdict.get_or_insert(Verdict { words, exit_code: None });
            Positions::new()
        });
        for node in self.keepers.nodes() {
            let here = begun.iter().filter(|(rank, _)| self.node_of(Rank(**rank)) == node);
            let ranks = here.map(|(rank, from)| (*rank, *from)).collect();
            let life = decision.life;
            self.keepers.send(node, &ToKeeper::InputLife { life, ranks, replay_end });
        }
        if self.end.verdict.is_some() {
            self.stop();
        }
    }

    /// A life is over: nothing more is sent to its ranks.
    pub(super) fn end_input(&mut self) {
        if let Some(input) = &mut self.input {
            input.feeds.clear();
            input.life = None;
        }
    }

    /// A keeper has given a rank all bytes up to this one; `open`: and can give it more.
    pub(super) fn on_input_taken(&mut self, rank: Rank, life: Life, offset: u64, open: bool) {
        let Some(input) = self.input.as_mut().filter(|input| input.life == Some(life)) else { return };
        if open {
            let new = || Feed { taken: offset, asked: offset, sent: offset, is_ended: false };
            input.feeds.entry(rank).or_insert_with(new).taken = offset;
        } else {
            input.feeds.remove(&rank);
        }
        self.feed_input();
    }

    pub(super) fn on_input(&mut self) {
        while let Some(said) = self.input.as_ref().and_then(|input| input.reader.next()) {
            match said {
                InputEvent::Read { end, is_over } => {
                    if let Some(input) = &mut self.input {
                        (input.end, input.is_over) = (end, is_over);
                    }
                }
                InputEvent::Bytes { rank, life, from, bytes } => {
                    self.send_input(Rank(rank), life, from, bytes)
                }
                InputEvent::Lost { rank, life, from, first } => self.on_lost_input(rank, life, from, first),
                InputEvent::Full { held } => self.notify(&Notice::InputFull { held }),
                InputEvent::Failed { error } => self.notify(&Notice::InputFailed { error: &error }),
            }
        }
        self.feed_input();
    }

    fn feed_input(&mut self) {
        let Some(input) = &mut self.input else { return };
        input.feed();
        let Some(life) = input.life else { return };
        for (rank, offset) in input.take_ended() {
            let message = ToKeeper::Input { rank: rank.0, life, offset, bytes: Vec::new(), end: true };
            self.keepers.send(self.node_of(rank), &message);
        }
    }

    fn send_input(&mut self, rank: Rank, life: Life, from: u64, bytes: Vec<u8>) {
        let Some(input) = self.input.as_mut().filter(|input| input.life == Some(life)) else { return };
        let Some(feed) = input.feeds.get_mut(&rank).filter(|feed| feed.sent == from) else { return };
        feed.sent += bytes.len() as u64;
        let message = ToKeeper::Input { rank: rank.0, life, offset: from, bytes, end: false };
        self.keepers.send(self.node_of(rank), &message);
    }

    fn on_lost_input(&mut self, rank: u32, life: Life, from: u64, first: u64) {
        let Some(input) = self.input.as_ref().filter(|input| input.life == Some(life)) else { return };
        let why = match input.retention {
            Retention::Files(_) => "older bytes were removed with the generations that needed them",
            Retention::Memory => "an encrypted job keeps its input in the launcher's memory only",
            Retention::Newest => "without checkpoints only the newest bytes are kept (--stdin-limit)",
        };
        let words = format!(
            "rank {rank} needs its standard input again from byte {from}, and the kept input begins at byte {first}: {why}"
        );
        self.end.verdict.get_or_insert(Verdict { words, exit_code: None });
        self.stop();
    }

    /// The readers' positions at the cut of a generation that is about to be committed; `None`: nobody needs them.
    pub(super) fn note_positions(
        &mut self,
        generation: GenerationId,
        images: &[ImageReport],
    ) -> Option<Positions> {
        let input = self.input.as_mut()?;
        let read = |image: &ImageReport| Some((image.rank.0, image.statistics.input_read?));
        let positions: Positions = images.iter().filter_map(read).collect();
        input.positions.insert(generation, positions.clone());
        matches!(input.retention, Retention::Files(_)).then_some(positions)
    }

    /// Only these generations may be restored: bytes before them are forgotten.
    pub(super) fn forget_input(&mut self, kept: &[store::GenerationId]) {
        let plan = self.plan;
        let Some(input) = &mut self.input else { return };
        let mut needed = input.feeds.values().map(|feed| feed.taken).min().unwrap_or(input.end);
        for generation in kept {
            match input.positions_of(plan, *generation) {
                Ok(Some(positions)) => {
                    needed = positions.values().copied().min().unwrap_or(needed).min(needed)
                }
                // Of a time when nothing had been read, or unreadable.
                Ok(None) | Err(_) => return,
            }
        }
        input.positions.retain(|generation, _| kept.contains(generation));
        if kept.is_empty() {
            return;
        }
        input.reader.forget(needed);
        if matches!(input.retention, Retention::Files(_)) {
            positions::keep(&plan.directory, kept);
        }
    }
}
