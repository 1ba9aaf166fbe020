//! Nodes that know lives of which the launcher's directory does not: that directory is lost or old, and a copy has taken its place. The launcher
//! takes over their records before a life begins, because a node takes part in no life that contradicts them.

use std::collections::BTreeMap;

use ckpt_glue::job;
use ckpt_glue::names::NodeIndex;
use store::{Decision, GenerationId, StoreError};
use transport::Life;

use super::super::super::nodes::lives::joined;
use super::super::super::notice::Notice;
use super::super::super::storage::Task;
use super::super::Shell;
use crate::error::LauncherError;

impl Shell<'_> {
    /// Copies the decisions that these nodes know into the launcher's directory; if that fails, the job does not begin. False: a life was before, and
    /// another launcher has decided a further one since.
    pub(super) fn sync_metadata(&mut self, ahead: &BTreeMap<NodeIndex, Vec<Decision>>) -> bool {
        if self.job.status().life.is_some() {
            return false;
        }
        let Some(survey) = self.nodes.as_ref().and_then(|nodes| nodes.survey.as_ref()) else {
            return true;
        };
        let Some(fetch) = &self.plan.fetch else {
            let named = ahead.iter().next().map(|(node, decisions)| (*node, decisions.last()));
            if let Some((node, Some(newest))) = named {
                let (host, path) = (self.keepers.name(node), self.plan.directory_words(node));
                let (life, job) = (newest.life, self.plan.directory.clone());
                self.end.unfit.get_or_insert(LauncherError::NodeAhead { host, path, life, job });
            }
            return true;
        };
        let generation = fetch.generation;
        let here = (self.plan.directory.display().to_string(), survey.records.decisions.clone());
        let theirs = ahead.iter().map(|(node, decisions)| {
            let (host, path) = (self.keepers.name(*node), self.plan.directory_words(*node));
            (format!("{host} ({path})"), decisions.clone())
        });
        match joined([here].into_iter().chain(theirs).collect()) {
            Ok(decisions) if decisions == survey.records.decisions => {
                // They have received all of it.
                let host = ahead.keys().next().map(|node| self.keepers.name(*node));
                let problem = StoreError::LifeTaken { counter: survey.counter }.to_string();
                self.end
                    .unfit
                    .get_or_insert(LauncherError::Unfit { host: host.unwrap_or_default(), problem });
            }
            Ok(decisions) => self.store.ask(Task::Adopt { decisions, generation }),
            Err(divergence) => {
                self.end.unfit.get_or_insert(LauncherError::LivesDiverge { divergence });
            }
        }
        true
    }

    /// They stand in the launcher's directory. `passed_over`: a life among them has gone on without the copy's generation.
    pub(in super::super) fn metadata_synced(
        &mut self,
        generation: GenerationId,
        outcome: Result<(Vec<Decision>, Option<Life>), StoreError>,
    ) {
        let decisions = match outcome {
            Ok((decisions, None)) => decisions,
            Ok((_, Some(life))) => {
                self.end.unfit.get_or_insert(LauncherError::PassedOverByNodes { generation, life });
                return;
            }
            Err(error) => {
                self.end.unfit.get_or_insert(error.into());
                return;
            }
        };
        let Some(newest) = decisions.last().map(|newest| newest.life) else { return };
        let words = format!("the nodes' records of the job's lives, up to {newest}, were adopted");
        self.notify(&Notice::Repair { words: &words });
        // R7: the life to come has a number above all of them, and everything is fenced for it, and asked, anew.
        self.feed_job(job::Input::LivesFound { counter_last: newest.counter });
    }
}
