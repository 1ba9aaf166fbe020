//! Wishes of people that ranks reach other hosts over another NIC while they run.

use std::collections::BTreeMap;
use std::time::Instant;

use ckpt_glue::control::{Control, JobPhase, Message, NicWords};
use ckpt_glue::names::Party;
use transport::{Epoch, Rank};

use super::super::limits::RAIL_MAX;
use super::super::requests::{Answer, RailOutcome};
use super::super::wire::{Sealed, ToKeeper, WirePhase};
use super::Shell;

/// Wishes that not all ranks have answered, by number.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    last: u64,
    open: BTreeMap<u64, Wish>,
}

#[derive(Debug)]
struct Wish {
    client: u64,
    /// Ranks that have not answered, with their processes.
    waiting: BTreeMap<Rank, i32>,
    outcomes: Vec<RailOutcome>,
    due: Instant,
}

impl Wishes {
    /// When the next one ends at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.open.values().map(|wish| wish.due).min()
    }
}

impl Shell<'_> {
    /// Tells a rank, or all, of the wish of a command.
    pub(super) fn wish(&mut self, client: u64, rank: Option<Rank>, nic: &str) {
        let status = self.job.status();
        let (Some(life), JobPhase::Running | JobPhase::Finishing) = (status.life, status.phase) else {
            let reason =
                "the job does not run at the moment; ask again when it does (`stillwire ps`)".to_owned();
            return self.requests.answer_one(client, &Answer::Failed { reason });
        };
        if self.is_never_saved() {
            let reason =
                "its ranks are programs of an MPI library that are not saved, and nobody in them listens: \
                          start the job with a checkpoint option"
                    .to_owned();
            return self.requests.answer_one(client, &Answer::Failed { reason });
        }
        if let Some(rank) = rank.filter(|rank| rank.0 >= status.ranks) {
            let reason = format!("there is no rank {rank}, only 0 to {}", status.ranks.saturating_sub(1));
            return self.requests.answer_one(client, &Answer::Failed { reason });
        }
        self.wishes.last += 1;
        let number = self.wishes.last;
        let mut wish =
            Wish { client, waiting: BTreeMap::new(), outcomes: Vec::new(), due: Instant::now() + RAIL_MAX };
        let asked: Vec<Rank> = match rank {
            Some(rank) => vec![rank],
            None => (0..status.ranks).map(Rank).collect(),
        };
        for rank in asked {
            let runs = matches!(self.ranks.get(&rank), Some((WirePhase::Running | WirePhase::Finalizing, _)));
            let Some(process) = self.processes.get(&rank).filter(|_| runs) else {
                let refused = Some("it does not run".to_owned());
                wish.outcomes.push(RailOutcome { rank: rank.0, nic: None, refused });
                continue;
            };
            wish.waiting.insert(rank, process.pid);
            let message = Message::HandOver { number, nic: NicWords::new(&nic) };
            let (job, sender) = (self.plan.job, Party::Coordinator);
            let control = Control { job, life, epoch: Epoch(0), sender, message };
            let control = Sealed::new(&self.control_key, &control);
            self.keepers.tell(self.node_of(rank), &ToKeeper::ToProcess { rank: rank.0, control });
        }
        self.wishes.open.insert(number, wish);
    }

    /// A rank has answered.
    pub(super) fn taken(&mut self, rank: Rank, number: u64, refused: String) {
        let refused = (!refused.is_empty()).then_some(refused);
        let Some(wish) = self.wishes.open.get_mut(&number) else { return };
        if wish.waiting.remove(&rank).is_some() {
            let nic = self.processes.get(&rank).and_then(|process| process.nic.clone());
            wish.outcomes.push(RailOutcome { rank: rank.0, nic, refused });
        }
    }

    /// Answers commands whose wishes all ranks have answered, or will not answer any more.
    pub(super) fn end_wishes(&mut self, now: Instant) {
        let (processes, requests) = (&self.processes, &mut self.requests);
        self.wishes.open.retain(|_, wish| {
            let is_late = wish.due <= now;
            let silent = wish.waiting.extract_if(.., |rank, pid| {
                is_late || processes.get(rank).is_none_or(|process| process.pid != *pid)
            });
            for (rank, pid) in silent {
                let process = processes.get(&rank).filter(|process| process.pid == pid);
                let refused = Some(match process {
                    Some(_) => {
                        format!("it has not answered in {} s; `ps` shows what it has", RAIL_MAX.as_secs())
                    }
                    None => "it has ended".to_owned(),
                });
                let nic = process.and_then(|process| process.nic.clone());
                wish.outcomes.push(RailOutcome { rank: rank.0, nic, refused });
            }
            if wish.waiting.is_empty() {
                let mut ranks = core::mem::take(&mut wish.outcomes);
                ranks.sort_unstable_by_key(|outcome| outcome.rank);
                requests.answer_one(wish.client, &Answer::Rails { ranks });
            }
            !wish.waiting.is_empty()
        });
    }
}
