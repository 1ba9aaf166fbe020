//! The messages between the machines, from the start of a job to its end.

use crate::support::{World, config};
use ckpt_glue::control::{CutMode, Message, Source};
use ckpt_glue::job::{self, Event, Record};
use ckpt_glue::protocols::{AbandonReason, CheckpointEvent};
use ckpt_glue::recovery::Ending;
use ckpt_glue::{ExitStatus, GenerationId, participant::Input};
use expect_test::expect;
use transport::Epoch;

#[test]
fn a_job_from_start_to_end() {
    let mut world = World::new(2, 1, 16, config());
    world.run_ms(40);
    expect![[r#"
        0ms keeper 0 > coordinator: keeper-hello 0
        1ms coordinator > keeper 0: fence below 1
        1ms store refuses lives below 1
        2ms keeper 0 > coordinator: fenced below 1 on 0
        6ms store writes decision for life 1
        11ms coordinator > keeper 0: new-life 1 from the beginning
        12ms keeper 0 spawns rank 0
        12ms keeper 0 spawns rank 1
        15ms rank 0 > keeper 0: hello, 1 ports
        15ms rank 1 > keeper 0: hello, 1 ports
        16ms keeper 0 > coordinator: registered 2 ranks, 2 ports
        17ms coordinator > keeper 0: addresses of 2 ports
        17ms coordinator > keeper 0: start in epoch 0, 2 ports
        18ms keeper 0 > rank 0: addresses of 2 ports
        18ms keeper 0 > rank 1: addresses of 2 ports
        18ms keeper 0 > rank 0: start in epoch 0, 2 ports
        18ms keeper 0 > rank 1: start in epoch 0, 2 ports
        19ms rank 0 > keeper 0: running 1
        19ms rank 1 > keeper 0: running 1
        20ms keeper 0 > coordinator: running 2
    "#]]
    .assert_eq(&world.take_transcript());
    world.request(Source::Command);
    world.run_ms(40);
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
          54ms coordinator > keeper 0: committed 1
          54ms store collects all before 1.0000000000000065/1
          55ms keeper 0 > rank 0: committed 1
          55ms keeper 0 > rank 1: committed 1
    "#]]
    .assert_eq(&world.take_transcript());
    world.rank(0, Input::Finalizing);
    world.run_ms(5);
    world.rank(1, Input::Finalizing);
    world.run_ms(20);
    world.end(0, ExitStatus::Code(0));
    world.end(1, ExitStatus::Code(0));
    world.run_ms(20);
    expect![[r#"
        80ms rank 0 > keeper 0: finalize 1
        85ms rank 1 > keeper 0: finalize 1
        86ms keeper 0 > coordinator: finalize 2
        87ms coordinator > keeper 0: finalize-done
        88ms keeper 0 > rank 0: finalize-done
        88ms keeper 0 > rank 1: finalize-done
        105ms rank 0 ends, exit code 0
        105ms rank 1 ends, exit code 0
        105ms keeper 0 > coordinator: ended 2, exit code 0
        106ms over: Finished
    "#]]
    .assert_eq(&world.take_transcript());
    assert!(world.over.is_some());
}

/// Ranks that end at once after their last checkpoint: the job's final report names the committed generation.
#[test]
fn a_commit_under_way_is_waited_for_at_the_end() {
    let end_while_committing = |write_ms, fails| {
        let mut world = World::new(2, 1, 16, config());
        world.store.fail_commits = fails;
        world.run_ms(40);
        world.request(Source::Command);
        world.run_ms(8);
        world.take_transcript();
        world.delays.write = std::time::Duration::from_millis(write_ms);
        world.rank(0, Input::Finalizing);
        world.rank(1, Input::Finalizing);
        world.run_ms(4);
        world.end(0, ExitStatus::Code(0));
        world.end(1, ExitStatus::Code(0));
        world
    };
    let mut world = end_while_committing(40, false);
    world.quiet = vec!["rank", "keeper"];
    world.run_ms(60);
    expect![[r#"
        48ms rank 0 > keeper 0: finalize 1
        48ms rank 1 > keeper 0: finalize 1
        49ms store writes commit 1.0000000000000065/1 of 2 images
        49ms keeper 0 > coordinator: finalize 2
        50ms coordinator > keeper 0: finalize-done
        51ms keeper 0 > rank 0: finalize-done
        51ms keeper 0 > rank 1: finalize-done
        52ms rank 0 ends, exit code 0
        52ms rank 1 ends, exit code 0
        89ms store collects all before 1.0000000000000065/1
        89ms over: Finished
    "#]]
    .assert_eq(&world.take_transcript());
    let report = world.over.expect("an end");
    assert_eq!((report.commits, report.committed), (1, world.store.commits.last().copied()));

    let mut world = end_while_committing(40, true);
    world.run_ms(60);
    let report = world.over.expect("an end");
    assert_eq!((report.ending, report.commits), (Ending::Finished, 0));
    assert!(world.events.iter().any(|event| matches!(
        event,
        Event::Checkpoint(CheckpointEvent::Abandoned { reason: AbandonReason::CommitFailed { .. }, .. })
    )));

    // A disk that hangs: the wait ends.
    let mut world = end_while_committing(3_600_000, false);
    world.run_ms(20_000);
    assert!(world.over.is_none());
    world.run_ms(20_000);
    assert_eq!(world.over.expect("an end").ending, Ending::Finished);

    // A user who does not want to wait gets this end.
    let mut world = end_while_committing(3_600_000, false);
    world.run_ms(20);
    world.job.handle(world.now, job::Input::Stop);
    world.run_ms(1);
    assert_eq!(world.over.expect("an end").ending, Ending::Finished);
}

/// The job waits for a record without a limit, as a record that may be on disk can neither be abandoned nor decided
/// anew; but it reports the wait.
#[test]
fn a_disk_that_does_not_answer_is_reported() {
    let reported = |world: &World| -> Vec<(Record, u64)> {
        let silent = world.events.iter().filter_map(|event| match event {
            Event::DiskSilent { record, waited } => Some((*record, waited.as_secs())),
            _ => None,
        });
        silent.collect()
    };
    let hangs = std::time::Duration::from_secs(60);
    let mut world = World::new(2, 1, 16, config());
    world.run_ms(40);
    world.request(Source::Command);
    world.run_ms(8);
    world.delays.write = hangs;
    world.run_ms(50_000);
    let life = world.job.status().life.expect("it runs");
    let commit = Record::Commit(GenerationId { life, epoch: Epoch(1) });
    assert_eq!(reported(&world), [(commit, 10), (commit, 20), (commit, 40)]);
    world.run_ms(15_000);
    assert_eq!((world.job.status().commits, world.job.status().saving), (1, None));
    world.run_ms(200_000);
    assert_eq!(reported(&world).len(), 3, "the disk has answered");

    let mut world = World::new(2, 1, 16, config());
    world.run_ms(1);
    world.delays.write = hangs;
    world.run_ms(45_000);
    assert!(matches!(reported(&world)[..], [(Record::Decision(_), 10), (Record::Decision(_), 20), ..]));
    world.run_ms(200_000);
    assert_eq!(world.job.status().phase, ckpt_glue::control::JobPhase::Running);
}

/// A generation that was durable before the store was fenced is also in the final report of a stopped job.
#[test]
fn a_commit_that_beats_the_fence_of_a_stop_is_reported() {
    let mut world = World::new(2, 1, 16, config());
    world.run_ms(40);
    world.request(Source::Command);
    world.run_ms(9);
    world.take_transcript();
    world.job.handle(world.now, job::Input::Stop);
    let life = world.job.status().life.expect("it runs");
    let generation = GenerationId { life, epoch: Epoch(1) };
    // Where nodes keep records of their own, when it is on disk and when all of them have answered.
    for _ in 0..2 {
        world.job.handle(world.now, job::Input::CommitDurable(generation));
    }
    world.run_ms(10);
    expect![[r#"
        49ms coordinator > keeper 0: fence below 2
        49ms store refuses lives below 2
        50ms keeper 0 > coordinator: ending all below 2 on 0
        50ms keeper 0 kills rank 0
        50ms keeper 0 kills rank 1
        50ms keeper 0 > coordinator: fenced below 2 on 0
        51ms store collects all before 1.0000000000000065/1
        51ms over: Stopped
    "#]]
    .assert_eq(&world.take_transcript());
    let report = world.over.expect("an end");
    assert_eq!((report.ending, report.commits, report.committed), (Ending::Stopped, 1, Some(generation)));
}

#[test]
fn a_rank_dies_and_all_come_back() {
    let mut world = World::new(2, 1, 16, config());
    world.run_ms(40);
    world.request(Source::Command);
    world.run_ms(40);
    world.request(Source::Command);
    world.run_ms(3);
    world.take_transcript();
    world.end(1, ExitStatus::Signal(9));
    world.run_ms(60);
    expect![[r#"
        83ms rank 1 ends, signal 9
        83ms keeper 0 > coordinator: fault: rank 1 died (signal 9)
        84ms coordinator > keeper 0: fence below 2
        84ms store refuses lives below 2
        85ms keeper 0 > coordinator: ending all below 2 on 0
        85ms keeper 0 kills rank 0
        85ms keeper 0 > coordinator: fenced below 2 on 0
        89ms store writes decision for life 2
        94ms coordinator > keeper 0: new-life 2 from 1/1
        95ms keeper 0 spawns rank 0
        95ms keeper 0 spawns rank 1
        98ms rank 0 > keeper 0: hello, 1 ports
        98ms rank 1 > keeper 0: hello, 1 ports
        99ms keeper 0 > coordinator: registered 2 ranks, 2 ports
        100ms coordinator > keeper 0: addresses of 2 ports
        100ms coordinator > keeper 0: start in epoch 1, 2 ports
        101ms keeper 0 > rank 0: addresses of 2 ports
        101ms keeper 0 > rank 1: addresses of 2 ports
        101ms keeper 0 > rank 0: start in epoch 1, 2 ports
        101ms keeper 0 > rank 1: start in epoch 1, 2 ports
        102ms rank 0 > keeper 0: running 1
        102ms rank 1 > keeper 0: running 1
        103ms keeper 0 > coordinator: running 2
    "#]]
    .assert_eq(&world.take_transcript());
}

#[test]
fn native_ranks_cut_at_a_point_ahead_of_all() {
    let mut world = World::new(2, 1, 16, config());
    world.mode = CutMode::Counted;
    world.run_ms(40);
    world.take_transcript();
    for count in 1..=3 {
        world.rank(0, Input::PointReached { count });
    }
    world.rank(1, Input::PointReached { count: 1 });
    world.request(Source::Command);
    world.run_ms(10);
    // No rank waits: rank 0 cuts at the point and goes on, rank 1 comes to it a long time later.
    for count in 4..=30 {
        world.rank(0, Input::PointReached { count });
    }
    world.run_ms(200);
    for count in 2..=21 {
        world.rank(1, Input::PointReached { count });
    }
    world.run_ms(40);
    expect![[r#"
        40ms coordinator > keeper 0: points? (1)
        41ms keeper 0 > rank 0: points? (1)
        41ms keeper 0 > rank 1: points? (1)
        42ms rank 0 > keeper 0: points (1) of 1 ranks: 3 to 3
        42ms rank 1 > keeper 0: points (1) of 1 ranks: 1 to 1
        43ms keeper 0 > coordinator: points (1) of 2 ranks: 1 to 3
        44ms coordinator > keeper 0: cut 1 at point 21
        45ms keeper 0 > rank 0: cut 1 at point 21
        45ms keeper 0 > rank 1: cut 1 at point 21
        50ms rank 0 cuts to 1
        55ms rank 0 > keeper 0: image-done 1, 4096 bytes
        250ms rank 1 cuts to 1
        255ms rank 1 > keeper 0: image-done 1, 4096 bytes
        256ms keeper 0 > coordinator: images 1 of 2 ranks
        257ms store writes commit 1.0000000000000065/1 of 2 images
        262ms coordinator > keeper 0: committed 1
        262ms store collects all before 1.0000000000000065/1
        263ms keeper 0 > rank 0: committed 1
        263ms keeper 0 > rank 1: committed 1
    "#]]
    .assert_eq(&world.take_transcript());
}

#[test]
fn messages_go_along_the_tree() {
    let mut world = World::new(8, 4, 2, config());
    world.quiet = vec!["heartbeat", "lease", "probe"];
    world.run_ms(60);
    world.take_transcript();
    world.request(Source::Timer);
    world.run_ms(40);
    expect![[r#"
        60ms coordinator > keeper 0: cut 1 now
        61ms keeper 0 > keeper 1: cut 1 now
        61ms keeper 0 > keeper 2: cut 1 now
        61ms keeper 0 > rank 0: cut 1 now
        61ms keeper 0 > rank 1: cut 1 now
        62ms keeper 1 > keeper 3: cut 1 now
        62ms keeper 1 > rank 2: cut 1 now
        62ms keeper 1 > rank 3: cut 1 now
        62ms keeper 2 > rank 4: cut 1 now
        62ms keeper 2 > rank 5: cut 1 now
        62ms rank 0 cuts to 1
        62ms rank 1 cuts to 1
        63ms keeper 3 > rank 6: cut 1 now
        63ms keeper 3 > rank 7: cut 1 now
        63ms rank 2 cuts to 1
        63ms rank 3 cuts to 1
        63ms rank 4 cuts to 1
        63ms rank 5 cuts to 1
        64ms rank 6 cuts to 1
        64ms rank 7 cuts to 1
        67ms rank 0 > keeper 0: image-done 1, 4096 bytes
        67ms rank 1 > keeper 0: image-done 1, 4096 bytes
        68ms rank 2 > keeper 1: image-done 1, 4096 bytes
        68ms rank 3 > keeper 1: image-done 1, 4096 bytes
        68ms rank 4 > keeper 2: image-done 1, 4096 bytes
        68ms rank 5 > keeper 2: image-done 1, 4096 bytes
        69ms rank 6 > keeper 3: image-done 1, 4096 bytes
        69ms rank 7 > keeper 3: image-done 1, 4096 bytes
        69ms keeper 2 > keeper 0: images 1 of 2 ranks
        70ms keeper 3 > keeper 1: images 1 of 2 ranks
        71ms keeper 1 > keeper 0: images 1 of 4 ranks
        72ms keeper 0 > coordinator: images 1 of 8 ranks
        73ms store writes commit 1.0000000000000065/1 of 8 images
        78ms coordinator > keeper 0: committed 1
        78ms store collects all before 1.0000000000000065/1
        79ms keeper 0 > keeper 1: committed 1
        79ms keeper 0 > keeper 2: committed 1
        79ms keeper 0 > rank 0: committed 1
        79ms keeper 0 > rank 1: committed 1
        80ms keeper 1 > keeper 3: committed 1
        80ms keeper 1 > rank 2: committed 1
        80ms keeper 1 > rank 3: committed 1
        80ms keeper 2 > rank 4: committed 1
        80ms keeper 2 > rank 5: committed 1
        81ms keeper 3 > rank 6: committed 1
        81ms keeper 3 > rank 7: committed 1
    "#]]
    .assert_eq(&world.take_transcript());
    world.say(
        transport::Rank(0),
        Message::ClosedQuery {
            port: transport::PortId::of_rank(transport::Rank(7), 0),
            peer: transport::PortId::of_rank(transport::Rank(0), 0),
        },
    );
    world.run_ms(40);
    expect![[r#"
        100ms rank 0 > keeper 0: closed? 7/0 towards 0/0
        101ms keeper 0 > keeper 1: closed? 7/0 towards 0/0
        102ms keeper 1 > keeper 3: closed? 7/0 towards 0/0
        103ms keeper 3 > keeper 1: closed 7/0 towards 0/0: no
        104ms keeper 1 > keeper 0: closed 7/0 towards 0/0: no
        105ms keeper 0 > rank 0: closed 7/0 towards 0/0: no
    "#]]
    .assert_eq(&world.take_transcript());
}

/// Messages of one checkpoint, whether it is committed or abandoned, in proportion to the ranks.
#[test]
fn a_checkpoint_takes_a_few_messages_for_each_rank() {
    for (ranks, nodes, spoilt) in [(8, 2, false), (64, 16, false), (256, 64, false), (256, 64, true)] {
        let mut world = World::new(ranks, nodes, 4, config());
        world.quiet = vec![" "];
        world.run_ms(120);
        if spoilt {
            (0..ranks).for_each(|rank| world.rank(rank, Input::Unsavable { what: Some(1) }));
        }
        let beats = |world: &mut World| {
            world.messages = 0;
            world.run_ms(200);
            world.messages
        };
        let idle = beats(&mut world);
        world.request(Source::Timer);
        let busy = beats(&mut world);
        assert_eq!(world.store.commits.len(), usize::from(!spoilt));
        // Down twice, up once, along edges that are as many as ranks and keepers.
        let edges = u64::from(ranks + nodes);
        let taken = busy - idle;
        assert!(
            (3 * edges - 8..=3 * edges + 8).contains(&taken),
            "{ranks} ranks, {edges} edges: {taken} messages"
        );
    }
}
