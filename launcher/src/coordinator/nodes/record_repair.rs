//! Records of the job's directory that are damaged or lost there, while nodes have whole copies of them (R27): these are taken over before a life is decided.

use std::collections::BTreeMap;

use ckpt_glue::names::NodeIndex;
use ckpt_glue::protection::nodes::{Input, Records as Read};
use store::{Decision, GenerationId, Manifest, StoreError};

use super::super::super::nodes::wire::NodeDone;
use super::super::super::notice::Notice;
use super::super::super::storage::{Records, Task};
use super::super::Shell;
use super::survey::PendingSurvey;

impl Shell<'_> {
    /// True: something is taken over, or just being, and the nodes are asked again when it is.
    pub(super) fn repair_records(
        &mut self,
        answers: &BTreeMap<NodeIndex, NodeDone>,
        ahead: &BTreeMap<NodeIndex, Vec<Decision>>,
    ) -> bool {
        let Some(survey) = self.nodes.as_mut().and_then(|nodes| nodes.survey.as_mut()) else {
            return false;
        };
        if survey.is_repairing_records {
            return true;
        }
        let (mut decisions, mut manifests) = (Agreed::default(), Agreed::default());
        for decision in ahead.values().flatten() {
            decisions.note(decision.life.counter, *decision);
        }
        for done in answers.values() {
            let NodeDone::Surveyed { known, .. } = done else { continue };
            for decision in &known.decisions {
                decisions.note(decision.life.counter, *decision);
            }
            for manifest in &known.manifests {
                manifests.note(manifest.generation, manifest.clone());
            }
        }
        let damaged = survey.records.damaged_lives.clone();
        let (lives, generations) = &mut survey.offered;
        let decisions: Vec<Decision> =
            decisions.take(|counter| damaged.contains(counter) && lives.insert(*counter));
        let manifests: Vec<Manifest> = manifests.take(|generation| generations.insert(*generation));
        if decisions.is_empty() && manifests.is_empty() {
            return false;
        }
        survey.is_repairing_records = true;
        self.store.ask(Task::RepairRecords { decisions, manifests });
        true
    }

    pub(in super::super) fn records_repaired(
        &mut self,
        outcome: Result<(usize, Vec<GenerationId>, Records), StoreError>,
    ) {
        let Some(survey) = self.nodes.as_mut().and_then(|nodes| nodes.survey.as_mut()) else {
            return;
        };
        survey.is_repairing_records = false;
        match outcome {
            Ok((lives, generations, records)) => {
                survey.records = records;
                if lives > 0 {
                    let words = format!(
                        "{lives} damaged decisions about lives were written anew from the nodes' copies"
                    );
                    self.notify(&Notice::Repair { words: &words });
                }
                for generation in generations {
                    let words = format!(
                        "generation {generation}: its records were written anew from the nodes' copies"
                    );
                    self.notify(&Notice::Repair { words: &words });
                }
            }
            Err(error) => self.notify(&Notice::Store {
                what: "adopting the nodes' copies of damaged records",
                error: &error.to_string(),
            }),
        }
        let survey = self.nodes.as_ref().and_then(|nodes| nodes.survey.as_ref());
        let generations = survey.map(PendingSurvey::generations).unwrap_or_default();
        self.feed_nodes(Input::Records(Read::Mended(generations)));
    }
}

/// Values that nodes report, by key; `None`: two nodes contradict each other.
struct Agreed<K, V>(BTreeMap<K, Option<V>>);

impl<K, V> Default for Agreed<K, V> {
    fn default() -> Agreed<K, V> {
        Agreed(BTreeMap::new())
    }
}

impl<K: Ord, V: PartialEq> Agreed<K, V> {
    fn note(&mut self, key: K, value: V) {
        match self.0.entry(key) {
            std::collections::btree_map::Entry::Vacant(vacant) => drop(vacant.insert(Some(value))),
            std::collections::btree_map::Entry::Occupied(mut found) => {
                if found.get().as_ref() != Some(&value) {
                    found.insert(None);
                }
            }
        }
    }

    fn take(self, mut is_wanted: impl FnMut(&K) -> bool) -> Vec<V> {
        self.0.into_iter().filter(|(key, _)| is_wanted(key)).filter_map(|(_, value)| value).collect()
    }
}
