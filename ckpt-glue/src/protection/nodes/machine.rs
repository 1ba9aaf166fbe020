//! The actor: open questions, and who goes on when one has its answers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use transport::Instant;

use super::protectors::Protectors;
use super::rebuilding::Rebuilding;
use super::restoring::Restoring;
use super::round::Round;
use super::sealing::Sealing;
use super::{Event, Input, Output, Question, Records, Refusal, Settings};
use crate::names::{GenerationId, NodeIndex};
use crate::queue::Queue;

/// See the [module](super).
#[derive(Clone, Debug)]
pub struct Nodes<D> {
    pub(super) settings: Settings,
    ready: BTreeSet<NodeIndex>,
    pub(super) rounds: Vec<Round<D>>,
    last: u64,
    pub(super) restoring: Option<Restoring>,
    pub(super) protectors: Protectors,
    pub(super) sealing: Sealing,
    pub(super) rebuilding: Rebuilding,
    /// The newest committed generation, if every member of every group holds its protection data: the next one builds upon it.
    pub(super) base: Option<GenerationId>,
    /// Nodes that could not write down the decision about the newest life. Nothing is saved there before they have.
    unknowing: BTreeSet<NodeIndex>,
    pub(super) is_leaving: bool,
    outputs: Queue<Output<D>>,
}

impl<D> Nodes<D> {
    /// No keeper is there yet.
    #[must_use]
    pub fn new(settings: Settings) -> Nodes<D> {
        Nodes {
            settings,
            ready: BTreeSet::new(),
            rounds: Vec::new(),
            last: 0,
            restoring: None,
            protectors: Protectors::default(),
            sealing: Sealing::default(),
            rebuilding: Rebuilding::default(),
            base: None,
            unknowing: BTreeSet::new(),
            is_leaving: false,
            outputs: Queue::default(),
        }
    }

    /// Takes an input.
    pub fn handle(&mut self, now: Instant, input: Input<D>) {
        match input {
            Input::KeeperReady(node) => self.on_ready(node),
            Input::KeeperLost(node) => self.on_lost(now, node),
            Input::Answered { node, number, answer } => {
                let Some(round) = self.rounds.iter_mut().find(|round| round.number == number) else { return };
                if !round.waiting.remove(&node) {
                    return;
                }
                match answer {
                    Ok(answer) => drop(round.answers.insert(node, answer)),
                    Err(refusal) => drop(round.refused.insert(node, refusal)),
                }
            }
            Input::Busy { node, number } => self.on_busy(now, node, number),
            Input::Survey(survey) => self.begin_survey(now, survey),
            Input::Records(Records::Agree(refused)) => self.records_agree(now, refused),
            Input::Records(Records::Mended(generations)) => self.records_mended(now, generations),
            Input::SeatHeld(seat) => self.seat_held(now, seat),
            Input::Decided(life) => {
                self.restoring = None;
                self.rounds.clear();
                self.ask_all(now, Question::Decide(life), Some(self.settings.times.answer));
            }
            Input::Written { generation, images } => self.begin_sealing(now, generation, images),
            Input::Committed(generation) => {
                self.ask_all(now, Question::Commit(generation), Some(self.settings.times.answer));
            }
            Input::Collected(kept) => {
                self.rebuilding.retain(&kept);
                self.ask_all(now, Question::Collect, Some(self.settings.times.answer));
            }
            Input::CheckpointFailed => {
                if !self.unknowing.is_empty() {
                    self.push(Output::Remind(self.unknowing.clone()));
                }
            }
            Input::AllRunning => {
                self.rebuilding.begin();
                self.rebuild_next(now);
            }
            Input::LifeOver => self.end_life(),
            Input::Leaving => self.is_leaving = true,
        }
        self.end_rounds(now);
    }

    /// The time of [`Nodes::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.report_progress(now);
        self.end_rounds(now);
    }

    /// When [`Nodes::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let progress = self.restoring.as_ref().and_then(Restoring::due);
        self.rounds.iter().filter_map(|round| round.until).chain(progress).min()
    }

    /// The next thing to do; call until there is none.
    #[must_use]
    pub fn poll_output(&mut self) -> Option<Output<D>> {
        self.outputs.pop()
    }

    pub(super) fn push(&mut self, output: Output<D>) {
        self.outputs.push(output);
    }

    pub(super) fn report(&mut self, event: Event<D>) {
        self.outputs.push(Output::Event(event));
    }

    /// Some groups protect each other's images.
    pub(super) fn has_groups(&self) -> bool {
        !self.settings.groups.is_empty()
    }

    pub(super) fn ask_all(&mut self, now: Instant, question: Question, limit: Option<Duration>) {
        let all = (0..self.settings.nodes).map(NodeIndex).collect();
        self.ask(now, question, limit, &all);
    }

    /// Asks those of `nodes` whose keepers are there.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        question: Question,
        limit: Option<Duration>,
        nodes: &BTreeSet<NodeIndex>,
    ) {
        self.last += 1;
        let ready: BTreeSet<NodeIndex> = nodes.intersection(&self.ready).copied().collect();
        let missing = nodes.difference(&self.ready).copied();
        let mut round = Round {
            number: self.last,
            question,
            waiting: ready.clone(),
            answers: BTreeMap::new(),
            refused: BTreeMap::new(),
            until: limit.map(|limit| now + limit),
            limit: limit.unwrap_or_default(),
        };
        // Before a life begins, a keeper that comes is asked.
        if question == Question::Survey {
            round.waiting.extend(missing);
        } else {
            round.refused.extend(missing.map(|node| (node, Refusal::gone())));
        }
        self.rounds.push(round);
        if !ready.is_empty() {
            self.push(Output::Ask { number: self.last, question, nodes: ready });
        }
    }

    fn on_ready(&mut self, node: NodeIndex) {
        self.ready.insert(node);
        let survey = self.rounds.iter().find(|round| round.question == Question::Survey);
        if let Some(round) = survey.filter(|round| round.waiting.contains(&node)) {
            let number = round.number;
            self.push(Output::Ask { number, question: Question::Survey, nodes: [node].into() });
        }
    }

    /// It does not answer the open questions. Before a life is decided, its successor is surveyed again: what it had may be gone.
    fn on_lost(&mut self, now: Instant, node: NodeIndex) {
        self.ready.remove(&node);
        self.protectors.lose();
        if self.is_leaving {
            return;
        }
        if let Some(generation) = self.restoring.as_ref().and_then(|restoring| restoring.terms().protects) {
            self.rounds.clear();
            self.sealing = Sealing::Idle;
            return self.abandon(generation, Refusal::GONE);
        }
        if let Some(restoring) = &mut self.restoring {
            if restoring.withdraw() {
                let counter = restoring.counter();
                self.push(Output::Withdraw { counter });
                return self.survey(now);
            }
            let fetch = self.rounds.iter_mut().find(|round| matches!(round.question, Question::Fetch(_)));
            let Some(fetch) = fetch else { return self.survey(now) };
            // The other nodes go on fetching; all are asked again when they are done.
            return fetch.lose(node);
        }
        for round in &mut self.rounds {
            round.lose(node);
        }
    }

    fn on_busy(&mut self, now: Instant, node: NodeIndex, number: u64) {
        // A node works off its questions in order, so progress on an older one counts for the newer ones that wait behind it.
        let is_it = |round: &&mut Round<D>| {
            round.number == number || round.number > number && round.waiting.contains(&node)
        };
        let Some(round) = self.rounds.iter_mut().find(is_it) else { return };
        if let Some(until) = &mut round.until {
            *until = (*until).max(now + round.limit);
        }
        if let Some(counter) = self.restoring.as_ref().map(Restoring::counter) {
            self.push(Output::Busy { counter });
        }
    }

    /// Ends the rounds in which everybody has answered, or whose time is over.
    fn end_rounds(&mut self, now: Instant) {
        while let Some(place) = self.rounds.iter().position(|round| round.is_over(now)) {
            let mut round = self.rounds.remove(place);
            round.close(now);
            self.end_round(now, round);
        }
    }

    fn end_round(&mut self, now: Instant, round: Round<D>) {
        match round.question {
            Question::Survey => return self.end_survey(round),
            Question::Seat { seat, .. } => return self.end_seat(now, seat, round),
            Question::Open(life) => return self.end_opening(now, life, round),
            Question::Meet(_) => return self.end_meeting(now, round),
            Question::Repair(generation) => return self.end_repair(now, generation, round),
            Question::Fetch(generation) => return self.end_fetch(now, generation, round),
            Question::Rebuild(generation) => return self.end_rebuild(now, generation, round),
            Question::Look(generation) => return self.end_look(now, generation, round),
            Question::Protect(..) => return self.end_sealing(now, round),
            Question::Late(_) => return self.end_late(now, round),
            Question::Decide(_) | Question::Commit(_) | Question::Collect => {}
        }
        if !round.refused.is_empty() {
            self.report(Event::Refused(round.question, round.refused.clone()));
        }
        match round.question {
            // The decision stands in the job's directory. A node that does not know it can save nothing, and reports that.
            Question::Decide(life) => {
                self.unknowing = round.refused.into_keys().collect();
                self.push(Output::DecisionNoted(life));
            }
            // R8: the record in the job's directory decides.
            Question::Commit(generation) => {
                if self.has_groups() {
                    self.base = Some(generation);
                }
                self.push(Output::CommitNoted(generation));
            }
            // The rest may have waited for this round.
            _ => {
                // Parity that cannot be folded is damaged. The next generation stands for itself, so that those below it can go.
                if round.refused.values().any(|refusal| refusal.errno == Refusal::DEVICE) {
                    self.base = None;
                }
                self.seal(now);
                if !self.sealing.is_pending() {
                    self.resume_rebuilding(now);
                }
            }
        }
    }

    fn end_life(&mut self) {
        self.restoring = None;
        self.rebuilding = Rebuilding::default();
        for round in core::mem::take(&mut self.rounds) {
            if let Question::Commit(generation) = round.question {
                self.push(Output::CommitNoted(generation));
            }
        }
        if let Some(generation) = core::mem::take(&mut self.sealing).given_up() {
            self.abandon(generation, Refusal::LIFE_OVER);
        }
    }
}
