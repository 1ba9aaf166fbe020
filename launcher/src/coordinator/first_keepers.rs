//! Keepers that do not come up before the first life.
//!
//! A new job ends at once: its list of hosts may be wrong, and somebody waits to hear of it. A restart follows a failure, and the hosts may be just coming back;
//! it tries again for as long as a lost node is waited for while a job runs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ckpt_glue::names::NodeIndex;
use ckpt_glue::recovery::Beginning;
use ckpt_glue::write_duration;

use super::super::Plan;
use super::super::notice::Notice;
use super::Shell;
use crate::error::LauncherError;

/// The attempts to start the first keepers.
#[derive(Debug)]
pub(super) struct FirstKeepers {
    /// How long a host may take to come back, and when that time is over; zero for a new job.
    patience: Duration,
    until: Instant,
    /// The reasons that were reported.
    reported: BTreeMap<NodeIndex, String>,
}

impl FirstKeepers {
    pub(super) fn new(plan: &Plan, now: Instant) -> FirstKeepers {
        let patience = match plan.beginning {
            Beginning::Fresh => Duration::ZERO,
            Beginning::Newest | Beginning::Named(_) => plan.config.keeper.absence_max(),
        };
        FirstKeepers { patience, until: now + patience, reported: BTreeMap::new() }
    }
}

impl Shell<'_> {
    /// The first keeper of a node has not come up. `may_pass`: its host may be just coming back.
    pub(super) fn on_no_first_keeper(&mut self, node: NodeIndex, why: &str, may_pass: bool) {
        let host = self.keepers.name(node);
        let FirstKeepers { patience, until, .. } = self.first_keepers;
        let left = until.saturating_duration_since(Instant::now());
        if !may_pass || left.is_zero() {
            let tried = if may_pass && !patience.is_zero() {
                format!(" for {}", write_duration(patience))
            } else {
                String::new()
            };
            let problem = format!("its keeper has said nothing{tried}: {why}");
            self.end.unfit.get_or_insert(LauncherError::Unfit { host, problem });
            return;
        }
        if self.first_keepers.reported.get(&node).is_none_or(|reported| reported != why) {
            let seconds = left.as_secs() + 1;
            let words =
                format!("{why}; the restart keeps trying until {host} answers, for {seconds} s at most");
            self.notify(&Notice::KeeperLost { host: &host, why: &words });
            self.first_keepers.reported.insert(node, why.to_owned());
        }
        self.keepers.start_first_later(node, until);
    }
}
