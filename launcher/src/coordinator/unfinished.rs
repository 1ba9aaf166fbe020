//! Ranks that have ended with exit code 0 without MPI_Finalize.
//!
//! The MPI standard requires that call, and programs leave it out: `osu_latency_mt` of OSU 7.4 returns from `main` without it. MPICH's own mpiexec
//! then kills the other ranks and ends with 0. Here the others get time: a rank that is missed by nobody has ended well, and one that others may
//! wait for in vain has died.
//!
//! ```text
//!   ended, code 0, not finalized --> held --+-- no rank runs any more ------------------------> ended well, with a warning
//!                                           +-- others run after UNFINISHED_MAX,
//!                                           |   or wait for it at a barrier of PMI -----------> died (R7)
//!                                           +-- the job is ended, or rolled back, meanwhile --> as any process of that life
//! ```

use std::collections::BTreeMap;
use std::time::Instant;

use ckpt_glue::control::{FaultReport, JobPhase};
use ckpt_glue::names::{ExitStatus, NodeIndex};
use ckpt_glue::pmi::{Member, Ranks};
use transport::{Life, Rank};

use super::super::limits::UNFINISHED_MAX;
use super::super::notice::{MpiNotice, Notice};
use super::super::wire::ToKeeper;
use super::Shell;

/// The ranks that are held.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    ranks: BTreeMap<Rank, (NodeIndex, Life)>,
    /// When the first of them is judged.
    until: Option<Instant>,
}

impl Unfinished {
    pub(super) fn due(&self) -> Option<Instant> {
        self.until
    }
}

impl Shell<'_> {
    /// Takes the end of a rank whose judgement has to wait; false if it has not.
    pub(super) fn hold_unfinished(
        &mut self,
        node: NodeIndex,
        rank: Rank,
        life: Life,
        status: ExitStatus,
    ) -> bool {
        let member = Member::of_job(rank);
        let Some(mpi) = self.mpi.as_ref().filter(|mpi| mpi.life() == life && status.is_success()) else {
            return false;
        };
        let server = mpi.server();
        let is_unfinished =
            server.has_begun(member) && !server.has_finished(member) && !server.is_untold(rank);
        if !is_unfinished || !self.is_running() {
            return false;
        }
        self.unfinished.ranks.insert(rank, (node, life));
        self.unfinished.until.get_or_insert_with(|| Instant::now() + UNFINISHED_MAX);
        true
    }

    /// Judges the held ranks as soon as it is known how.
    pub(super) fn judge_unfinished(&mut self) {
        let Some(until) = self.unfinished.until else { return };
        let phase = self.job.status().phase;
        let is_awaited =
            |rank: &Rank| self.mpi.as_ref().is_some_and(|mpi| mpi.server().is_awaited(Member::of_job(*rank)));
        if !self.is_running() {
            self.end_unfinished(false);
        } else if matches!(phase, JobPhase::Running | JobPhase::Finishing) && self.processes.is_empty() {
            self.warn_of_unfinished();
            self.end_unfinished(true);
        } else if until <= Instant::now() || self.unfinished.ranks.keys().any(is_awaited) {
            self.report_unfinished();
            self.end_unfinished(false);
        }
    }

    fn warn_of_unfinished(&mut self) {
        let ranks = Ranks(self.unfinished.ranks.keys().copied().collect());
        let words = format!(
            "{ranks} ended with exit code 0 without MPI_Finalize, which the MPI standard requires: a message that was still under way may be lost"
        );
        self.end.warnings.push(words);
    }

    fn report_unfinished(&mut self) {
        let ranks = Ranks(self.unfinished.ranks.keys().copied().collect());
        let others = Ranks(self.processes.keys().copied().collect());
        let words = format!(
            "{ranks} ended with exit code 0 without MPI_Finalize, and {others} still ran and could wait for its messages: call MPI_Finalize in every rank"
        );
        self.notify(&Notice::Mpi(MpiNotice::Unfinished { words: &words }));
    }

    /// Reports the held ends to the keepers. `well`: nobody needs those ranks any more.
    fn end_unfinished(&mut self, well: bool) {
        let held = core::mem::take(&mut self.unfinished);
        let status = ExitStatus::Code(0);
        for (rank, (node, life)) in held.ranks {
            if well {
                self.keepers.send(node, &ToKeeper::Excuse { rank: rank.0, life });
            } else if self.is_running() && self.has_broken_off(rank) {
                self.speak_for(
                    rank,
                    ckpt_glue::control::Message::Fault { report: FaultReport::RankDied { rank, status } },
                );
            }
            self.keepers.send(node, &ToKeeper::Judged { rank: rank.0, life, status });
        }
    }
}
