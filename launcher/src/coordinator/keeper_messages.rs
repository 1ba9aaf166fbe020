//! Messages of keepers, and the consequences of a lost keeper.

use ckpt_glue::control::{Control, FaultReport, Message};
use ckpt_glue::error::Malformed;
use ckpt_glue::job::{self, SuspicionEvent};
use ckpt_glue::keeper::RankPhase;
use ckpt_glue::names::{ExitStatus, GenerationId, NodeIndex};
use ckpt_glue::pmi::{self, Member, RankState, Ranks};
use ckpt_glue::protection::nodes::Input as NodesInput;
use ckpt_glue::recovery::Plan;
use nix::sys::epoll::EpollFlags;
use transport::{Epoch, Life, Rank};

use super::super::notice::Notice;
use super::super::wire::{FromKeeper, LinkError, Receiver, ToKeeper};
use super::super::{Saves, Verdict};
use super::keepers::KeeperEnd;
use super::mpi::EndedRank;
use super::{Process, Shell};
use crate::error::LauncherError;
use crate::text;

/// Exit codes of a process that could not be started: its program was found, but is not fit; the program, or a library of it, was not found.
const NOT_EXECUTED: u8 = 126;
const NOT_FOUND: u8 = 127;

impl Shell<'_> {
    pub(super) fn on_keeper(&mut self, token: u64, node: NodeIndex, flags: EpollFlags) {
        let mut messages = Vec::new();
        let heard = self.keepers.hear(node, flags, &mut messages);
        for message in messages {
            if let Err(error) = self.on_message(node, message) {
                return self.lose_keeper(token, node, &error.into());
            }
            self.pump();
        }
        if let Err(error) = heard {
            if matches!(error, LinkError::OtherVersion { .. }) {
                self.on_unfit(node, error.to_string());
            }
            self.lose_keeper(token, node, &error);
        }
    }

    /// A keeper is gone, and with it every process that it had started. It is started again while the job needs it.
    fn lose_keeper(&mut self, token: u64, node: NodeIndex, error: &LinkError) {
        self.events.forget(token);
        let end = self.keepers.lost(node);
        self.lose_part(node);
        if self.end.is_leaving || self.end.unfit.is_some() {
            return;
        }
        let may_pass = matches!(error, LinkError::Closed) && end.as_ref().is_some_and(KeeperEnd::may_pass);
        let why = match (error, end) {
            (LinkError::Closed, Some(end)) => end.to_string(),
            (other, _) => other.to_string(),
        };
        if self.awaits_first_keeper(node) {
            return self.on_no_first_keeper(node, &why, may_pass);
        }
        if self.keepers.start_later(node) {
            let host = self.keepers.name(node);
            self.notify(&Notice::KeeperLost { host: &host, why: &why });
        }
        self.forget_keeper(node);
        self.pump();
    }

    fn on_message(&mut self, node: NodeIndex, word: FromKeeper) -> Result<(), Malformed> {
        match word {
            FromKeeper::Ready { host, .. } => self.on_ready(node, host),
            FromKeeper::Unfit { problem } => self.on_unfit(node, problem),
            FromKeeper::Control { to, control } => {
                let control = control.open(&self.control_key)?;
                match to {
                    Receiver::Coordinator => self.feed_job(job::Input::Control(control)),
                    Receiver::Keeper(other) => self.feed_keeper(NodeIndex(other), &control),
                }
            }
            FromKeeper::ForRank { rank, control } => {
                let control = control.open(&self.control_key)?;
                self.answer_for(Rank(rank), &control);
            }
            FromKeeper::Pmi { control } => {
                let control = control.open(&self.control_key)?;
                self.on_pmi_of_agent(control);
            }
            FromKeeper::PmiNothing { rank } => {
                self.feed_pmi(pmi::Input::State { rank: Rank(rank), part: RankState::default(), last: true });
            }
            FromKeeper::PmiBytes { who, bytes } => self.on_pmi_bytes(who, bytes),
            FromKeeper::PmiUnread { who } => {
                let why = "it asks the launcher's PMI server and does not read the answers";
                self.break_off(who, why.into());
            }
            FromKeeper::Line { who, is_error, line, is_part } => {
                self.on_line(node, who, is_error, (&line, is_part));
            }
            FromKeeper::Suspended => self.on_suspended(node),
            FromKeeper::SuspendWanted => self.suspend_by_key(),
            FromKeeper::InputTaken { rank, life, offset, open } => {
                self.on_input_taken(Rank(rank), life, offset, open);
            }
            FromKeeper::Spawned { rank, pid } => {
                self.processes.insert(Rank(rank), Process { node, pid, nic: None });
                self.notify(&Notice::Spawned { rank: Rank(rank), pid: nix::unistd::Pid::from_raw(pid) });
            }
            FromKeeper::Nic { rank, words } => {
                if let Some(process) = self.processes.get_mut(&Rank(rank)) {
                    process.nic = Some(words);
                }
            }
            FromKeeper::Unsaved { rank, reason } => self.note_reason(Rank(rank), reason),
            FromKeeper::HandedOver { rank, number, refused } => self.taken(Rank(rank), number, refused),
            FromKeeper::Rail { rank, control } => {
                let control = control.open(&self.control_key)?;
                self.rail_said(Rank(rank), control.life, control.message);
            }
            FromKeeper::NotSpawned { rank, problem } => {
                self.notify(&Notice::NotSpawned { rank: Rank(rank), problem: &problem });
                self.note_unrestored(Rank(rank), problem);
            }
            FromKeeper::ExitedInImage { rank, pmi } => {
                // Images of before had no such section: nothing with MPI was saved.
                let ended = if pmi.is_empty() { Some(EndedRank::default()) } else { EndedRank::parse(&pmi) };
                self.report_ended(Rank(rank), ended.unwrap_or_default());
            }
            FromKeeper::Ended { rank, life, status, is_new } => {
                self.on_ended(node, Rank(rank), life, status, is_new);
            }
            FromKeeper::Settled { rank, status } => self.on_settled(Rank(rank), status),
            FromKeeper::SpawnedEnded { who, status } => self.on_spawned_ended(who, status),
            FromKeeper::Misbehaves { rank, reason } => {
                self.notify(&Notice::Misbehaves { rank: Rank(rank), reason })
            }
            FromKeeper::Store { what, error } => self.notify(&Notice::Store { what: &what, error: &error }),
            FromKeeper::ExitedImage { rank, generation, record } => {
                let pmi = self.ended_rank(Rank(rank)).emit();
                self.keepers.send(node, &ToKeeper::WriteExited { rank, generation, record, pmi });
            }
            FromKeeper::Ranks(changes) => {
                let changes =
                    changes.into_iter().map(|(rank, phase, epoch)| (Rank(rank), (phase, Epoch(epoch))));
                self.ranks.extend(changes);
            }
            FromKeeper::WorldStarted { world, outcome } => self.on_world_started(world, outcome),
            FromKeeper::Found { number, without_provider, elsewhere, shared } => {
                self.on_networks(node, number, without_provider.is_empty() && elsewhere.is_empty());
                self.on_elsewhere(elsewhere);
                self.on_found(without_provider, shared);
            }
            FromKeeper::Silent { why } => {
                if let Some(keeper) = self.keepers.get_mut(node) {
                    keeper.silent = why;
                }
            }
            FromKeeper::NodeBusy { number, bytes } => self.on_node_busy(node, number, bytes),
            FromKeeper::NodeDone { number, outcome } => self.on_node_done(node, number, outcome),
            FromKeeper::Copying { number, bytes } => self.on_copying(node, number, bytes),
            FromKeeper::CopyDone { number, outcome } => self.on_part(node, number, outcome),
            FromKeeper::Drained { number } => self.drained(node, Some(number)),
            FromKeeper::LockHeld { words } => {
                let words = format!("{}: {words}", self.keepers.name(node));
                self.notify(&Notice::Repair { words: &words });
            }
            FromKeeper::LeaseOver => {
                let host = self.keepers.name(node);
                self.notify(&Notice::KeeperLost {
                    host: &host,
                    why: "it has heard from no majority of the nodes for too long",
                });
                self.reconnect(node);
            }
        }
        Ok(())
    }

    fn on_ready(&mut self, node: NodeIndex, host: String) {
        self.keepers.ready(node, host);
        self.is_found(node);
        self.report_decided_nic(node);
        self.feed_nodes(NodesInput::KeeperReady(node));
    }

    /// Ranks cannot be started on a node. Before the first life that is the command's error, later a fault as any other.
    fn on_unfit(&mut self, node: NodeIndex, problem: String) {
        let host = self.keepers.name(node);
        if self.is_at_its_first_host(node) {
            self.end.unfit.get_or_insert(LauncherError::Unfit { host, problem });
        } else {
            self.notify(&Notice::KeeperLost { host: &host, why: &problem });
        }
    }

    fn on_ended(&mut self, node: NodeIndex, rank: Rank, life: Life, status: ExitStatus, is_new: bool) {
        self.processes.remove(&rank);
        if matches!(status, ExitStatus::Code(NOT_EXECUTED | NOT_FOUND))
            && is_new
            && self.restore.generation.is_some()
        {
            let said = self.restore.last_words.remove(&Member::of_job(rank));
            self.note_unrestored(rank, said.unwrap_or_else(|| text::status(status)));
        }
        let has_finished = self.has_finished(rank);
        self.notify(&Notice::Ended { rank, status, has_finished });
        if self.hold_unfinished(node, rank, life, status) {
            return;
        }
        if !status.is_success() {
            self.end.failed.get_or_insert((rank, status));
        }
        if status.is_success() && self.has_broken_off(rank) {
            self.speak_for(rank, Message::Fault { report: FaultReport::RankDied { rank, status } });
        }
        let status = self.status_for_keeper(rank, status);
        self.keepers.send(node, &ToKeeper::Judged { rank: rank.0, life, status });
    }

    /// The job's machines have heard of a rank's end, at least on its node. The end of one that failed ends its life: nobody there waits for it any more.
    fn on_settled(&mut self, rank: Rank, status: ExitStatus) {
        if status.is_success() {
            self.end_pmi(Member::of_job(rank));
        }
    }

    /// R33, with the name of the node's host.
    pub(super) fn note_suspicion(&mut self, event: &SuspicionEvent) {
        let (SuspicionEvent::Raised { node, .. }
        | SuspicionEvent::Withdrawn { node, .. }
        | SuspicionEvent::Lasts { node, .. }
        | SuspicionEvent::DataSilent { node, .. }) = event;
        let host = self.keepers.name(*node);
        let timeout = self.plan.config.keeper.watch().silence();
        self.notify(&Notice::Suspicion { event, host: &host, timeout });
    }

    fn note_unrestored(&mut self, rank: Rank, why: String) {
        if let Some(generation) = self.restore.generation.filter(|_| self.plan.saves == Saves::Process) {
            self.restore.refused.get_or_insert((generation, rank, why));
        }
    }

    /// A generation that was not restored for a reason that lies elsewhere than in its files, which have been read meanwhile, is not restored the next
    /// time either: the job ends, and reports why.
    pub(super) fn give_up_unrestored(&mut self, newest: Option<GenerationId>) {
        let Some((generation, rank, why)) = self.restore.refused.take() else { return };
        if newest == Some(generation) {
            let why = why.strip_prefix("stillwire: ").unwrap_or(&why);
            let words = format!("rank {rank} cannot be restored from generation {generation}: {why}");
            self.end.verdict.get_or_insert(Verdict { words, exit_code: None });
            self.stop();
        }
    }

    /// Why ranks do not come up, as far as a keeper can see it.
    pub(super) fn why_silent(&self) -> Option<String> {
        self.keepers.iter().find_map(|keeper| keeper.silent.clone())
    }

    /// Names the ranks that have not connected when that ends the job, and the ranks that wait for them.
    pub(super) fn report_silent(&mut self, event: &job::Event) {
        let job::Event::Reported {
            report: FaultReport::StartTimedOut { .. },
            action: Some((_, Plan::Stop { .. })),
        } = event
        else {
            return;
        };
        let timeout = self.plan.config.fault.start_timeout;
        let those = |wanted: &dyn Fn(RankPhase) -> bool| {
            let found = self.ranks.iter().filter(|(_, (phase, _))| wanted(*phase)).map(|(rank, _)| *rank);
            Ranks(found.collect())
        };
        let missing = those(&|phase| phase == RankPhase::Spawning);
        let waiting = those(&|phase| matches!(phase, RankPhase::Attached | RankPhase::Running));
        let missing = if missing.0.is_empty() { &waiting } else { &missing };
        let why = self.why_silent().map_or_else(String::new, |why| format!("; {why}"));
        let words = if self.restore.generation.is_some() {
            format!("{missing} did not come back within {timeout:?} (--start-timeout){why}")
        } else {
            let wait = if waiting.0.len() == 1 { "waits" } else { "wait" };
            format!(
                "{missing} did not open a session within {timeout:?} (--start-timeout), in which {waiting} {wait} for all ranks{why}"
            )
        };
        self.end.verdict.get_or_insert(Verdict { words, exit_code: None });
    }

    /// A request or a state report from a rank's agent to the PMI server.
    fn on_pmi_of_agent(&mut self, control: Control) {
        let (ckpt_glue::names::Party::Rank(rank), epoch) = (control.sender, control.epoch) else { return };
        match control.message {
            Message::PmiRequest { request } => self.feed_pmi(pmi::Input::Request { rank, epoch, request }),
            Message::PmiState { part, last } => self.feed_pmi(pmi::Input::State { rank, part, last }),
            _ => {}
        }
    }
}
