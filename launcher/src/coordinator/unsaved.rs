//! Checkpoints that fail: why, in words of the rank that knows, and how often.

use std::collections::BTreeMap;
use std::time::Instant;

use ckpt_glue::control::NoImageReason;
use ckpt_glue::protocols::{AbandonReason, CheckpointEvent};
use transport::Rank;

use super::super::notice::Notice;
use super::super::repeats::kind;
use super::super::status::Failing;
use super::Shell;
use crate::text;

/// Checkpoints that have failed since the last committed one, from which on the final report mentions them.
const REPORT_AFTER: u64 = 2;

/// Kinds of reasons that are kept for the final report: the first ones.
const REASONS_MAX: usize = 64;

/// Failed checkpoints, and their reasons.
#[derive(Debug, Default)]
pub(super) struct Unsaved {
    /// The last reason that each rank has reported.
    reasons: BTreeMap<Rank, String>,
    /// Since the last committed generation.
    failing: Option<Failed>,
    /// Since the launcher started: each kind of reason, in its last wording, and how often checkpoints failed by it.
    all: BTreeMap<String, (String, u64)>,
}

#[derive(Debug)]
struct Failed {
    times: u64,
    reason: String,
    at: Instant,
    /// It will not go away by itself.
    is_lasting: bool,
}

impl Unsaved {
    /// For requests about the job's status.
    pub(super) fn failing(&self) -> Option<Failing> {
        self.failing.as_ref().map(|failed| Failing {
            times: failed.times,
            reason: failed.reason.clone(),
            ms_ago: u64::try_from(failed.at.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// All reasons, each with how often it was the one.
    pub(super) fn all(&self) -> Vec<(String, u64)> {
        self.all.values().cloned().collect()
    }

    /// For the final report.
    pub(super) fn warning(&self) -> Option<String> {
        let failed =
            self.failing.as_ref().filter(|failed| failed.is_lasting && failed.times >= REPORT_AFTER)?;
        let Failed { times, reason, .. } = failed;
        Some(format!("the last {times} checkpoints failed; the reason of the last one: {reason}"))
    }

    fn count(&mut self, words: &str) {
        let kind = kind(words);
        if self.all.len() < REASONS_MAX || self.all.contains_key(&kind) {
            let (last, times) = self.all.entry(kind).or_default();
            words.clone_into(last);
            *times += 1;
        }
    }

    /// Why a checkpoint has failed.
    pub(super) fn words(&self, reason: &AbandonReason) -> String {
        match reason {
            AbandonReason::NoImage {
                rank,
                reason: NoImageReason::Unsavable { .. } | NoImageReason::WriteFailed { .. },
            } => match self.reasons.get(rank) {
                Some(said) => format!("{}: {said}", text::abandoned(reason)),
                None => text::abandoned(reason),
            },
            _ => text::abandoned(reason),
        }
    }
}

/// Whether a reason is there the next time, too, as far as can be known.
fn is_lasting(reason: &AbandonReason) -> bool {
    match reason {
        AbandonReason::NoImage { reason, .. } => {
            matches!(reason, NoImageReason::Unsavable { .. } | NoImageReason::WriteFailed { .. })
        }
        AbandonReason::TimedOut { .. } | AbandonReason::CommitFailed { .. } => true,
        AbandonReason::Finishing | AbandonReason::RankLost { .. } | AbandonReason::LifeOver => false,
    }
}

impl Shell<'_> {
    /// A rank reports why it has no image.
    pub(super) fn note_reason(&mut self, rank: Rank, reason: String) {
        self.unsaved.reasons.insert(rank, reason);
    }

    pub(super) fn note_unsaved(&mut self, event: &CheckpointEvent) {
        match event {
            CheckpointEvent::Committed { .. } => {
                self.unsaved.failing = None;
            }
            CheckpointEvent::Abandoned { epoch, source, reason } => {
                let words = self.unsaved.words(reason);
                if !matches!(
                    reason,
                    AbandonReason::Finishing | AbandonReason::RankLost { .. } | AbandonReason::LifeOver
                ) {
                    self.unsaved.count(&words);
                    let times = self.unsaved.failing.as_ref().map_or(0, |failed| failed.times) + 1;
                    let (reason, is_lasting) = (words.clone(), is_lasting(reason));
                    self.unsaved.failing = Some(Failed { times, reason, at: Instant::now(), is_lasting });
                }
                self.notify(&Notice::NotSaved { epoch: *epoch, source: *source, words: &words });
            }
            _ => {}
        }
    }
}
