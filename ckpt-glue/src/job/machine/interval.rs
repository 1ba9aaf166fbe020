//! When the job takes checkpoints by itself.

use transport::Instant;

use super::{Event, Job, Output};
use crate::config::CheckpointConfig;
use crate::interval::{AutoInterval, Estimate, Every, Tuning};
use crate::limits::INTERVAL_REPORT_RATIO;
use crate::protocols::{AbandonReason, CheckpointEvent, CheckpointInput};

/// The interval between checkpoints.
#[derive(Debug)]
pub(super) struct Interval {
    every: Every,
    /// Measures even if it does not choose: a person may have it choose later.
    pub(super) measure: AutoInterval,
    /// In force, if the job chooses.
    chosen: Option<Estimate>,
    /// The chosen one that was reported last.
    reported: Option<Estimate>,
}

impl Interval {
    pub(super) fn new(config: &CheckpointConfig) -> Interval {
        let measure = AutoInterval::new(config.mtbf, config.budget);
        Interval { every: config.every, measure, chosen: None, reported: None }
    }
}

impl Job {
    /// When checkpoints are taken.
    #[must_use]
    pub fn every(&self) -> Every {
        self.interval.every
    }

    /// The interval in force, and what it was chosen from, of a job that chooses itself; none: it has not run yet.
    #[must_use]
    pub fn chosen_interval(&self) -> Option<Estimate> {
        self.interval.chosen
    }

    /// A person wants another interval.
    pub(super) fn tune(&mut self, now: Instant, tuning: Tuning) {
        self.interval.measure.tune(&tuning);
        self.interval.every = tuning.every.unwrap_or(self.interval.every);
        self.interval.reported = None;
        self.outputs.push(Output::Event(Event::IntervalTuned(self.interval.every)));
        self.set_interval(now);
    }

    /// Notes what a checkpoint has cost. True if another interval may be due.
    pub(super) fn measure(&mut self, now: Instant, event: &CheckpointEvent) -> bool {
        let measure = &mut self.interval.measure;
        match event {
            CheckpointEvent::Begun { .. } => measure.begun(now),
            CheckpointEvent::Committed { took, images, .. } => {
                measure.committed(*took, images, &self.settings.layout);
                return true;
            }
            CheckpointEvent::Abandoned { reason, .. } => {
                let fails = match reason {
                    AbandonReason::NoImage { .. }
                    | AbandonReason::TimedOut { .. }
                    | AbandonReason::CommitFailed { .. } => true,
                    // Says nothing of the next one.
                    AbandonReason::Finishing | AbandonReason::RankLost { .. } | AbandonReason::LifeOver => {
                        false
                    }
                };
                if fails {
                    measure.failed(now);
                }
                return fails;
            }
            CheckpointEvent::Refused { .. } | CheckpointEvent::PointsDoNotLineUp { .. } => {}
        }
        false
    }

    /// From now on the checkpoint protocol has the interval that holds.
    pub(super) fn set_interval(&mut self, now: Instant) {
        self.interval.chosen =
            (self.interval.every == Every::Auto).then(|| self.interval.measure.estimate(now));
        if let Some(chosen) = self.interval.chosen {
            self.report_interval(chosen);
        }
        let every = self.interval.chosen.map(|chosen| chosen.every).or(self.interval.every.fixed());
        self.checkpoint.handle(now, CheckpointInput::Every(every));
    }

    /// Reports an interval that differs noticeably from the one that was reported last.
    fn report_interval(&mut self, chosen: Estimate) {
        let before = self.interval.reported.as_ref();
        let is_new = before.is_none_or(|before| {
            let (every, before) = (chosen.every, before.every);
            every > before.mul_f32(INTERVAL_REPORT_RATIO) || every.mul_f32(INTERVAL_REPORT_RATIO) < before
        });
        if is_new {
            let cause = chosen.cause(before);
            self.interval.reported = Some(chosen);
            self.outputs.push(Output::Event(Event::IntervalChosen { chosen, cause }));
        }
    }
}
