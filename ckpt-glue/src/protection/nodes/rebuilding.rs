//! Behind a life that runs: lost data of generations that are kept besides the restored one is rebuilt, one generation at a time, the newest first.
//!
//! Nothing depends on it. The survey before the next life finds data that was not rebuilt, or it is not kept any more.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use transport::Instant;

use super::machine::Nodes;
use super::round::Round;
use super::{Answer, Event, Question, Refusal};
use crate::names::{GenerationId, NodeIndex};

/// A generation that nodes have lost something of.
#[derive(Clone, Debug)]
pub(super) struct Older {
    pub(super) generation: GenerationId,
    pub(super) lost: BTreeSet<NodeIndex>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Rebuilding {
    /// The newest first.
    waiting: VecDeque<Older>,
    under_way: Option<Older>,
    /// The ranks of the life run: their start goes first.
    has_begun: bool,
    /// From a checkpoint's protection until old generations have been removed: R27, and the checkpoint goes first.
    is_held: bool,
}

impl Rebuilding {
    pub(super) fn new(waiting: VecDeque<Older>) -> Rebuilding {
        Rebuilding { waiting, ..Rebuilding::default() }
    }

    pub(super) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// A checkpoint is protected: the rebuild that is under way ends, and is begun again later.
    pub(super) fn hold(&mut self) {
        self.is_held = true;
    }

    /// These generations are kept.
    pub(super) fn retain(&mut self, kept: &[GenerationId]) {
        self.waiting.retain(|older| kept.contains(&older.generation));
        self.under_way.take_if(|older| !kept.contains(&older.generation));
    }

    /// The next generation to rebuild, if no other one is under way.
    fn next(&mut self) -> Option<&Older> {
        if !self.has_begun || self.is_held || self.under_way.is_some() {
            return None;
        }
        self.under_way = self.waiting.pop_front();
        self.under_way.as_ref()
    }

    /// Has it begun again later.
    fn put_back(&mut self) {
        self.waiting.extend(self.under_way.take());
        self.waiting.rotate_right(1);
    }

    fn is_under_way(&self, generation: GenerationId) -> bool {
        self.under_way.as_ref().is_some_and(|older| older.generation == generation)
    }
}

impl<D> Nodes<D> {
    /// The checkpoint that went first is over.
    pub(super) fn resume_rebuilding(&mut self, now: Instant) {
        self.rebuilding.is_held = false;
        self.rebuild_next(now);
    }

    pub(super) fn rebuild_next(&mut self, now: Instant) {
        if self.is_leaving {
            return;
        }
        let Some(Older { generation, lost }) = self.rebuilding.next().cloned() else { return };
        self.report(Event::Rebuilding(generation, lost.clone()));
        self.ask(now, Question::Rebuild(generation), None, &lost);
    }

    pub(super) fn end_rebuild(&mut self, now: Instant, generation: GenerationId, round: Round<D>) {
        if !self.rebuilding.is_under_way(generation) {
            return;
        }
        let is_gone = round.refused.values().any(|refusal| refusal.errno == Refusal::GONE);
        if !round.refused.is_empty() && (self.rebuilding.is_held || is_gone) {
            return self.rebuilding.put_back();
        }
        if !round.refused.is_empty() {
            self.rebuilding.under_way = None;
            let (problems, refused) = (BTreeMap::new(), round.refused);
            self.report(Event::NotRebuilt { generation, problems, refused });
            return self.rebuild_next(now);
        }
        self.report(Event::Rebuilt { generation, answers: round.into_details(), is_before_life: false });
        self.ask_all(now, Question::Look(generation), Some(self.settings.times.answer));
    }

    /// A node that has rebuilt it has committed it, too, if all its data of it is whole.
    pub(super) fn end_look(&mut self, now: Instant, generation: GenerationId, round: Round<D>) {
        if !self.rebuilding.is_under_way(generation) {
            return;
        }
        self.rebuilding.under_way = None;
        let problem = |(node, (answer, _)): (NodeIndex, (Answer, D))| match answer {
            Answer::Looked(found) if found.is_whole && found.problem.is_none() => None,
            Answer::Looked(found) => {
                let problem = found.problem;
                Some((node, Some(problem.unwrap_or_else(|| "what it keeps for others is not whole".into()))))
            }
            _ => Some((node, None)),
        };
        let problems: BTreeMap<_, _> = round.answers.into_iter().filter_map(problem).collect();
        if problems.is_empty() && round.refused.is_empty() {
            self.report(Event::WholeAgain(generation));
        } else {
            self.report(Event::NotRebuilt { generation, problems, refused: round.refused });
        }
        self.rebuild_next(now);
    }
}
