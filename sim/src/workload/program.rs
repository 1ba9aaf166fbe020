//! One rank's process: a state machine whose whole memory is a few counters, two digests and its buffers.

use std::sync::Arc;

use transport::{Buffers, OpId};

use super::memory::{Damaged, Posted, Reader, ReceiveBuffers, Sending, Writer, fill, is_filled};
use super::script::{Message, Posting, Script, Wanted};
use crate::engine::queue::Nanos;
use crate::engine::random::mix;

/// Sends and receives handed over before the program lets others run.
const ACTIONS_PER_STEP: u32 = 8;

/// Sends without completion that a program leaves behind when it goes into the next round, at most.
const SENDS_OUTSTANDING_MAX: u32 = 64;

/// The transport would not take an operation now; try again after progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// A message handed to the transport.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// To be copied.
    Copied(&'a [u8]),
    /// Stays in a buffer of the program.
    User(u64),
}

/// The process of a program: its ports, by the ranks at their other ends.
pub trait Host {
    /// Sends to `to` over `port`. A `silent` send completes without being reported.
    ///
    /// # Errors
    /// If the transport pushes back.
    fn send(
        &mut self,
        message: &Message,
        port: u32,
        data: u64,
        silent: bool,
        body: Body<'_>,
    ) -> Result<OpId, Refused>;

    /// Posts a receive; `buffers` holds the memory prepared for it.
    ///
    /// # Errors
    /// If the transport pushes back.
    fn post(
        &mut self,
        port: u32,
        wanted: &Wanted,
        bytes_max: u64,
        context: u64,
        buffers: &mut impl Buffers,
    ) -> Result<OpId, Refused>;
}

/// The outcome of a program's step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// More can be done at once.
    Ready,
    /// It computes for so long.
    Computing(Nanos),
    /// It waits for messages or completions.
    Blocked,
    /// All rounds are over, and nothing of the program's is outstanding.
    Finished,
}

/// A message that a receive completed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Port.
    pub port: u32,
    /// The receive.
    pub op: OpId,
    /// Sending rank.
    pub from: u32,
    /// Tag.
    pub tag: u64,
    /// Data word.
    pub data: u64,
    /// Bytes stored.
    pub bytes: u64,
    /// Bytes that were sent.
    pub sent_bytes: u64,
}

/// State of the program of one rank. See the module.
#[derive(Clone, Debug)]
pub struct Program {
    rank: u32,
    round: u32,
    digest: u64,
    gathered: u64,
    /// Of this round: sends handed over, receives posted, messages received.
    sent: u32,
    posted: u32,
    received: u32,
    /// Parts of this round's computing that are done.
    computed: u32,
    /// Receives posted since the start of the program.
    posts: u64,
    sends_outstanding: u32,
    /// Buffers of posted receives, per port.
    pub receives: Vec<ReceiveBuffers>,
    sends: Vec<Sending>,
    /// Messages whose content did not match their data word.
    pub damaged: u32,
    /// It does no more of its work: another rank is gone (R37).
    gives_up: bool,
    scratch: Vec<u8>,
}

/// Digest that a rank starts with.
#[must_use]
pub fn first_digest(script: &Script, rank: u32) -> u64 {
    mix(script.salt ^ u64::from(rank))
}

/// Data word of a message: follows from its name and the sender's state at the start of the round.
#[must_use]
pub fn message_data(digest: u64, message: &Message) -> u64 {
    mix(digest ^ mix(message.tag() << 16 ^ u64::from(message.from) << 8 ^ u64::from(message.to)))
}

/// The part that a received message adds to the receiver's state; sums do not depend on the order of arrival.
#[must_use]
pub fn content_digest(from: u32, tag: u64, data: u64, bytes: u32) -> u64 {
    mix(data ^ mix(tag ^ u64::from(from) << 48 ^ u64::from(bytes) << 20))
}

/// State after a round.
#[must_use]
pub fn end_of_round(digest: u64, gathered: u64) -> u64 {
    mix(digest.rotate_left(17) ^ gathered)
}

impl Program {
    /// The program of `rank` before its first step.
    #[must_use]
    pub fn new(script: &Script, rank: u32) -> Program {
        Program {
            rank,
            round: 0,
            digest: first_digest(script, rank),
            gathered: 0,
            sent: 0,
            posted: 0,
            received: 0,
            computed: 0,
            posts: 0,
            sends_outstanding: 0,
            receives: (0..script.ports).map(|_| ReceiveBuffers::default()).collect(),
            sends: Vec::new(),
            damaged: 0,
            gives_up: false,
            scratch: Vec::new(),
        }
    }

    /// State so far: the result, once the program has finished.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Round it is in.
    #[must_use]
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Describes the events that it waits for.
    #[must_use]
    pub fn waits_for(&self, script: &Script) -> String {
        let outstanding = self.sends_outstanding;
        if self.round >= script.round_count() {
            return format!("through all rounds, waits for {outstanding} of its sends to be received");
        }
        let (sends, receives) = (script.sends(self.round, self.rank), script.receives(self.round, self.rank));
        format!(
            "in round {}: sent {} of {sends}, received {} of {receives}, {outstanding} sends not received",
            self.round, self.sent, self.received
        )
    }

    /// Number of the point at which the program stands (the start of a round, nothing done in it yet), if it stands at one.
    #[must_use]
    pub fn at_point(&self) -> Option<u64> {
        let started = self.sent > 0 || self.posted > 0 || self.computed > 0;
        (!started).then_some(u64::from(self.round))
    }

    /// The payload of a send that was not copied.
    #[must_use]
    pub fn payload(&self, port: u32, op: OpId) -> Option<&Arc<Vec<u8>>> {
        self.sends.iter().find(|send| send.op == op && send.port == port).map(|send| &send.bytes)
    }

    /// Breaks R11: writes over the buffers of sends that have not completed, from which NICs still pull.
    pub fn overwrite_sends(&mut self) {
        for send in &mut self.sends {
            send.bytes = Arc::new(vec![0; send.bytes.len()]);
        }
    }

    fn compute_time(&self, script: &Script, part: u32) -> Nanos {
        let max = script.round(self.round).compute_ns_max;
        if max == 0 {
            return 0;
        }
        mix(script.salt ^ u64::from(self.round) << 32 ^ u64::from(self.rank) << 8 ^ u64::from(part)) % max
    }

    /// The job goes on without a rank: the program leaves its work as it is, and finishes.
    pub fn give_up(&mut self) {
        self.gives_up = true;
    }

    /// Goes on as far as it can without waiting, at most a few actions.
    pub fn step(&mut self, script: &Script, host: &mut impl Host) -> Step {
        if self.gives_up {
            return Step::Finished;
        }
        if self.round == script.round_count() {
            return if self.sends_outstanding == 0 { Step::Finished } else { Step::Blocked };
        }
        let round = *script.round(self.round);
        let mut budget = ACTIONS_PER_STEP;
        let order = match round.posting {
            Posting::First => [Part::Compute(0), Part::Post, Part::Send, Part::Compute(1)],
            Posting::Late => [Part::Compute(0), Part::Send, Part::Compute(1), Part::Post],
        };
        for part in order {
            let outcome = match part {
                Part::Compute(part) => self.compute(script, part),
                Part::Post => self.post_all(script, host, &mut budget),
                Part::Send => self.send_all(script, host, &mut budget),
            };
            if let Some(step) = outcome {
                return step;
            }
        }
        if self.received < script.receives(self.round, self.rank) {
            return Step::Blocked;
        }
        let allowed = if round.settles { 0 } else { SENDS_OUTSTANDING_MAX };
        if self.sends_outstanding > allowed {
            return Step::Blocked;
        }
        self.digest = end_of_round(self.digest, self.gathered);
        self.round += 1;
        (self.gathered, self.sent, self.posted, self.received, self.computed) = (0, 0, 0, 0, 0);
        Step::Ready
    }

    fn compute(&mut self, script: &Script, part: u32) -> Option<Step> {
        if self.computed > part {
            return None;
        }
        self.computed = part + 1;
        let time = self.compute_time(script, part);
        (time > 0).then_some(Step::Computing(time))
    }

    fn post_all(&mut self, script: &Script, host: &mut impl Host, budget: &mut u32) -> Option<Step> {
        let round = *script.round(self.round);
        while let Some(wanted) = script.nth_receive(self.round, self.rank, self.posted) {
            if *budget == 0 {
                return Some(Step::Ready);
            }
            *budget -= 1;
            let buffers = self.receives.get_mut(usize::try_from(round.port).unwrap_or(usize::MAX))?;
            buffers.prepare(usize::try_from(round.bytes_max).unwrap_or(0));
            let bytes_max = u64::from(round.bytes_max);
            let posted = host.post(round.port, &wanted, bytes_max, self.posts, buffers);
            buffers.name(posted.ok());
            if posted.is_err() {
                return Some(Step::Blocked);
            }
            self.posted += 1;
            self.posts += 1;
        }
        None
    }

    fn send_all(&mut self, script: &Script, host: &mut impl Host, budget: &mut u32) -> Option<Step> {
        let port = script.round(self.round).port;
        while let Some(message) = script.nth_send(self.round, self.rank, self.sent) {
            if *budget == 0 {
                return Some(Step::Ready);
            }
            *budget -= 1;
            let data = message_data(self.digest, &message);
            let length = usize::try_from(message.bytes).unwrap_or(0);
            if message.from_user_buffer {
                let Ok(op) = host.send(&message, port, data, false, Body::User(u64::from(message.bytes)))
                else {
                    return Some(Step::Blocked);
                };
                let mut bytes = vec![0; length];
                fill(data, &mut bytes);
                self.sends.push(Sending { port, op, bytes: Arc::new(bytes) });
                self.sends_outstanding += 1;
            } else {
                self.scratch.resize(length, 0);
                fill(data, &mut self.scratch);
                let silent = data & 7 == 0;
                let Ok(_) = host.send(&message, port, data, silent, Body::Copied(&self.scratch)) else {
                    return Some(Step::Blocked);
                };
                self.sends_outstanding += u32::from(!silent);
            }
            self.sent += 1;
        }
        None
    }

    /// A receive has completed. False if it was none of the program's.
    pub fn received(&mut self, arrival: &Arrival) -> bool {
        let Some(buffers) = self.receives.get_mut(usize::try_from(arrival.port).unwrap_or(usize::MAX)) else {
            return false;
        };
        let Some(buffer) = buffers.take(arrival.op) else { return false };
        let length = usize::try_from(arrival.bytes).unwrap_or(usize::MAX);
        let whole = arrival.bytes == arrival.sent_bytes;
        let intact = whole && buffer.get(..length).is_some_and(|bytes| is_filled(arrival.data, bytes));
        self.damaged += u32::from(!intact);
        let bytes = u32::try_from(arrival.bytes).unwrap_or(u32::MAX);
        let added = content_digest(arrival.from, arrival.tag, arrival.data, bytes);
        self.gathered = self.gathered.wrapping_add(added);
        self.received += 1;
        buffers.recycle(buffer);
        true
    }

    /// A send that was not silent has completed. False if there was none to complete.
    pub fn send_done(&mut self, port: u32, op: OpId) -> bool {
        if let Some(at) = self.sends.iter().position(|send| send.op == op && send.port == port) {
            self.sends.swap_remove(at);
        }
        match self.sends_outstanding.checked_sub(1) {
            Some(left) => {
                self.sends_outstanding = left;
                true
            }
            None => false,
        }
    }

    /// Appends the whole memory to `into`.
    pub fn save(&self, into: &mut Vec<u8>) {
        let mut writer = Writer(into);
        for n in [self.rank, self.round, self.sent, self.posted, self.received, self.computed] {
            writer.number(u64::from(n));
        }
        writer.number(u64::from(self.sends_outstanding));
        writer.number(self.digest);
        writer.number(self.gathered);
        writer.number(self.posts);
        writer.number(self.receives.len() as u64);
        for buffers in &self.receives {
            writer.number(buffers.posted.len() as u64);
            for posted in &buffers.posted {
                writer.number(posted.op.map_or(u64::MAX, |op| op.0));
                writer.bytes(&posted.bytes);
            }
        }
        writer.number(self.sends.len() as u64);
        for send in &self.sends {
            writer.number(u64::from(send.port));
            writer.number(send.op.0);
            writer.bytes(&send.bytes);
        }
    }

    /// The program as it was saved.
    ///
    /// # Errors
    /// If [`Program::save`] did not write `saved`.
    pub fn load(saved: &[u8]) -> Result<Program, Damaged> {
        let mut reader = Reader::new(saved);
        let (rank, round, sent) = (reader.small()?, reader.small()?, reader.small()?);
        let (posted, received, computed) = (reader.small()?, reader.small()?, reader.small()?);
        let sends_outstanding = reader.small()?;
        let (digest, gathered, posts) = (reader.number()?, reader.number()?, reader.number()?);
        let mut receives = Vec::new();
        for _ in 0..reader.small()? {
            let mut buffers = ReceiveBuffers::default();
            for _ in 0..reader.small()? {
                let op = Some(reader.number()?).filter(|op| *op != u64::MAX).map(OpId);
                buffers.posted.push(Posted { op, bytes: reader.bytes()?.to_vec() });
            }
            receives.push(buffers);
        }
        let mut sends = Vec::new();
        for _ in 0..reader.small()? {
            let (port, op) = (reader.small()?, OpId(reader.number()?));
            sends.push(Sending { port, op, bytes: Arc::new(reader.bytes()?.to_vec()) });
        }
        reader.end()?;
        Ok(Program {
            rank,
            round,
            digest,
            gathered,
            sent,
            posted,
            received,
            computed,
            posts,
            sends_outstanding,
            receives,
            sends,
            damaged: 0,
            gives_up: false,
            scratch: Vec::new(),
        })
    }
}

/// Parts of a round.
#[derive(Clone, Copy)]
enum Part {
    Compute(u32),
    Post,
    Send,
}
