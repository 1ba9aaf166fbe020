//! A communicator inside one process: one thread for each rank, with a cut and a restart of its own.
//!
//! It saves a job the way the transport does, in the small. Each rank keeps its sent messages. A cut records
//! the program's state, the messages taken but not yet matched, and how many were taken from each peer.
//! Messages sent before the cut and not taken are sent again after a restart. A program whose [`State`] is
//! incomplete fails here first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::communicator::{Communicator, Fault, State, Tag};
use crate::error::ExampleError;
use crate::limits::THREAD_RANKS_MAX;

/// How long a waiting rank sleeps before it looks whether another one has failed.
const STOP_CHECK: Duration = Duration::from_millis(20);

/// The events of a run: a cut, a death, a restart.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Every rank is saved at its point of this number, counted from 1.
    pub cut_at: Option<u64>,
    /// This rank dies when it comes to its point of this number.
    pub dies_at: Option<(u32, u64)>,
    /// The run goes on from this cut.
    pub from: Option<Arc<Cut>>,
}

/// A saved job.
#[derive(Debug)]
pub struct Cut {
    ranks: Vec<Saved>,
}

impl Cut {
    /// Messages that were sent before the cut and not yet taken by their receivers.
    pub fn messages_in_flight(&self) -> usize {
        let taken: u64 = self.ranks.iter().flat_map(|saved| &saved.taken).sum();
        let sent: usize = self.ranks.iter().flat_map(|saved| &saved.sent).map(Vec::len).sum();
        sent.saturating_sub(usize::try_from(taken).unwrap_or(usize::MAX))
    }
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The result of each rank.
    pub ranks: Vec<Result<T, ExampleError>>,
    /// The cut, when every rank came to its point.
    pub cut: Option<Arc<Cut>>,
}

/// Why a rank of such a job cannot go on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ThreadFault {
    /// The plan ordered it.
    #[error("rank {rank} died at its point {point}, as planned")]
    Died {
        /// The rank.
        rank: u32,
        /// The point's number.
        point: u64,
    },
    /// Another rank has failed.
    #[error("rank {rank} waits for rank {from}, but a rank of the job has failed; its error says why")]
    Stopped {
        /// The waiting rank.
        rank: u32,
        /// The rank it waits for.
        from: u32,
    },
    /// A message that was sent after the cut is needed before it.
    #[error(
        "rank {rank} needs a message before point {point} that rank {from} sends after its own; \
         every rank must pass its points at the same places"
    )]
    Misaligned {
        /// The receiver.
        rank: u32,
        /// The sender.
        from: u32,
        /// The point of the cut.
        point: u64,
    },
    /// The restarted program protects other memory than the saved one.
    #[error("rank {rank}: the saved region {id} has {saved} bytes, the program has {found}")]
    Region {
        /// The rank.
        rank: u32,
        /// The region.
        id: u32,
        /// Bytes saved; 0 when no such region was.
        saved: usize,
        /// Bytes of the program's region.
        found: usize,
    },
}

#[derive(Clone, Debug)]
struct Envelope {
    from: u32,
    tag: Tag,
    after_cut: bool,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Saved {
    regions: Vec<(u32, Vec<u8>)>,
    sent: Vec<Vec<Envelope>>,
    taken: Vec<u64>,
    unmatched: VecDeque<Envelope>,
    points_passed: u64,
}

/// One rank of a job of threads.
#[derive(Debug)]
pub struct ThreadCommunicator {
    rank: u32,
    plan: Plan,
    peers: Vec<Option<Sender<Envelope>>>,
    inbox: Receiver<Envelope>,
    /// Taken from the inbox, not yet received by the program.
    unmatched: VecDeque<Envelope>,
    /// Sent after the cut by a rank that is ahead of this one: not taken before this rank's own cut.
    early: VecDeque<Envelope>,
    /// Messages to each rank, sent before the cut.
    sent: Vec<Vec<Envelope>>,
    taken: Vec<u64>,
    points_passed: u64,
    past_cut: bool,
    slots: Arc<Mutex<Vec<Option<Saved>>>>,
    stopped: Arc<AtomicBool>,
}

/// Runs `program` on `ranks` threads and waits for all of them.
///
/// # Panics
/// When `ranks` is not in 1..=[`THREAD_RANKS_MAX`], a cut has another number of ranks, or a program panics.
pub fn run<T: Send>(
    ranks: u32,
    plan: &Plan,
    program: impl Fn(&mut ThreadCommunicator) -> Result<T, ExampleError> + Sync,
) -> Outcome<T> {
    assert!((1..=THREAD_RANKS_MAX).contains(&ranks), "{ranks} ranks: 1..={THREAD_RANKS_MAX} are possible");
    let slots = Arc::new(Mutex::new(vec![None; ranks as usize]));
    let worlds = open(ranks, plan, &slots);
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = worlds
            .into_iter()
            .map(|mut world| {
                let program = &program;
                scope.spawn(move || {
                    let result = program(&mut world);
                    if result.is_err() {
                        world.stopped.store(true, Ordering::Release);
                    }
                    result
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("the program panicked")).collect()
    });
    let saved = std::mem::take(&mut *slots.lock().unwrap_or_else(PoisonError::into_inner));
    let cut = saved.into_iter().collect::<Option<Vec<_>>>().map(|ranks| Arc::new(Cut { ranks }));
    Outcome { ranks: results, cut }
}

fn open(ranks: u32, plan: &Plan, slots: &Arc<Mutex<Vec<Option<Saved>>>>) -> Vec<ThreadCommunicator> {
    let stopped = Arc::new(AtomicBool::new(false));
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..ranks).map(|_| channel()).unzip();
    if let Some(cut) = &plan.from {
        assert_eq!(cut.ranks.len(), ranks as usize, "a cut is restarted with as many ranks as it has");
        resend(cut, &senders);
    }
    let empty = Saved {
        regions: Vec::new(),
        sent: vec![Vec::new(); ranks as usize],
        taken: vec![0; ranks as usize],
        unmatched: VecDeque::new(),
        points_passed: 0,
    };
    (0..ranks)
        .zip(inboxes)
        .map(|(rank, inbox)| {
            let saved = plan.from.as_ref().map_or(&empty, |cut| &cut.ranks[rank as usize]);
            ThreadCommunicator {
                rank,
                plan: plan.clone(),
                peers: (0..ranks).map(|to| (to != rank).then(|| senders[to as usize].clone())).collect(),
                inbox,
                unmatched: saved.unmatched.clone(),
                early: VecDeque::new(),
                sent: saved.sent.clone(),
                taken: saved.taken.clone(),
                points_passed: saved.points_passed,
                past_cut: false,
                slots: Arc::clone(slots),
                stopped: Arc::clone(&stopped),
            }
        })
        .collect()
}

/// Sends again the messages of each rank that were sent before the cut and not taken by their receivers.
fn resend(cut: &Cut, senders: &[Sender<Envelope>]) {
    for (from, saved) in cut.ranks.iter().enumerate() {
        for (to, envelopes) in saved.sent.iter().enumerate() {
            let taken =
                usize::try_from(cut.ranks[to].taken[from]).expect("fewer messages than bytes of memory");
            for envelope in &envelopes[taken..] {
                senders[to].send(envelope.clone()).expect("the inbox is open: its rank has not started yet");
            }
        }
    }
}

impl ThreadCommunicator {
    fn save(&self, state: &mut dyn State) {
        let saved = Saved {
            regions: state.regions().into_iter().map(|region| (region.id, region.bytes.to_vec())).collect(),
            sent: self.sent.clone(),
            taken: self.taken.clone(),
            unmatched: self.unmatched.clone(),
            points_passed: self.points_passed,
        };
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)[self.rank as usize] = Some(saved);
    }

    fn take(&mut self, envelope: Envelope) {
        self.taken[envelope.from as usize] += 1;
        self.unmatched.push_back(Envelope { after_cut: false, ..envelope });
    }

    fn keeps_log(&self) -> bool {
        self.plan.cut_at.is_some() && !self.past_cut
    }
}

impl Communicator for ThreadCommunicator {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        u32::try_from(self.peers.len()).expect("at most THREAD_RANKS_MAX")
    }

    fn send(&mut self, to: u32, tag: Tag, bytes: Vec<u8>) -> Result<(), Fault> {
        let envelope = Envelope { from: self.rank, tag, after_cut: self.past_cut, bytes };
        let Some(peer) = &self.peers[to as usize] else {
            self.unmatched.push_back(envelope);
            return Ok(());
        };
        if self.keeps_log() {
            self.sent[to as usize].push(envelope.clone());
        }
        // A receiver that has ended does not need the message; its own result shows whether that was in
        // order.
        let _ = peer.send(envelope);
        Ok(())
    }

    fn begin_send(&mut self, to: u32, tag: Tag, bytes: Vec<u8>) -> Result<u64, Fault> {
        self.send(to, tag, bytes)?;
        Ok(0)
    }

    fn end_send(&mut self, _request: u64) -> Result<(), Fault> {
        // Handed over is received here.
        Ok(())
    }

    fn receive(&mut self, from: u32, tag: Tag) -> Result<Vec<u8>, Fault> {
        loop {
            let wanted = |envelope: &Envelope| envelope.from == from && envelope.tag == tag;
            if let Some(envelope) =
                self.unmatched.iter().position(wanted).and_then(|at| self.unmatched.remove(at))
            {
                return Ok(envelope.bytes);
            }
            match self.inbox.recv_timeout(STOP_CHECK) {
                Ok(envelope) if envelope.after_cut && self.keeps_log() => {
                    if wanted(&envelope) {
                        let point = self.plan.cut_at.unwrap_or_default();
                        return Err(ThreadFault::Misaligned { rank: self.rank, from, point }.into());
                    }
                    self.early.push_back(envelope);
                }
                Ok(envelope) => self.take(envelope),
                Err(RecvTimeoutError::Timeout) if !self.stopped.load(Ordering::Acquire) => {}
                Err(_) => return Err(ThreadFault::Stopped { rank: self.rank, from }.into()),
            }
        }
    }

    fn restore(&mut self, state: &mut dyn State) -> Result<bool, Fault> {
        let Some(cut) = self.plan.from.clone() else { return Ok(false) };
        let saved = &cut.ranks[self.rank as usize].regions;
        for (index, region) in state.regions().into_iter().enumerate() {
            let bytes =
                saved.get(index).filter(|(id, _)| *id == region.id).map_or(&[][..], |(_, bytes)| bytes);
            if bytes.len() != region.bytes.len() {
                let (id, found) = (region.id, region.bytes.len());
                return Err(ThreadFault::Region { rank: self.rank, id, saved: bytes.len(), found }.into());
            }
            region.bytes.copy_from_slice(bytes);
        }
        Ok(true)
    }

    fn point(&mut self, state: &mut dyn State) -> Result<(), Fault> {
        self.points_passed += 1;
        if self.plan.dies_at == Some((self.rank, self.points_passed)) {
            return Err(ThreadFault::Died { rank: self.rank, point: self.points_passed }.into());
        }
        if self.plan.cut_at == Some(self.points_passed) {
            self.save(state);
            self.past_cut = true;
            self.sent = Vec::new();
            while let Some(envelope) = self.early.pop_front() {
                self.take(envelope);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Region;

    #[derive(Default)]
    struct Bytes([u8; 4]);

    impl State for Bytes {
        fn regions(&mut self) -> Vec<Region<'_>> {
            vec![Region { id: 7, bytes: &mut self.0 }]
        }
    }

    #[test]
    fn a_message_in_flight_at_the_cut_arrives_once_after_a_restart() {
        let program = |world: &mut ThreadCommunicator| {
            let mut state = Bytes::default();
            let comm = ExampleError::Communication;
            let restored = world.restore(&mut state).map_err(comm)?;
            let other = 1 - world.rank();
            if !restored {
                world.send(other, Tag::BURST, vec![1]).map_err(comm)?;
                state.0[0] = 9;
                world.point(&mut state).map_err(comm)?;
            }
            assert_eq!(state.0[0], 9);
            world.send(other, Tag::BURST, vec![2]).map_err(comm)?;
            let first = world.receive(other, Tag::BURST).map_err(comm)?;
            let second = world.receive(other, Tag::BURST).map_err(comm)?;
            Ok((first[0], second[0]))
        };
        let plan = Plan { cut_at: Some(1), ..Plan::default() };
        let outcome = run(2, &plan, program);
        let cut = outcome.cut.expect("both ranks passed the point");
        assert_eq!(cut.messages_in_flight(), 2, "nobody had received anything at its point");
        let again = run(2, &Plan { from: Some(cut), ..Plan::default() }, program);
        for result in outcome.ranks.into_iter().chain(again.ranks) {
            assert_eq!(result.unwrap(), (1, 2));
        }
    }

    #[test]
    fn points_that_do_not_line_up_are_reported() {
        let plan = Plan { cut_at: Some(1), ..Plan::default() };
        let outcome = run(2, &plan, |world| {
            let mut state = Bytes::default();
            let comm = ExampleError::Communication;
            if world.rank() == 0 {
                world.point(&mut state).map_err(comm)?;
                world.send(1, Tag::BURST, vec![1]).map_err(comm)
            } else {
                world.receive(0, Tag::BURST).map_err(comm)?;
                world.point(&mut state).map_err(comm)
            }
        });
        let message = outcome.ranks[1].as_ref().unwrap_err().to_string();
        assert!(message.contains("before point 1") && message.contains("rank 0"), "{message}");
        assert!(outcome.cut.is_none());
    }

    #[test]
    fn other_regions_than_the_saved_ones_are_refused() {
        let plan = Plan { cut_at: Some(1), ..Plan::default() };
        let cut =
            run(1, &plan, |world| world.point(&mut Bytes::default()).map_err(ExampleError::Communication))
                .cut;
        let outcome = run(1, &Plan { from: cut, ..Plan::default() }, |world| {
            struct Longer(Vec<u8>);
            impl State for Longer {
                fn regions(&mut self) -> Vec<Region<'_>> {
                    vec![Region { id: 7, bytes: &mut self.0 }]
                }
            }
            world.restore(&mut Longer(vec![0; 5])).map_err(ExampleError::Communication)
        });
        let message = outcome.ranks[0].as_ref().unwrap_err().to_string();
        assert!(message.contains("has 4 bytes") && message.contains("has 5"), "{message}");
    }
}
