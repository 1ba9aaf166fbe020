use alloc::string::ToString as _;
use alloc::vec;

use transport::{Epoch, Instant};

use super::*;
use crate::protection::seat::{Authority, JobEnd};

const ALL: [u32; 3] = [0, 1, 2];

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn generation(epoch: u32) -> GenerationId {
    GenerationId { life: Life { counter: 1, nonce: 7 }, epoch: Epoch(epoch) }
}

fn nodes(all: &[u32]) -> BTreeSet<NodeIndex> {
    all.iter().copied().map(NodeIndex).collect()
}

fn whole() -> Found {
    Found { problem: None, is_whole: true, has_some: true }
}

fn nothing() -> Found {
    Found { problem: Some("nothing is here".to_string()), is_whole: false, has_some: false }
}

const SEAT: Seat = Seat { number: 1, id: 1, parent: 0, is_inherited: true };
const CLAIMANT: Claimant = Claimant { held: Some(SEAT), authority: Authority::Votes, is_new: false, id: 2 };

fn surveyed(found: Vec<Found>) -> Answer {
    Answer::Surveyed { found, seats: Known { taken: Some(SEAT), tried: Vec::new() }, end: None }
}

fn refusal(errno: u32) -> Refusal {
    Refusal { errno, why: "it refuses".to_string() }
}

/// Three nodes of which one may be lost, and the outputs that nobody has looked at yet.
struct Job {
    nodes: Nodes<u32>,
    now: u64,
}

impl Job {
    fn new() -> Job {
        let ms = Duration::from_millis;
        let group = ProtectionGroup { members: ALL.map(NodeIndex).into(), losses_max: 1 };
        let settings = Settings {
            nodes: 3,
            groups: vec![group],
            times: Times {
                answer: ms(100),
                protect: ms(1000),
                late: ms(50),
                fetch_silent: ms(500),
                progress_every: ms(200),
            },
            sabotage: Sabotage::none(),
        };
        let mut job = Job { nodes: Nodes::new(settings), now: 0 };
        for node in ALL {
            assert_eq!(job.feed(Input::KeeperReady(NodeIndex(node))), []);
        }
        job
    }

    /// A job whose nodes have reported this of these generations. The number of the question that is open: protectors meet.
    fn surveyed(epochs: &[u32], found: [Vec<Found>; 3]) -> (Job, u64) {
        let mut job = Job::new();
        let survey = job.survey(epochs);
        job.answer_survey(survey, found);
        let outputs = job.read_records();
        let meet = job.meet(outputs);
        (job, meet)
    }

    /// A job whose life runs from generation 1, which is whole on all nodes; 2 and 3 are to come.
    fn running() -> Job {
        let (mut job, meet) = Job::surveyed(&[1], [vec![whole()], vec![whole()], vec![whole()]]);
        let outputs = job.answer(meet, &ALL);
        job.run(outputs);
        job
    }

    /// The life that these outputs begin runs.
    fn run(&mut self, outputs: Vec<Output<u32>>) {
        assert!(matches!(outputs.last(), Some(Output::Begin { from: Some(_), is_protected: true, .. })));
        let life = Life { counter: 2, nonce: 10 };
        let outputs = self.feed(Input::Decided(life));
        let decide = self::number(&outputs, Question::Decide(life), &ALL);
        self.answer(decide, &ALL);
        self.feed(Input::AllRunning);
    }

    fn feed(&mut self, input: Input<u32>) -> Vec<Output<u32>> {
        self.nodes.handle(at(self.now), input);
        self.outputs()
    }

    fn outputs(&mut self) -> Vec<Output<u32>> {
        core::iter::from_fn(|| self.nodes.poll_output()).collect()
    }

    fn wait(&mut self, ms: u64) -> Vec<Output<u32>> {
        self.now += ms;
        self.nodes.handle_timeout(at(self.now));
        self.outputs()
    }

    fn answer_with(&mut self, number: u64, node: u32, answer: Result<Answer, Refusal>) -> Vec<Output<u32>> {
        let answer = answer.map(|answer| (answer, node));
        self.feed(Input::Answered { node: NodeIndex(node), number, answer })
    }

    fn answer(&mut self, number: u64, all: &[u32]) -> Vec<Output<u32>> {
        all.iter().flat_map(|node| self.answer_with(number, *node, Ok(Answer::Done))).collect()
    }

    /// The number of the question.
    fn survey(&mut self, epochs: &[u32]) -> u64 {
        self.survey_for(epochs, Terms::default())
    }

    fn survey_for(&mut self, epochs: &[u32], terms: Terms) -> u64 {
        self.survey_as(epochs, terms, CLAIMANT)
    }

    fn survey_as(&mut self, epochs: &[u32], terms: Terms, claimant: Claimant) -> u64 {
        let survey = Survey {
            counter: 2,
            nonce: 9,
            generations: epochs.iter().copied().map(generation).collect(),
            terms,
            claimant,
            is_first: false,
        };
        let outputs = self.feed(Input::Survey(survey));
        number(&outputs, Question::Survey, &ALL)
    }

    fn answer_survey(&mut self, number: u64, found: [Vec<Found>; 3]) {
        let mut outputs = Vec::new();
        for (node, found) in (0..).zip(found) {
            outputs = self.answer_with(number, node, Ok(surveyed(found)));
        }
        let answers = ALL.map(|node| (NodeIndex(node), node)).into();
        assert_eq!(outputs, [Output::Surveyed { answers }]);
    }

    fn read_records(&mut self) -> Vec<Output<u32>> {
        self.feed(Input::Records(Records::Agree(Refused::new())))
    }

    /// Opens the protectors. The number of the last question.
    fn meet(&mut self, outputs: Vec<Output<u32>>) -> u64 {
        let life = Life { counter: 2, nonce: 10 };
        let open = number(&outputs, Question::Open(life), &ALL);
        let outputs = self.answer(open, &ALL);
        number(&outputs, Question::Meet(life), &ALL)
    }

    /// Has a generation protected. The number of the question.
    fn protect(&mut self, epoch: u32, base: Option<u32>) -> u64 {
        let outputs = self.feed(Input::Written { generation: generation(epoch), images: Vec::new() });
        number(&outputs, Question::Protect(generation(epoch), base.map(generation)), &ALL)
    }
}

/// The number of the last question, which is this one.
#[track_caller]
fn number(outputs: &[Output<u32>], question: Question, to: &[u32]) -> u64 {
    let Some(Output::Ask { number, question: asked, nodes: asked_nodes }) = outputs.last() else {
        panic!("{outputs:?}")
    };
    assert_eq!((*asked, asked_nodes), (question, &nodes(to)), "{outputs:?}");
    *number
}

#[test]
fn a_generation_is_committed_after_all_nodes_have_protected_it() {
    let mut job = Job::running();
    let number = job.protect(2, Some(1));
    assert_eq!(job.answer(number, &[0, 2]), []);
    let answers = ALL.map(|node| (NodeIndex(node), node)).into();
    let generation_2 = generation(2);
    let protected = Output::Protected { generation: generation_2, images: Vec::new(), answers };
    assert_eq!(job.answer(number, &[1]), [protected]);
    let outputs = job.feed(Input::Committed(generation_2));
    let number = self::number(&outputs, Question::Commit(generation_2), &ALL);
    assert_eq!(job.answer(number, &ALL), [Output::CommitNoted(generation_2)]);
    // The next one builds upon it, as soon as older ones have been folded and removed.
    let outputs = job.feed(Input::Collected(vec![generation_2]));
    let collect = self::number(&outputs, Question::Collect, &ALL);
    assert_eq!(job.feed(Input::Written { generation: generation(3), images: Vec::new() }), []);
    let outputs = job.answer(collect, &ALL);
    self::number(&outputs, Question::Protect(generation(3), Some(generation_2)), &ALL);
}

/// A life that has begun from generation 1 although a node did not answer when the protectors were to meet.
fn unmet() -> Job {
    let (mut job, meet) = Job::surveyed(&[1], [vec![whole()], vec![whole()], vec![whole()]]);
    job.answer(meet, &[0, 2]);
    let outputs = job.wait(100);
    job.run(outputs);
    job
}

/// The first one of that life.
const NEXT: GenerationId = GenerationId { life: Life { counter: 2, nonce: 10 }, epoch: Epoch(1) };

// R27
#[test]
fn protectors_that_have_not_met_before_a_life_meet_before_its_next_generation() {
    let mut job = unmet();
    let outputs = job.feed(Input::Written { generation: NEXT, images: Vec::new() });
    // The life's own nonce is that of the endpoints that have not met.
    let again = Life { counter: 2, nonce: 11 };
    let open = number(&outputs, Question::Open(again), &ALL);
    let outputs = job.answer(open, &ALL);
    assert!(matches!(outputs[0], Output::Event(Event::Opened(_))));
    let meet = number(&outputs, Question::Meet(again), &ALL);
    let outputs = job.answer(meet, &ALL);
    // Nobody has lost anything of the one before.
    let protect = number(&outputs, Question::Protect(NEXT, Some(generation(1))), &ALL);
    let outputs = job.answer(protect, &ALL);
    assert!(matches!(outputs.last(), Some(Output::Protected { .. })));
    // They know each other from now on.
    let next = GenerationId { epoch: Epoch(2), ..NEXT };
    let outputs = job.feed(Input::Written { generation: next, images: Vec::new() });
    number(&outputs, Question::Protect(next, Some(generation(1))), &ALL);
}

// R27
#[test]
fn a_generation_whose_protectors_do_not_meet_is_given_up_and_the_next_asks_again() {
    let mut job = unmet();
    let outputs = job.feed(Input::Written { generation: NEXT, images: Vec::new() });
    let open = number(&outputs, Question::Open(Life { counter: 2, nonce: 11 }), &ALL);
    job.answer(open, &[0, 2]);
    let outputs = job.wait(100);
    let not_protected = Output::NotProtected { generation: NEXT, errno: Refusal::LATE };
    assert!(matches!(outputs[0], Output::Event(Event::Refused(Question::Open(_), _))), "{outputs:?}");
    assert_eq!(outputs[1..], [Output::Abandon(NEXT), not_protected]);
    let next = GenerationId { epoch: Epoch(2), ..NEXT };
    let outputs = job.feed(Input::Written { generation: next, images: Vec::new() });
    number(&outputs, Question::Open(Life { counter: 2, nonce: 12 }), &ALL);
}

// R27
#[test]
fn the_end_of_a_life_ends_the_meeting_for_its_next_generation() {
    let mut job = unmet();
    job.feed(Input::Written { generation: NEXT, images: Vec::new() });
    let not_protected = Output::NotProtected { generation: NEXT, errno: Refusal::LIFE_OVER };
    assert_eq!(job.feed(Input::LifeOver), [Output::Abandon(NEXT), not_protected]);
    assert_eq!(job.wait(1000), []);
}

#[test]
fn one_node_that_refuses_costs_the_generation_and_its_base() {
    let mut job = Job::running();
    let number = job.protect(2, Some(1));
    let outputs = job.answer_with(number, 1, Err(refusal(5)));
    assert_eq!(
        outputs[1..],
        [Output::Abandon(generation(2)), Output::NotProtected { generation: generation(2), errno: 5 }]
    );
    // A full disk says nothing of the base.
    let number = job.protect(3, None);
    job.answer_with(number, 0, Err(refusal(Refusal::NO_ROOM)));
    let mut job = Job::running();
    let number = job.protect(2, Some(1));
    job.answer_with(number, 0, Err(refusal(Refusal::NO_ROOM)));
    job.protect(3, Some(1));
}

#[test]
fn a_node_that_cannot_fold_its_parity_costs_the_base_of_the_next_generation() {
    for (errno, base) in [(Refusal::DEVICE, None), (Refusal::NO_ROOM, Some(1)), (Refusal::GONE, Some(1))] {
        let mut job = Job::running();
        let outputs = job.feed(Input::Collected(vec![generation(1)]));
        let collect = number(&outputs, Question::Collect, &ALL);
        job.answer(collect, &[0, 2]);
        job.answer_with(collect, 1, Err(refusal(errno)));
        job.protect(2, base);
    }
}

#[test]
fn a_lost_keeper_costs_the_generation_that_is_being_protected() {
    let mut job = Job::running();
    job.protect(2, Some(1));
    let outputs = job.feed(Input::KeeperLost(NodeIndex(2)));
    let errno = Refusal::GONE;
    assert_eq!(outputs.last(), Some(&Output::NotProtected { generation: generation(2), errno }));
}

#[test]
fn all_nodes_report_which_one_was_late() {
    let mut job = Job::running();
    let protect = job.protect(2, Some(1));
    job.answer(protect, &[0, 1]);
    let outputs = job.wait(1000);
    let late = number(&outputs, Question::Late(generation(2)), &ALL);
    let account = Account { elapsed: Duration::from_secs(1), ..Account::default() };
    job.answer_with(late, 0, Ok(Answer::GivenUp(Some(account.clone()))));
    job.answer_with(late, 1, Ok(Answer::GivenUp(Some(account))));
    let outputs = job.wait(50);
    let Some(Output::Event(Event::Late { causes, base, .. })) = outputs.first() else {
        panic!("{outputs:?}")
    };
    assert_eq!((causes, base), (&[(NodeIndex(2), Cause::Silent)].into(), &Some(generation(1))));
    let errno = Refusal::LATE;
    assert_eq!(outputs.last(), Some(&Output::NotProtected { generation: generation(2), errno }));
}

#[test]
fn a_life_waits_for_a_missing_node_and_asks_all_again_when_one_was_lost() {
    let mut job = Job::new();
    job.feed(Input::KeeperLost(NodeIndex(1)));
    let survey = Survey {
        counter: 2,
        nonce: 9,
        generations: vec![generation(1)],
        terms: Terms::default(),
        claimant: CLAIMANT,
        is_first: false,
    };
    let outputs = job.feed(Input::Survey(survey));
    let first = number(&outputs, Question::Survey, &[0, 2]);
    job.answer_with(first, 0, Ok(surveyed(vec![whole()])));
    job.answer_with(first, 2, Ok(surveyed(vec![whole()])));
    assert_eq!(job.wait(100_000), []);
    let outputs = job.feed(Input::KeeperReady(NodeIndex(1)));
    assert_eq!(number(&outputs, Question::Survey, &[1]), first);
    let outputs = job.feed(Input::KeeperLost(NodeIndex(0)));
    let again = number(&outputs, Question::Survey, &[1, 2]);
    // Nobody counts an answer to the question before.
    assert_eq!(job.answer_with(first, 1, Ok(surveyed(vec![whole()]))), []);
    assert_ne!(first, again);
}

#[test]
fn what_a_node_has_lost_is_rebuilt_before_the_life_begins() {
    let (mut job, meet) = Job::surveyed(&[1], [vec![whole()], vec![nothing()], vec![whole()]]);
    let outputs = job.answer(meet, &ALL);
    let repair = number(&outputs, Question::Repair(generation(1)), &[1]);
    // Progress of a long repair is reported to the job.
    assert_eq!(job.wait(200), [Output::Busy { counter: 2 }]);
    let outputs = job.answer(repair, &[1]);
    let survey = number(&outputs, Question::Survey, &ALL);
    job.answer_survey(survey, [vec![whole()], vec![whole()], vec![whole()]]);
    let outputs = job.read_records();
    let life = Life { counter: 2, nonce: 10 };
    let begin = Output::Begin { life, from: Some(generation(1)), is_protected: true };
    assert_eq!(outputs.last(), Some(&begin));
}

/// The fences of other nodes may be missing for long after the choice.
#[test]
fn a_choice_is_withdrawn_if_a_node_is_lost_before_the_decision() {
    let (mut job, meet) = Job::surveyed(&[1], [vec![whole()], vec![whole()], vec![whole()]]);
    assert!(matches!(job.answer(meet, &ALL).last(), Some(Output::Begin { .. })));
    let outputs = job.feed(Input::KeeperLost(NodeIndex(1)));
    assert_eq!(outputs[0], Output::Withdraw { counter: 2 });
    let again = number(&outputs, Question::Survey, &[0, 2]);
    // It was too late: the decision stands, and all nodes receive it.
    job.feed(Input::KeeperReady(NodeIndex(1)));
    let life = Life { counter: 2, nonce: 10 };
    let outputs = job.feed(Input::Decided(life));
    number(&outputs, Question::Decide(life), &ALL);
    assert_eq!(job.answer_with(again, 0, Ok(surveyed(vec![whole()]))), []);
    // From now on a lost node is a fault of the life.
    assert_eq!(job.feed(Input::KeeperLost(NodeIndex(2))), []);
}

#[test]
fn a_node_that_refuses_before_the_first_life_ends_the_job() {
    let mut job = Job::new();
    let (counter, nonce, generations) = (1, 9, Vec::new());
    let claimant = Claimant { held: None, is_new: true, ..CLAIMANT };
    let survey = Survey { counter, nonce, generations, terms: Terms::default(), claimant, is_first: true };
    let outputs = job.feed(Input::Survey(survey));
    let survey = number(&outputs, Question::Survey, &ALL);
    job.answer_with(survey, 0, Ok(surveyed(Vec::new())));
    job.answer_with(survey, 1, Err(refusal(13)));
    job.answer_with(survey, 2, Ok(surveyed(Vec::new())));
    assert_eq!(job.read_records(), [Output::Unfit(NodeIndex(1), refusal(13))]);
}

#[test]
fn an_older_generation_is_rebuilt_behind_the_life_and_a_checkpoint_goes_first() {
    let lost = vec![whole(), nothing()];
    let (mut job, meet) = Job::surveyed(&[2, 1], [vec![whole(), whole()], lost, vec![whole(), whole()]]);
    assert!(matches!(job.answer(meet, &ALL).last(), Some(Output::Begin { .. })));
    let outputs = job.feed(Input::AllRunning);
    let rebuild = number(&outputs, Question::Rebuild(generation(1)), &[1]);
    // The checkpoint's protection ends the rebuild.
    let protect = job.protect(3, Some(2));
    assert_eq!(job.answer_with(rebuild, 1, Err(refusal(125))), []);
    job.answer(protect, &ALL);
    let outputs = job.feed(Input::Collected(vec![generation(3), generation(1)]));
    let collect = number(&outputs, Question::Collect, &ALL);
    let outputs = job.answer(collect, &ALL);
    let rebuild = number(&outputs, Question::Rebuild(generation(1)), &[1]);
    let outputs = job.answer(rebuild, &[1]);
    let look = number(&outputs, Question::Look(generation(1)), &ALL);
    let outputs: Vec<_> =
        ALL.iter().flat_map(|node| job.answer_with(look, *node, Ok(Answer::Looked(whole())))).collect();
    assert_eq!(outputs, [Output::Event(Event::WholeAgain(generation(1)))]);
}

#[test]
fn a_generation_that_is_not_kept_is_not_rebuilt() {
    let lost = vec![whole(), nothing()];
    let (mut job, meet) = Job::surveyed(&[2, 1], [vec![whole(), whole()], lost, vec![whole(), whole()]]);
    job.answer(meet, &ALL);
    job.feed(Input::Collected(vec![generation(2)]));
    assert_eq!(job.feed(Input::AllRunning), []);
}

#[test]
fn the_end_of_a_life_ends_everything_that_was_asked_for_it() {
    let mut job = Job::running();
    job.protect(2, Some(1));
    let outputs = job.feed(Input::LifeOver);
    let errno = Refusal::LIFE_OVER;
    let ended = [Output::Abandon(generation(2)), Output::NotProtected { generation: generation(2), errno }];
    assert_eq!(outputs, ended);
    job.feed(Input::Committed(generation(1)));
    assert_eq!(job.feed(Input::LifeOver), [Output::CommitNoted(generation(1))]);
    assert_eq!(job.wait(100_000), []);
}

#[test]
fn a_node_that_could_not_write_a_decision_down_is_sent_it_again() {
    let mut job = Job::running();
    let life = Life { counter: 2, nonce: 10 };
    let outputs = job.feed(Input::Decided(life));
    let decide = number(&outputs, Question::Decide(life), &ALL);
    job.answer(decide, &[0, 2]);
    let outputs = job.answer_with(decide, 1, Err(refusal(Refusal::NO_ROOM)));
    assert_eq!(outputs.last(), Some(&Output::DecisionNoted(life)));
    assert_eq!(job.feed(Input::CheckpointFailed), [Output::Remind(nodes(&[1]))]);
}

/// Three nodes to which the images of generation 1 have moved. The number of the question that is open.
fn moved() -> (Job, u64) {
    let mut job = Job::new();
    let survey = job.survey_for(&[1], Terms { protects: Some(generation(1)), ..Terms::default() });
    let bare = Found { is_whole: false, ..whole() };
    job.answer_survey(survey, [vec![bare.clone()], vec![bare.clone()], vec![bare]]);
    // Members of its own life protect a generation.
    let (outputs, life) = (job.read_records(), generation(1).life);
    let open = number(&outputs, Question::Open(life), &ALL);
    let outputs = job.answer(open, &ALL);
    let meet = number(&outputs, Question::Meet(life), &ALL);
    let outputs = job.answer(meet, &ALL);
    let protect = number(&outputs, Question::Protect(generation(1), None), &ALL);
    (job, protect)
}

// R34
#[test]
fn a_moved_generation_is_protected_and_no_life_begins() {
    let (mut job, protect) = moved();
    assert_eq!(job.wait(200), [Output::Busy { counter: 2 }]);
    let answers = ALL.map(|node| (NodeIndex(node), node)).into();
    let protected = Output::Protected { generation: generation(1), images: Vec::new(), answers };
    assert_eq!(job.answer(protect, &ALL), [protected]);
}

#[test]
fn a_moved_generation_whose_node_is_lost_or_refuses_stays_unprotected() {
    let given_up =
        |errno| [Output::Abandon(generation(1)), Output::NotProtected { generation: generation(1), errno }];
    let (mut job, _) = moved();
    assert_eq!(job.feed(Input::KeeperLost(NodeIndex(1))), given_up(Refusal::GONE));
    let (mut job, protect) = moved();
    assert_eq!(job.answer_with(protect, 1, Err(refusal(5)))[1..], given_up(5));
}

// R34
#[test]
fn a_seat_is_taken_before_anything_is_changed_if_a_directory_does_not_know_it() {
    let mut job = Job::new();
    let survey = job.survey(&[1]);
    job.answer_with(survey, 0, Ok(surveyed(vec![whole()])));
    job.answer_with(survey, 1, Ok(surveyed(vec![whole()])));
    let empty = Answer::Surveyed { found: vec![nothing()], seats: Known::default(), end: None };
    job.answer_with(survey, 2, Ok(empty));
    let seat = Seat { number: 2, id: CLAIMANT.id, parent: SEAT.id, is_inherited: true };
    let outputs = job.read_records();
    let question = number(&outputs, Question::Seat { seat, is_taken: false }, &ALL);
    job.answer(question, &[0]);
    job.answer_with(question, 2, Ok(Answer::Done));
    let refused = job.answer_with(question, 1, Err(refusal(Refusal::NO_ROOM)));
    // Half of three nodes are two, and the empty directory has no vote.
    assert_eq!(refused.last(), Some(&Output::Unseated(Unseated::TooFew { known: 2, needed: 2 })));

    let mut job = Job::new();
    let survey = job.survey(&[1]);
    job.answer_with(survey, 0, Ok(surveyed(vec![whole()])));
    job.answer_with(survey, 1, Ok(surveyed(vec![whole()])));
    job.answer_with(
        survey,
        2,
        Ok(Answer::Surveyed { found: vec![nothing()], seats: Known::default(), end: None }),
    );
    let outputs = job.read_records();
    let question = number(&outputs, Question::Seat { seat, is_taken: false }, &ALL);
    assert_eq!(job.answer(question, &ALL), [Output::SeatTaken(seat)]);
    // A node that is lost before the launcher's own directory knows the seat is asked again, like all others.
    let outputs = job.feed(Input::KeeperLost(NodeIndex(1)));
    let again = number(&outputs, Question::Survey, &[0, 2]);
    assert_eq!(job.feed(Input::SeatHeld(seat)), []);
    assert_eq!(job.answer_with(again, 0, Ok(surveyed(vec![whole()]))), []);
}

#[test]
fn a_launcher_whose_seat_most_directories_do_not_know_begins_no_life() {
    let mut job = Job::new();
    let survey = job.survey(&[1]);
    for node in ALL {
        let seats = Known { taken: (node == 0).then_some(SEAT), tried: Vec::new() };
        job.answer_with(survey, node, Ok(Answer::Surveyed { found: vec![whole()], seats, end: None }));
    }
    let unseated = Output::Unseated(Unseated::TooFew { known: 1, needed: 2 });
    assert_eq!(job.read_records(), [unseated]);
}

#[test]
fn a_candidate_begins_no_life_of_a_job_that_one_node_knows_to_be_over() {
    let job_end = JobEnd { life: Life { counter: 1, nonce: 7 }, has_finished: false };
    for authority in [Authority::Candidate, Authority::Votes] {
        let mut job = Job::new();
        let survey = job.survey_as(&[1], Terms::default(), Claimant { authority, ..CLAIMANT });
        for node in ALL {
            let seats = Known { taken: Some(SEAT), tried: Vec::new() };
            let end = (node == 1).then_some(job_end);
            job.answer_with(survey, node, Ok(Answer::Surveyed { found: vec![whole()], seats, end }));
        }
        let outputs = job.read_records();
        let is_refused = outputs == [Output::Unseated(Unseated::Over(job_end))];
        assert_eq!(is_refused, authority == Authority::Candidate, "{outputs:?}");
    }
}
