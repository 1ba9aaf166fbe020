//! The reactions of the machines to faults.

use std::time::Duration;

use crate::support::{Stored, World, config};
use ckpt_glue::control::{CutMode, FaultReport, Message, Source};
use ckpt_glue::job::{Event, StopCause, Unsaved};
use ckpt_glue::protocols::{AbandonReason, CheckpointEvent};
use ckpt_glue::recovery::Ending;
use ckpt_glue::recovery::StopReason;
use ckpt_glue::{ExitStatus, NodeIndex, OnFault, participant::Input};
use expect_test::expect;
use transport::Rank;

/// A job of two ranks on one node that runs, with its first words forgotten.
fn running(mode: CutMode) -> World {
    let mut world = World::new(2, 1, 16, config());
    world.mode = mode;
    world.quiet = vec!["hello", "registered", "addresses", "start in", "spawns", "running"];
    world.run_ms(40);
    world.take_transcript();
    world
}

// R1, R2
#[test]
fn a_rank_that_cannot_save_spoils_one_generation_only() {
    let mut world = running(CutMode::Instant);
    world.rank(1, Input::Unsavable { what: Some(4) });
    world.request(Source::Command);
    world.run_ms(40);
    world.rank(1, Input::Unsavable { what: None });
    world.request(Source::Command);
    world.run_ms(40);
    expect![[r#"
          40ms coordinator > keeper 0: cut 1 now
          41ms keeper 0 > rank 0: cut 1 now
          41ms keeper 0 > rank 1: cut 1 now
          42ms rank 0 cuts to 1
          42ms rank 1 raises its epoch to 1
          42ms rank 1 > keeper 0: no-image 1: rank 1 holds state that cannot be saved (4)
          43ms keeper 0 > coordinator: no-image 1: rank 1 holds state that cannot be saved (4)
          44ms coordinator > keeper 0: abandon 1
          45ms keeper 0 > rank 0: abandon 1
          45ms keeper 0 > rank 1: abandon 1
          46ms rank 0 cancels image 1
          80ms coordinator > keeper 0: cut 2 now
          81ms keeper 0 > rank 0: cut 2 now
          81ms keeper 0 > rank 1: cut 2 now
          82ms rank 0 cuts to 2
          82ms rank 1 cuts to 2
          87ms rank 0 > keeper 0: image-done 2, 4096 bytes
          87ms rank 1 > keeper 0: image-done 2, 4096 bytes
          88ms keeper 0 > coordinator: images 2 of 2 ranks
          89ms store writes commit 1.0000000000000065/2 of 2 images
          94ms coordinator > keeper 0: committed 2
          94ms store collects all before 1.0000000000000065/2
          95ms keeper 0 > rank 0: committed 2
          95ms keeper 0 > rank 1: committed 2
    "#]]
    .assert_eq(&world.take_transcript());
    assert_eq!(world.store.commits.len(), 1);
}

// R3
#[test]
fn traffic_is_faster_than_the_command() {
    let mut world = running(CutMode::Instant);
    world.request(Source::Command);
    world.run_ms(1);
    world.rank(1, Input::CutRequired { epoch: transport::Epoch(1) });
    world.run_ms(40);
    expect![[r#"
          40ms coordinator > keeper 0: cut 1 now
          41ms keeper 0 > rank 0: cut 1 now
          41ms keeper 0 > rank 1: cut 1 now
          41ms rank 1 cuts to 1
          41ms rank 1 > keeper 0: cut-seen 1
          42ms rank 0 cuts to 1
          46ms rank 1 > keeper 0: image-done 1, 4096 bytes, by traffic
          47ms rank 0 > keeper 0: image-done 1, 4096 bytes
          48ms keeper 0 > coordinator: images 1 of 2 ranks
          49ms store writes commit 1.0000000000000065/1 of 2 images
          54ms coordinator > keeper 0: committed 1
          54ms store collects all before 1.0000000000000065/1
          55ms keeper 0 > rank 0: committed 1
          55ms keeper 0 > rank 1: committed 1
    "#]]
    .assert_eq(&world.take_transcript());
}

#[test]
fn points_that_do_not_line_up_are_reported() {
    let mut world = running(CutMode::Counted);
    let mut count = 0;
    for attempt in 1..=3 {
        world.request(Source::Timer);
        // Rank 0 cuts at the point and runs on; rank 1 never reaches one.
        while world.abandoned() < attempt {
            count += 1;
            world.rank(0, Input::PointReached { count });
            world.run_ms(10);
        }
        world.run_ms(10);
    }
    let reported = world.events.iter().find_map(|event| match event {
        Event::Checkpoint(CheckpointEvent::PointsDoNotLineUp { attempts, spoiled_by, .. }) => {
            Some((*attempts, *spoiled_by))
        }
        _ => None,
    });
    let (attempts, spoiled_by) = reported.expect("a report to the user");
    assert_eq!((attempts, spoiled_by.rank, spoiled_by.count), (3, Rank(1), 0));
    assert!(world.store.commits.is_empty());
}

// R7, R9
#[test]
fn a_second_fault_during_the_recovery() {
    let mut world = running(CutMode::Instant);
    world.request(Source::Command);
    world.run_ms(40);
    world.take_transcript();
    world.end(0, ExitStatus::Signal(11));
    world.run_ms(18);
    world.end(1, ExitStatus::Signal(9));
    world.run_ms(300);
    expect![[r#"
        80ms rank 0 ends, signal 11
        80ms keeper 0 > coordinator: fault: rank 0 died (signal 11)
        81ms coordinator > keeper 0: fence below 2
        81ms store refuses lives below 2
        82ms keeper 0 > coordinator: ending all below 2 on 0
        82ms keeper 0 kills rank 1
        82ms keeper 0 > coordinator: fenced below 2 on 0
        86ms store writes decision for life 2
        91ms coordinator > keeper 0: new-life 2 from 1/1
        98ms rank 1 ends, signal 9
        98ms keeper 0 > coordinator: fault: rank 1 died (signal 9)
        99ms coordinator > keeper 0: fence below 3
        99ms store refuses lives below 3
        100ms keeper 0 > coordinator: ending all below 3 on 0
        100ms keeper 0 kills rank 0
        100ms keeper 0 > coordinator: fenced below 3 on 0
        304ms store writes decision for life 3
        309ms coordinator > keeper 0: new-life 3 from 1/1
    "#]]
    .assert_eq(&world.take_transcript());
    let lives: Vec<u32> = world.store.decisions.iter().map(|decision| decision.life.counter).collect();
    assert_eq!(lives, [1, 2, 3], "every attempt is a life of its own");
    assert!(
        world.store.decisions[1..].iter().all(|decision| decision.restore == Some(world.store.commits[0]))
    );
}

// R9
#[test]
fn a_commit_that_is_under_way_at_the_fence_is_refused() {
    let mut world = running(CutMode::Instant);
    world.request(Source::Command);
    world.run_ms(9);
    world.note("the record is being written");
    world.end(0, ExitStatus::Signal(9));
    world.delays.write = Duration::from_millis(2);
    world.run_ms(60);
    expect![[r#"
        40ms coordinator > keeper 0: cut 1 now
        41ms keeper 0 > rank 0: cut 1 now
        41ms keeper 0 > rank 1: cut 1 now
        42ms rank 0 cuts to 1
        42ms rank 1 cuts to 1
        47ms rank 0 > keeper 0: image-done 1, 4096 bytes
        47ms rank 1 > keeper 0: image-done 1, 4096 bytes
        48ms keeper 0 > coordinator: images 1 of 2 ranks
        49ms store writes commit 1.0000000000000065/1 of 2 images
        49ms the record is being written
        49ms rank 0 ends, signal 9
        49ms keeper 0 > coordinator: fault: rank 0 died (signal 9)
        50ms coordinator > keeper 0: fence below 2
        50ms store refuses lives below 2
        51ms keeper 0 > coordinator: ending all below 2 on 0
        51ms keeper 0 kills rank 1
        51ms keeper 0 > coordinator: fenced below 2 on 0
        52ms store writes decision for life 2
        54ms coordinator > keeper 0: new-life 2 from the beginning
    "#]]
    .assert_eq(&world.take_transcript());
}

#[test]
fn the_job_gives_up_after_as_many_attempts_as_allowed() {
    let mut settings = config();
    settings.fault.restarts_max = 2;
    let mut world = World::new(1, 1, 16, settings);
    for _ in 0..3 {
        world.run_ms(1000);
        world.end(0, ExitStatus::Signal(11));
    }
    world.run_ms(1000);
    let report = world.over.expect("it is over");
    assert_eq!(report.rollbacks, 2);
    let Ending::Failed { reason: StopReason::AttemptsUsedUp { attempts: 2 }, fault: Some(fault) } =
        report.ending
    else {
        panic!("{report:?}")
    };
    assert_eq!(fault.report, FaultReport::RankDied { rank: Rank(0), status: ExitStatus::Signal(11) });
}

#[test]
fn a_committed_generation_renews_the_attempts() {
    let mut settings = config();
    settings.fault.restarts_max = 1;
    let mut world = World::new(1, 1, 16, settings);
    for _ in 0..5 {
        world.run_ms(1000);
        world.request(Source::Command);
        world.run_ms(100);
        world.end(0, ExitStatus::Signal(6));
    }
    world.run_ms(1000);
    assert_eq!(world.over, None);
    assert_eq!(world.store.commits.len(), 5);
}

#[test]
fn a_fault_ends_the_job_if_the_user_wants_that() {
    let mut settings = config();
    settings.fault.on_fault = OnFault::Abort;
    let mut world = World::new(3, 1, 16, settings);
    world.run_ms(100);
    world.end(2, ExitStatus::Signal(9));
    world.run_ms(100);
    assert!(matches!(world.over.unwrap().ending, Ending::Failed { reason: StopReason::OnFaultAbort, .. }));
    assert!(world.processes.is_empty(), "no process is left");
}

#[test]
fn a_program_that_aborts_is_not_restarted() {
    let mut world = running(CutMode::Instant);
    world.say(Rank(1), Message::Fault { report: FaultReport::Aborted { rank: Rank(1), code: 3 } });
    world.run_ms(250);
    assert!(matches!(world.over.unwrap().ending, Ending::Failed { reason: StopReason::ProgramAborted, .. }));
    assert!(world.processes.is_empty(), "no process is left");
}

#[test]
fn a_person_stops_the_job_at_any_instant() {
    for ms in 0..70 {
        let mut world = World::new(4, 2, 1, config());
        world.run_ms(ms);
        if ms > 40 {
            world.request(Source::Command);
            world.run_ms(ms - 40);
        }
        world.stop();
        world.run_ms(100);
        let report = world.over.unwrap_or_else(|| panic!("stopped at {ms} ms, it goes on"));
        assert_eq!((report.ending, report.stopped_by), (Ending::Stopped, Some(StopCause::Person)));
        assert!(world.processes.is_empty(), "stopped at {ms} ms: a process is left");
    }
}

fn limited(ranks: u32, ms: u64) -> World {
    let mut settings = config();
    settings.time_limit = Some(Duration::from_millis(ms));
    World::new(ranks, 1, 16, settings)
}

/// How a job ended whose time was limited.
fn unsaved(world: &World) -> Option<Unsaved> {
    let report = world.over.expect("it is over");
    assert_eq!(report.ending, Ending::Stopped);
    assert!(world.processes.is_empty(), "no process is left");
    match report.stopped_by {
        Some(StopCause::TimeLimit { unsaved }) => unsaved,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_time_limit_saves_and_stops() {
    let mut world = limited(2, 200);
    world.run_ms(200);
    assert_eq!(unsaved(&world), None);
    let report = world.over.unwrap();
    assert_eq!(report.committed, world.store.commits.last().copied());
    assert_eq!(report.commits, 1);
}

#[test]
fn a_time_limit_at_which_a_rank_cannot_be_saved_says_so() {
    let mut world = limited(2, 200);
    world.unsavable.insert(Rank(1));
    world.run_ms(250);
    let unsaved = unsaved(&world);
    assert!(
        matches!(unsaved, Some(Unsaved::Abandoned(AbandonReason::NoImage { rank: Rank(1), .. }))),
        "{unsaved:?}"
    );
    let tries = |event: &&Event| {
        matches!(event, Event::Checkpoint(CheckpointEvent::Begun { source: Source::TimeLimit, .. }))
    };
    let tries = world.events.iter().filter(tries).count();
    assert!((2..=4).contains(&tries), "{tries} attempts");
    assert_eq!(world.over.unwrap().committed, None);
}

#[test]
fn a_rank_that_can_be_saved_a_little_later_is_saved_before_the_limit() {
    let mut world = limited(2, 200);
    world.unsavable.insert(Rank(1));
    world.run_ms(110);
    world.rank(1, Input::Unsavable { what: None });
    world.run_ms(90);
    assert_eq!(unsaved(&world), None);
    assert!(world.over.unwrap().committed.is_some());
}

#[test]
fn a_time_limit_comes_at_any_instant_of_a_recovery() {
    for ms in 60..200 {
        let mut world = limited(2, 200);
        world.run_ms(ms);
        if world.over.is_none() {
            world.end(1, ExitStatus::Signal(9));
        }
        world.run_ms(250);
        let unsaved = unsaved(&world);
        let committed = world.over.unwrap().committed;
        assert_eq!(committed, world.store.commits.last().copied(), "a fault after {ms} ms");
        if ms < 150 {
            assert!(unsaved.is_none() && committed.is_some(), "a fault after {ms} ms: {unsaved:?}");
        }
    }
}

#[test]
fn a_time_limit_before_all_ranks_run_ends_the_job_with_nothing_saved() {
    let mut world = limited(2, 4);
    world.run_ms(100);
    assert_eq!(unsaved(&world), Some(Unsaved::NotRunning));
}

// R12
#[test]
fn a_rank_that_ended_early_is_restored_as_ended() {
    let mut world = running(CutMode::Instant);
    let port = transport::PortId::of_rank(Rank(1), 0);
    let link =
        ckpt_glue::control::ClosedLink { peer: transport::PortId::of_rank(Rank(0), 0), next: 8, expected: 3 };
    world.say(Rank(1), Message::Closed { port, links: vec![link], last: true });
    world.run_ms(2);
    world.end(1, ExitStatus::Code(0));
    world.request(Source::Command);
    world.run_ms(40);
    let generation = world.store.commits[0];
    assert!(matches!(world.store.images[&(generation, Rank(1))], Stored::Exited(_)));
    world.end(0, ExitStatus::Signal(9));
    world.run_ms(60);
    world.take_transcript();
    assert!(!world.processes.contains_key(&Rank(1)), "it is not started again");
    world.say(Rank(0), Message::ClosedQuery { port, peer: link.peer });
    world.run_ms(3);
    world.rank(0, Input::Finalizing);
    world.run_ms(10);
    world.end(0, ExitStatus::Code(0));
    world.run_ms(10);
    expect![[r#"
         142ms rank 0 > keeper 0: closed? 1/0 towards 0/0
         143ms keeper 0 > rank 0: closed 1/0 towards 0/0: next 8, expected 3
         145ms rank 0 > keeper 0: finalize 1
         146ms keeper 0 > coordinator: finalize 2
         147ms coordinator > keeper 0: finalize-done
         148ms keeper 0 > rank 0: finalize-done
         155ms rank 0 ends, exit code 0
         155ms keeper 0 > coordinator: ended 2, exit code 0
         156ms over: Finished
    "#]]
    .assert_eq(&world.take_transcript());
}

#[test]
fn a_program_that_knows_nothing_of_us_may_simply_end() {
    let mut world = World::new(2, 1, 16, config());
    world.mute = true;
    world.run_ms(20);
    world.end(0, ExitStatus::Code(0));
    world.end(1, ExitStatus::Code(0));
    world.run_ms(20);
    assert_eq!(world.over.expect("it is over").ending, Ending::Finished);
}

// R9
#[test]
fn a_node_dies_and_comes_back() {
    let mut world = World::new(4, 3, 2, config());
    world.quiet = vec![
        "probe",
        "heartbeat",
        "lease",
        "hello,",
        "registered",
        "addresses",
        "start in",
        "spawns",
        "running",
        "kills",
    ];
    world.run_ms(100);
    world.request(Source::Command);
    world.run_ms(60);
    world.take_transcript();
    world.crash_node(2);
    world.run_ms(1000);
    world.revive_node(2);
    world.run_ms(200);
    expect![[r#"
        160ms node 2 dies
        214ms keeper 0 > coordinator: fault: node 2 is overdue
        314ms keeper 0 > coordinator: fault: node 2 is gone or cut off
        315ms coordinator > keeper 0: fence below 2
        315ms coordinator > keeper 1: fence below 2
        315ms coordinator > keeper 2: fence below 2
        315ms store refuses lives below 2
        316ms keeper 0 > coordinator: ending all below 2 on 0
        316ms keeper 1 > coordinator: ending all below 2 on 1
        316ms keeper 0 > coordinator: fenced below 2 on 0
        316ms keeper 1 > coordinator: fenced below 2 on 1
        515ms the place of node 2 may be given away
        915ms the place of node 2 may be given away
        1160ms keeper 2 > coordinator: keeper-hello 2
        1161ms coordinator > keeper 2: fence below 2
        1162ms keeper 2 > coordinator: fenced below 2 on 2, no vote
        1163ms store writes decision for life 2
        1168ms coordinator > keeper 0: new-life 2 from 1/1
        1169ms keeper 0 > keeper 1: new-life 2 from 1/1
        1169ms keeper 0 > keeper 2: new-life 2 from 1/1
    "#]]
    .assert_eq(&world.take_transcript());
    assert_eq!(world.processes.len(), 4);
}

// R9: a minority stops its ranks.
#[test]
fn a_node_that_is_cut_off_stops_its_ranks_before_anybody_else_decides() {
    let mut world = World::new(3, 3, 2, config());
    world.run_ms(100);
    world.cut_off.insert(NodeIndex(2));
    world.run_ms(100);
    assert!(world.processes.contains_key(&Rank(2)));
    world.run_ms(80);
    assert!(!world.processes.contains_key(&Rank(2)), "its lease is over");
    assert_eq!(world.store.decisions.len(), 1, "no life begins while an answer is missing");
}

// R9: without a majority nothing is decided.
#[test]
fn a_coordinator_without_a_majority_decides_nothing() {
    let mut world = World::new(3, 3, 2, config());
    world.run_ms(100);
    world.crash_node(1);
    world.crash_node(2);
    world.run_ms(60_000);
    let report = world.over.expect("it is over");
    let Ending::Failed { reason, .. } = report.ending else { panic!("{report:?}") };
    assert_eq!(reason, StopReason::NoMajority { answered: 1, needed: 2 });
    assert_eq!(world.store.decisions.len(), 1);
    assert!(world.processes.is_empty(), "no process is left");
}
