use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use expect_test::expect;
use transport::{Epoch, Rank};

use super::*;
use crate::config::{OnExit, OnFault};
use crate::control::FaultReport;
use crate::limits::FENCE_MAX;
use crate::names::ExitStatus;
use crate::recovery::{Confidence, FaultSite, Policy, RecoveryView};
use crate::sabotage::Sabotage;
use crate::table::table;

const NOW: Instant = Instant::from_nanos(1_000);
const FIRST: Life = Life { counter: 1, nonce: 11 };

fn settings() -> Settings {
    Settings {
        nodes: 1,
        quorum: 1,
        fence_max: FENCE_MAX,
        transient_within: Duration::ZERO,
        earlier_lease: Duration::ZERO,
        counter_last: 0,
        start_timeout: Duration::from_secs(5),
        connects: false,
        sabotage: Sabotage::none(),
    }
}

fn fault(model: FaultModel, report: FaultReport) -> Fault {
    Fault { model, site: FaultSite::Job, confidence: Confidence::Certain, report }
}

fn died() -> Fault {
    let report = FaultReport::RankDied { rank: Rank(0), status: ExitStatus::Signal(9) };
    fault(FaultModel::Process, report)
}

fn aborted() -> Fault {
    fault(FaultModel::Program, FaultReport::Aborted { rank: Rank(0), code: 3 })
}

fn generation(epoch: u32) -> GenerationId {
    GenerationId { life: FIRST, epoch: Epoch(epoch) }
}

fn restart() -> Input {
    Input::Fault(died(), Plan::Restart { after: Duration::ZERO })
}

fn fenced(counter: u32) -> Input {
    Input::NodeFenced { counter, node: NodeIndex(0), votes: true }
}

fn store(counter: u32, newest: Option<GenerationId>) -> Input {
    Input::StoreFenced { counter, newest, committed: newest.is_some(), nonce: 10 + u64::from(counter) }
}

/// Generations are committed, and none can be restored.
fn store_without_whole(counter: u32) -> Input {
    Input::StoreFenced { counter, newest: None, committed: true, nonce: 10 + u64::from(counter) }
}

fn with(inputs: &[Input]) -> Recovery {
    let mut recovery = Recovery::new(settings());
    for input in inputs {
        recovery.handle(NOW, *input);
    }
    while recovery.poll_output().is_some() {}
    recovery
}

fn begun() -> Vec<Input> {
    alloc::vec![
        Input::Begin(Beginning::Fresh),
        fenced(1),
        store(1, None),
        Input::DecisionDurable { life: FIRST },
    ]
}

fn running(more: &[Input]) -> Recovery {
    let mut inputs = begun();
    inputs.push(Input::AllRunning);
    inputs.extend_from_slice(more);
    with(&inputs)
}

fn text(output: Output) -> String {
    let from = |decision: Decision| match decision.restore {
        Some(generation) => format!("{} from epoch {}", decision.life.counter, generation.epoch),
        None => format!("{} from the beginning", decision.life.counter),
    };
    match output {
        Output::FenceNodes { counter, .. } => format!("fence nodes below {counter}"),
        Output::FenceStore { counter, .. } => format!("fence store below {counter}"),
        Output::Replace { node, answers } => {
            format!("replace node {node}{}", if answers { ", which answers" } else { "" })
        }
        Output::WriteDecision(decision) => format!("decide life {}", from(decision)),
        Output::StartLife(decision) => format!("start life {}", from(decision)),
        Output::Over(Ending::Failed { reason, .. }) => format!("over: {reason:?}"),
        Output::Over(ending) => format!("over: {ending:?}"),
    }
}

fn outputs(recovery: &mut Recovery) -> Vec<String> {
    core::iter::from_fn(|| recovery.poll_output()).map(text).collect()
}

/// `None` is the time that runs out.
fn step(recovery: &mut Recovery, input: &Option<Input>) -> Vec<String> {
    match input {
        Some(input) => recovery.handle(NOW, *input),
        None => recovery.handle_timeout(NOW + Duration::from_secs(3600)),
    }
    outputs(recovery)
}

fn name(recovery: &Recovery) -> String {
    format!("{:?}", recovery.phase()).to_string()
}

// R32
#[test]
fn a_pause_of_the_coordinator_extends_leases() {
    const LEASE: Duration = Duration::from_secs(10);
    let mut recovery = Recovery::new(Settings { earlier_lease: LEASE, ..settings() });
    [Input::Begin(Beginning::Fresh), fenced(1), store(1, None)]
        .into_iter()
        .for_each(|input| recovery.handle(NOW, input));
    while recovery.poll_output().is_some() {}
    recovery.postpone(LEASE);
    recovery.handle_timeout(NOW + LEASE);
    assert_eq!(recovery.poll_output(), None, "ranks of the earlier launcher may run");
    recovery.handle_timeout(NOW + LEASE * 2);
    assert!(matches!(recovery.poll_output(), Some(Output::WriteDecision(_))));
}

// R7, R9
#[test]
fn every_input_in_every_state() {
    let stop = Plan::Stop { reason: StopReason::OnFaultAbort };
    let later = Plan::Restart { after: Duration::from_secs(1) };
    let inputs = [
        ("begin", Some(Input::Begin(Beginning::Fresh))),
        ("fault", Some(restart())),
        ("fault, later", Some(Input::Fault(died(), later))),
        ("fault, stop", Some(Input::Fault(died(), stop))),
        ("abort", Some(Input::Fault(aborted(), Plan::Stop { reason: StopReason::ProgramAborted }))),
        ("stop", Some(Input::Stop)),
        ("old node fenced", Some(fenced(0))),
        ("node fenced", Some(fenced(2))),
        ("store fenced", Some(store(2, Some(generation(3))))),
        ("lives found", Some(Input::LivesFound { counter_last: 7 })),
        ("decision of another life", Some(Input::DecisionDurable { life: Life { counter: 2, nonce: 0 } })),
        ("decision durable", Some(Input::DecisionDurable { life: Life { counter: 2, nonce: 12 } })),
        ("connecting", Some(Input::Connecting)),
        ("all running", Some(Input::AllRunning)),
        ("committed", Some(Input::Committed(generation(4)))),
        ("all ended", Some(Input::AllEnded)),
        ("time over", None),
    ];
    let answers = [fenced(2), store(2, Some(generation(3)))];
    let states: [(&str, &dyn Fn() -> Recovery); 9] = [
        ("Idle", &|| with(&[])),
        ("Fencing, first life", &|| with(&[Input::Begin(Beginning::Fresh)])),
        ("Starting", &|| with(&begun())),
        ("Running", &|| running(&[])),
        ("Fencing", &|| running(&[restart()])),
        ("Fencing, store known", &|| running(&[restart(), answers[1]])),
        ("BackingOff", &|| running(&[Input::Fault(died(), later), answers[0], answers[1]])),
        ("Deciding", &|| running(&[restart(), answers[0], answers[1]])),
        ("Over", &|| running(&[Input::AllEnded])),
    ];
    expect![[r#"
        Idle + begin -> Fencing: fence nodes below 1, fence store below 1
        Idle + stop -> Over: over: Stopped
        Fencing, first life + lives found -> Fencing: fence nodes below 8, fence store below 8
        Fencing, first life + time over -> Over: over: NoMajority { answered: 0, needed: 1 }
        Starting + fault -> Fencing: fence nodes below 2, fence store below 2
        Starting + fault, later -> Fencing: fence nodes below 2, fence store below 2
        Starting + fault, stop -> Fencing: fence nodes below 2, fence store below 2
        Starting + abort -> Fencing: fence nodes below 2, fence store below 2
        Starting + stop -> Fencing: fence nodes below 2, fence store below 2
        Starting + all running -> Running: 
        Starting + all ended -> Over: over: Finished
        Running + fault -> Fencing: fence nodes below 2, fence store below 2
        Running + fault, later -> Fencing: fence nodes below 2, fence store below 2
        Running + fault, stop -> Fencing: fence nodes below 2, fence store below 2
        Running + abort -> Fencing: fence nodes below 2, fence store below 2
        Running + stop -> Fencing: fence nodes below 2, fence store below 2
        Running + all ended -> Over: over: Finished
        Fencing + time over -> Over: over: NoMajority { answered: 0, needed: 1 }
        Fencing, store known + node fenced -> Deciding: decide life 2 from epoch 3
        Fencing, store known + time over -> Over: over: NoMajority { answered: 0, needed: 1 }
        BackingOff + fault -> Fencing: fence nodes below 2, fence store below 2
        BackingOff + fault, later -> Fencing: fence nodes below 2, fence store below 2
        BackingOff + fault, stop -> Fencing: fence nodes below 2, fence store below 2
        BackingOff + abort -> Fencing: fence nodes below 2, fence store below 2
        BackingOff + stop -> Fencing: fence nodes below 2, fence store below 2
        BackingOff + time over -> Deciding: decide life 2 from epoch 3
        Deciding + stop -> Fencing: fence nodes below 2, fence store below 2
        Deciding + decision durable -> Starting: start life 2 from epoch 3
    "#]]
    .assert_eq(&table(&states, &inputs, step, name));
}

/// R7, R9: a second fault while the ranks come up is a further attempt in a further life, from the then newest
/// generation.
#[test]
fn a_fault_during_recovery_is_a_new_attempt() {
    let mut recovery = running(&[restart(), fenced(2), store(2, Some(generation(3)))]);
    let second = Life { counter: 2, nonce: 12 };
    recovery.handle(NOW, Input::DecisionDurable { life: second });
    recovery.handle(NOW, restart());
    recovery.handle(NOW, fenced(3));
    recovery.handle(NOW, store(3, Some(generation(3))));
    assert_eq!(recovery.attempts(), 2);
    expect![[r#"
        start life 2 from epoch 3
        fence nodes below 3
        fence store below 3
        decide life 3 from epoch 3"#]]
    .assert_eq(&outputs(&mut recovery).join("\n"));
}

#[test]
fn a_program_that_begins_anew_has_all_the_time_that_it_wants_until_one_of_its_ranks_connects() {
    let later = NOW + Duration::from_secs(3600);
    let mut recovery = with(&begun());
    assert_eq!((recovery.poll_timeout(), recovery.start_timed_out(later)), (None, false));
    for at in [later, later + Duration::from_secs(4)] {
        recovery.handle(at, Input::Connecting);
    }
    let until = later + settings().start_timeout;
    assert_eq!(recovery.poll_timeout(), Some(until), "from the first on");
    assert!(!recovery.start_timed_out(later) && recovery.start_timed_out(until));
    recovery.handle(until, Input::AllRunning);
    assert_eq!((recovery.poll_timeout(), recovery.start_timed_out(until)), (None, false));
    // One that is restored was connected when it was saved.
    let mut recovery = running(&[restart(), fenced(2), store(2, Some(generation(3)))]);
    recovery.handle(NOW, Input::DecisionDurable { life: Life { counter: 2, nonce: 12 } });
    assert_eq!(recovery.poll_timeout(), Some(NOW + settings().start_timeout));
}

/// A life that runs so long from `now` on, then dies: the pause that follows.
fn pause_after(recovery: &mut Recovery, now: &mut Instant, runs: Duration) -> Duration {
    recovery.handle(*now, Input::AllRunning);
    *now = *now + runs;
    let view = RecoveryView {
        newest: None,
        attempts: recovery.attempts(),
        in_a_row: recovery.attempts_in_a_row(*now),
        restarts_max: u32::MAX,
        on_fault: OnFault::Restart,
        on_exit: OnExit::Fail,
        back_off: Duration::from_millis(200),
        has_other_hosts: true,
        all_run: true,
        rolls_back: true,
    };
    let plan = Policy::default().plan(&view, &died());
    let Some(plan @ Plan::Restart { after }) = plan else { panic!("{plan:?}") };
    recovery.handle(*now, Input::Fault(died(), plan));
    let counter = recovery.life().expect("one has begun").counter + 1;
    recovery.handle(*now, fenced(counter));
    recovery.handle(*now, store(counter, recovery.committed()));
    *now = *now + after;
    recovery.handle_timeout(*now);
    recovery.handle(*now, Input::DecisionDurable { life: Life { counter, nonce: 10 + u64::from(counter) } });
    after
}

#[test]
fn pauses_grow_up_to_a_bound_and_begin_anew_after_a_life_that_was_worth_its_start() {
    let short = Duration::from_secs(1);
    let mut recovery = running(&[]);
    let mut now = NOW;
    let mut pauses = |recovery: &mut Recovery, lives: &[Duration]| -> Vec<u128> {
        lives.iter().map(|runs| pause_after(recovery, &mut now, *runs).as_millis()).collect()
    };
    assert_eq!(pauses(&mut recovery, &[short; 9]), [0, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
    let long = [BACK_OFF_MAX - Duration::from_millis(1), BACK_OFF_MAX, short, short];
    assert_eq!(pauses(&mut recovery, &long), [5000, 0, 200, 400]);
    assert_eq!(
        recovery.attempts(),
        13,
        "what is allowed counts from the last generation, however long lives run"
    );
    recovery.handle(NOW, Input::Committed(generation(3)));
    assert_eq!(pauses(&mut recovery, &[short; 3]), [0, 200, 400]);
    assert_eq!(recovery.attempts(), 3);
}

/// R7: a number is used up by a durable decision only, so that the store and the machine count alike.
#[test]
fn a_decision_that_could_not_be_written_leaves_its_number() {
    let mut recovery = with(&[Input::Begin(Beginning::Fresh), fenced(1), store(1, None)]);
    let report = FaultReport::DecisionFailed { errno: 28 };
    let fault = fault(FaultModel::Process, report);
    recovery.handle(NOW, Input::Fault(fault, Plan::Restart { after: Duration::ZERO }));
    recovery.handle(NOW, fenced(1));
    recovery.handle(NOW, store(1, None));
    expect![[r#"
        fence nodes below 1
        fence store below 1
        decide life 1 from the beginning"#]]
    .assert_eq(&outputs(&mut recovery).join("\n"));
}

#[test]
fn a_named_generation_holds_until_the_job_has_committed_its_own() {
    let named = GenerationId { life: Life { counter: 4, nonce: 9 }, epoch: Epoch(7) };
    let newer = GenerationId { life: Life { counter: 5, nonce: 9 }, epoch: Epoch(9) };
    let mut recovery = Recovery::new(Settings { counter_last: 5, ..settings() });
    recovery.handle(NOW, Input::Begin(Beginning::Named(named)));
    recovery.handle(NOW, fenced(6));
    recovery.handle(NOW, store(6, Some(newer)));
    recovery.handle(NOW, Input::DecisionDurable { life: Life { counter: 6, nonce: 16 } });
    recovery.handle(NOW, restart());
    recovery.handle(NOW, fenced(7));
    recovery.handle(NOW, store(7, Some(newer)));
    recovery.handle(NOW, Input::DecisionDurable { life: Life { counter: 7, nonce: 17 } });
    let own = GenerationId { life: Life { counter: 7, nonce: 17 }, epoch: Epoch(8) };
    recovery.handle(NOW, Input::Committed(own));
    recovery.handle(NOW, restart());
    recovery.handle(NOW, fenced(8));
    recovery.handle(NOW, store(8, Some(own)));
    expect![[r#"
        fence nodes below 6
        fence store below 6
        decide life 6 from epoch 7
        start life 6 from epoch 7
        fence nodes below 7
        fence store below 7
        decide life 7 from epoch 7
        start life 7 from epoch 7
        fence nodes below 8
        fence store below 8
        decide life 8 from epoch 8"#]]
    .assert_eq(&outputs(&mut recovery).join("\n"));
}

/// R9: a lost generation may come back, and would not count any more in a life that began without it.
#[test]
fn a_job_that_has_committed_does_not_begin_anew() {
    let reported = [Input::Committed(generation(3)), restart(), fenced(2)];
    for answer in [store(2, None), store_without_whole(2)] {
        let mut recovery = running(&reported);
        assert_eq!(step(&mut recovery, &Some(answer)), ["over: NothingToRestore"]);
        assert_eq!(recovery.committed(), Some(generation(3)), "it is kept, as far as it is there");
    }
    // It was committed in the instant in which its life ended: only the store knows.
    let mut recovery = running(&[restart(), fenced(2)]);
    assert_eq!(step(&mut recovery, &Some(store_without_whole(2))), ["over: NothingToRestore"]);
}

/// A restarted job, also after a later rollback, never begins anew.
#[test]
fn a_restarted_job_does_not_begin_anew() {
    let mut recovery = with(&[Input::Begin(Beginning::Newest), fenced(1)]);
    assert_eq!(step(&mut recovery, &Some(store(1, None))), ["over: NothingToRestore"]);
    let started = [
        Input::Begin(Beginning::Newest),
        fenced(1),
        store(1, Some(generation(4))),
        Input::DecisionDurable { life: FIRST },
        restart(),
        fenced(2),
    ];
    let mut recovery = with(&started);
    assert_eq!(step(&mut recovery, &Some(store(2, None))), ["over: NothingToRestore"]);
    let mut inputs = begun();
    inputs.extend([restart(), fenced(2)]);
    assert_eq!(step(&mut with(&inputs), &Some(store(2, None))), ["decide life 2 from the beginning"]);
}

#[test]
fn a_store_that_makes_progress_is_waited_for() {
    let mut recovery = with(&[Input::Begin(Beginning::Newest), fenced(1)]);
    let late = NOW + (FENCE_MAX - Duration::from_secs(1));
    recovery.handle(late, Input::StoreBusy { counter: 2 });
    assert_eq!(recovery.poll_timeout(), Some(NOW + FENCE_MAX), "another question's progress");
    recovery.handle(late, Input::StoreBusy { counter: 1 });
    recovery.handle_timeout(NOW + FENCE_MAX);
    assert_eq!(recovery.phase(), Phase::Fencing);
    recovery.handle_timeout(late + FENCE_MAX);
    assert_eq!(outputs(&mut recovery).join("\n"), "over: StoreSilent");
}

/// R9: keepers that were started anew do not make a majority.
#[test]
fn a_majority_of_keepers_must_remember() {
    let mut recovery = Recovery::new(Settings { nodes: 3, quorum: 2, ..settings() });
    let node = |counter, node, votes| Input::NodeFenced { counter, node: NodeIndex(node), votes };
    recovery.handle(NOW, Input::Begin(Beginning::Fresh));
    for index in 0..3 {
        recovery.handle(NOW, node(1, index, true));
    }
    recovery.handle(NOW, store(1, None));
    recovery.handle(NOW, Input::DecisionDurable { life: FIRST });
    recovery.handle(NOW, restart());
    recovery.handle(NOW, store(2, None));
    outputs(&mut recovery);
    for (index, votes) in [(0, true), (1, false), (1, true), (2, false)] {
        recovery.handle(NOW, node(2, index, votes));
    }
    assert_eq!(recovery.phase(), Phase::Fencing);
    recovery.handle_timeout(NOW + FENCE_MAX);
    expect!["over: NoMajority { answered: 1, needed: 2 }"].assert_eq(&outputs(&mut recovery).join("\n"));
}

fn on_two_nodes() -> Recovery {
    let mut recovery = Recovery::new(Settings { nodes: 2, quorum: 1, ..settings() });
    for input in [
        Input::Begin(Beginning::Fresh),
        fenced(1),
        Input::NodeFenced { counter: 1, node: NodeIndex(1), votes: true },
        store(1, None),
        Input::DecisionDurable { life: FIRST },
        Input::AllRunning,
    ] {
        recovery.handle(NOW, input);
    }
    outputs(&mut recovery);
    recovery
}

fn migrate(fallback: Fallback) -> Input {
    let plan = Plan::Migrate { node: NodeIndex(1), after: Duration::ZERO, fallback };
    Input::Fault(died(), plan)
}

fn other_fenced(votes: bool) -> Input {
    Input::NodeFenced { counter: 2, node: NodeIndex(1), votes }
}

/// R36: the place is given away when the node has answered, and the life begins when the other host has as well.
#[test]
fn a_node_leaves_when_nothing_runs_there_any_more() {
    let mut recovery = on_two_nodes();
    for input in [migrate(Fallback::Restart), fenced(2), store(2, None)] {
        recovery.handle(NOW, input);
    }
    expect![[r#"
        fence nodes below 2
        fence store below 2"#]]
    .assert_eq(&outputs(&mut recovery).join("\n"));
    recovery.handle(NOW, other_fenced(true));
    expect!["replace node 1, which answers"].assert_eq(&outputs(&mut recovery).join("\n"));
    recovery.handle(NOW, other_fenced(true));
    assert!(outputs(&mut recovery).is_empty(), "it is offered once");
    recovery.handle(NOW, Input::NodeReplaced { node: NodeIndex(1) });
    assert!(outputs(&mut recovery).is_empty(), "the other host has not answered");
    recovery.handle(NOW, other_fenced(false));
    expect!["decide life 2 from the beginning"].assert_eq(&outputs(&mut recovery).join("\n"));
}

#[test]
fn without_another_host_a_node_keeps_its_place_or_the_job_ends() {
    for (fallback, expected) in
        [(Fallback::Restart, ["decide", "life"]), (Fallback::Stop, ["over:", "NoOtherHost"])]
    {
        let mut recovery = on_two_nodes();
        for input in [migrate(fallback), fenced(2), store(2, None), other_fenced(true)] {
            recovery.handle(NOW, input);
        }
        outputs(&mut recovery);
        recovery.handle(NOW, Input::NotReplaced { node: NodeIndex(1) });
        assert_eq!(outputs(&mut recovery)[0].split(' ').take(2).collect::<Vec<_>>(), expected);
    }
}

/// A node that is to leave may be lost on the way.
#[test]
fn a_leaving_node_that_does_not_answer_is_lost() {
    let mut recovery = on_two_nodes();
    let lost = Input::NodeLost { node: NodeIndex(1) };
    for input in [migrate(Fallback::Restart), fenced(2), store(2, None), lost] {
        recovery.handle(NOW, input);
    }
    expect![[r#"
        fence nodes below 2
        fence store below 2
        replace node 1"#]]
    .assert_eq(&outputs(&mut recovery).join("\n"));
    recovery.handle(NOW, Input::NotReplaced { node: NodeIndex(1) });
    assert!(outputs(&mut recovery).is_empty(), "it is waited for");
    recovery.handle(NOW, other_fenced(true));
    expect!["decide life 2 from the beginning"].assert_eq(&outputs(&mut recovery).join("\n"));
}
