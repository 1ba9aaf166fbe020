//! Programs that end themselves, and programs that do not connect: faults, and ends that are the program's
//! own.

use std::time::Duration;

use crate::support::{World, config};
use ckpt_glue::config::OnExit;
use ckpt_glue::control::{CutMode, FaultReport, Message, Source};
use ckpt_glue::job::{Event, Monitor, SuspicionEvent};
use ckpt_glue::limits::EXIT_GRACE;
use ckpt_glue::participant;
use ckpt_glue::protocols::{AbandonReason, CheckpointEvent, RefuseReason};
use ckpt_glue::recovery::Ending;
use ckpt_glue::recovery::{Fault, FaultModel, Plan, StopReason};
use ckpt_glue::{ExitStatus, NodeIndex, OnFault};
use transport::Rank;

const CODE: ExitStatus = ExitStatus::Code(3);
const KILLED: ExitStatus = ExitStatus::Signal(9);

/// Jobs of four ranks on two nodes that run.
fn running(on_exit: OnExit) -> World {
    let mut settings = config();
    settings.fault.on_exit = on_exit;
    let mut world = World::new(4, 2, 16, settings);
    world.run_ms(60);
    world
}

fn died(rank: u32, status: ExitStatus) -> FaultReport {
    FaultReport::RankDied { rank: Rank(rank), status }
}

fn aborted(rank: u32, code: u8) -> FaultReport {
    FaultReport::Aborted { rank: Rank(rank), code }
}

/// The fault with which the job has ended, and why; no process is left, and each was started once.
fn ended(world: &World) -> (FaultReport, StopReason) {
    let report = world.over.expect("it is over");
    let Ending::Failed { fault: Some(fault), reason } = report.ending else { panic!("{report:?}") };
    assert_eq!(report.rollbacks, 0);
    assert!(world.processes.is_empty(), "a process is left");
    (fault.report, reason)
}

fn lives(world: &World) -> usize {
    world.store.decisions.len()
}

#[test]
fn a_rank_that_exits_with_a_code_ends_the_job_once() {
    let mut world = running(OnExit::Fail);
    world.end(1, CODE);
    world.run_ms(200);
    assert_eq!(ended(&world), (died(1, CODE), StopReason::ProgramExited));
    assert_eq!(lives(&world), 1);
}

#[test]
fn so_does_the_only_rank_at_once() {
    let mut world = World::new(1, 1, 16, config());
    world.run_ms(40);
    world.end(0, CODE);
    world.run_ms(5);
    assert_eq!(ended(&world), (died(0, CODE), StopReason::ProgramExited));
}

#[test]
fn of_several_codes_the_first_counts() {
    let mut world = running(OnExit::Fail);
    world.end(2, CODE);
    world.run_ms(20);
    world.end(0, ExitStatus::Code(4));
    world.say(Rank(1), Message::Fault { report: aborted(1, 5) });
    world.run_ms(200);
    assert_eq!(ended(&world), (died(2, CODE), StopReason::ProgramExited));
}

#[test]
fn who_exits_or_aborts_after_another_was_killed_belongs_to_that_fault() {
    for then in [None, Some(aborted(1, 5))] {
        let mut world = running(OnExit::Fail);
        world.end(3, KILLED);
        match then {
            Some(report) => world.say(Rank(1), Message::Fault { report }),
            None => world.end(1, CODE),
        }
        world.run_ms(400);
        assert_eq!((world.over, lives(&world)), (None, 2), "{then:?}");
    }
}

/// Two nodes report the ends of one cause, each in its own time.
#[test]
fn who_exits_or_aborts_shortly_before_another_is_reported_as_killed_does_too() {
    for then in [None, Some(aborted(1, 5))] {
        let mut world = running(OnExit::Fail);
        match then {
            Some(report) => world.say(Rank(1), Message::Fault { report }),
            None => world.end(1, CODE),
        }
        world.run_ms(50);
        world.end(3, KILLED);
        world.run_ms(400);
        assert_eq!((world.over, lives(&world)), (None, 2), "{then:?}");
        let reports: Vec<_> = world
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Reported { report, action } => Some((*report, action.is_some())),
                _ => None,
            })
            .collect();
        let first = then.unwrap_or(died(1, CODE));
        assert_eq!(reports, [(first, false), (died(3, KILLED), true)]);
    }
}

/// R33: its silence is a suspicion first, and both monitors of keepers have it.
#[test]
fn a_node_that_is_lost_was_suspected_before() {
    let mut world = World::new(4, 2, 16, config());
    world.run_ms(60);
    world.crash_node(1);
    world.run_ms(400);
    let node = NodeIndex(1);
    let first = |wanted: &dyn Fn(&Event) -> bool| world.events.iter().position(wanted);
    let suspected = [Monitor::Heartbeats, Monitor::Probe].map(|by| {
        first(&|event| *event == Event::Suspicion(SuspicionEvent::Raised { node, by })).expect("suspected")
    });
    let declared = first(&|event| {
        matches!(event, Event::Reported { report: FaultReport::KeeperSilent { .. }, action: Some(_) })
    });
    assert!(suspected.iter().all(|suspected| Some(*suspected) < declared), "{:?}", world.events);
}

/// R33: ranks that hear nothing of others over the data network raise a suspicion, which ends nothing.
#[test]
fn ranks_that_are_silent_to_others_end_nothing() {
    let mut world = running(OnExit::Fail);
    let report = FaultReport::RankSilent { rank: Rank(3), by: Some(Rank(0)), silent_ms: 1000 };
    world.say(Rank(0), Message::Fault { report });
    world.run_ms(20_000);
    let raised = SuspicionEvent::Raised { node: NodeIndex(1), by: Monitor::DataPath };
    assert!(world.events.contains(&Event::Suspicion(raised)), "{:?}", world.events);
    assert!(world.events.iter().any(|event| matches!(
        event,
        Event::Suspicion(SuspicionEvent::DataSilent { node: NodeIndex(1), .. })
    )));
    let report = FaultReport::RankHeard { rank: Rank(3), by: Rank(0) };
    world.say(Rank(0), Message::Fault { report });
    world.run_ms(100);
    assert_eq!((world.over, lives(&world), world.job.suspects().count()), (None, 1, 0));
    assert_eq!(world.job.false_alarms(Monitor::DataPath), 1);
}

#[test]
fn a_network_that_stays_silent_is_a_fault_if_the_policy_says_so() {
    let mut settings = config();
    settings.fault.policy.change("network=restart").expect("a change");
    let mut world = World::new(4, 2, 16, settings);
    world.run_ms(100);
    let report = FaultReport::RankSilent { rank: Rank(3), by: Some(Rank(0)), silent_ms: 1000 };
    world.say(Rank(0), Message::Fault { report });
    world.run_ms(58_000);
    assert_eq!(lives(&world), 1, "a minute has not passed");
    world.run_ms(2_000);
    let is_cut_off = |event: &Event| {
        matches!(event, Event::Reported {
            report: FaultReport::NodeCutOff { node: NodeIndex(1), silent_ms },
            action: Some((Fault { model: FaultModel::Network, .. }, Plan::Restart { .. })),
        } if (60_000..62_000).contains(silent_ms))
    };
    assert!(world.events.iter().any(is_cut_off), "{:?}", world.events);
    assert_eq!(lives(&world), 2);
    world.run_ms(100_000);
    assert_eq!((world.over, lives(&world)), (None, 2), "the new life has not heard of it");
}

#[test]
fn a_long_wait_for_a_node_that_may_come_back_delays_no_end() {
    let mut settings = config();
    settings.fault.policy.thresholds.transient_within = Duration::from_secs(3600);
    let mut world = World::new(4, 4, 16, settings);
    world.run_ms(100);
    world.crash_node(3);
    world.run_ms(60_000);
    assert_eq!((world.over, lives(&world)), (None, 1), "the node may come back");
    world.stop();
    world.run_ms(20_000);
    assert!(world.over.is_some_and(|report| report.ending == Ending::Stopped), "{:?}", world.over);
}

#[test]
fn no_node_is_moved_that_may_be_the_wrong_one() {
    for (nodes, moves) in [(2, false), (4, true)] {
        let mut settings = config();
        settings.fault.policy.change("network=migration,restart").expect("a change");
        let mut world = World::new(4, nodes, 16, settings);
        world.run_ms(100);
        // Rank 3 is heard by nobody, and hears nobody.
        for by in 0..3 {
            let report = FaultReport::RankSilent { rank: Rank(3), by: Some(Rank(by)), silent_ms: 1000 };
            world.say(Rank(by), Message::Fault { report });
        }
        world.run_ms(62_000);
        assert_eq!(lives(&world), if moves { 2 } else { 1 }, "{nodes} nodes");
    }
}

#[test]
fn a_node_that_is_lost_in_that_time_is_the_fault() {
    let mut settings = config();
    settings.keeper.heartbeat = Duration::from_millis(10);
    let mut world = World::new(4, 2, 16, settings);
    world.run_ms(60);
    world.crash_node(1);
    world.run_ms(20);
    world.end(0, CODE);
    world.run_ms(300);
    assert_eq!(world.over, None);
    assert!(world.events.iter().any(|event| matches!(
        event,
        Event::Reported { report: FaultReport::KeeperSilent { .. }, action: Some(_) }
    )));
}

#[test]
fn who_is_killed_long_after_does_not_undo_the_end() {
    let mut world = running(OnExit::Fail);
    world.end(1, CODE);
    world.run_ms(u64::try_from(EXIT_GRACE.as_millis()).expect("short") + 10);
    world.end(3, KILLED);
    world.run_ms(200);
    assert_eq!(ended(&world), (died(1, CODE), StopReason::ProgramExited));
}

#[test]
fn an_abort_by_the_program_is_its_own_decision() {
    for on_exit in [OnExit::Fail, OnExit::Restart] {
        let mut world = running(on_exit);
        world.say(Rank(1), Message::Fault { report: aborted(1, 255) });
        world.run_ms(200);
        assert_eq!(ended(&world), (aborted(1, 255), StopReason::ProgramAborted));
    }
}

#[test]
fn an_exit_is_a_fault_if_the_user_wants_that() {
    let mut world = running(OnExit::Restart);
    world.end(1, CODE);
    world.run_ms(200);
    assert_eq!((world.over, lives(&world)), (None, 2));
    let mut settings = config();
    (settings.fault.on_exit, settings.fault.on_fault) = (OnExit::Restart, OnFault::Abort);
    let mut world = World::new(2, 1, 16, settings);
    world.run_ms(60);
    world.end(1, CODE);
    world.run_ms(200);
    assert_eq!(ended(&world), (died(1, CODE), StopReason::OnFaultAbort));
}

#[test]
fn a_rank_that_ends_before_it_is_restored_is_a_fault() {
    let mut world = World::new(2, 1, 16, config());
    world.run_ms(60);
    world.request(Source::Command);
    world.run_ms(60);
    world.mute_ranks.insert(Rank(1));
    world.end(0, KILLED);
    world.run_ms(20);
    world.end(1, ExitStatus::Code(126));
    world.mute_ranks.clear();
    world.run_ms(400);
    assert_eq!((world.over, lives(&world)), (None, 3));
    let status = ExitStatus::Code(126);
    let wanted = FaultReport::RankNotRestored { rank: Rank(1), status };
    let is_wanted =
        |event: &Event| matches!(event, Event::Reported { report, action: Some(_) } if *report == wanted);
    assert!(world.events.iter().any(is_wanted));
}

/// Two ranks of which some do not connect, after so long, which is far longer than the time-out.
fn after_ten_minutes(mode: CutMode, mute: &[u32]) -> World {
    let mut world = World::new(2, 1, 16, config());
    world.mode = mode;
    world.mute_ranks = mute.iter().copied().map(Rank).collect();
    world.run_ms(600_000);
    world
}

#[test]
fn a_program_that_never_connects_simply_runs() {
    for mode in [CutMode::Counted, CutMode::Instant] {
        let mut world = after_ten_minutes(mode, &[0, 1]);
        assert_eq!((world.over, world.processes.len(), lives(&world)), (None, 2, 1), "{mode:?}");
        world.end(0, ExitStatus::Code(0));
        world.end(1, ExitStatus::Code(0));
        world.run_ms(20);
        assert_eq!(world.over.expect("it is over").ending, Ending::Finished);
    }
}

/// The agent saves whole processes and connects before its program does anything. The program waits for no
/// other rank.
#[test]
fn programs_that_are_saved_as_whole_processes_wait_for_nobody() {
    let world = after_ten_minutes(CutMode::Instant, &[1]);
    assert_eq!((world.over, world.processes.len(), lives(&world)), (None, 2, 1));
}

#[test]
fn who_waits_in_a_session_for_others_does_so_for_a_limited_time() {
    let world = after_ten_minutes(CutMode::Counted, &[1]);
    let report = FaultReport::StartTimedOut { running: 0, ranks: 2 };
    assert_eq!(ended(&world), (report, StopReason::NotAllConnected));
    assert_eq!(lives(&world), 1, "the next time would end in the same way");
}

#[test]
fn who_connects_late_is_waited_for_from_the_first_on() {
    let mut world = after_ten_minutes(CutMode::Counted, &[0, 1]);
    let start_timeout = config().fault.start_timeout;
    world.connect(0);
    world.run_ms(u64::try_from(start_timeout.as_millis()).expect("short") - 100);
    world.connect(1);
    world.run_ms(600_000);
    assert_eq!((world.over, world.processes.len(), lives(&world)), (None, 2, 1));
}

#[test]
fn who_ends_well_without_connecting_ends_a_job_in_which_others_do() {
    for before in [true, false] {
        let mut world = World::new(2, 1, 16, config());
        world.mode = CutMode::Counted;
        world.mute_ranks = [Rank(0), Rank(1)].into();
        world.run_ms(60);
        if before {
            world.connect(0);
        }
        world.end(1, ExitStatus::Code(0));
        world.run_ms(20);
        if !before {
            assert_eq!(world.over, None);
            world.connect(0);
        }
        world.run_ms(200);
        assert_eq!(ended(&world), (died(1, ExitStatus::Code(0)), StopReason::ProgramExited), "{before}");
    }
}

/// A restored rank had been connected before: its life has failed if the rank does not connect in time.
#[test]
fn who_is_restored_has_a_limited_time_as_before() {
    let mut world = World::new(2, 1, 16, config());
    world.run_ms(60);
    world.request(Source::Command);
    world.run_ms(60);
    world.mute_ranks.insert(Rank(1));
    world.end(0, KILLED);
    world.run_ms(1000);
    assert_eq!(lives(&world), 2);
    world.mute_ranks.clear();
    world.run_ms(120_000);
    assert_eq!((world.over, lives(&world)), (None, 3));
}

/// Jobs of four ranks on two nodes that run, and go on without ranks.
fn ignoring() -> World {
    let mut settings = config();
    settings.fault.policy.change("process=ignore,restart").expect("a change");
    let mut world = World::new(4, 2, 16, settings);
    world.run_ms(60);
    world
}

/// R37
#[test]
fn a_job_goes_on_without_a_rank_and_ends_with_its_status() {
    for (status, finishes_first) in [(KILLED, false), (CODE, false), (ExitStatus::Code(0), true)] {
        let mut world = ignoring();
        if finishes_first {
            // It waits for the others when it dies.
            world.rank(3, participant::Input::Finalizing);
            world.run_ms(20);
        }
        world.end(3, status);
        world.run_ms(300);
        assert_eq!((world.over, lives(&world), world.processes.len()), (None, 1, 3), "{status}");
        let ignored = Plan::Ignore { rank: Rank(3), status };
        let reports: Vec<_> = world
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Reported { action: Some((_, plan)), .. } => Some(*plan),
                _ => None,
            })
            .collect();
        assert_eq!(reports, [ignored]);
        for rank in 0..3 {
            world.rank(rank, participant::Input::Finalizing);
        }
        world.run_ms(30);
        assert!(world.transcript.contains("finalize-done"), "{}", world.transcript);
        for rank in 0..3 {
            world.end(rank, ExitStatus::Code(0));
        }
        world.run_ms(30);
        let report = world.over.expect("it is over");
        assert_eq!((report.ending, report.status, report.rollbacks), (Ending::Finished, status, 0));
    }
}

/// R37
#[test]
fn nothing_is_saved_any_more_without_a_rank_and_a_later_fault_brings_it_back() {
    let mut world = ignoring();
    world.request(Source::Command);
    world.run_ms(100);
    assert_eq!(world.store.commits.len(), 1);
    // A cut that is under way is abandoned.
    world.delays.write = Duration::from_millis(50);
    world.request(Source::Command);
    world.run_ms(3);
    world.end(1, KILLED);
    world.run_ms(100);
    world.request(Source::Command);
    world.run_ms(100);
    let rank = Rank(1);
    let lost = |event: &Event| match event {
        Event::Checkpoint(CheckpointEvent::Abandoned { reason, .. }) => {
            *reason == AbandonReason::RankLost { rank }
        }
        Event::Checkpoint(CheckpointEvent::Refused { reason, .. }) => {
            *reason == RefuseReason::RankLost { rank }
        }
        _ => false,
    };
    assert_eq!(world.events.iter().filter(|event| lost(event)).count(), 2, "{:?}", world.events);
    assert_eq!((world.store.commits.len(), lives(&world), world.processes.len()), (1, 1, 3));
    // Its silence is no news.
    let report = FaultReport::RankSilent { rank, by: Some(Rank(2)), silent_ms: 1000 };
    world.say(Rank(2), Message::Fault { report });
    world.run_ms(50);
    assert_eq!(world.job.suspects().count(), 0);
    world.delays.write = Duration::from_millis(1);
    world.crash_node(1);
    world.run_ms(50);
    world.revive_node(1);
    world.run_ms(2000);
    assert_eq!((lives(&world), world.processes.len()), (2, 4), "{}", world.transcript);
    world.request(Source::Command);
    world.run_ms(100);
    assert_eq!(world.store.commits.len(), 2);
}

/// R37
#[test]
fn every_rank_may_be_lost_one_after_the_other() {
    let mut world = ignoring();
    for rank in 0..4 {
        world.end(rank, CODE);
        world.run_ms(20);
    }
    let report = world.over.expect("it is over");
    assert_eq!((report.ending, report.status), (Ending::Finished, CODE));
}
