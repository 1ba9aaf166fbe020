//! Processes that ranks of an MPI program spawn. The job's machines know nothing of them: the keeper at the top of the tree starts them, and they end with
//! the job.

use std::collections::BTreeSet;

use ckpt_glue::control::JobPhase;
use ckpt_glue::job;
use ckpt_glue::names::{ExitStatus, NodeIndex};
use ckpt_glue::pmi::{self, Member, SpawnCommand};
use ckpt_glue::recovery::Ending;
use transport::Rank;

use super::super::notice::{MpiNotice, Notice};
use super::super::wire::ToKeeper;
use super::super::{Saves, Verdict};
use super::Shell;
use super::mpi::MpiSide;
use crate::text;

/// The spawned processes of a job.
#[derive(Debug, Default)]
pub(super) struct Spawned {
    processes: BTreeSet<Member>,
    /// Worlds that are started when all ranks run.
    waiting: Vec<(u32, Vec<SpawnCommand>)>,
    /// The members that asked for worlds that wait, or are being started.
    asked: Vec<(u32, Member)>,
    /// The message that only these still run has been printed.
    reported: bool,
}

/// The PMI server's one-word reasons.
const WORDS: [&str; 4] = ["no_such_host", "no_such_program", "no_descriptors", "cannot_start"];

impl Spawned {
    pub(super) fn iter(&self) -> impl Iterator<Item = Member> {
        self.processes.iter().copied()
    }

    fn forget(&mut self) {
        self.waiting.clear();
        self.asked.clear();
        self.processes.clear();
    }
}

impl Shell<'_> {
    pub(super) fn on_spawn(&mut self, by: Member, world: u32, commands: &[SpawnCommand]) {
        if !self.is_running() {
            // The life in which it was asked is over.
            return;
        }
        self.spawned.asked.push((world, by));
        self.spawned.waiting.push((world, commands.to_vec()));
        if self.job.status().phase != JobPhase::Starting {
            self.start_worlds();
        }
    }

    /// Starts the worlds that wait: all ranks run. A rank that was restored within its request repeats it at once, when keepers do not know yet where
    /// ports are in the new life; processes that are spawned then would look for them where they were.
    pub(super) fn start_worlds(&mut self) {
        for (world, commands) in core::mem::take(&mut self.spawned.waiting) {
            let running = u32::try_from(self.spawned.processes.len()).unwrap_or(u32::MAX);
            let running = self.plan.ranks.saturating_add(running);
            let life = self.mpi.as_ref().map(MpiSide::life).filter(|_| self.plan.saves == Saves::Process);
            let message = ToKeeper::StartWorld { world, running, commands, life };
            self.keepers.send(self.layout.root(), &message);
        }
    }

    pub(super) fn on_world_started(&mut self, world: u32, outcome: Result<u32, (String, String)>) {
        let Some(asked) = self.spawned.asked.iter().position(|(asked, _)| *asked == world) else { return };
        let (_, by) = self.spawned.asked.remove(asked);
        match &outcome {
            Ok(processes) => {
                self.spawned.processes.extend((0..*processes).map(|rank| Member { world, rank: Rank(rank) }));
                self.notify(&Notice::Mpi(MpiNotice::Spawned { by, world, processes: *processes }));
            }
            Err((_, why)) => self.notify(&Notice::Mpi(MpiNotice::SpawnRefused { by, why })),
        }
        let word = |word: String| WORDS.into_iter().find(|known| *known == word).unwrap_or("cannot_start");
        let outcome = outcome.map(drop).map_err(|(refused, _)| word(refused));
        self.feed_pmi(pmi::Input::Spawned { world, outcome });
    }

    pub(super) fn on_spawned_ended(&mut self, member: Member, status: ExitStatus) {
        // One that was given up may have ended by itself before the keeper knew of it.
        if !self.spawned.processes.remove(&member) {
            return;
        }
        self.notify(&Notice::Mpi(MpiNotice::Ended { member, status }));
        self.judge(member, status);
        self.end_pmi(member);
    }

    /// A keeper is gone, and with it the processes that it had spawned.
    pub(super) fn forget_spawned(&mut self, node: NodeIndex) {
        if node == self.layout.root() {
            self.spawned.forget();
        }
    }

    /// A spawned process may end when it has finished, and with success, as any other.
    fn judge(&mut self, member: Member, status: ExitStatus) {
        let mpi = self.mpi.as_ref();
        let (begun, finished) = mpi.map_or((false, false), |mpi| {
            (mpi.server().has_begun(member), mpi.server().has_finished(member))
        });
        let code = match status {
            // One that never began is another matter, which the server judges.
            ExitStatus::Code(0) if finished || !begun => return,
            ExitStatus::Code(0) => None,
            ExitStatus::Code(code) => Some(code),
            ExitStatus::Signal(number) => Some(number.saturating_add(128)),
        };
        self.fail(member, format!("{member} died ({})", text::status(status)), code);
    }

    /// Ends the job because of a process that was spawned, or that could not be.
    pub(super) fn fail(&mut self, member: Member, why: String, exit_code: Option<u8>) {
        if !self.may_fail() {
            return;
        }
        self.notify(&Notice::Mpi(MpiNotice::BrokenOff { words: &why }));
        self.end.verdict = Some(Verdict { words: format!("{why}; the job ends"), exit_code });
        self.keepers.send(self.layout.root(), &ToKeeper::Kill { who: member });
        self.feed_job(job::Input::Stop);
        self.kill_spawned_of_ended_job();
    }

    /// Whether the job is not being ended already, for a reason of its own.
    pub(super) fn may_fail(&self) -> bool {
        let only_spawned = self.end.over.is_some_and(|report| report.ending == Ending::Finished);
        self.end.verdict.is_none() && self.end.stops == 0 && (self.is_running() || only_spawned)
    }

    /// A person wants the end.
    pub(super) fn interrupt(&mut self) {
        self.end.is_interrupted = true;
        self.stop();
    }

    /// Ends the job.
    pub(super) fn stop(&mut self) {
        self.feed_job(job::Input::Stop);
        if let Some(report) = &mut self.end.over
            && !self.spawned.processes.is_empty()
        {
            report.ending = Ending::Stopped;
            self.end_spawned();
        }
    }

    /// They end with their life, whether or not a rank on their node is still there to be killed; and with the job.
    pub(super) fn end_spawned(&mut self) {
        self.spawned.forget();
        self.keepers.send(self.layout.root(), &ToKeeper::EndSpawned);
    }

    /// Whether no spawned process runs, once no rank does. Those of a job that did not end well are ended.
    pub(super) fn spawned_are_over(&mut self) -> bool {
        if self.spawned.processes.is_empty() {
            return true;
        }
        let ended_well = self.kill_spawned_of_ended_job();
        if ended_well && !core::mem::replace(&mut self.spawned.reported, true) {
            let processes = self.spawned.processes.len();
            self.notify(&Notice::Mpi(MpiNotice::SpawnedRemain { processes }));
        }
        false
    }

    /// Returns whether the job is over and has ended well.
    fn kill_spawned_of_ended_job(&mut self) -> bool {
        let Some(report) = self.end.over else { return false };
        let well = report.ending == Ending::Finished && self.end.verdict.is_none();
        if !well {
            self.end_spawned();
        }
        well
    }
}
