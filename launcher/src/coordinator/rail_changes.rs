//! Requests of people that ranks reach other hosts over another NIC while they run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ckpt_glue::control::{Control, JobPhase, Message, NicText};
use ckpt_glue::keeper::RankPhase;
use ckpt_glue::names::Party;
use ckpt_glue::rails::{Input, Output, RailChange};
use ckpt_glue::sabotage::Sabotage;
use transport::{Epoch, Life, Rank};

use super::super::limits::RAIL_MAX;
use super::super::notice::Notice;
use super::super::requests::{Answer, RailOutcome};
use super::super::wire::{Sealed, ToKeeper};
use super::Shell;

/// The NIC of ranks whose rail has died with its address.
const AFTER_DEATH: &str = "udp";

/// Requests that not all ranks have answered, by number.
#[derive(Debug, Default)]
pub(super) struct RailChanges {
    last: u64,
    open: BTreeMap<u64, RailRequest>,
    /// Of all ranks, which are led (R29).
    change: Option<Change>,
    /// The NIC of lives to come, since a change was decided.
    decided: Option<String>,
}

#[derive(Debug)]
struct Change {
    machine: RailChange,
    /// The client that has asked for it; `None`: a rail has died.
    client: Option<u64>,
    life: Life,
    /// Ranks that take part, with their processes.
    processes: BTreeMap<Rank, i32>,
}

#[derive(Debug)]
struct RailRequest {
    client: u64,
    /// Ranks that have not answered, with their processes.
    waiting: BTreeMap<Rank, i32>,
    outcomes: Vec<RailOutcome>,
    due: Instant,
}

impl RailChanges {
    /// When the next one ends at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.open.values().map(|request| request.due).min()
    }

    /// When the next step of a change is over at the latest, in the job's time.
    pub(super) fn step_due(&self) -> Option<transport::Instant> {
        self.change.as_ref()?.machine.poll_timeout()
    }
}

impl Shell<'_> {
    /// Sends a command's request to a rank, or to all.
    pub(super) fn request_rail(&mut self, client: u64, rank: Option<Rank>, nic: &str) {
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
        // Spawned processes cannot learn another address: then each goes over another NIC where it is, or not at all.
        if rank.is_none() && self.spawned_are_over() {
            return self.begin_change(Some(client), nic, life);
        }
        self.rail_changes.last += 1;
        let number = self.rail_changes.last;
        let mut request = RailRequest {
            client,
            waiting: BTreeMap::new(),
            outcomes: Vec::new(),
            due: Instant::now() + RAIL_MAX,
        };
        let asked: Vec<Rank> = match rank {
            Some(rank) => vec![rank],
            None => (0..status.ranks).map(Rank).collect(),
        };
        for rank in asked {
            let runs = matches!(self.ranks.get(&rank), Some((RankPhase::Running | RankPhase::Finalizing, _)));
            let Some(process) = self.processes.get(&rank).filter(|_| runs) else {
                let refused = Some("it does not run".to_owned());
                request.outcomes.push(RailOutcome { rank: rank.0, nic: None, refused });
                continue;
            };
            request.waiting.insert(rank, process.pid);
            let message = Message::HandOver { number, nic: NicText::new(&nic) };
            self.send_to_processes(life, &[rank], message);
        }
        self.rail_changes.open.insert(number, request);
    }

    /// Sends a message to processes of ranks, past the machines of their keepers.
    fn send_to_processes(&mut self, life: Life, ranks: &[Rank], message: Message) {
        let (job, sender) = (self.plan.job, Party::Coordinator);
        let control = Control { job, life, epoch: Epoch(0), sender, message };
        let control = Sealed::new(&self.control_key, &control);
        let mut nodes: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for rank in ranks {
            nodes.entry(self.node_of(*rank)).or_default().push(rank.0);
        }
        for (node, ranks) in nodes {
            self.keepers.send(node, &ToKeeper::ToProcesses { ranks, control: control.clone() });
        }
    }

    /// Has all ranks that run go over another NIC.
    fn begin_change(&mut self, client: Option<u64>, nic: &str, life: Life) {
        if self.rail_changes.change.is_some() {
            let reason =
                "the job is on its way to another NIC already; ask again when it is there".to_owned();
            if let Some(client) = client {
                self.requests.answer_one(client, &Answer::Failed { reason });
            }
            return;
        }
        let runs = |rank: &Rank| {
            matches!(self.ranks.get(rank), Some((RankPhase::Running | RankPhase::Finalizing, _)))
        };
        let processes: BTreeMap<Rank, i32> =
            self.processes.iter().filter(|(rank, _)| runs(rank)).map(|(rank, of)| (*rank, of.pid)).collect();
        self.rail_changes.last += 1;
        let ranks: BTreeSet<Rank> = processes.keys().copied().collect();
        let (now, number, nic) = (self.now(), self.rail_changes.last, NicText::new(&nic));
        let machine = RailChange::new(now, number, nic, ranks, Sabotage::none());
        self.rail_changes.change = Some(Change { machine, client, life, processes });
        self.pump_change();
    }

    /// A rank's rail has died, and its address with it: all go on over another kind.
    pub(super) fn rail_lost(&mut self, rank: Rank, life: Life, words: &str) {
        let status = self.job.status();
        let runs = matches!(status.phase, JobPhase::Running | JobPhase::Finishing);
        if status.life != Some(life) || !runs || self.rail_changes.change.is_some() {
            // The rank will report it again.
            return;
        }
        let is_possible = self.spawned_are_over();
        self.notify(&Notice::RailLost { rank, nic: words, is_possible });
        if is_possible {
            self.begin_change(None, AFTER_DEATH, life);
        }
    }

    /// A rank has answered a message of the change under way.
    pub(super) fn rail_said(&mut self, rank: Rank, life: Life, message: Message) {
        if let Message::RailLost { words } = &message {
            return self.rail_lost(rank, life, words.as_str());
        }
        let now = self.now();
        if let Some(change) = self.rail_changes.change.as_mut().filter(|change| change.life == life) {
            change.machine.handle(now, Input::Said { rank, message });
        }
        self.pump_change();
    }

    /// Looks whether the change's life or ranks have ended, and at its deadlines.
    fn look_at_change(&mut self) {
        let (now, status) = (self.now(), self.job.status());
        let Some(change) = &mut self.rail_changes.change else { return };
        let runs = matches!(status.phase, JobPhase::Running | JobPhase::Finishing);
        if status.life != Some(change.life) || !runs {
            change.machine.handle(now, Input::LifeOver);
        }
        let processes = &self.processes;
        let is_gone = |rank: &Rank, pid: &mut i32| processes.get(rank).is_none_or(|of| of.pid != *pid);
        for (rank, _) in change.processes.extract_if(.., is_gone) {
            change.machine.handle(now, Input::Ended { rank });
        }
        change.machine.handle_timeout(now);
        self.pump_change();
    }

    /// Carries out the change's outputs.
    fn pump_change(&mut self) {
        while let Some(change) = &mut self.rail_changes.change
            && let Some(output) = change.machine.poll_output()
        {
            match output {
                Output::Tell { ranks, message } => {
                    let life = change.life;
                    self.send_to_processes(life, &ranks, message);
                }
                Output::Decided => {
                    let nic = change.machine.nic().as_str().to_owned();
                    self.keepers.send_to_all(&ToKeeper::Nic { nic: nic.clone() });
                    self.keep_nic(&nic);
                    self.rail_changes.decided = Some(nic);
                }
                Output::Over { changed, refused } => {
                    let client = change.client;
                    self.rail_changes.change = None;
                    let first = refused.values().flatten().next().cloned();
                    match client {
                        Some(client) => {
                            let outcome = |(rank, refused): (Rank, Option<String>)| {
                                let nic = self.processes.get(&rank).and_then(|process| process.nic.clone());
                                RailOutcome { rank: rank.0, nic, refused }
                            };
                            let ranks = refused.into_iter().map(outcome).collect();
                            self.requests.answer_one(client, &Answer::Rails { ranks });
                        }
                        None => {
                            let refused = first.filter(|_| !changed);
                            self.notify(&Notice::RailReplaced {
                                nic: AFTER_DEATH,
                                refused: refused.as_deref(),
                            });
                        }
                    }
                }
            }
        }
    }

    /// A keeper that was started anew receives the decision.
    pub(super) fn report_decided_nic(&mut self, node: ckpt_glue::names::NodeIndex) {
        if let Some(nic) = self.rail_changes.decided.clone() {
            self.keepers.send(node, &ToKeeper::Nic { nic });
        }
    }

    /// A rank has answered.
    pub(super) fn taken(&mut self, rank: Rank, number: u64, refused: String) {
        let now = self.now();
        if let Some(change) =
            self.rail_changes.change.as_mut().filter(|change| change.machine.number() == number)
        {
            let message = Message::HandedOver { number, refused: NicText::new(&refused) };
            change.machine.handle(now, Input::Said { rank, message });
            return self.pump_change();
        }
        let refused = (!refused.is_empty()).then_some(refused);
        let Some(request) = self.rail_changes.open.get_mut(&number) else { return };
        if request.waiting.remove(&rank).is_some() {
            let nic = self.processes.get(&rank).and_then(|process| process.nic.clone());
            request.outcomes.push(RailOutcome { rank: rank.0, nic, refused });
        }
    }

    /// Answers commands whose requests all ranks have answered, or will not answer any more.
    pub(super) fn end_rail_requests(&mut self, now: Instant) {
        self.look_at_change();
        let (processes, requests) = (&self.processes, &mut self.requests);
        self.rail_changes.open.retain(|_, request| {
            let is_late = request.due <= now;
            let silent = request.waiting.extract_if(.., |rank, pid| {
                is_late || processes.get(rank).is_none_or(|process| process.pid != *pid)
            });
            for (rank, pid) in silent {
                let process = processes.get(&rank).filter(|process| process.pid == pid);
                let refused = Some(match process {
                    Some(_) => {
                        format!(
                            "it has not answered in {} s; `stillwire ps` shows its NIC",
                            RAIL_MAX.as_secs()
                        )
                    }
                    None => "it has ended".to_owned(),
                });
                let nic = process.and_then(|process| process.nic.clone());
                request.outcomes.push(RailOutcome { rank: rank.0, nic, refused });
            }
            if request.waiting.is_empty() {
                let mut ranks = core::mem::take(&mut request.outcomes);
                ranks.sort_unstable_by_key(|outcome| outcome.rank);
                requests.answer_one(request.client, &Answer::Rails { ranks });
            }
            !request.waiting.is_empty()
        });
    }
}
