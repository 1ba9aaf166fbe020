//! Before a life begins: the survey of the nodes' committed generations, the choice of the one to begin from, and its rebuild (R28).

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use transport::{Instant, Life};

use super::super::restore::{Choice, Judged, RestorePlan, Terms};
use super::super::seat::{Claim, Found as FoundSeats, JobEnd, Seat, Unseated, admit, claim};
use super::super::verdict::{Finding, GenerationVerdict};
use super::machine::Nodes;
use super::rebuilding::{Older, Rebuilding};
use super::round::Round;
use super::{Answer, Event, Found, Output, Question, Refusal, Refused, Report, Survey};
use crate::names::{GenerationId, NodeIndex};
use crate::sabotage::Rule;

/// The state of a life that is about to begin.
#[derive(Clone, Debug)]
pub(super) struct Restoring {
    survey: Survey,
    plan: RestorePlan,
    /// The findings of the last survey, by node, while the shell reads the records that came with them.
    unread: Option<(BTreeMap<NodeIndex, Vec<Found>>, Refused)>,
    /// The seats that the nodes' directories know, by the last survey.
    seats: FoundSeats,
    /// Ends of the job that they know.
    ends: Vec<JobEnd>,
    /// The seat that is being taken, or is taken and not held yet.
    claim: Option<Claim>,
    /// By node: why the images of each generation cannot be restored there.
    problems: BTreeMap<NodeIndex, Vec<Option<String>>>,
    /// Why the last repair failed.
    failures: BTreeMap<GenerationId, Refused>,
    /// When progress of rebuilt or brought images is reported.
    progress: Option<Instant>,
    /// The life's beginning is chosen, and not decided yet.
    is_chosen: bool,
}

impl Restoring {
    pub(super) fn counter(&self) -> u32 {
        self.survey.counter
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.progress
    }

    /// A choice that was made does not hold any more. False: none was.
    pub(super) fn withdraw(&mut self) -> bool {
        core::mem::take(&mut self.is_chosen)
    }

    pub(super) fn terms(&self) -> Terms {
        self.survey.terms
    }

    fn report(&self, nodes: u32, generation: GenerationId, verdict: GenerationVerdict) -> Report {
        let problems = self.problems_of(generation, (0..nodes).map(NodeIndex));
        let failure = self.failures.get(&generation).cloned().unwrap_or_default();
        Report { generation, verdict, problems, failure }
    }

    /// Why the images of a generation cannot be restored on these nodes.
    fn problems_of(
        &self,
        generation: GenerationId,
        nodes: impl Iterator<Item = NodeIndex>,
    ) -> BTreeMap<NodeIndex, String> {
        let place = self.plan.generations().iter().position(|known| *known == generation);
        let problem = |node: NodeIndex| {
            let Some(of_node) = self.problems.get(&node) else {
                return Some((node, "its directory cannot be read".into()));
            };
            of_node.get(place?)?.clone().map(|problem| (node, problem))
        };
        nodes.filter_map(problem).collect()
    }
}

impl<D> Nodes<D> {
    /// The store has been fenced.
    pub(super) fn begin_survey(&mut self, now: Instant, survey: Survey) {
        let plan =
            RestorePlan::new(self.settings.nodes, self.settings.groups.clone(), survey.generations.clone());
        self.restoring = Some(Restoring {
            survey,
            plan,
            unread: None,
            seats: BTreeMap::new(),
            ends: Vec::new(),
            claim: None,
            problems: BTreeMap::new(),
            failures: BTreeMap::new(),
            progress: None,
            is_chosen: false,
        });
        self.base = None;
        self.protectors.lose();
        self.survey(now);
    }

    /// Asks all nodes; those whose keepers are missing, when they come.
    pub(super) fn survey(&mut self, now: Instant) {
        let Some(restoring) = &mut self.restoring else { return };
        (restoring.unread, restoring.progress, restoring.claim) = (None, None, None);
        self.rounds.clear();
        self.ask_all(now, Question::Survey, None);
    }

    pub(super) fn end_survey(&mut self, round: Round<D>) {
        let Some(restoring) = &mut self.restoring else { return };
        let (mut found, mut details) = (BTreeMap::new(), BTreeMap::new());
        restoring.seats.clear();
        restoring.ends.clear();
        for (node, (answer, detail)) in round.answers {
            if let Answer::Surveyed { found: of_node, seats, end } = answer {
                found.insert(node, of_node);
                restoring.seats.insert(node, seats);
                restoring.ends.extend(end);
            }
            details.insert(node, detail);
        }
        restoring.unread = Some((found, round.refused));
        self.push(Output::Surveyed { answers: details });
    }

    pub(super) fn records_mended(&mut self, now: Instant, generations: Vec<GenerationId>) {
        if let Some(restoring) = &mut self.restoring {
            restoring.plan.set_generations(generations);
        }
        self.survey(now);
    }

    /// `ahead`: nodes whose decisions contradict the job's.
    pub(super) fn records_agree(&mut self, now: Instant, ahead: Refused) {
        let Some(restoring) = &mut self.restoring else { return };
        let Some((found, mut refused)) = restoring.unread.take() else { return };
        refused.extend(ahead);
        if let Some((node, refusal)) = refused.first_key_value()
            && restoring.survey.is_first
        {
            let (node, refusal) = (*node, refusal.clone());
            return self.push(Output::Unfit(node, refusal));
        }
        let mut findings = BTreeMap::new();
        restoring.problems.clear();
        for (node, of_node) in found {
            findings.insert(node, of_node.iter().map(Found::finding).collect::<Vec<Finding>>());
            restoring.problems.insert(node, of_node.into_iter().map(|found| found.problem).collect());
        }
        if self.settings.sabotage.is_out(Rule::LossIgnored) {
            findings.values_mut().flatten().for_each(|finding| *finding = Finding::WHOLE);
        }
        restoring.plan.surveyed(findings);
        if !refused.is_empty() {
            self.report(Event::Refused(Question::Survey, refused));
        }
        self.take_seat(now);
    }

    /// R34: nothing is changed on the nodes before this launcher may begin a life.
    fn take_seat(&mut self, now: Instant) {
        let (nodes, sabotage) = (self.settings.nodes, self.settings.sabotage);
        let Some(restoring) = &mut self.restoring else { return };
        // A repair begins no life.
        if restoring.terms().is_repair {
            return self.seated(now);
        }
        let claimant = restoring.survey.claimant;
        let admitted = admit(claimant.authority, &restoring.ends);
        match admitted.and_then(|()| claim(nodes, claimant, &restoring.seats, sabotage)) {
            Err(unseated) => self.push(Output::Unseated(unseated)),
            Ok(claim) => {
                let is_known = restoring.seats.values().all(|known| known.taken == claimant.held);
                let (seat, is_taken) = (claim.seat.or(claimant.held), claim.seat.is_none());
                restoring.claim = Some(claim);
                match seat.filter(|_| !is_taken || !is_known) {
                    Some(seat) => {
                        let question = Question::Seat { seat, is_taken };
                        self.ask_all(now, question, Some(self.settings.times.answer));
                    }
                    None => self.seated(now),
                }
            }
        }
    }

    pub(super) fn end_seat(&mut self, now: Instant, seat: Seat, round: Round<D>) {
        let sabotage = self.settings.sabotage;
        let Some(claim) = self.restoring.as_ref().and_then(|restoring| restoring.claim.as_ref()) else {
            return;
        };
        let knowing: BTreeSet<NodeIndex> = round.answers.keys().copied().collect();
        let (is_held, is_taken, needed) =
            (claim.seat.is_none(), claim.is_taken(&knowing, sabotage), claim.needed());
        if !round.refused.is_empty() {
            self.report(Event::Refused(round.question, round.refused));
        }
        if is_held {
            self.seated(now);
        } else if is_taken {
            self.push(Output::SeatTaken(seat));
        } else {
            let known = u32::try_from(knowing.len()).unwrap_or(u32::MAX);
            self.push(Output::Unseated(Unseated::TooFew { known, needed }));
        }
    }

    /// The launcher's own directory knows it, too.
    pub(super) fn seat_held(&mut self, now: Instant, seat: Seat) {
        let Some(restoring) = &mut self.restoring else { return };
        restoring.survey.claimant.held = Some(seat);
        // If a node was lost meanwhile, all are being asked again.
        if restoring.claim.take().is_some_and(|claim| claim.seat == Some(seat)) {
            self.seated(now);
        }
    }

    fn seated(&mut self, now: Instant) {
        if self.has_groups() && !self.protectors.have_met() {
            self.open_for_life(now);
        } else {
            self.choose(now);
        }
    }

    /// For the life to come, whose number changes whenever protectors have to find each other. Only equality counts, so the random number's successor is
    /// as good as another random number.
    fn open_for_life(&mut self, now: Instant) {
        let Some(Restoring { survey, .. }) = &mut self.restoring else { return };
        survey.nonce = survey.nonce.wrapping_add(1);
        let to_come = Life { counter: survey.counter, nonce: survey.nonce };
        // Only members of its own life protect a generation. Once: if a keeper is lost then, it stays unprotected.
        let life = survey.terms.protects.map_or(to_come, |generation| generation.life);
        self.open_protectors(now, life);
    }

    /// R28: begins the life from the newest generation that can be restored, or has one rebuilt first. For a repair alone all of them are.
    pub(super) fn choose(&mut self, now: Instant) {
        let nodes = self.settings.nodes;
        let can_rebuild = self.protectors.have_met() && !self.settings.sabotage.is_out(Rule::NeverRebuilt);
        let Some(restoring) = &mut self.restoring else { return };
        restoring.plan.set_can_rebuild(can_rebuild);
        let (choice, judged) = restoring.plan.choose(restoring.terms());
        let judged = judged
            .into_iter()
            .map(|Judged { generation, verdict }| restoring.report(nodes, generation, verdict))
            .collect();
        let progress = now + self.settings.times.progress_every;
        let mut problems = BTreeMap::new();
        match &choice {
            Choice::Repair { generation, nodes } => {
                problems = restoring.problems_of(*generation, nodes.iter().copied());
                restoring.plan.begin_repair(*generation);
                restoring.progress = Some(progress);
            }
            Choice::Fetch { .. } => {
                restoring.plan.begin_fetch();
                restoring.progress = Some(progress);
            }
            Choice::Begin { .. } => {}
        }
        self.report(Event::Judged(judged));
        match choice {
            Choice::Repair { generation, nodes } => {
                self.report(Event::Repairing { generation, nodes: nodes.clone(), problems });
                self.ask(now, Question::Repair(generation), None, &nodes);
            }
            Choice::Fetch { generation, nodes } => {
                self.report(Event::Fetching(generation, nodes.clone()));
                let silent = self.settings.times.fetch_silent;
                self.ask(now, Question::Fetch(generation), Some(silent), &nodes);
            }
            Choice::Begin { from, is_protected } => self.begin_life(now, from, is_protected),
        }
    }

    pub(super) fn end_repair(&mut self, now: Instant, generation: GenerationId, round: Round<D>) {
        let Some(restoring) = &mut self.restoring else { return };
        let are_beyond = round.refused.iter().filter(|(_, refusal)| refusal.errno == Refusal::BEYOND_REPAIR);
        let beyond: BTreeSet<NodeIndex> = are_beyond.map(|(node, _)| *node).collect();
        if !round.refused.is_empty() {
            restoring.failures.insert(generation, round.refused.clone());
        }
        restoring.plan.end_repair(generation, beyond, !round.answers.is_empty());
        let counter = restoring.counter();
        if !round.refused.is_empty() {
            self.report(Event::Refused(round.question, round.refused.clone()));
        }
        self.report(Event::Rebuilt { generation, answers: round.into_details(), is_before_life: true });
        self.push(Output::Busy { counter });
        self.survey(now);
    }

    pub(super) fn end_fetch(&mut self, now: Instant, generation: GenerationId, round: Round<D>) {
        let Some(restoring) = &mut self.restoring else { return };
        // Any other failure is likely to come again.
        let may_retry = round.refused.values().all(|refusal| refusal.errno == Refusal::GONE);
        restoring.plan.end_fetch(generation, may_retry);
        let counter = restoring.counter();
        if !round.refused.is_empty() {
            self.report(Event::Refused(round.question, round.refused.clone()));
        }
        self.report(Event::Fetched(generation, round.into_details()));
        self.push(Output::Busy { counter });
        self.survey(now);
    }

    /// Rebuilding and bringing take their time, and their progress is reported. They end, for no protector waits for ever.
    pub(super) fn report_progress(&mut self, now: Instant) {
        let is_under_way = self.rounds.iter().any(|round| {
            matches!(round.question, Question::Repair(_) | Question::Fetch(_) | Question::Protect(..))
        });
        let every = self.settings.times.progress_every;
        let Some(restoring) = &mut self.restoring else { return };
        if restoring.progress.is_none_or(|due| due > now) {
            return;
        }
        restoring.progress = is_under_way.then_some(now + every);
        let counter = restoring.counter();
        if is_under_way {
            self.push(Output::Busy { counter });
        }
    }

    /// Generations older than the one that the life begins from, which are kept, and of which nodes have lost something.
    fn older_to_rebuild(&mut self, restoring: &Restoring, chosen: GenerationId) -> VecDeque<Older> {
        let mut older = VecDeque::new();
        for generation in restoring.plan.generations().iter().copied().filter(|older| *older < chosen) {
            match restoring.plan.judge(generation, restoring.terms()) {
                GenerationVerdict::Repairable(lost) => older.push_back(Older { generation, lost }),
                verdict @ GenerationVerdict::Lost { .. } => {
                    let report = restoring.report(self.settings.nodes, generation, verdict);
                    self.report(Event::NotRebuildable(report));
                }
                GenerationVerdict::Whole | GenerationVerdict::Bare | GenerationVerdict::Fetchable(_) => {}
            }
        }
        older
    }

    /// The generation that the nodes are to protect before any life begins from it, if they can.
    fn to_protect(&self, from: Option<GenerationId>, is_protected: bool) -> Option<GenerationId> {
        let restoring = self.restoring.as_ref().filter(|_| !is_protected && self.has_groups())?;
        let wanted = restoring.terms().protects.filter(|_| self.protectors.have_met());
        wanted.filter(|wanted| from == Some(*wanted))
    }

    fn begin_life(&mut self, now: Instant, from: Option<GenerationId>, is_protected: bool) {
        if let Some(generation) = self.to_protect(from, is_protected) {
            let progress = now + self.settings.times.progress_every;
            if let Some(restoring) = &mut self.restoring {
                restoring.progress = Some(progress);
            }
            return self.begin_sealing(now, generation, Vec::new());
        }
        let Some(mut restoring) = self.restoring.take() else { return };
        restoring.is_chosen = true;
        let older = match from.filter(|_| !restoring.terms().is_repair) {
            Some(chosen) => self.older_to_rebuild(&restoring, chosen),
            None => VecDeque::new(),
        };
        self.rebuilding = Rebuilding::new(older);
        self.base = from.filter(|_| is_protected);
        let life = Life { counter: restoring.survey.counter, nonce: restoring.survey.nonce };
        // Kept until the decision: a node may be lost before.
        self.restoring = Some(restoring);
        self.push(Output::Begin { life, from, is_protected });
    }
}
