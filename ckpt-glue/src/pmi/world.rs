//! The processes that were started together: their ranks, their keys, and where they meet.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use transport::{Instant, Rank};

use super::line::LineReader;
use super::member::{Member, Ranks};
use super::spawn::{Spawn, Spawning};
use super::state::{Published, Request};
use super::store::{NotKept, Store};
use crate::limits::{PMI_SPAWNED_STORE_BYTES_MAX, PMI_STORE_BYTES_MAX, PMI_VALUE_BYTES_MAX};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Silent,
    Attached,
    Finished,
    Gone,
}

#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) phase: Phase,
    pub(super) lines: LineReader,
    /// It has sent `init`, and may have ended since.
    pub(super) begun: bool,
    /// Its further requests are ignored.
    pub(super) deaf: bool,
    /// Which command of its spawn it runs.
    pub(super) program: u32,
    pub(super) asks: Asks,
    /// Barriers at which it has met all others.
    pub(super) barriers: u64,
    pub(super) relayed: Option<Relayed>,
}

/// A client that speaks through a relay.
#[derive(Clone, Default, Debug)]
pub(super) struct Relayed {
    /// Number of the last request that was taken.
    pub(super) taken: u64,
    /// The request that has no answer yet.
    pub(super) answering: Option<Request>,
    /// Its published entries, which others see.
    pub(super) published: Vec<Published>,
}

/// Whether a client asks for more processes.
#[derive(Clone, Default, Debug)]
pub(super) enum Asks {
    #[default]
    Nothing,
    /// It has sent a part of it.
    Part(Spawning),
    /// It waits until they have been started.
    Waits,
}

#[derive(Clone, Debug)]
pub(super) struct Barrier {
    pub(super) entered: BTreeSet<Rank>,
    pub(super) since: Instant,
    pub(super) report_at: Instant,
}

/// The state of a spawned world for ranks that wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    pub(super) by: Member,
}

/// Somebody waits for all processes of a world to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Beginning {
    /// Since the world was spawned, or since the first rank of the job has begun.
    pub(super) since: Instant,
    /// When all of them must have.
    pub(super) until: Instant,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) name: String,
    pub(super) clients: Vec<Client>,
    pub(super) store: Store,
    pub(super) barrier: Option<Barrier>,
    pub(super) barriers_passed: u64,
    /// Ranks without which the job goes on (R37), in the order of their ends.
    pub(super) lost: Vec<Rank>,
    /// `None` for the ranks of the job, of which the keeper knows.
    pub(super) origin: Option<Origin>,
    /// `None`: nobody waits yet, or all have begun, or those that have not were reported.
    pub(super) beginning: Option<Beginning>,
}

impl World {
    pub(super) fn of_job(name: String, ranks: u32) -> World {
        let client = Client {
            phase: Phase::Silent,
            lines: LineReader::default(),
            begun: false,
            deaf: false,
            program: 0,
            asks: Asks::Nothing,
            barriers: 0,
            relayed: None,
        };
        let clients = alloc::vec![client; ranks as usize];
        let mut world = World {
            name,
            clients,
            store: Store::new(PMI_STORE_BYTES_MAX),
            barrier: None,
            barriers_passed: 0,
            lost: Vec::new(),
            origin: None,
            beginning: None,
        };
        let kept = world.put_mapping();
        debug_assert!(kept.is_ok(), "{kept:?}");
        world
    }

    /// The world of a spawn, with its spawner's keys for it.
    pub(super) fn spawned(
        name: String,
        spawn: &Spawn,
        by: Member,
        beginning: Beginning,
    ) -> Result<World, NotKept> {
        let mut world = World::of_job(name, spawn.processes);
        let programs = (0..).zip(&spawn.commands);
        let programs =
            programs.flat_map(|(at, command)| core::iter::repeat_n(at, command.processes as usize));
        for (client, program) in world.clients.iter_mut().zip(programs) {
            client.program = program;
        }
        world.store = Store::new(PMI_SPAWNED_STORE_BYTES_MAX * world.clients.len());
        world.origin = Some(Origin { by });
        world.beginning = Some(beginning);
        world.put_mapping()?;
        for (key, value) in &spawn.keys {
            world.store.put(key, value)?;
        }
        Ok(world)
    }

    /// From node 0 on as many nodes as ranks, one rank on each. Then a library uses its network, which is ours, instead
    /// of its own shared memory, which no image of a rank could hold.
    fn put_mapping(&mut self) -> Result<(), NotKept> {
        let mapping = format!("(vector,(0,{},1))", self.clients.len());
        self.store.put("PMI_process_mapping", &mapping)
    }

    /// The ranks without which the job goes on, as MPICH reads them from its own launcher: by their ends, with commas. As many as fit.
    pub(super) fn dead_processes(&self) -> Option<String> {
        let mut text = String::new();
        for rank in &self.lost {
            let next = format!("{}{rank}", if text.is_empty() { "" } else { "," });
            if text.len() + next.len() >= PMI_VALUE_BYTES_MAX {
                break;
            }
            text.push_str(&next);
        }
        (!text.is_empty()).then_some(text)
    }

    /// Whether everybody who can come has come to the barrier.
    pub(super) fn is_barrier_full(&self) -> bool {
        let Some(barrier) = &self.barrier else { return false };
        self.ranks().all(|rank| barrier.entered.contains(&rank) || self.lost.contains(&rank))
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..u32::try_from(self.clients.len()).unwrap_or(u32::MAX)).map(Rank)
    }

    pub(super) fn client(&self, rank: Rank) -> Option<&Client> {
        self.clients.get(rank.0 as usize)
    }

    pub(super) fn client_mut(&mut self, rank: Rank) -> Option<&mut Client> {
        self.clients.get_mut(rank.0 as usize)
    }

    /// The ranks in a phase.
    pub(super) fn in_phase(&self, phase: Phase) -> Ranks {
        let is = |rank: &Rank| self.client(*rank).is_some_and(|client| client.phase == phase);
        Ranks(self.ranks().filter(is).collect())
    }

    /// Clients that have not gone.
    pub(super) fn living(&self) -> u32 {
        let living = self.clients.iter().filter(|client| client.phase != Phase::Gone).count();
        u32::try_from(living).unwrap_or(u32::MAX)
    }

    /// When something about it is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let begin = self.beginning.map(|beginning| beginning.until);
        self.barrier.as_ref().map(|barrier| barrier.report_at).into_iter().chain(begin).min()
    }

    /// A process has begun: the first one of the job waits for the others from now on, and the last one ends the wait.
    pub(super) fn note_begun(&mut self, now: Instant, start_timeout: Duration) {
        if self.clients.iter().all(|client| client.phase != Phase::Silent) {
            self.beginning = None;
        } else if self.origin.is_none() {
            self.beginning.get_or_insert(Beginning::new(now, start_timeout));
        }
    }

    /// How many wait at the barrier, but for this one; 0 if there is none.
    pub(super) fn waiting_besides(&self, rank: Rank) -> u32 {
        let others = self
            .barrier
            .as_ref()
            .map(|barrier| barrier.entered.iter().filter(|entered| **entered != rank).count());
        u32::try_from(others.unwrap_or(0)).unwrap_or(u32::MAX)
    }
}

impl Beginning {
    pub(super) fn new(now: Instant, start_timeout: Duration) -> Beginning {
        Beginning { since: now, until: now + start_timeout }
    }
}
