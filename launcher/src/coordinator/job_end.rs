//! The end of a job.

use std::collections::BTreeSet;
use std::time::Instant;

use ckpt_glue::job::FinalReport;
use ckpt_glue::names::ExitStatus;
use transport::Rank;

use super::super::Verdict;
use super::super::limits::KEEPER_END_MAX;
use crate::error::LauncherError;

/// The state of a job's end: reasons, warnings, and the coordinator's report.
#[derive(Debug, Default)]
pub(super) struct End {
    /// The first rank of the life that has ended otherwise than well.
    pub(super) failed: Option<(Rank, ExitStatus)>,
    /// Ranks without which the life goes on (R37).
    pub(super) lost: BTreeSet<Rank>,
    /// Why the launcher has ended the job.
    pub(super) verdict: Option<Verdict>,
    /// Warnings of the final report.
    pub(super) warnings: Vec<String>,
    /// The coordinator's report, once the job is over.
    pub(super) over: Option<FinalReport>,
    /// Since then: the time until which its keepers may report the ends of its ranks.
    over_until: Option<Instant>,
    /// Signals of a person who wants it to end.
    pub(super) stops: u32,
    /// A person wants it to end, by a signal or another command.
    pub(super) is_interrupted: bool,
    /// Why no keeper can do its work, although it was started.
    pub(super) unfit: Option<LauncherError>,
    /// All ranks have run.
    pub(super) has_run: bool,
    /// Another launcher may have the job (R34).
    pub(super) is_unseated: bool,
    /// The launcher has sent its last message to the keepers.
    pub(super) is_leaving: bool,
}

impl End {
    /// Takes the coordinator's report, its last output.
    pub(super) fn report(&mut self, report: FinalReport) {
        self.over = Some(report);
        self.over_until = Some(Instant::now() + KEEPER_END_MAX);
    }

    /// When the launcher gives up keepers whose processes have not ended.
    pub(super) fn due(&self) -> Option<Instant> {
        self.over_until
    }

    /// Whether that time has come. Returns true once.
    pub(super) fn is_late(&mut self, now: Instant) -> bool {
        self.over_until.take_if(|until| *until <= now).is_some()
    }
}
