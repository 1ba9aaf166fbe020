//! Before a life begins: the survey of the nodes' committed generations, the choice of the one to begin from, and its rebuild.
//!
//! ```text
//!   store fenced ---> Survey ---> Open, Meet ---> choose ---> the life is decided
//!                       ^                           | lost, and can be rebuilt
//!                       +--------- Repair <---------+
//! ```

mod group_verdict;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use ckpt_glue::job;
use ckpt_glue::names::NodeIndex;
use ckpt_glue::recovery::Beginning;
use copies::Copies;
use group_verdict::GroupVerdict;
use nix::errno::Errno;
use store::{Decision, GenerationId, StoreError};
use transport::Life;

use super::super::super::flush::wire::WireCopies;
use super::super::super::limits::{
    COPY_NEWS_EVERY, COPY_SILENT_MAX, NODE_ANSWER_MAX, REPAIR_NEWS_EVERY, REPAIRS_MAX,
};
use super::super::super::nodes::wire::{BEYOND_REPAIR, Found, NodeDone, NodeTask, Rebuilt, Refusal};
use super::super::super::nodes::{GenerationOutcome, Lost, NodeRepair, Repairs};
use super::super::super::notice::Notice;
use super::super::super::storage::Records;
use super::super::super::wire::ToKeeper;
use super::super::super::{Node, Purpose};
use super::super::{Shell, Verdict};
use super::background_repair::{BackgroundRepair, Older};
use super::{Round, What};
use crate::convert;
use crate::error::CliError;
use crate::text;

/// The state of a life that is about to begin.
#[derive(Debug)]
pub(super) struct RestorePlan {
    counter: u32,
    nonce: u64,
    pub(super) records: Records,
    /// By node: its findings of each generation.
    found: BTreeMap<NodeIndex, Vec<Found>>,
    /// The protectors have found each other.
    have_met: bool,
    repairs: BTreeMap<GenerationId, u32>,
    /// Why the last one failed.
    failures: BTreeMap<GenerationId, String>,
    /// Nodes that the data of the others could not rebuild in the last round.
    beyond_repair: BTreeMap<GenerationId, BTreeSet<NodeIndex>>,
    /// When progress of rebuilt or brought images is reported.
    news: Option<Instant>,
    /// How often a copy was brought for it, and bytes that have come.
    fetches: u32,
    brought: u64,
    brought_reported: Option<Instant>,
    /// Records of nodes that the launcher's directory was offered, by life and generation.
    pub(super) offered: (BTreeSet<u32>, BTreeSet<GenerationId>),
    /// It is taking them over; all are asked again then.
    pub(super) is_repairing_records: bool,
}

impl RestorePlan {
    pub(super) fn counter(&self) -> u32 {
        self.counter
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.news
    }

    /// Its protector is gone with it.
    pub(super) fn lost_keeper(&mut self) {
        self.have_met = false;
    }

    pub(super) fn note_brought(&mut self, bytes: u64) {
        self.brought += bytes;
    }

    fn task(&self, sees: Option<(WireCopies, u64)>) -> NodeTask {
        let generation = |(manifest, every_byte): &(store::Manifest, bool)| (manifest.into(), *every_byte);
        NodeTask::Survey {
            decisions: self.records.decisions.iter().map(Into::into).collect(),
            generations: self.records.manifests.iter().map(generation).collect(),
            sees,
        }
    }

    /// A node's findings of the generation at this place.
    fn found(&self, node: u32, place: usize) -> Found {
        let nothing = || Found {
            problem: Some("its directory cannot be read".to_owned()),
            is_held: false,
            has_some: false,
        };
        self.found.get(&NodeIndex(node)).and_then(|all| all.get(place).cloned()).unwrap_or_else(nothing)
    }
}

/// The verdict on a generation.
enum Verdicts {
    /// It can be restored; every member holds its protection data.
    Whole,
    /// It can be restored, but is not protected.
    Bare,
    /// These nodes have to be rebuilt.
    Repairable(BTreeSet<NodeIndex>),
    /// These nodes have to bring it from a copy.
    Fetchable(BTreeSet<NodeIndex>),
    /// In words.
    Lost(String),
}

impl Shell<'_> {
    /// The store has been fenced: surveys the nodes.
    pub(in super::super) fn begin_survey(&mut self, counter: u32, nonce: u64, records: Records) {
        let (found, repairs) = (BTreeMap::new(), BTreeMap::new());
        let restore = RestorePlan {
            counter,
            nonce,
            records,
            found,
            have_met: false,
            repairs,
            failures: BTreeMap::new(),
            beyond_repair: BTreeMap::new(),
            news: None,
            fetches: 0,
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
    fn sees(&self) -> Option<(WireCopies, u64)> {
        let flush = self.plan.flush.as_ref().filter(|_| self.job.status().life.is_none())?;
        Some((WireCopies::new(&flush.to, None), self.sign?))
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
        own.is_none().then(|| convert::to_store(named))
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
        let ahead = take_ahead(&mut round);
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
            self.unfit.get_or_insert(CliError::Unfit { host, problem: refusal.why.clone() });
            return;
        }
        if !round.refused.is_empty() {
            let error = self.refusals(&round.refused);
            self.notify(&Notice::Store { what: &round.what.words(), error: &error });
        }
        let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) else {
            return;
        };
        restore.found = round
            .done
            .into_iter()
            .filter_map(|(node, done)| match done {
                NodeDone::Surveyed { found, .. } => Some((node, found)),
                _ => None,
            })
            .collect();
        let are_grouped = self.plan.own_directories.as_ref().is_some_and(|own| !own.groups().is_empty());
        if are_grouped && !restore.have_met { self.open_protectors() } else { self.choose() }
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
        self.ask_nodes(What::Open(life), Some(NODE_ANSWER_MAX), |_| NodeTask::Open { life: life.into() });
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
            life: life.into(),
            addresses: addresses.clone(),
        });
    }

    pub(super) fn end_meeting(&mut self, round: &Round) {
        if self.refused_to_meet(round) {
            return;
        }
        if let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) {
            restore.have_met = true;
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
        let Some(nodes) = &mut self.nodes else { return };
        // Those of the survey before count no more.
        nodes.repairs.kept.clear();
        let Some(restore) = &nodes.restore else { return };
        let generations: Vec<GenerationId> =
            restore.records.manifests.iter().map(|(manifest, _)| manifest.generation).collect();
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
        for (generation, why) in damaged {
            self.note_judged(generation, Verdicts::Lost(why));
        }
        let mut chosen = None;
        for (place, generation) in generations.into_iter().enumerate() {
            if named.is_some_and(|named| named != generation) {
                continue;
            }
            let verdict = self.judge_generation(place, generation);
            match verdict {
                Verdicts::Repairable(lost) => return self.repair(generation, lost),
                Verdicts::Fetchable(lost) => return self.fetch(generation, &lost),
                Verdicts::Whole => chosen = chosen.or(Some((generation, true))),
                Verdicts::Bare => chosen = chosen.or(Some((generation, false))),
                Verdicts::Lost(_) => {}
            }
            self.note_judged(generation, verdict);
            if chosen.is_some() && self.plan.purpose != Purpose::Repair {
                break;
            }
        }
        self.begin_from(chosen);
    }

    /// Notes the verdict on a generation of which nothing more will be rebuilt before the life begins.
    fn note_judged(&mut self, generation: GenerationId, verdict: Verdicts) {
        let kept = GenerationOutcome {
            generation: generation.to_string(),
            restorable: !matches!(verdict, Verdicts::Lost(_)),
            protected: matches!(verdict, Verdicts::Whole),
        };
        let Some(nodes) = &mut self.nodes else { return };
        nodes.repairs.kept.push(kept);
        let generation_words = generation.to_string();
        let is_reported = nodes.repairs.lost.iter().any(|lost| lost.generation == generation_words);
        if let Verdicts::Lost(why) = verdict
            && !is_reported
        {
            nodes.repairs.lost.push(Lost { generation: generation_words, why: why.clone() });
            self.notify(&Notice::Lost { generation, why: &why });
        }
    }

    /// Generations older than the one that the life begins from, which are kept, and of which nodes have lost something.
    fn older_to_rebuild(&mut self, chosen: GenerationId) -> VecDeque<Older> {
        let Some(restore) = self.nodes.as_ref().and_then(|nodes| nodes.restore.as_ref()) else {
            return VecDeque::new();
        };
        let manifests = restore.records.manifests.iter().map(|(manifest, _)| manifest).enumerate();
        let older: Vec<(usize, store::Manifest)> = manifests
            .filter(|(_, manifest)| manifest.generation < chosen)
            .map(|(place, manifest)| (place, manifest.clone()))
            .collect();
        let mut found = VecDeque::new();
        for (place, manifest) in older {
            match self.judge_generation(place, manifest.generation) {
                Verdicts::Repairable(lost) => found.push_back(Older { manifest, lost }),
                Verdicts::Lost(why) => self.report_not_rebuilt(manifest.generation, &why),
                Verdicts::Whole | Verdicts::Bare | Verdicts::Fetchable(_) => {}
            }
        }
        found
    }

    fn judge_generation(&self, place: usize, generation: GenerationId) -> Verdicts {
        let (Some(nodes), Some(own)) = (&self.nodes, &self.plan.own_directories) else {
            return Verdicts::Whole;
        };
        let Some(restore) = &nodes.restore else { return Verdicts::Whole };
        let count = u32::try_from(self.plan.nodes.len()).unwrap_or(u32::MAX);
        let damages: Vec<(u32, String)> =
            (0..count).filter_map(|node| Some((node, restore.found(node, place).problem?))).collect();
        let repairs = restore.repairs.get(&generation).copied().unwrap_or(0);
        let can_repair = restore.have_met && repairs < REPAIRS_MAX;
        let (mut lost, mut beyond, mut are_protected) = (BTreeSet::new(), Vec::new(), true);
        for group in own.groups() {
            match self.judge_group(restore, place, generation, group) {
                GroupVerdict::Whole => {}
                GroupVerdict::Repairable(members) => lost.extend(members),
                // A life that is to begin does not wait for that, for its next checkpoint is protected.
                GroupVerdict::Bare(members) => {
                    are_protected = false;
                    if self.plan.purpose == Purpose::Repair {
                        lost.extend(members);
                    }
                }
                GroupVerdict::Lost(why) => beyond.push(why),
            }
        }
        let is_copied = self.plan.fetch.as_ref().is_some_and(|fetch| fetch.generation == generation);
        let can_fetch = is_copied && restore.fetches < REPAIRS_MAX;
        // A repair rebuilds every intact group, even if the whole generation cannot be rebuilt.
        let is_tried = beyond.is_empty() || self.plan.purpose == Purpose::Repair;
        if can_repair && is_tried && !lost.is_empty() {
            Verdicts::Repairable(lost)
        } else if damages.is_empty() {
            if lost.is_empty() && are_protected { Verdicts::Whole } else { Verdicts::Bare }
        } else if can_fetch {
            Verdicts::Fetchable(damages.iter().map(|(node, _)| NodeIndex(*node)).collect())
        } else {
            let damaged = damages
                .iter()
                .map(|(node, problem)| format!("{}: {problem}", self.plan.nodes[*node as usize].name()));
            let damaged = damaged.collect::<Vec<_>>().join("; ");
            let failed = restore.failures.get(&generation);
            let failed = failed.map(|why| format!("; it could not be rebuilt: {why}")).unwrap_or_default();
            Verdicts::Lost(match beyond.is_empty() {
                true => format!("{damaged}{failed}"),
                false => format!("{} ({damaged}){failed}", beyond.join("; ")),
            })
        }
    }

    fn repair(&mut self, generation: GenerationId, lost: BTreeSet<NodeIndex>) {
        let names: Vec<String> = lost.iter().map(|node| self.plan.nodes[node.0 as usize].name()).collect();
        let words = format!(
            "generation {generation}: rebuilding what {} had of it from what the others have",
            names.join(", ")
        );
        self.notify(&Notice::Repair { words: &words });
        if let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) {
            *restore.repairs.entry(generation).or_default() += 1;
            restore.news = Some(Instant::now() + REPAIR_NEWS_EVERY);
        }
        let wire = convert::to_glue(generation).into();
        self.ask_some(What::Repair(generation), None, &lost, |_| NodeTask::Repair { generation: wire });
    }

    fn fetch(&mut self, generation: GenerationId, lost: &BTreeSet<NodeIndex>) {
        let Some(fetch) = &self.plan.fetch else { return };
        let from = WireCopies::new(&fetch.from, fetch.key.as_ref());
        let names: Vec<String> = lost.iter().map(|node| self.plan.nodes[node.0 as usize].name()).collect();
        let words = format!(
            "generation {generation}: {} bring what they had of it from {}",
            names.join(", "),
            fetch.from
        );
        self.notify(&Notice::Repair { words: &words });
        if let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) {
            restore.fetches += 1;
            restore.brought = 0;
            restore.news = Some(Instant::now() + REPAIR_NEWS_EVERY);
            restore.brought_reported = Some(Instant::now());
        }
        let wire = convert::to_glue(generation).into();
        self.ask_some(What::Fetch(generation), Some(COPY_SILENT_MAX), lost, |_| NodeTask::Fetch {
            generation: wire,
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
            // A node that has its lost files again may be the one that the others lacked.
            restore.beyond_repair.remove(&generation);
            if !round.refused.values().all(is_lost) {
                // A failure there is likely to come again, so fetch no further time.
                restore.fetches = REPAIRS_MAX;
            }
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
        if !round.refused.is_empty() {
            let error = self.refusals(&round.refused);
            self.notify(&Notice::Store { what: &round.what.words(), error: &error });
            if let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut()) {
                restore.failures.insert(generation, error);
                let are_beyond = round.refused.iter().filter(|(_, refusal)| refusal.errno == BEYOND_REPAIR);
                let are_beyond: BTreeSet<NodeIndex> = are_beyond.map(|(node, _)| *node).collect();
                restore.beyond_repair.insert(generation, are_beyond);
            }
        }
        let is_repaired = |done: &NodeDone| matches!(done, NodeDone::Repaired(_));
        if round.done.values().any(is_repaired)
            && let Some(restore) = self.nodes.as_mut().and_then(|nodes| nodes.restore.as_mut())
        {
            // A repaired node may be the one that the others lacked.
            restore.beyond_repair.remove(&generation);
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

    /// The generation to be restored is known. `true`: every member holds its protection data.
    fn begin_from(&mut self, chosen: Option<(GenerationId, bool)>) {
        let older = match chosen.filter(|_| self.plan.purpose != Purpose::Repair) {
            Some((chosen, _)) => self.older_to_rebuild(chosen),
            None => VecDeque::new(),
        };
        let Some(nodes) = &mut self.nodes else { return };
        let Some(RestorePlan { counter, nonce, records, .. }) = nodes.restore.take() else { return };
        // A job that goes on counts as committed, even if its directory has lost the records.
        let committed = records.are_of_any() || self.plan.beginning != Beginning::Fresh;
        nodes.background_repair = BackgroundRepair::new(older);
        let newest = chosen.map(|(generation, _)| convert::to_glue(generation));
        nodes.base = chosen.filter(|(_, is_protected)| *is_protected).and(newest);
        nodes.repairs.chosen = chosen.map(|(generation, _)| generation.to_string());
        nodes.repairs.protected = chosen.is_some_and(|(_, is_protected)| is_protected);
        if self.plan.purpose == Purpose::Repair {
            return self.stop();
        }
        if let Some(named) = self.named_beginning().filter(|named| newest != Some(convert::to_glue(*named))) {
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
fn take_ahead(round: &mut Round) -> BTreeMap<NodeIndex, Vec<Decision>> {
    let mut ahead = BTreeMap::new();
    for (node, done) in &round.done {
        let NodeDone::Ahead(decisions) = done else { continue };
        match decisions.iter().map(|decision| decision.open()).collect::<Result<Vec<_>, _>>() {
            Ok(decisions) => drop(ahead.insert(*node, decisions)),
            Err(error) => {
                let path = "the answer of a node daemon (keeper)".to_owned();
                round.refused.insert(*node, StoreError::Record { path, error }.into());
            }
        }
    }
    ahead
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
