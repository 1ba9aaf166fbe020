//! Keepers that do not come up before the first life.
//!
//! A new job ends at once: its list of hosts may be wrong, and somebody waits to hear of it. A restart follows a failure, and the hosts may be just coming back;
//! it tries again for as long as a lost node is waited for while a job runs, or until another host has the node's place (R32).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ckpt_glue::control::JobPhase;
use ckpt_glue::names::NodeIndex;
use ckpt_glue::recovery::Beginning;
use ckpt_glue::write_duration;

use super::super::notice::Notice;
use super::super::{HostLoss, Plan, Purpose};
use super::Shell;
use crate::error::LauncherError;

/// The attempts to start the first keepers.
#[derive(Debug)]
pub(super) struct FirstKeepers {
    /// How long a host may take to come back, and when that time is over; zero for a new job.
    patience: Duration,
    until: Instant,
    /// When another host takes the place of one that does not come back, at the earliest; `None`: none does.
    replaced_at: Option<Instant>,
    /// The reasons that were reported.
    reported: BTreeMap<NodeIndex, String>,
}

impl FirstKeepers {
    pub(super) fn new(plan: &Plan, now: Instant) -> FirstKeepers {
        let keeper = &plan.config.keeper;
        let has_others = match plan.on_host_loss {
            HostLoss::Spread => true,
            HostLoss::Spare => !plan.spares.is_empty(),
            HostLoss::End => false,
        };
        let is_replaced = has_others && plan.purpose == Purpose::Run && plan.beginning != Beginning::Fresh;
        let absence = keeper.restart_absence(plan.former_silence);
        let patience = match plan.beginning {
            Beginning::Fresh => Duration::ZERO,
            // The first fence ends with the other host then.
            _ if is_replaced => keeper.absence_max().max(plan.config.fault.start_timeout).max(absence * 2),
            Beginning::Newest | Beginning::Named(_) => keeper.absence_max(),
        };
        let replaced_at = is_replaced.then(|| now + absence);
        FirstKeepers { patience, until: now + patience, replaced_at, reported: BTreeMap::new() }
    }
}

impl Shell<'_> {
    /// Whether no life has begun, and the node is where the plan has it: a keeper that does not come up there may be the fault of the plan.
    pub(super) fn is_at_its_first_host(&self, node: NodeIndex) -> bool {
        let status = self.job.status();
        let begins = match self.plan.beginning {
            Beginning::Fresh => status.phase == JobPhase::Gathering,
            Beginning::Newest | Beginning::Named(_) => status.life.is_none(),
        };
        begins && !self.keepers.is_moved(node)
    }

    pub(super) fn awaits_first_keeper(&self, node: NodeIndex) -> bool {
        self.is_at_its_first_host(node) && !self.keepers.is_ready(node)
    }

    /// The first keeper of a node has not come up. `may_pass`: its host may be just coming back.
    pub(super) fn on_no_first_keeper(&mut self, node: NodeIndex, why: &str, may_pass: bool) {
        let host = self.keepers.name(node);
        let FirstKeepers { patience, until, replaced_at, .. } = self.first_keepers;
        let now = Instant::now();
        let left = until.saturating_duration_since(now);
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
            let seconds = |until: Instant| until.saturating_duration_since(now).as_secs() + 1;
            let limit = match replaced_at {
                Some(at) => format!("after {} s another host may take its place", seconds(at)),
                None => format!("for {} s at most", seconds(until)),
            };
            let words = format!("{why}; the restart keeps trying until {host} answers, {limit}");
            self.notify(&Notice::KeeperLost { host: &host, why: &words });
            self.first_keepers.reported.insert(node, why.to_owned());
        }
        self.keepers.start_first_later(node, until);
    }
}
