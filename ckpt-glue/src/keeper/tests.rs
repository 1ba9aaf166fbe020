use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use expect_test::expect;
use transport::PortId;

use super::*;
use crate::control::{CutAt, CutMode, NewLife, PointSummary, PortEntry, Registration, Source, Watch};
use crate::limits::POINT_SILENCE;
use crate::table::table;

const NOW: Instant = Instant::from_nanos(1_000);
const JOB: JobId = JobId(9);

fn life(counter: u32) -> Life {
    Life { counter, nonce: 7 }
}

fn new_life(counter: u32) -> Input {
    let decision = Decision { life: life(counter), restore: None };
    let layout = Layout::even(4, 2, 2).expect("a small layout");
    from(
        Party::Coordinator,
        counter,
        Message::NewLife { new_life: NewLife { decision, layout, watch: None } },
    )
}

fn from(sender: Party, counter: u32, message: Message) -> Input {
    let life = if counter == 0 { NO_LIFE } else { life(counter) };
    Input::Control(Control { job: JOB, life, epoch: Epoch(0), sender, message })
}

fn fence(counter: u32) -> Input {
    from(Party::Coordinator, 1, Message::Fence { counter, first: counter == 1 })
}

fn ended(rank: u32, counter: u32, status: ExitStatus) -> Input {
    Input::ProcessEnded { rank: Rank(rank), life: life(counter), status }
}

fn hello(rank: u32) -> Input {
    let ports = alloc::vec![PortEntry { port: PortId::of_rank(Rank(rank), 0), rails: Vec::new() }];
    let registration = Registration { rank: Rank(rank), pid: 1, mode: CutMode::Instant, ports };
    from(Party::Rank(Rank(rank)), 1, Message::Hello { registration })
}

fn running(rank: u32) -> Input {
    from(Party::Rank(Rank(rank)), 1, Message::Running { ranks: 1, counted: 0 })
}

fn finalize(rank: u32) -> Input {
    from(Party::Rank(Rank(rank)), 1, Message::Finalize { ranks: 1 })
}

/// The keeper of node 0, with ranks 0 and 1, and node 1 below it.
fn with(inputs: &[Input]) -> Keeper {
    let mut keeper = Keeper::new(JOB, NodeIndex(0), Sabotage::none());
    keeper.handle(NOW, Input::Locked);
    for input in inputs {
        keeper.handle(NOW, input.clone());
    }
    outputs(&mut keeper);
    keeper
}

fn up(more: &[Input]) -> Keeper {
    let mut inputs = alloc::vec![new_life(1), hello(0), hello(1), running(0), running(1)];
    inputs.extend_from_slice(more);
    with(&inputs)
}

fn text(output: Output) -> String {
    match output {
        Output::Send { to, control } => format!("to {to} \"{}\"", control.message),
        Output::Spawn { rank, decision } => format!("spawn {rank} in {}", decision.life.counter),
        Output::Kill { rank, life } => format!("kill {rank} of {}", life.counter),
        Output::WriteExitedImage { rank, generation, .. } => {
            format!("write image {} of {rank}", generation.epoch)
        }
        Output::Pmi(input) => format!("pmi {input:?}"),
        Output::Lock => String::from("lock"),
        Output::Lease(Some(lease)) => format!("lease for {} ms", lease.as_millis()),
        Output::Lease(None) => String::from("no lease"),
        Output::LeaseOver => String::from("lease over"),
    }
}

fn outputs(keeper: &mut Keeper) -> Vec<String> {
    core::iter::from_fn(|| keeper.poll_output()).map(text).collect()
}

fn step(keeper: &mut Keeper, input: &Input) -> Vec<String> {
    keeper.handle(NOW, input.clone());
    outputs(keeper)
}

fn name(keeper: &Keeper) -> String {
    match &keeper.state {
        State::Empty { fenced_below, votes } => format!("Empty below {fenced_below}, {votes}"),
        State::Holding(held) => format!("Holding {}", held.life().counter),
        State::Ending { counter, .. } => format!("Ending below {counter}"),
        State::Fenced { counter } => format!("Fenced below {counter}"),
    }
}

// R7, R9
#[test]
fn lives_begin_and_end() {
    let signal = ExitStatus::Signal(9);
    let inputs = [
        ("fence 1", fence(1)),
        ("fence 2", fence(2)),
        ("fence 3", fence(3)),
        ("life 1", new_life(1)),
        ("life 2", new_life(2)),
        ("life 3", new_life(3)),
        ("rank 0 killed", ended(0, 1, signal)),
        ("rank 1 killed", ended(1, 1, signal)),
        ("rank 0 of another life killed", ended(0, 2, signal)),
        ("rank 0 ends well", ended(0, 1, ExitStatus::Code(0))),
        ("rank 0 is not started", Input::NotStarted { rank: Rank(0), errno: 2 }),
    ];
    let states: [(&str, &dyn Fn() -> Keeper); 7] = [
        ("Empty", &|| with(&[])),
        ("Empty, fenced", &|| with(&[fence(2)])),
        ("Spawning", &|| with(&[new_life(1)])),
        ("Running", &|| up(&[])),
        ("Ending", &|| up(&[fence(2)])),
        ("Ending, rank 1 dead", &|| up(&[fence(2), ended(1, 1, signal)])),
        ("Fenced", &|| up(&[fence(2), ended(0, 1, signal), ended(1, 1, signal)])),
    ];
    expect![[r#"
        Empty + fence 1 -> Empty below 1, true: to coordinator "fenced below 1 on 0"
        Empty + fence 2 -> Empty below 2, false: to coordinator "fenced below 2 on 0, no vote"
        Empty + fence 3 -> Empty below 3, false: to coordinator "fenced below 3 on 0, no vote"
        Empty + life 1 -> Holding 1: to keeper 1 "new-life 1 from the beginning", spawn 0 in 1, spawn 1 in 1
        Empty + life 2 -> Holding 2: to keeper 1 "new-life 2 from the beginning", spawn 0 in 2, spawn 1 in 2
        Empty + life 3 -> Holding 3: to keeper 1 "new-life 3 from the beginning", spawn 0 in 3, spawn 1 in 3
        Empty, fenced + fence 1 -> Empty below 2, true: to coordinator "fenced below 1 on 0"
        Empty, fenced + fence 2 -> Empty below 2, false: to coordinator "fenced below 2 on 0, no vote"
        Empty, fenced + fence 3 -> Empty below 3, false: to coordinator "fenced below 3 on 0, no vote"
        Empty, fenced + life 2 -> Holding 2: to keeper 1 "new-life 2 from the beginning", spawn 0 in 2, spawn 1 in 2
        Empty, fenced + life 3 -> Holding 3: to keeper 1 "new-life 3 from the beginning", spawn 0 in 3, spawn 1 in 3
        Spawning + fence 2 -> Ending below 2: to coordinator "ending all below 2 on 0", kill 0 of 1, kill 1 of 1
        Spawning + fence 3 -> Ending below 3: to coordinator "ending all below 3 on 0", kill 0 of 1, kill 1 of 1
        Spawning + rank 0 killed -> Holding 1: to coordinator "fault: rank 0 died (signal 9)"
        Spawning + rank 1 killed -> Holding 1: to coordinator "fault: rank 1 died (signal 9)"
        Spawning + rank 0 ends well -> Holding 1: to coordinator "left, rank 0"
        Spawning + rank 0 is not started -> Holding 1: to coordinator "fault: rank 0 could not be started (errno 2)"
        Running + fence 2 -> Ending below 2: to coordinator "ending all below 2 on 0", kill 0 of 1, kill 1 of 1
        Running + fence 3 -> Ending below 3: to coordinator "ending all below 3 on 0", kill 0 of 1, kill 1 of 1
        Running + rank 0 killed -> Holding 1: to coordinator "fault: rank 0 died (signal 9)"
        Running + rank 1 killed -> Holding 1: to coordinator "fault: rank 1 died (signal 9)"
        Running + rank 0 ends well -> Holding 1: to coordinator "fault: rank 0 died (exit code 0)"
        Running + rank 0 is not started -> Holding 1: to coordinator "fault: rank 0 could not be started (errno 2)"
        Ending + fence 3 -> Ending below 3: 
        Ending, rank 1 dead + fence 3 -> Ending below 3: 
        Ending, rank 1 dead + rank 0 killed -> Fenced below 2: no lease, to coordinator "fenced below 2 on 0"
        Ending, rank 1 dead + rank 0 ends well -> Fenced below 2: no lease, to coordinator "fenced below 2 on 0"
        Ending, rank 1 dead + rank 0 is not started -> Fenced below 2: no lease, to coordinator "fenced below 2 on 0"
        Fenced + fence 1 -> Fenced below 2: to coordinator "fenced below 2 on 0"
        Fenced + fence 2 -> Fenced below 2: to coordinator "fenced below 2 on 0"
        Fenced + fence 3 -> Fenced below 3: to coordinator "fenced below 3 on 0"
        Fenced + life 2 -> Holding 2: to keeper 1 "new-life 2 from the beginning", spawn 0 in 2, spawn 1 in 2
        Fenced + life 3 -> Holding 3: to keeper 1 "new-life 3 from the beginning", spawn 0 in 3, spawn 1 in 3
    "#]].assert_eq(&table(&states, &inputs, step, name));
}

// R12
#[test]
fn a_rank_whose_ports_nobody_needs_ends_well_without_closing_them() {
    let abandoned = |counter| Input::PortsAbandoned { rank: Rank(0), life: life(counter) };
    let ends_well = ended(0, 1, ExitStatus::Code(0));
    let phase =
        |keeper: &Keeper| keeper.ranks().find(|(rank, ..)| *rank == Rank(0)).map(|(_, phase, _)| phase);
    let mut keeper = up(&[abandoned(1)]);
    assert_eq!((phase(&keeper), keeper.poll_output()), (Some(RankPhase::Running), None));
    assert_eq!(step(&mut keeper, &ends_well), Vec::<String>::new());
    assert_eq!(phase(&keeper), Some(RankPhase::Exited(ExitStatus::Code(0))));
    // Not with a code of its own, and not in another life.
    for (before, end) in [(abandoned(1), ended(0, 1, ExitStatus::Code(4))), (abandoned(2), ends_well)] {
        let mut keeper = up(&[before]);
        assert!(step(&mut keeper, &end)[0].contains("rank 0 died"));
        assert_eq!(phase(&keeper), Some(RankPhase::Dead));
    }
}

#[test]
fn messages_pass_through() {
    let rank = |message| from(Party::Rank(Rank(0)), 1, message);
    let child = |message| from(Party::Keeper(NodeIndex(1)), 1, message);
    let above = |message| from(Party::Coordinator, 1, message);
    let cut = Message::Cut { epoch: Epoch(1), at: CutAt::Now, time_left_ns: 1 };
    let image = ImageReport {
        rank: Rank(0),
        digest: ImageDigest(1),
        bytes: 1,
        content: ImageContent::Commanded,
        statistics: crate::control::CutStatistics::default(),
    };
    let done = Message::ImageDone { epoch: Epoch(1), report: image };
    let below =
        alloc::vec![1, 2, 3].into_iter().map(|rank| ImageReport { rank: Rank(rank), ..image }).collect();
    let aborted = FaultReport::Aborted { rank: Rank(3), code: 1 };
    let inputs = [
        ("cut from above", above(cut.clone())),
        ("cut from a rank", rank(cut.clone())),
        ("cut from a child", child(cut.clone())),
        ("cut of another life", from(Party::Coordinator, 2, cut.clone())),
        ("cut from a stranger", from(Party::Keeper(NodeIndex(5)), 1, cut)),
        ("image", rank(done.clone())),
        ("image of another", from(Party::Rank(Rank(1)), 1, done)),
        ("images below", child(Message::Images { epoch: Epoch(1), reports: below })),
        ("request", rank(Message::Request { source: Source::Command })),
        ("fault below", child(Message::Fault { report: aborted })),
        ("rank 0 is done", finalize(0)),
        ("all below are done", child(Message::Finalize { ranks: 2 })),
        ("all are done", above(Message::FinalizeDone)),
        ("abandon", above(Message::Abandon { epoch: Epoch(1) })),
        ("rank 0 ends", ended(0, 1, ExitStatus::Code(0))),
        ("rank 0 ends badly", ended(0, 1, ExitStatus::Code(4))),
        ("two end below", child(Message::Ended { ranks: 2, status: ExitStatus::Code(0) })),
        (
            "closed?",
            rank(Message::ClosedQuery {
                port: PortId::of_rank(Rank(3), 0),
                peer: PortId::of_rank(Rank(0), 0),
            }),
        ),
    ];
    let released = [finalize(0), finalize(1), above(Message::FinalizeDone), ended(1, 1, ExitStatus::Code(0))];
    let done = [rank(Message::ImageDone { epoch: Epoch(1), report: image })];
    let states: [(&str, &dyn Fn() -> Keeper); 3] = [
        ("Running", &|| up(&[])),
        ("Image 0 done", &|| up(&done)),
        ("Released, rank 1 ended", &|| up(&released)),
    ];
    expect![[r#"
        Running + cut from above -> Holding 1: to keeper 1 "cut 1 now", to rank 0 "cut 1 now", to rank 1 "cut 1 now"
        Running + request -> Holding 1: to coordinator "request Command"
        Running + fault below -> Holding 1: to coordinator "fault: rank 3 aborted the job (code 1)"
        Running + all are done -> Holding 1: to keeper 1 "finalize-done", to rank 0 "finalize-done", to rank 1 "finalize-done"
        Running + abandon -> Holding 1: to keeper 1 "abandon 1", to rank 0 "abandon 1", to rank 1 "abandon 1"
        Running + rank 0 ends -> Holding 1: to coordinator "fault: rank 0 died (exit code 0)"
        Running + rank 0 ends badly -> Holding 1: to coordinator "fault: rank 0 died (exit code 4)"
        Running + closed? -> Holding 1: to keeper 1 "closed? 3/0 towards 0/0"
        Image 0 done + cut from above -> Holding 1: to keeper 1 "cut 1 now", to rank 0 "cut 1 now", to rank 1 "cut 1 now"
        Image 0 done + images below -> Holding 1: to coordinator "images 1 of 4 ranks"
        Image 0 done + request -> Holding 1: to coordinator "request Command"
        Image 0 done + fault below -> Holding 1: to coordinator "fault: rank 3 aborted the job (code 1)"
        Image 0 done + all are done -> Holding 1: to keeper 1 "finalize-done", to rank 0 "finalize-done", to rank 1 "finalize-done"
        Image 0 done + abandon -> Holding 1: to keeper 1 "abandon 1", to rank 0 "abandon 1", to rank 1 "abandon 1"
        Image 0 done + rank 0 ends -> Holding 1: to coordinator "fault: rank 0 died (exit code 0)"
        Image 0 done + rank 0 ends badly -> Holding 1: to coordinator "fault: rank 0 died (exit code 4)"
        Image 0 done + closed? -> Holding 1: to keeper 1 "closed? 3/0 towards 0/0"
        Released, rank 1 ended + cut from above -> Holding 1: to keeper 1 "cut 1 now", to rank 0 "cut 1 now", write image 1 of 1
        Released, rank 1 ended + request -> Holding 1: to coordinator "request Command"
        Released, rank 1 ended + fault below -> Holding 1: to coordinator "fault: rank 3 aborted the job (code 1)"
        Released, rank 1 ended + all below are done -> Holding 1: to coordinator "finalize 4"
        Released, rank 1 ended + all are done -> Holding 1: to keeper 1 "finalize-done", to rank 0 "finalize-done"
        Released, rank 1 ended + abandon -> Holding 1: to keeper 1 "abandon 1", to rank 0 "abandon 1"
        Released, rank 1 ended + closed? -> Holding 1: to keeper 1 "closed? 3/0 towards 0/0"
    "#]].assert_eq(&table(&states, &inputs, step, name));
}

/// R12: the keeper answers for a port that has closed, and writes the image of a rank that has ended.
#[test]
fn a_keeper_answers_for_a_rank_that_has_ended() {
    use crate::control::ClosedLink;
    let (port, peer) = (PortId::of_rank(Rank(0), 0), PortId::of_rank(Rank(1), 0));
    let link = |expected| ClosedLink {
        peer: PortId::of_rank(Rank(1), expected),
        next: 5,
        expected: expected.into(),
    };
    let closed = |expected, last| {
        let links = alloc::vec![link(expected)];
        from(Party::Rank(Rank(0)), 1, Message::Closed { port, links, last })
    };
    let mut keeper = up(&[closed(0, false), closed(1, true), ended(0, 1, ExitStatus::Code(0))]);
    let query = |peer| from(Party::Rank(Rank(1)), 1, Message::ClosedQuery { port, peer });
    let cut = Message::Cut { epoch: Epoch(1), at: CutAt::Now, time_left_ns: 1 };
    let mut reported = step(&mut keeper, &query(peer));
    reported.extend(step(&mut keeper, &query(PortId::of_rank(Rank(2), 0))));
    keeper.handle(NOW, from(Party::Coordinator, 1, cut));
    let record = core::iter::from_fn(|| keeper.poll_output()).find_map(|output| match output {
        Output::WriteExitedImage { record, .. } => Some(record),
        _ => None,
    });
    let record = record.expect("the keeper writes the image of a rank that cannot");
    assert_eq!(record.status, ExitStatus::Code(0));
    assert_eq!(record.ports[0].links, [link(0), link(1)]);
    assert_eq!(ExitedRecord::parse(&record.emit()), Ok(record.clone()));
    // In the next life there is nothing to start, and the answer is the same.
    let mut keeper =
        with(&[new_life(1), Input::ExitedInImage { rank: Rank(0), record }, hello(1), running(1)]);
    reported.extend(step(&mut keeper, &query(peer)));
    expect![[r#"
        to rank 1 "closed 0/0 towards 1/0: next 5, expected 0"
        to keeper 1 "closed 0/0 towards 2/0: no"
        to rank 1 "closed 0/0 towards 1/0: next 5, expected 0""#]]
    .assert_eq(&reported.join("\n"));
}

#[test]
fn a_rank_that_does_not_say_where_it_is_is_named_once_for_each_question() {
    let mut keeper = up(&[]);
    let query = |query| from(Party::Coordinator, 1, Message::PointQuery { query });
    let answer = |rank, query| {
        let summary = PointSummary::FINALIZING;
        from(Party::Rank(Rank(rank)), 1, Message::PointReport { query, summary })
    };
    for number in [1, 2] {
        step(&mut keeper, &query(number));
        step(&mut keeper, &answer(0, number));
        assert_eq!(keeper.poll_timeout(), Some(NOW + POINT_SILENCE));
        keeper.handle_timeout(NOW + POINT_SILENCE / 2);
        assert_eq!(outputs(&mut keeper), [""; 0]);
        keeper.handle_timeout(NOW + POINT_SILENCE);
        assert_eq!(outputs(&mut keeper), ["to coordinator \"fault: rank 1 has not answered for 2000 ms\""]);
        assert_eq!(keeper.poll_timeout(), None);
        keeper.handle_timeout(NOW + POINT_SILENCE * 2);
        assert_eq!(outputs(&mut keeper), [""; 0]);
    }
    // Ranks of the node below are that node's to name.
    step(&mut keeper, &query(3));
    step(&mut keeper, &answer(0, 3));
    step(&mut keeper, &answer(1, 3));
    keeper.handle_timeout(NOW + POINT_SILENCE);
    assert_eq!(outputs(&mut keeper), [""; 0]);
}

#[test]
fn a_stranger_s_job_is_not_ours() {
    let mut keeper = up(&[]);
    let message = Message::FinalizeDone;
    let control =
        Control { job: JobId(8), life: life(1), epoch: Epoch(0), sender: Party::Coordinator, message };
    keeper.handle(NOW, Input::Control(control));
    assert_eq!(keeper.poll_output(), None);
    assert_eq!(*keeper.counters(), Counters { wrong_job: 1, ..Counters::default() });
}

/// R30: a fresh keeper knows of no process, and another one's may still run.
#[test]
fn without_the_node_s_lock_no_fence_is_answered_and_no_life_begins() {
    let mut keeper = Keeper::new(JOB, NodeIndex(0), Sabotage::none());
    assert_eq!(outputs(&mut keeper), ["to coordinator \"keeper-hello 0\"", "lock"]);
    assert_eq!(step(&mut keeper, &fence(1)), [""; 0]);
    assert_eq!(step(&mut keeper, &fence(2)), [""; 0]);
    assert_eq!(step(&mut keeper, &new_life(2)), [""; 0]);
    assert_eq!(keeper.life(), None);
    // The last question is answered, once.
    assert_eq!(step(&mut keeper, &Input::Locked), ["to coordinator \"fenced below 2 on 0\""]);
    assert_eq!(step(&mut keeper, &Input::Locked), [""; 0]);
    step(&mut keeper, &new_life(2));
    assert_eq!(keeper.life(), Some(life(2)));
}

/// R30: the guard learns how long the ranks may run, and when none runs any more.
#[test]
fn a_lease_lasts_from_word_to_word_until_the_last_rank_has_ended() {
    const SECOND: Duration = Duration::from_secs(1);
    let watch = Watch::new(SECOND / 4, SECOND * 5);
    let layout = Layout::even(2, 1, 2).expect("a small layout");
    let decision = Decision { life: life(1), restore: None };
    let new_life = NewLife { decision, layout, watch: Some(watch) };
    let begin = from(Party::Coordinator, 1, Message::NewLife { new_life });
    let granted = lease(NOW, Duration::from_secs(4));
    let leases = |outputs: Vec<String>| -> Vec<String> {
        outputs.into_iter().filter(|output| output.contains("lease")).collect()
    };
    let mut keeper = with(&[]);
    assert_eq!(leases(step(&mut keeper, &begin)), [""; 0]);
    assert_eq!(leases(step(&mut keeper, &granted)), ["lease for 4000 ms"]);
    assert_eq!(leases(step(&mut keeper, &granted)), ["lease for 4000 ms"]);
    assert_eq!(leases(step(&mut keeper, &ended(0, 1, ExitStatus::Code(0)))), [""; 0]);
    assert_eq!(leases(step(&mut keeper, &ended(1, 1, ExitStatus::Code(0)))), ["no lease"]);
    // The job may take its time to end: nobody is left that could outlive a lease.
    assert_eq!(leases(step(&mut keeper, &granted)), [""; 0]);
    keeper.handle_timeout(NOW + Duration::from_secs(3600));
    assert_eq!(leases(outputs(&mut keeper)), [""; 0]);
}

/// The answer to a question of this instant.
fn lease(asked: Instant, left: Duration) -> Input {
    let left_ns = u64::try_from(left.as_nanos()).unwrap();
    from(Party::Coordinator, 1, Message::Lease { asked_ns: asked.as_nanos(), left_ns })
}

/// R31: ranks begin with the first lease, and a lease runs from the question.
#[test]
fn an_answer_that_was_held_up_is_worth_less() {
    const SECOND: Duration = Duration::from_secs(1);
    let layout = Layout::even(2, 1, 2).expect("a small layout");
    let decision = Decision { life: life(1), restore: None };
    let watch = Some(Watch::new(SECOND / 4, SECOND * 5));
    let new_life = NewLife { decision, layout, watch };
    let mut keeper = with(&[]);
    let begun = step(&mut keeper, &from(Party::Coordinator, 1, Message::NewLife { new_life }));
    assert_eq!(begun, [""; 0], "no rank yet");
    let mut at = |seconds: u32, asked: u32| {
        keeper.handle(NOW + SECOND * seconds, lease(NOW + SECOND * asked, SECOND * 4));
        outputs(&mut keeper)
    };
    // Both messages were held up for 5 seconds.
    assert_eq!(at(5, 0), [""; 0]);
    assert_eq!(at(6, 5), ["lease for 3000 ms", "spawn 0 in 1", "spawn 1 in 1"]);
    assert_eq!(at(8, 3), ["lease for 1000 ms"], "the longer one counts");
    // The clock was set back since the question.
    assert_eq!(at(8, 20), ["lease for 4000 ms"]);
}

/// R31: the report that a keeper is silent proves that its ranks have ended.
#[test]
fn a_keeper_that_was_reported_gets_no_lease_any_more() {
    const SECOND: Duration = Duration::from_secs(1);
    let layout = Layout::even(2, 2, 2).expect("a small layout");
    let decision = Decision { life: life(1), restore: None };
    let watch = Some(Watch::new(SECOND / 4, SECOND * 5));
    let new_life = NewLife { decision, layout, watch };
    let child = |asked_ns| from(Party::Keeper(NodeIndex(1)), 1, Message::Heartbeat { keepers: 1, asked_ns });
    let to_child = |outputs: Vec<String>| -> Vec<String> {
        outputs.into_iter().filter(|output| output.starts_with("to keeper 1 \"lease")).collect()
    };
    let mut keeper = with(&[from(Party::Coordinator, 1, Message::NewLife { new_life })]);
    assert_eq!(to_child(step(&mut keeper, &child(7))), [""; 0], "there is none to pass on");
    let granted = lease(NOW, SECOND * 4);
    assert_eq!(to_child(step(&mut keeper, &granted)), ["to keeper 1 \"lease for 4000 ms\""]);
    // It looks at each of its own heartbeats: one that comes late is no silence of others.
    (0..=4).for_each(|beat| keeper.handle_timeout(NOW + SECOND / 4 * beat));
    keeper.handle(NOW + SECOND, child(8));
    assert_eq!(to_child(outputs(&mut keeper)), ["to keeper 1 \"lease for 3000 ms\""]);
    for beat in 5..=24 {
        let now = NOW + SECOND / 4 * beat;
        keeper.handle(now, lease(now, SECOND * 4));
        keeper.handle_timeout(now);
    }
    let reported = outputs(&mut keeper);
    assert!(reported.iter().any(|output| output.contains("node 1 is gone or cut off")), "{reported:?}");
    keeper.handle(NOW + SECOND * 6, child(9));
    assert_eq!(to_child(outputs(&mut keeper)), [""; 0]);
}

/// R30: nothing is heard any more.
#[test]
fn a_keeper_whose_lease_is_over_ends_its_ranks() {
    const SECOND: Duration = Duration::from_secs(1);
    let watch = Watch::new(SECOND, SECOND * 5);
    let layout = Layout::even(2, 1, 2).expect("a small layout");
    let decision = Decision { life: life(1), restore: None };
    let new_life = NewLife { decision, layout, watch: Some(watch) };
    let begin = from(Party::Coordinator, 1, Message::NewLife { new_life });
    let mut keeper = with(&[begin, lease(NOW, SECOND * 4)]);
    keeper.handle_timeout(NOW + Duration::from_secs(4));
    let outputs = outputs(&mut keeper);
    assert_eq!(outputs, ["lease over", "kill 0 of 1", "kill 1 of 1"]);
}

fn report_of(rank: u32) -> crate::control::RankReport {
    let found = crate::control::Found::Answered { in_call: false, sleeps: false, looks: 1, begun: 1 };
    crate::control::RankReport::of(Rank(rank), found)
}

/// What the keeper has passed up about the waits of ranks, each as it was found, and what else it has sent.
fn passed_up(keeper: &mut Keeper) -> (Vec<(u32, String)>, Vec<String>) {
    let (mut reports, mut others) = (Vec::new(), Vec::new());
    for output in core::iter::from_fn(|| keeper.poll_output()) {
        match output {
            Output::Send {
                to: Party::Coordinator,
                control: Control { message: Message::WaitReports { query: 5, reports: more }, .. },
            } => reports.extend(more.iter().map(|report| (report.rank.0, format!("{:?}", report.found)))),
            output => others.push(text(output)),
        }
    }
    (reports, others)
}

#[test]
fn waits_are_gathered_and_ranks_that_do_not_answer_are_named() {
    use crate::limits::WAIT_ANSWER_MAX;
    let answer = |rank| Message::WaitReports { query: 5, reports: alloc::vec![report_of(rank)] };
    let of_rank = |rank, message| from(Party::Rank(Rank(rank)), 1, message);
    let below = |ranks: &[u32]| {
        let reports = ranks.iter().map(|rank| report_of(*rank)).collect();
        from(Party::Keeper(NodeIndex(1)), 1, Message::WaitReports { query: 5, reports })
    };
    let time_left_ns = u64::try_from(WAIT_ANSWER_MAX.as_nanos()).expect("seconds");
    let question = from(Party::Coordinator, 1, Message::WaitQuery { query: 5, time_left_ns });
    // All answer: one message, when the last has.
    let mut keeper = up(&[]);
    let asked = step(&mut keeper, &question);
    assert_eq!(asked, ["to keeper 1 \"waits? (5)\"", "to rank 0 \"waits? (5)\"", "to rank 1 \"waits? (5)\""]);
    for input in [of_rank(0, answer(0)), below(&[2, 3])] {
        assert_eq!(step(&mut keeper, &input), [] as [String; 0]);
    }
    // Again, for another rank, of another question: none of these counts.
    let other = Message::WaitReports { query: 4, reports: alloc::vec![report_of(1)] };
    for input in [of_rank(0, answer(0)), of_rank(1, answer(0)), of_rank(1, other), below(&[0, 1])] {
        assert_eq!(step(&mut keeper, &input), [] as [String; 0]);
    }
    assert_eq!(step(&mut keeper, &of_rank(1, answer(1))), ["to coordinator \"waits (5) of 4 ranks\""]);
    assert_eq!(keeper.poll_timeout(), None, "nothing is waited for any more");
    // One does not: it is named before the coordinator's time is over, and those that have answered are not held back by it.
    let mut keeper = up(&[ended(0, 1, ExitStatus::Code(4))]);
    step(&mut keeper, &question);
    step(&mut keeper, &below(&[2, 3]));
    let due = keeper.poll_timeout().expect("a deadline");
    assert!(due < NOW + WAIT_ANSWER_MAX, "{due:?}");
    keeper.handle_timeout(NOW);
    assert_eq!(passed_up(&mut keeper).0, []);
    keeper.handle_timeout(due);
    let (reports, _) = passed_up(&mut keeper);
    let words: Vec<&str> =
        reports.iter().map(|(_, found)| found.split(' ').next().expect("a word")).collect();
    assert_eq!(words, ["Dead", "Answered", "Answered", "Silent"], "{reports:?}");
    assert_eq!(reports.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 2, 3, 1]);
    // One that comes up is not asked: it listens for addresses alone.
    let mut keeper = with(&[new_life(1), hello(0)]);
    assert_eq!(step(&mut keeper, &question), ["to keeper 1 \"waits? (5)\""]);
    step(&mut keeper, &below(&[2]));
    let due = keeper.poll_timeout().expect("a deadline");
    keeper.handle_timeout(due);
    let (reports, _) = passed_up(&mut keeper);
    let not_attached = |rank| (rank, String::from("NotAttached"));
    assert_eq!(reports[..2], [not_attached(0), not_attached(1)], "{reports:?}");
    assert_eq!(reports.len(), 3, "the coordinator names the fourth");
}
