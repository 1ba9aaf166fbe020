//! What the machine of the nodes reports, in notices and for the job's outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ckpt_glue::names::{GenerationId, NodeIndex};
use ckpt_glue::protection::GenerationVerdict;
use ckpt_glue::protection::nodes::{Event, Question, Refused, Report};

use super::super::super::Purpose;
use super::super::super::limits::COPY_NEWS_EVERY;
use super::super::super::nodes::wire::{NodeDone, Rebuilt};
use super::super::super::nodes::{GenerationOutcome, Lost, NodeRepair};
use super::super::super::notice::Notice;
use super::super::Shell;
use super::words;
use crate::text;

impl Shell<'_> {
    pub(super) fn on_nodes_event(&mut self, event: Event<NodeDone>) {
        match event {
            Event::Refused(question, refused) => self.report_refused(question, &refused),
            Event::Opened(answers) => self.note_protectors(answers),
            Event::Judged(reports) => self.note_judged(&reports),
            Event::Repairing { generation, nodes, problems } => {
                let names = self.names(&nodes);
                let problems = words::problems(&self.keepers, &problems);
                self.say(&format!(
                    "generation {generation}: rebuilding what {names} had of it from what the others have{problems}"
                ));
            }
            Event::Fetching(generation, nodes) => self.begin_fetch(generation, &nodes),
            Event::Fetched(generation, answers) => {
                let files: u32 = answers
                    .values()
                    .map(|done| if let NodeDone::Fetched(files) = done { *files } else { 0 })
                    .sum();
                if let Some(nodes) = &mut self.nodes {
                    nodes.brought_reported = None;
                }
                let count = answers.len();
                self.say(&format!("generation {generation}: {files} files were brought to {count} nodes"));
            }
            Event::Rebuilding(generation, nodes) => {
                let names = self.names(&nodes);
                self.say(&format!(
                    "generation {generation}, which is kept: rebuilding what {names} had of it, while the job runs"
                ));
            }
            Event::Rebuilt { generation, answers, is_before_life } => {
                let rebuilt = self.report_rebuilt(generation, &answers);
                if let Some(nodes) = self.nodes.as_mut().filter(|_| is_before_life) {
                    nodes.repairs.rebuilt.extend(rebuilt);
                }
            }
            Event::WholeAgain(generation) => {
                self.say(&format!("generation {generation} is whole on all nodes again"));
            }
            Event::NotRebuildable(report) => {
                if let Some(why) = words::lost(&self.keepers, &report) {
                    self.report_not_rebuilt(report.generation, &why);
                }
            }
            Event::NotRebuilt { generation, problems, refused } => {
                let mut all: Vec<String> = Vec::new();
                for (node, problem) in problems {
                    let problem = problem.unwrap_or_else(|| "it does not report its images".to_owned());
                    all.push(format!("{}: {problem}", self.keepers.name(node)));
                }
                if !refused.is_empty() {
                    all.push(words::refusals(&self.keepers, &refused));
                }
                self.report_not_rebuilt(generation, &all.join("; "));
            }
            Event::Late { generation, refused, causes, accounts, base } => {
                let error = words::late(&self.keepers, &refused, &causes, &accounts, base);
                let what = words::question(Question::Late(generation));
                self.notify(&Notice::Store { what: &what, error: &error });
            }
        }
    }

    fn say(&mut self, words: &str) {
        self.notify(&Notice::Repair { words });
    }

    fn names(&self, nodes: &BTreeSet<NodeIndex>) -> String {
        let names: Vec<String> = nodes.iter().map(|node| self.keepers.name(*node)).collect();
        names.join(", ")
    }

    fn report_refused(&mut self, question: Question, refused: &Refused) {
        let error = words::refusals(&self.keepers, refused);
        self.notify(&Notice::Store { what: &words::question(question), error: &error });
    }

    fn report_not_rebuilt(&mut self, generation: GenerationId, why: &str) {
        self.say(&format!("generation {generation}, which is kept, is not rebuilt: {why}"));
    }

    fn note_protectors(&mut self, answers: BTreeMap<NodeIndex, NodeDone>) {
        let mut addresses = Vec::new();
        for (node, done) in answers {
            let NodeDone::Opened { addresses: of_node, unusable } = done else { continue };
            addresses.push((node.0, of_node));
            let host = self.keepers.name(node);
            for why in unusable {
                let error = format!("{host} does without {why}");
                self.notify(&Notice::Store { what: "a network for parity", error: &error });
            }
        }
        if let Some(nodes) = &mut self.nodes {
            nodes.addresses = addresses;
        }
    }

    /// Notes the generations of which nothing more will be rebuilt before the life begins, and those whose records no node could mend.
    fn note_judged(&mut self, reports: &[Report]) {
        let Some(survey) = self.nodes.as_ref().and_then(|nodes| nodes.survey.as_ref()) else { return };
        let (named, generations) = (self.named_beginning(), survey.generations());
        let newest = generations.first();
        let damaged = survey.records.damaged.iter().filter(|(damaged, _)| {
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
        let damaged = damaged.into_iter().map(|(generation, why)| (generation, Some(why), false));
        let judged = reports.iter().map(|report| {
            let is_protected = report.verdict == GenerationVerdict::Whole;
            (report.generation, words::lost(&self.keepers, report), is_protected)
        });
        let all: Vec<_> = damaged.chain(judged).collect();
        if let Some(nodes) = &mut self.nodes {
            // Those of the survey before count no more.
            nodes.repairs.kept.clear();
        }
        for (generation, lost, is_protected) in all {
            self.note_outcome(generation, lost, is_protected);
        }
    }

    /// `lost`: why it cannot be restored.
    fn note_outcome(&mut self, generation: GenerationId, lost: Option<String>, is_protected: bool) {
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

    fn begin_fetch(&mut self, generation: GenerationId, nodes: &BTreeSet<NodeIndex>) {
        let names = self.names(nodes);
        let Some(fetch) = &self.plan.fetch else { return };
        let words = format!("generation {generation}: {names} bring what they had of it from {}", fetch.from);
        if let Some(nodes) = &mut self.nodes {
            (nodes.brought, nodes.brought_reported) = (0, Some(Instant::now()));
        }
        self.say(&words);
    }

    /// Reports from time to time how much has come from a copy.
    pub(super) fn report_brought(&mut self) {
        let Some(nodes) = &mut self.nodes else { return };
        let Some(reported) = &mut nodes.brought_reported else { return };
        let now = Instant::now();
        if *reported + COPY_NEWS_EVERY <= now {
            *reported = now;
            let words = format!("bringing images from a copy: {} so far", text::bytes(nodes.brought));
            self.say(&words);
        }
    }

    /// Reports what the nodes have rebuilt, and returns it.
    fn report_rebuilt(
        &mut self,
        generation: GenerationId,
        answers: &BTreeMap<NodeIndex, NodeDone>,
    ) -> Vec<NodeRepair> {
        let mut repairs = Vec::new();
        for (node, done) in answers {
            let NodeDone::Repaired(rebuilt) = done else { continue };
            let host = self.keepers.name(*node);
            self.say(&format!(
                "generation {generation}: {host} has what it had: {}",
                words::rebuilt(*rebuilt)
            ));
            repairs.push(node_repair(generation, host, *rebuilt));
        }
        repairs
    }
}

fn node_repair(generation: GenerationId, node: String, rebuilt: Rebuilt) -> NodeRepair {
    let Rebuilt { files, pages: damaged_pages, parity_pages, records, received_bytes } = rebuilt;
    let generation = generation.to_string();
    NodeRepair { generation, node, files, damaged_pages, parity_pages, records, received_bytes }
}
