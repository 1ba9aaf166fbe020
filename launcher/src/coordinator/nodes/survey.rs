//! Before a life begins: the records that come with the nodes' answers, and the beginning that is chosen.

use std::collections::{BTreeMap, BTreeSet};

use ckpt_glue::job;
use ckpt_glue::names::{GenerationId, NodeIndex};
use ckpt_glue::protection::Terms;
use ckpt_glue::protection::nodes::{Input, Records as Read, Refusal, Survey};
use ckpt_glue::protection::seat::{Claimant, JobEnd, Unseated};
use ckpt_glue::recovery::Beginning;
use copies::Copies;
use nix::errno::Errno;
use store::{Decision, StoreError};
use transport::Life;

use super::super::super::Purpose;
use super::super::super::flush::wire::CopyAccess;
use super::super::super::nodes::Repairs;
use super::super::super::nodes::wire::{NodeDone, NodeTask};
use super::super::super::notice::Notice;
use super::super::super::storage::Records;
use super::super::{Shell, Verdict};
use crate::error::LauncherError;

/// The records of a job of which a life is about to begin.
#[derive(Debug)]
pub(super) struct PendingSurvey {
    pub(super) counter: u32,
    pub(super) records: Records,
    /// Records of nodes that the launcher's directory was offered, by life and generation.
    pub(super) offered: (BTreeSet<u32>, BTreeSet<GenerationId>),
    /// It is taking them over; all are asked again then.
    pub(super) is_repairing_records: bool,
}

impl PendingSurvey {
    pub(super) fn task(&self, sees: Option<(CopyAccess, u64)>) -> NodeTask {
        NodeTask::Survey {
            decisions: self.records.decisions.clone(),
            generations: self.records.manifests.clone(),
            sees,
        }
    }

    /// The committed ones, newest first.
    pub(super) fn generations(&self) -> Vec<GenerationId> {
        self.records.manifests.iter().map(|(manifest, _)| manifest.generation).collect()
    }
}

impl Shell<'_> {
    /// The store has been fenced: surveys the nodes.
    pub(in super::super) fn begin_survey(&mut self, counter: u32, nonce: u64, records: Records) {
        let is_new = records.decisions.is_empty() && records.damaged_lives.is_empty();
        let (held, authority) = (records.held, self.plan.authority);
        let claimant = Claimant { held, authority, is_new, id: nonce };
        let survey =
            PendingSurvey { counter, records, offered: Default::default(), is_repairing_records: false };
        let generations = survey.generations();
        let newest = survey.generations().first().copied();
        let (terms, is_first) = (self.terms(newest), self.job.status().life.is_none());
        if let Some(nodes) = &mut self.nodes {
            nodes.survey = Some(survey);
            nodes.repairs = Repairs::default();
        }
        self.feed_nodes(Input::Survey(Survey { counter, nonce, generations, terms, claimant, is_first }));
    }

    /// A job begins only where all its nodes see the directory of its copies. Later a node that does not costs copies, not the job.
    pub(super) fn sees(&self) -> Option<(CopyAccess, u64)> {
        let flush = self.plan.flush.as_ref().filter(|_| self.job.status().life.is_none())?;
        Some((CopyAccess::new(&flush.to, None), self.copying.sign?))
    }

    /// All nodes have seen it, or the job does not begin.
    pub(in super::super) fn remove_sign(&mut self) {
        let Some((sign, flush)) = self.copying.sign.take().zip(self.plan.flush.as_ref()) else { return };
        // If this fails, the sign is removed with the next copy.
        if let Ok(target) = flush.to.open() {
            let _ = Copies::new(&*target, self.plan.job, None).remove_sign(sign);
        }
    }

    /// The generation that a person has named, while the job goes back to no other one.
    pub(super) fn named_beginning(&self) -> Option<GenerationId> {
        let Beginning::Named(named) = self.plan.beginning else { return None };
        let own = self.job.status().committed.filter(|own| own.life.counter > self.plan.counter_last);
        own.is_none().then_some(named)
    }

    fn terms(&self, newest: Option<GenerationId>) -> Terms {
        Terms {
            named: self.named_beginning(),
            is_repair: self.plan.purpose == Purpose::Repair,
            copied: self.plan.fetch.as_ref().map(|fetch| fetch.generation),
            protects: newest.filter(|_| self.plan.purpose == Purpose::Protect),
        }
    }

    pub(super) fn on_surveyed(&mut self, answers: &BTreeMap<NodeIndex, NodeDone>) {
        self.remove_sign();
        self.report_sharing(answers);
        let ahead = ahead(answers);
        if self.repair_records(answers, &ahead) || !ahead.is_empty() && self.sync_metadata(&ahead) {
            return;
        }
        let taken = |(node, decisions): (NodeIndex, Vec<Decision>)| {
            let counter = decisions.last().map_or(0, |newest| newest.life.counter);
            (node, StoreError::LifeTaken { counter }.into())
        };
        self.feed_nodes(Input::Records(Read::Agree(ahead.into_iter().map(taken).collect())));
    }

    /// R34: somebody else may have the job, or too few directories know who has it.
    pub(super) fn on_unseated(&mut self, unseated: Unseated) {
        self.end.is_unseated = true;
        let nodes = self.layout.nodes();
        let problem = match unseated {
            Unseated::TooFew { known, needed } => {
                format!(
                    "{known} of {nodes} nodes have a directory that knows which launcher had the job last, and {needed} have to know it"
                )
            }
            Unseated::Disputed => format!(
                "two launchers have tried to take over the job, and these {nodes} nodes do not say which of them did"
            ),
            Unseated::Over(JobEnd { has_finished, .. }) => {
                self.end.unfit.get_or_insert(LauncherError::JobOver { has_finished });
                return;
            }
        };
        if self.job.status().life.is_none() {
            let job = self.plan.directory.clone();
            self.end.unfit.get_or_insert(LauncherError::Unseated { problem, job });
        } else {
            self.end.verdict.get_or_insert(Verdict { words: problem, exit_code: None });
            self.stop();
        }
    }

    pub(super) fn on_unfit_directory(&mut self, node: NodeIndex, refusal: Refusal) {
        let host = self.keepers.name(node);
        let problem = refusal.why;
        self.end.unfit.get_or_insert(if refusal.errno == Errno::ESTALE as u32 {
            LauncherError::OtherLayout { host, problem }
        } else {
            LauncherError::Unfit { host, problem }
        });
    }

    /// Hosts that have their nodes' directories on one disk lose them together. When a job begins nothing of it is anywhere, so a directory beside a
    /// node's own was made by another host a moment ago. Later it may have been a node of the same host once.
    fn report_sharing(&mut self, answers: &BTreeMap<NodeIndex, NodeDone>) {
        let Some(own) = self.plan.own_directories.as_ref() else { return };
        let is_fresh = self.plan.beginning == Beginning::Fresh && self.job.status().life.is_none();
        if !is_fresh || self.has_reported_of_sharing {
            return;
        }
        let host = |node: u32| self.keepers.place(NodeIndex(node)).named_host();
        let mut sharing = BTreeSet::new();
        for (node, done) in answers {
            let NodeDone::Surveyed { beside, .. } = done else { continue };
            let is_elsewhere = |other: &&u32| host(**other).is_some() && host(**other) != host(node.0);
            let others: Vec<u32> = beside.iter().filter(is_elsewhere).copied().collect();
            if host(node.0).is_some() && !others.is_empty() {
                sharing.extend(others);
                sharing.insert(node.0);
            }
        }
        if sharing.is_empty() {
            return;
        }
        let names: BTreeSet<&str> = sharing.into_iter().filter_map(host).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let words = format!(
            "warning: {} share the disk on which each is to have a directory of its own ({}): who loses that loses all of them, and parity does not help. \
             Begin the job with a --node-dir that is on each host's own disk",
            names.join(", "),
            own.root
        );
        self.has_reported_of_sharing = true;
        self.notify(&Notice::Repair { words: &words });
    }

    /// The generation to be restored is known. `is_protected`: every member holds its protection data.
    pub(super) fn begin_from(&mut self, life: Life, newest: Option<GenerationId>, is_protected: bool) {
        let Some(nodes) = &mut self.nodes else { return };
        let Some(PendingSurvey { records, .. }) = &nodes.survey else { return };
        // A job that goes on counts as committed, even if its directory has lost the records.
        let committed = records.are_of_any() || self.plan.beginning != Beginning::Fresh;
        nodes.manifests = records.manifests.iter().map(|(manifest, _)| manifest.clone()).collect();
        nodes.repairs.chosen = newest.map(|generation| generation.to_string());
        nodes.repairs.protected = is_protected;
        if self.plan.purpose != Purpose::Run {
            return self.stop();
        }
        if let Some(named) = self.named_beginning().filter(|named| newest != Some(*named)) {
            let words = format!("generation {named}, which was named, cannot be restored; see above");
            self.end.verdict.get_or_insert(Verdict { words, exit_code: None });
            return self.stop();
        }
        if let (None, true, Some(own)) = (newest, committed, &self.plan.own_directories) {
            let words = format!(
                "no node has a generation that can be restored; each has looked in a directory of its own, {}/NUMBER: bring back there what lies elsewhere now",
                own.root
            );
            self.notify(&Notice::Repair { words: &words });
        }
        let Life { counter, nonce } = life;
        self.feed_job(job::Input::StoreFenced { counter, newest, committed, nonce });
        self.give_up_unrestored(newest);
    }
}

/// Nodes that know lives which they were not sent, with these lives.
fn ahead(answers: &BTreeMap<NodeIndex, NodeDone>) -> BTreeMap<NodeIndex, Vec<Decision>> {
    let of = |(node, done): (&NodeIndex, &NodeDone)| match done {
        NodeDone::Ahead(decisions) => Some((*node, decisions.clone())),
        _ => None,
    };
    answers.iter().filter_map(of).collect()
}
