use alloc::format;
use alloc::string::String;

use expect_test::expect;
use transport::Life;

use super::*;
use crate::control::{CutStatistics, ImageContent};
use crate::interval::Every;
use crate::names::ImageDigest;
use crate::table::table;

const NOW: Instant = Instant::from_nanos(1_000);
const LIFE: Life = Life { counter: 1, nonce: 5 };

fn life(counted: u32) -> LifeView {
    LifeView { life: LIFE, epoch: Epoch(3), ranks: 2, counted }
}

fn coordinated(counted: u32, inputs: &[CheckpointInput]) -> Coordinated {
    let mut coordinated = Coordinated::new(CheckpointConfig::default(), Sabotage::none());
    coordinated.begin(NOW, life(counted));
    for input in inputs {
        coordinated.handle(NOW, input.clone());
    }
    while coordinated.poll_output().is_some() {}
    coordinated
}

fn image(rank: u32) -> ImageReport {
    ImageReport {
        rank: Rank(rank),
        digest: ImageDigest(rank.into()),
        bytes: 1,
        content: ImageContent::Commanded,
        statistics: CutStatistics::default(),
    }
}

fn images(epoch: u32, ranks: &[u32]) -> CheckpointInput {
    let reports = ranks.iter().map(|rank| image(*rank)).collect();
    CheckpointInput::Images { life: LIFE, epoch: Epoch(epoch), reports }
}

fn key(epoch: u32) -> GenerationId {
    GenerationId { life: LIFE, epoch: Epoch(epoch) }
}

fn points(query: u32, least: u64, most: u64) -> CheckpointInput {
    let of = |count, rank| PointSummary::of(Point { count, rank: Rank(rank) }, None);
    CheckpointInput::Points { query, summary: of(least, 0).with(of(most, 1)) }
}

fn none(epoch: u32) -> CheckpointInput {
    let reason = NoImageReason::PointPassed { point: 8, count: 9 };
    CheckpointInput::NoImage { epoch: Epoch(epoch), rank: Rank(1), reason }
}

fn text(output: CheckpointOutput) -> String {
    match output {
        CheckpointOutput::Broadcast(message) => format!("say \"{message}\""),
        CheckpointOutput::WriteCommit { generation, images } => {
            format!("write commit {} of {}", generation.epoch, images.len())
        }
        CheckpointOutput::Collect { keep } => format!("collect before {}", keep.epoch),
        CheckpointOutput::Event(event) => match event {
            CheckpointEvent::Begun { .. } | CheckpointEvent::Committed { .. } => String::from("(event)"),
            CheckpointEvent::Abandoned { reason, .. } => format!("({reason:?})"),
            CheckpointEvent::Refused { reason, .. } => format!("(refused: {reason:?})"),
            CheckpointEvent::PointsDoNotLineUp { attempts, point, least, most, spoiled_by } => format!(
                "(points do not line up: {attempts} times, at {point} between {} and {}, rank {} at {})",
                least.count, most.count, spoiled_by.rank, spoiled_by.count
            ),
        },
    }
}

fn outputs(coordinated: &mut Coordinated) -> Vec<String> {
    core::iter::from_fn(|| coordinated.poll_output()).map(text).collect()
}

#[derive(Clone)]
enum Step {
    Input(CheckpointInput),
    TimeOver,
    Fence,
}

fn step(coordinated: &mut Coordinated, step: &Step) -> Vec<String> {
    match step {
        Step::Input(input) => coordinated.handle(NOW, input.clone()),
        Step::TimeOver => coordinated.handle_timeout(NOW + Duration::from_secs(3600)),
        Step::Fence => coordinated.fence(),
    }
    outputs(coordinated)
}

fn name(coordinated: &Coordinated) -> String {
    let sent = coordinated.sent;
    match &coordinated.state {
        State::Fenced => format!("Fenced {sent}"),
        State::Idle => format!("Idle {sent}"),
        State::Asking { .. } => format!("Asking {sent}"),
        State::Cutting(cutting) => format!("Cutting {} with {}", cutting.epoch, cutting.images.len()),
        State::Committing(cutting) => format!("Committing {}", cutting.epoch),
    }
}

// R1, R8, R9
#[test]
fn every_input_in_every_state() {
    let other = Life { counter: 1, nonce: 6 };
    let reports = alloc::vec![image(0), image(1)];
    let input = Step::Input;
    let request = CheckpointInput::Request(Source::Command);
    let inputs = [
        ("request", input(request.clone())),
        ("points 0", input(points(0, 3, 4))),
        ("points 1", input(points(1, 3, 4))),
        ("one image", input(images(4, &[1]))),
        ("all images", input(images(4, &[0, 1]))),
        ("a third rank's image", input(images(4, &[2]))),
        ("old images", input(images(3, &[0, 1]))),
        ("another life's", input(CheckpointInput::Images { life: other, epoch: Epoch(4), reports })),
        ("no image 3", input(none(3))),
        ("no image 4", input(none(4))),
        ("commit 3 durable", input(CheckpointInput::CommitDurable(key(3)))),
        ("commit 4 durable", input(CheckpointInput::CommitDurable(key(4)))),
        ("commit 4 failed", input(CheckpointInput::CommitFailed { generation: key(4), errno: 28 })),
        ("finishing", input(CheckpointInput::Finishing)),
        ("time over", Step::TimeOver),
        ("fence", Step::Fence),
    ];
    let all = images(4, &[0, 1]);
    let states: [(&str, &dyn Fn() -> Coordinated); 9] = [
        ("Fenced", &|| {
            let mut coordinated = coordinated(0, &[]);
            coordinated.fence();
            coordinated
        }),
        ("Idle", &|| coordinated(0, &[])),
        ("Idle, counted", &|| coordinated(1, &[])),
        ("Asking", &|| coordinated(1, core::slice::from_ref(&request))),
        ("Asking, another wanted", &|| coordinated(1, &[request.clone(), request.clone()])),
        ("Cutting", &|| coordinated(0, &[request.clone(), images(4, &[0])])),
        ("Cutting, another wanted", &|| coordinated(0, &[request.clone(), request.clone()])),
        ("Committing", &|| coordinated(0, &[request.clone(), all.clone()])),
        ("Committing, another wanted", &|| coordinated(0, &[request.clone(), all.clone(), request.clone()])),
    ];
    expect![[r#"
        Fenced + request -> Fenced 3: (refused: NotRunning)
        Idle + request -> Cutting 4 with 0: say "cut 4 now", (event)
        Idle + fence -> Fenced 3: 
        Idle, counted + request -> Asking 3: say "points? (1)"
        Idle, counted + fence -> Fenced 3: 
        Asking + points 1 -> Cutting 4 with 0: say "cut 4 at point 6", (event)
        Asking + finishing -> Idle 3: (refused: Finishing)
        Asking + time over -> Idle 3: (refused: NoAnswer)
        Asking + fence -> Fenced 3: (refused: NotRunning)
        Asking, another wanted + points 1 -> Cutting 4 with 0: say "cut 4 at point 6", (event)
        Asking, another wanted + finishing -> Idle 3: (refused: Finishing)
        Asking, another wanted + time over -> Idle 3: (refused: NoAnswer)
        Asking, another wanted + fence -> Fenced 3: (refused: NotRunning)
        Cutting + one image -> Committing 4: write commit 4 of 2
        Cutting + all images -> Committing 4: write commit 4 of 2
        Cutting + no image 4 -> Idle 4: say "abandon 4", (NoImage { rank: Rank(1), reason: PointPassed { point: 8, count: 9 } })
        Cutting + finishing -> Idle 4: say "abandon 4", (Finishing)
        Cutting + time over -> Idle 4: say "abandon 4", (TimedOut { images: 1, ranks: 2 })
        Cutting + fence -> Fenced 4: (LifeOver)
        Cutting, another wanted + one image -> Cutting 4 with 1: 
        Cutting, another wanted + all images -> Committing 4: write commit 4 of 2
        Cutting, another wanted + no image 4 -> Cutting 5 with 0: say "abandon 4", (NoImage { rank: Rank(1), reason: PointPassed { point: 8, count: 9 } }), say "cut 5 now", (event)
        Cutting, another wanted + finishing -> Idle 4: say "abandon 4", (Finishing), (refused: Finishing)
        Cutting, another wanted + time over -> Cutting 5 with 0: say "abandon 4", (TimedOut { images: 0, ranks: 2 }), say "cut 5 now", (event)
        Cutting, another wanted + fence -> Fenced 4: (LifeOver), (refused: NotRunning)
        Committing + commit 4 durable -> Idle 4: say "committed 4", collect before 4, (event)
        Committing + commit 4 failed -> Idle 4: say "abandon 4", (CommitFailed { errno: 28 })
        Committing + fence -> Fenced 4: 
        Committing, another wanted + commit 4 durable -> Cutting 5 with 0: say "committed 4", collect before 4, (event), say "cut 5 now", (event)
        Committing, another wanted + commit 4 failed -> Cutting 5 with 0: say "abandon 4", (CommitFailed { errno: 28 }), say "cut 5 now", (event)
        Committing, another wanted + finishing -> Committing 4: (refused: Finishing)
        Committing, another wanted + fence -> Fenced 4: (refused: NotRunning)
    "#]].assert_eq(&table(&states, &inputs, step, name));
}

/// R1: a number that was sent out is never used again in that life.
#[test]
fn abandoned_numbers_are_used_up() {
    let mut coordinated = coordinated(0, &[]);
    for epoch in 4..7 {
        coordinated.handle(NOW, CheckpointInput::Request(Source::Timer));
        coordinated.handle(NOW, none(epoch));
        coordinated.handle(NOW, images(epoch, &[0, 1]));
    }
    expect![[r#"
        say "cut 4 now"
        (event)
        say "abandon 4"
        (NoImage { rank: Rank(1), reason: PointPassed { point: 8, count: 9 } })
        say "cut 5 now"
        (event)
        say "abandon 5"
        (NoImage { rank: Rank(1), reason: PointPassed { point: 8, count: 9 } })
        say "cut 6 now"
        (event)
        say "abandon 6"
        (NoImage { rank: Rank(1), reason: PointPassed { point: 8, count: 9 } })"#]]
    .assert_eq(&outputs(&mut coordinated).join("\n"));
}

#[test]
fn the_user_is_reported_when_points_do_not_line_up() {
    let mut coordinated = coordinated(2, &[]);
    for attempt in 1..=3 {
        coordinated.handle(NOW, CheckpointInput::Request(Source::Timer));
        coordinated.handle(NOW, points(attempt, 3, 7));
        coordinated.handle(NOW, none(3 + attempt));
    }
    expect![[r#"
        say "points? (1)"
        say "cut 4 at point 9"
        (event)
        say "abandon 4"
        (NoImage { rank: Rank(1), reason: PointPassed { point: 8, count: 9 } })
        say "points? (2)"
        say "cut 5 at point 11"
        (event)
        say "abandon 5"
        (NoImage { rank: Rank(1), reason: PointPassed { point: 8, count: 9 } })
        say "points? (3)"
        say "cut 6 at point 15"
        (event)
        say "abandon 6"
        (NoImage { rank: Rank(1), reason: PointPassed { point: 8, count: 9 } })
        (points do not line up: 3 times, at 15 between 3 and 7, rank 1 at 9)"#]]
    .assert_eq(&outputs(&mut coordinated).join("\n"));
}

/// The last epoch named is one that a port can be loaded with.
#[test]
fn epochs_end_where_ports_do() {
    let mut coordinated = Coordinated::new(CheckpointConfig::default(), Sabotage::none());
    coordinated.begin(NOW, LifeView { epoch: Epoch(EPOCH_MAX - 1), ..life(0) });
    coordinated.handle(NOW, CheckpointInput::Request(Source::Command));
    coordinated.handle(NOW, images(EPOCH_MAX, &[0, 1]));
    coordinated.handle(NOW, CheckpointInput::CommitDurable(key(EPOCH_MAX)));
    outputs(&mut coordinated);
    coordinated.handle(NOW, CheckpointInput::Request(Source::Command));
    assert_eq!(outputs(&mut coordinated), ["(refused: EpochsUsedUp)"]);
}

#[test]
fn the_timer_asks_once_for_each_interval() {
    let every = Duration::from_secs(10);
    let config = CheckpointConfig { every: Every::Fixed(every), ..CheckpointConfig::default() };
    let mut coordinated = Coordinated::new(config, Sabotage::none());
    coordinated.begin(NOW, life(0));
    assert_eq!(coordinated.poll_timeout(), Some(NOW + every));
    coordinated.handle_timeout(NOW + every);
    assert_eq!(outputs(&mut coordinated).len(), 2, "the command, and the event");
    // The next interval begins with the checkpoint; one that lasts longer is not followed by another at once.
    coordinated.handle_timeout(NOW + every * 2);
    assert!(outputs(&mut coordinated).is_empty());
    coordinated.handle(NOW + every * 2, images(4, &[0, 1]));
    coordinated.handle(NOW + every * 2, CheckpointInput::CommitDurable(key(4)));
    outputs(&mut coordinated);
    assert_eq!(coordinated.poll_timeout(), Some(NOW + every * 3));
    // A new interval counts from where the old one did.
    coordinated.handle(NOW + every * 2, CheckpointInput::Every(Some(every / 2)));
    assert_eq!(coordinated.poll_timeout(), Some(NOW + every * 2 + every / 2));
    coordinated.handle(NOW + every * 2, CheckpointInput::Every(None));
    assert_eq!(coordinated.poll_timeout(), None);
}
