//! Before a life begins: the survey of the nodes' committed generations, the choice of the one to begin from, and its rebuild.
//!
//! ```text
//!   store fenced ---> Survey ---> Open, Meet ---> choose ---> the life is decided
//!                       ^                           | lost, and can be rebuilt
//!                       +--------- Repair <---------+
//! ```

mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use ckpt_glue::job;
use ckpt_glue::names::NodeIndex;
use ckpt_glue::protection::{
    Choice, Finding, GenerationVerdict, Judged, ProtectionGroup, RestorePlan, Terms,
};
use ckpt_glue::recovery::Beginning;
use copies::Copies;
use nix::errno::Errno;
use store::protect::Group;
use store::{Decision, GenerationId, StoreError};
use transport::Life;

use super::super::super::flush::wire::CopyAccess;
use super::super::super::limits::{COPY_NEWS_EVERY, COPY_SILENT_MAX, NODE_ANSWER_MAX, REPAIR_NEWS_EVERY};
use super::super::super::nodes::wire::{BEYOND_REPAIR, Found, NodeDone, NodeTask, Rebuilt, Refusal};
use super::super::super::nodes::{GenerationOutcome, Lost, NodeRepair, Repairs};
use super::super::super::notice::Notice;
use super::super::super::storage::Records;
use super::super::super::wire::ToKeeper;
use super::super::super::{Node, Purpose};
use super::super::{Shell, Verdict};
use super::background_repair::{BackgroundRepair, Older};
use super::{Round, What};
use crate::error::LauncherError;
use crate::text;

/// The state of a life that is about to begin.
#[derive(Debug)]
pub(super) struct PendingRestore {
    counter: u32,
    nonce: u64,
    records: Records,
    plan: RestorePlan,
    /// By node: why the images of each generation cannot be restored there.
    problems: BTreeMap<NodeIndex, Vec<Option<String>>>,
    /// Why the last repair failed.
    failures: BTreeMap<GenerationId, String>,
    /// When progress of rebuilt or brought images is reported.
    news: Option<Instant>,
    /// Bytes that have come from a copy.
    brought: u64,
    brought_reported: Option<Instant>,
    /// Records of nodes that the launcher's directory was offered, by life and generation.
    pub(super) offered: (BTreeSet<u32>, BTreeSet<GenerationId>),
    /// It is taking them over; all are asked again then.
    pub(super) is_repairing_records: bool,
}

impl PendingRestore {
    pub(super) fn counter(&self) -> u32 {
        self.counter
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.news
    }

    pub(super) fn records(&self) -> &Records {
        &self.records
    }

    pub(super) fn set_records(&mut self, records: Records) {
        self.plan.set_generations(generations(&records));
        self.records = records;
    }

    /// Its protector is gone with it.
    pub(super) fn lost_keeper(&mut self) {
        self.plan.set_can_rebuild(false);
    }

    pub(super) fn note_brought(&mut self, bytes: u64) {
        self.brought += bytes;
    }

    fn task(&self, sees: Option<(CopyAccess, u64)>) -> NodeTask {
        NodeTask::Survey {
            decisions: self.records.decisions.clone(),
            generations: self.records.manifests.clone(),
            sees,
        }
    }

    /// Why a node's images of the generation cannot be restored.
    fn problem(&self, node: NodeIndex, generation: GenerationId) -> &str {
        let place = self.plan.generations().iter().position(|known| *known == generation);
        let of_node = self.problems.get(&node).and_then(|all| all.get(place?)?.as_deref());
        of_node.unwrap_or("its directory cannot be read")
    }
}

/// The committed ones, newest first.
fn generations(records: &Records) -> Vec<GenerationId> {
    records.manifests.iter().map(|(manifest, _)| manifest.generation).collect()
}

impl Shell<'_> {
    /// The store has been fenced: surveys the nodes.
    pub(in super::super) fn begin_survey(&mut self, counter: u32, nonce: u64, records: Records) {
        let nodes = u32::try_from(self.plan.nodes.len()).unwrap_or(u32::MAX);
        let own = self.plan.own_directories.as_ref();
        let group = |group: &Group| ProtectionGroup {
            members: group.nodes().iter().copied().map(NodeIndex).collect(),
            losses_max: group.losses(),
        };
        let groups = own.map(|own| own.groups().iter().map(group).collect()).unwrap_or_default();
        let restore = PendingRestore {
            counter,
            nonce,
            plan: RestorePlan::new(nodes, groups, generations(&records)),
            records,
            problems: BTreeMap::new(),
            failures: BTreeMap::new(),
            news: None,
            brought: 0,
            brought_reported: None,
            offered: Default::default(),
            is_repairing_records: false,
        };
        if let Some(nodes) = &mut self.nodes {
            nodes.restore = Some(restore);
            nodes.base = None;
            nodes.repairs = Repairs::default();
        }
        self.survey();
    }

    pub(super) fn survey(&mut self) {
        let sees = self.sees();
        let Some(nodes) = &mut self.nodes else { return };
        nodes.rounds.clear();
        let Some(restore) = &nodes.restore else { return };
        let task = restore.task(sees);
        self.ask_nodes(What::Survey, None, |_| task.clone());
    }

    /// A job begins only where all its nodes see the directory of its copies. Later a node that does not costs copies, not the job.
    fn sees(&self) -> Option<(CopyAccess, u64)> {
        let flush = self.plan.flush.as_ref().filter(|_| self.job.status().life.is_none())?;
        Some((CopyAccess::new(&flush.to, None), self.sign?))
    }

    /// All nodes have seen it, or the job does not begin.
    pub(in super::super) fn remove_sign(&mut self) {
        let Some((sign, flush)) = self.sign.take().zip(self.plan.flush.as_ref()) else { return };
        // If this fails, the sign is removed with the next copy.
        if let Ok(target) = flush.to.open() {
            let _ = Copies::new(&*target, self.plan.job, None).remove_sign(sign);
        }
    }

    /// The generation that a person has named, while the job goes back to no other one.
    fn named_beginning(&self) -> Option<GenerationId> {
        let Beginning::Named(named) = self.plan.beginning else { return None };
        let own = self.job.status().committed.filter(|own| own.life.counter > self.plan.counter_last);
        own.is_none().then_some(named)
    }

    /// A keeper is there that has not been asked about its node's generations.
    pub(in super::super) fn ask_late_node(&mut self, node: NodeIndex) {
        let Some(nodes) = &self.nodes else { return };
        let Some(restore) = &nodes.restore else { return };
        let survey = nodes.rounds.iter().find(|round| round.what == What::Survey);
        if let Some(round) = survey.filter(|round| round.waiting.contains(&node)) {
            let message = ToKeeper::Node { number: round.number, task: restore.task(self.sees()) };
            self.keepers.send(node, &message);
        }
    }

    /// A keeper is gone while a life is about to begin: its replacement is asked, and all others again.
    pub(super) fn survey_again(&mut self) {
        let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) else {
            return;
        };
        restore.lost_keeper();
        restore.news = None;
        self.survey();
    }

    pub(super) fn end_survey(&mut self, mut round: Round) {
        self.remove_sign();
        self.report_sharing(&round);
        let ahead = ahead(&round);
        if self.repair_records(&round, &ahead) {
            return;
        }
        if !ahead.is_empty() {
            if self.sync_metadata(&ahead) {
                return;
            }
            let taken = |(node, decisions): (NodeIndex, Vec<Decision>)| {
                let counter = decisions.last().map_or(0, |newest| newest.life.counter);
                (node, StoreError::LifeTaken { counter }.into())
            };
            round.refused.extend(ahead.into_iter().map(taken));
        }
        if let Some((node, refusal)) = round.refused.first_key_value()
            && self.job.status().life.is_none()
        {
            let host = self.plan.nodes[node.0 as usize].name();
            self.unfit.get_or_insert(LauncherError::Unfit { host, problem: refusal.why.clone() });
            return;
        }
        if !round.refused.is_empty() {
            let error = self.refusals(&round.refused);
            self.notify(&Notice::Store { what: &round.what.words(), error: &error });
        }
        let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) else {
            return;
        };
        let (mut findings, mut problems) = (BTreeMap::new(), BTreeMap::new());
        for (node, done) in round.done {
            let NodeDone::Surveyed { found, .. } = done else { continue };
            findings.insert(node, found.iter().map(Found::finding).collect::<Vec<Finding>>());
            problems.insert(node, found.into_iter().map(|found| found.problem).collect());
        }
        restore.plan.surveyed(findings);
        restore.problems = problems;
        let are_grouped = self.plan.own_directories.as_ref().is_some_and(|own| !own.groups().is_empty());
        if are_grouped && !restore.plan.can_rebuild() { self.open_protectors() } else { self.choose() }
    }

    /// Hosts that have their nodes' directories on one disk lose them together. When a job begins nothing of it is anywhere, so a directory beside a
    /// node's own was made by another host a moment ago. Later it may have been a node of the same host once.
    fn report_sharing(&mut self, round: &Round) {
        let Some(own) = self.plan.own_directories.as_ref() else { return };
        let is_fresh = self.plan.beginning == Beginning::Fresh && self.job.status().life.is_none();
        if !is_fresh || self.has_reported_of_sharing {
            return;
        }
        let host = |node: u32| self.plan.nodes.get(node as usize).and_then(Node::named_host);
        let mut sharing = BTreeSet::new();
        for (node, done) in &round.done {
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
            own.root.display()
        );
        self.has_reported_of_sharing = true;
        self.notify(&Notice::Repair { words: &words });
    }

    /// For the life to come, whose number is drawn anew whenever protectors have to find each other: one that was started again must not be taken for the
    /// one before it.
    fn open_protectors(&mut self) {
        let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) else {
            return;
        };
        if let Ok(nonce) = getrandom::u64() {
            restore.nonce = nonce;
        }
        let life = Life { counter: restore.counter, nonce: restore.nonce };
        self.ask_nodes(What::Open(life), Some(NODE_ANSWER_MAX), |_| NodeTask::Open { life });
    }

    pub(super) fn end_opening(&mut self, life: Life, round: &Round) {
        if self.refused_to_meet(round) {
            return;
        }
        let mut addresses = Vec::new();
        for (node, done) in &round.done {
            let NodeDone::Opened { addresses: of_node, unusable } = done else { continue };
            addresses.push((node.0, of_node.clone()));
            let host = self.plan.nodes[node.0 as usize].name();
            for why in unusable {
                let error = format!("{host} does without {why}");
                self.notify(&Notice::Store { what: "a network for parity", error: &error });
            }
        }
        self.ask_nodes(What::Meet, Some(NODE_ANSWER_MAX), |_| NodeTask::Meet {
            life,
            addresses: addresses.clone(),
        });
    }

    pub(super) fn end_meeting(&mut self, round: &Round) {
        if self.refused_to_meet(round) {
            return;
        }
        if let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) {
            restore.plan.set_can_rebuild(true);
        }
        self.choose();
    }

    /// Without it nothing is protected or rebuilt, and the job goes on.
    fn refused_to_meet(&mut self, round: &Round) -> bool {
        if round.refused.is_empty() {
            return false;
        }
        let error = self.refusals(&round.refused);
        self.notify(&Notice::Store { what: &round.what.words(), error: &error });
        self.choose();
        true
    }

    /// R28: begins the life from the newest generation that can be restored, or has one rebuilt first. For a repair alone all of them are.
    fn choose(&mut self) {
        let named = self.named_beginning();
        if let Some(nodes) = &mut self.nodes {
            // Those of the survey before count no more.
            nodes.repairs.kept.clear();
        }
        let Some(restore) = self.nodes.as_ref().and_then(|nodes| nodes.restore.as_ref()) else { return };
        let generations = restore.plan.generations();
        let newest = generations.first();
        // Those that no node could mend.
        let damaged = restore.records.damaged.iter().filter(|(damaged, _)| {
            let is_reported =
                self.plan.purpose == Purpose::Repair || newest.is_none_or(|newest| newest < damaged);
            named.map_or(is_reported, |named| named == *damaged)
        });
        let mut damaged: Vec<(GenerationId, String)> = damaged.cloned().collect();
        let is_known = |named: &GenerationId| {
            generations.contains(named) || damaged.iter().any(|(damaged, _)| damaged == named)
        };
        if let Some(named) = named.filter(|named| !is_known(named)) {
            let why = "it is not committed here, and no node has a commit record of it that counts";
            damaged.push((named, why.to_owned()));
        }
        let (choice, judged) = restore.plan.choose(self.terms());
        let judged = judged.into_iter().map(|Judged { generation, verdict }| {
            let why = self.lost_words(generation, &verdict);
            (generation, why, verdict == GenerationVerdict::Whole)
        });
        let judged: Vec<_> = damaged
            .into_iter()
            .map(|(generation, why)| (generation, Some(why), false))
            .chain(judged)
            .collect();
        for (generation, why, is_protected) in judged {
            self.note_judged(generation, why, is_protected);
        }
        match choice {
            Choice::Repair { generation, nodes } => self.repair(generation, &nodes),
            Choice::Fetch { generation, nodes } => self.fetch(generation, &nodes),
            Choice::Begin { from, is_protected } => self.begin_from(from, is_protected),
        }
    }

    fn terms(&self) -> Terms {
        Terms {
            named: self.named_beginning(),
            is_repair: self.plan.purpose == Purpose::Repair,
            copied: self.plan.fetch.as_ref().map(|fetch| fetch.generation),
        }
    }

    /// Notes a generation of which nothing more will be rebuilt before the life begins. `lost`: why it cannot be restored.
    fn note_judged(&mut self, generation: GenerationId, lost: Option<String>, is_protected: bool) {
        let Some(nodes) = &mut self.nodes else { return };
        let name = generation.to_string();
        nodes.repairs.kept.push(GenerationOutcome {
            generation: name.clone(),
            restorable: lost.is_none(),
            protected: is_protected,
        });
        let is_reported = nodes.repairs.lost.iter().any(|lost| lost.generation == name);
        if let Some(why) = lost.filter(|_| !is_reported) {
            nodes.repairs.lost.push(Lost { generation: name, why: why.clone() });
            self.notify(&Notice::Lost { generation, why: &why });
        }
    }

    /// Generations older than the one that the life begins from, which are kept, and of which nodes have lost something.
    fn older_to_rebuild(&mut self, chosen: GenerationId) -> VecDeque<Older> {
        let Some(restore) = self.nodes.as_ref().and_then(|nodes| nodes.restore.as_ref()) else {
            return VecDeque::new();
        };
        let manifests = restore.records.manifests.iter().map(|(manifest, _)| manifest);
        let older = manifests.filter(|manifest| manifest.generation < chosen);
        let judged = older.map(|manifest| {
            let generation = manifest.generation;
            (manifest.clone(), restore.plan.judge(generation, self.terms()))
        });
        let judged: Vec<(store::Manifest, GenerationVerdict)> = judged.collect();
        let mut found = VecDeque::new();
        for (manifest, verdict) in judged {
            if let Some(why) = self.lost_words(manifest.generation, &verdict) {
                self.report_not_rebuilt(manifest.generation, &why);
            } else if let GenerationVerdict::Repairable(lost) = verdict {
                found.push_back(Older { manifest, lost });
            }
        }
        found
    }

    fn repair(&mut self, generation: GenerationId, lost: &BTreeSet<NodeIndex>) {
        let names: Vec<String> = lost.iter().map(|node| self.plan.nodes[node.0 as usize].name()).collect();
        let words = format!(
            "generation {generation}: rebuilding what {} had of it from what the others have",
            names.join(", ")
        );
        self.notify(&Notice::Repair { words: &words });
        if let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) {
            restore.plan.begin_repair(generation);
            restore.news = Some(Instant::now() + REPAIR_NEWS_EVERY);
        }
        self.ask_some(What::Repair(generation), None, lost, |_| NodeTask::Repair { generation });
    }

    fn fetch(&mut self, generation: GenerationId, lost: &BTreeSet<NodeIndex>) {
        let Some(fetch) = &self.plan.fetch else { return };
        let from = CopyAccess::new(&fetch.from, fetch.key.as_ref());
        let names: Vec<String> = lost.iter().map(|node| self.plan.nodes[node.0 as usize].name()).collect();
        let words = format!(
            "generation {generation}: {} bring what they had of it from {}",
            names.join(", "),
            fetch.from
        );
        self.notify(&Notice::Repair { words: &words });
        if let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) {
            restore.plan.begin_fetch();
            restore.brought = 0;
            restore.news = Some(Instant::now() + REPAIR_NEWS_EVERY);
            restore.brought_reported = Some(Instant::now());
        }
        self.ask_some(What::Fetch(generation), Some(COPY_SILENT_MAX), lost, |_| NodeTask::Fetch {
            generation,
            from: from.clone(),
        });
    }

    pub(super) fn end_fetch(&mut self, generation: GenerationId, round: &Round) {
        if !round.refused.is_empty() {
            let error = self.refusals(&round.refused);
            self.notify(&Notice::Store { what: &round.what.words(), error: &error });
        }
        let files: u32 = round
            .done
            .values()
            .map(|done| if let NodeDone::Fetched(files) = done { *files } else { 0 })
            .sum();
        let words =
            format!("generation {generation}: {files} files were brought to {} nodes", round.done.len());
        self.notify(&Notice::Repair { words: &words });
        if let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) {
            (restore.news, restore.brought_reported) = (None, None);
            let is_lost = |refusal: &Refusal| refusal.errno == Errno::EHOSTDOWN as u32;
            // Any other failure is likely to come again.
            restore.plan.end_fetch(generation, round.refused.values().all(is_lost));
            let counter = restore.counter;
            self.feed_job(job::Input::StoreBusy { counter });
        }
        self.survey();
    }

    /// Rebuilding takes its time, and its progress is reported. It ends, for no protector waits for ever.
    pub(super) fn report_repair(&mut self, now: Instant) {
        let Some(nodes) = &mut self.nodes else { return };
        let repairing =
            nodes.rounds.iter().any(|round| matches!(round.what, What::Repair(_) | What::Fetch(_)));
        let Some(restore) = nodes.restore.as_mut() else { return };
        let Some(due) = restore.news.filter(|due| *due <= now) else { return };
        restore.news = repairing.then_some(due.max(now) + REPAIR_NEWS_EVERY);
        let brought = restore.brought;
        let reported =
            restore.brought_reported.as_mut().filter(|reported| **reported + COPY_NEWS_EVERY <= now);
        let reports = reported.map(|reported| *reported = now).is_some();
        if repairing {
            let counter = restore.counter;
            self.feed_job(job::Input::StoreBusy { counter });
        }
        if reports {
            let words = format!("bringing images from a copy: {} so far", text::bytes(brought));
            self.notify(&Notice::Repair { words: &words });
        }
    }

    pub(super) fn end_repair(&mut self, generation: GenerationId, round: &Round) {
        let are_beyond = round.refused.iter().filter(|(_, refusal)| refusal.errno == BEYOND_REPAIR);
        let beyond: BTreeSet<NodeIndex> = are_beyond.map(|(node, _)| *node).collect();
        let has_repaired = round.done.values().any(|done| matches!(done, NodeDone::Repaired(_)));
        let failure = (!round.refused.is_empty()).then(|| self.refusals(&round.refused));
        if let Some(error) = &failure {
            self.notify(&Notice::Store { what: &round.what.words(), error });
        }
        if let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) {
            restore.failures.extend(failure.map(|error| (generation, error)));
            restore.plan.end_repair(generation, beyond, has_repaired);
        }
        for (node, done) in &round.done {
            let NodeDone::Repaired(rebuilt) = done else { continue };
            let host = self.plan.nodes[node.0 as usize].name();
            let words =
                format!("generation {generation}: {host} has what it had: {}", rebuilt_words(*rebuilt));
            self.notify(&Notice::Repair { words: &words });
            if let Some(nodes) = &mut self.nodes {
                nodes.repairs.rebuilt.push(node_repair(generation, host, *rebuilt));
            }
        }
        if let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) {
            restore.news = None;
            let counter = restore.counter;
            self.feed_job(job::Input::StoreBusy { counter });
        }
        self.survey();
    }

    /// The generation to be restored is known. `is_protected`: every member holds its protection data.
    fn begin_from(&mut self, newest: Option<GenerationId>, is_protected: bool) {
        let older = match newest.filter(|_| self.plan.purpose != Purpose::Repair) {
            Some(newest) => self.older_to_rebuild(newest),
            None => VecDeque::new(),
        };
        let Some(nodes) = &mut self.nodes else { return };
        let Some(PendingRestore { counter, nonce, records, .. }) = nodes.restore.take() else { return };
        // A job that goes on counts as committed, even if its directory has lost the records.
        let committed = records.are_of_any() || self.plan.beginning != Beginning::Fresh;
        nodes.background_repair = BackgroundRepair::new(older);
        nodes.base = newest.filter(|_| is_protected);
        nodes.repairs.chosen = newest.map(|generation| generation.to_string());
        nodes.repairs.protected = is_protected;
        if self.plan.purpose == Purpose::Repair {
            return self.stop();
        }
        if let Some(named) = self.named_beginning().filter(|named| newest != Some(*named)) {
            let words = format!("generation {named}, which was named, cannot be restored; see above");
            self.verdict.get_or_insert(Verdict { words, exit_code: None });
            return self.stop();
        }
        if let (None, true, Some(own)) = (newest, committed, &self.plan.own_directories) {
            let words = format!(
                "no node has a generation that can be restored; each has looked in a directory of its own, {}/NUMBER: bring back there what lies elsewhere now",
                own.root.display()
            );
            self.notify(&Notice::Repair { words: &words });
        }
        self.feed_job(job::Input::StoreFenced { counter, newest, committed, nonce });
        self.give_up_unrestored(newest);
        self.pump();
    }
}

/// Nodes that know lives which they were not sent, with these lives.
fn ahead(round: &Round) -> BTreeMap<NodeIndex, Vec<Decision>> {
    let of = |(node, done): (&NodeIndex, &NodeDone)| match done {
        NodeDone::Ahead(decisions) => Some((*node, decisions.clone())),
        _ => None,
    };
    round.done.iter().filter_map(of).collect()
}

fn node_repair(generation: GenerationId, node: String, rebuilt: Rebuilt) -> NodeRepair {
    let Rebuilt { files, pages: damaged_pages, parity_pages, records, received_bytes } = rebuilt;
    let generation = generation.to_string();
    NodeRepair { generation, node, files, damaged_pages, parity_pages, records, received_bytes }
}

pub(super) fn rebuilt_words(rebuilt: Rebuilt) -> String {
    let Rebuilt { files, pages, parity_pages, records, received_bytes } = rebuilt;
    format!(
        "{files} files, {pages} damaged pages, {parity_pages} pages of parity and {records} records were rebuilt from {}",
        text::bytes(received_bytes)
    )
}
