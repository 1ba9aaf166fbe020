//! Drawing a plan from a seed.
//!
//! Every kind of fault occurs in more than one history of twenty, most histories have several. A few have none beyond the one crash that each must
//! have, so that faults of a calm network are found too.

use super::{Action, Auth, Floors, Mode, Moment, NODES, Plan, Reactions, Step, When, Which};
use crate::engine::queue::{MICRO, MILLI, Nanos};
use crate::engine::random::Random;
use crate::limits::{
    CHECKPOINT_COMMANDS_MIN, COMPLETION_MAX, FRAMES_DELIVERED_MIN, FRAMES_PER_RANK_LARGE, LARGE_ONE_IN,
    NIC_SEND_FRAMES, NODES_MAX, RANKS_LARGE_MIN, RANKS_MAX, RANKS_SMALL_MAX,
};
use crate::network::NetworkConditions;
use crate::swarm::RANKS;

/// Streams of a seed, by purpose.
const STREAM_PLAN: u64 = 1;
const STREAM_NODE_DISKS: u64 = 5;
const STREAM_LIVES: u64 = 6;
const STREAM_HOSTS: u64 = 7;
const STREAM_SIZE: u64 = 8;
/// The next one draws the clocks of a large job.
const STREAM_NODES: u64 = 9;
const STREAM_RESTORES: u64 = 11;
const STREAM_CALM: u64 = 12;
const STREAM_SUSPECTS: u64 = 13;
const STREAM_REACTIONS: u64 = 14;
const STREAM_MOVES: u64 = 15;

/// Clocks whose drift the main stream draws: those of the nodes of a small history.
const CLOCKS_SMALL: usize = RANKS_SMALL_MAX as usize;
/// Messages of a large history for each rank, at least and in reserve.
const MESSAGES_PER_RANK: u32 = 25;
const MESSAGES_RESERVED_PER_RANK: u32 = 150;

/// Of a hundred histories, so many last until long after the last fault.
const CALM_PERCENT: u64 = 10;
/// Of a hundred histories, so many have checkpoints right behind a restore.
const RESTORES_PERCENT: u64 = 20;

/// Restarts after a crash that each history must have.
const RESTARTS_MIN: u32 = 1;

/// The plan that a swarm runs for `seed`: of a small job, or of a large one. A stream of its own decides that, so that the plans of small jobs do not depend
/// on it. With `ranks_min`, the job has so many ranks or more, up to [`RANKS_MAX`].
#[must_use]
pub fn draw(seed: u64, ranks_min: Option<u32>) -> Plan {
    let random = &mut Random::stream(seed, STREAM_SIZE);
    let is_large = random.below(LARGE_ONE_IN) == 0;
    let ranks_min = match ranks_min {
        Some(ranks) => ranks.min(RANKS_MAX),
        None if is_large => RANKS_LARGE_MIN,
        None => return generate(seed, RANKS),
    };
    let ranks = random.between(ranks_min.into(), RANKS_MAX.into());
    generate(seed, u32::try_from(ranks).unwrap_or(RANKS_MAX))
}

/// The plan of `seed` for a job of `ranks` ranks.
#[must_use]
pub fn generate(seed: u64, ranks: u32) -> Plan {
    let mut random = Random::stream(seed, STREAM_PLAN);
    let random = &mut random;
    let nodes = random.pick(&[1, 2, 2, ranks.min(3), ranks]).min(ranks);
    let is_large = ranks > RANKS_SMALL_MAX;
    let nodes = if is_large { nodes_of_large(seed, ranks) } else { nodes };
    let more = if is_large { ranks } else { 0 };
    let frames_min = FRAMES_DELIVERED_MIN + FRAMES_PER_RANK_LARGE * u64::from(more);
    let frames_planned = frames_min * 8 / 10;
    let auth = match random.below(16) {
        0 => Auth::Full,
        1 | 2 => Auth::Header,
        _ => Auth::Off,
    };
    let mut plan = Plan {
        seed,
        ranks,
        nodes,
        losses: 0,
        group: 0,
        spares: 0,
        reactions: Reactions::Usual,
        ports: if random.percent(20) { 2 } else { 1 },
        rails: if random.percent(35) { 2 } else { 1 },
        mode: if random.percent(75) { Mode::Instant } else { Mode::Counted },
        auth,
        frame_bytes_max: u32::try_from(random.between(320, 640)).unwrap_or(320),
        floors: Floors {
            frames: frames_min,
            commands: CHECKPOINT_COMMANDS_MIN,
            restarts: RESTARTS_MIN,
            crash_by_frames: random.between(frames_planned / 4, frames_planned),
        },
        calm: Random::stream(seed, STREAM_CALM).percent(CALM_PERCENT),
        messages_min: u32::try_from(random.between(700, 800)).unwrap_or(700) + MESSAGES_PER_RANK * more,
        messages_reserved: 3000 + MESSAGES_RESERVED_PER_RANK * more,
        message_bytes_max: u32::try_from(random.between(900, 2400)).unwrap_or(900),
        tight_bounds: random.percent(40),
        congested: random.percent(30),
        pulls: false,
        helper: random.percent(70),
        conditions: conditions(random),
        control_ns_max: random.log_between(2 * MICRO, 120 * MICRO),
        write_ns_max: random.log_between(10 * MICRO, 600 * MICRO),
        // The longer ones are worth a hint (STOPPED).
        pause_ns_max: if random.percent(75) {
            random.log_between(2 * MICRO, 300 * MICRO)
        } else {
            random.between(MILLI, 4 * MILLI)
        },
        nic_frames: NIC_SEND_FRAMES,
        completion_ns_max: COMPLETION_MAX,
        drift: [0; NODES],
        steps: Vec::with_capacity(16),
    };
    for drift in &mut plan.drift[..CLOCKS_SMALL] {
        *drift = drift_of_clock(random);
    }
    if is_large {
        let random = &mut Random::stream(seed, STREAM_NODES + 1);
        plan.drift[CLOCKS_SMALL..].iter_mut().for_each(|drift| *drift = drift_of_clock(random));
    }
    commands(random, &mut plan);
    crash(random, &mut plan);
    troubles(random, &mut plan);
    plan.pulls = plan.auth == Auth::Off && random.percent(40);
    restores(seed, &mut plan);
    changes_of_rails(random, &mut plan);
    unreadable(random, &mut plan);
    node_disks(seed, &mut plan);
    lives(seed, &mut plan);
    hosts(seed, &mut plan);
    suspects(seed, &mut plan);
    reactions(seed, &mut plan);
    moves(seed, &mut plan);
    plan
}

/// A chance between `low` and `high` parts of 10,000, in parts of `CHANCE_ONE`.
fn chance(random: &mut Random, low: u64, high: u64) -> u16 {
    u16::try_from(random.log_between(low, high) * 65_535 / 10_000).unwrap_or(u16::MAX)
}

fn drift_of_clock(random: &mut Random) -> i64 {
    i64::try_from(random.below(200)).unwrap_or(0) - 100
}

/// Nodes of a large job: often as many as there can be, at times few with many ranks each.
fn nodes_of_large(seed: u64, ranks: u32) -> u32 {
    let random = &mut Random::stream(seed, STREAM_NODES);
    let drawn = u32::try_from(random.between(3, NODES_MAX.into())).unwrap_or(NODES_MAX);
    random.pick(&[2, 4, drawn, drawn, NODES_MAX]).min(ranks)
}

fn conditions(random: &mut Random) -> NetworkConditions {
    let mut conditions = NetworkConditions {
        jitter_ns: u32::try_from(random.log_between(500, 20_000)).unwrap_or(0),
        ..NetworkConditions::default()
    };
    if random.percent(60) {
        conditions.loss = chance(random, 5, 600);
    }
    if random.percent(50) {
        conditions.duplication = chance(random, 5, 600);
    }
    if random.percent(50) {
        conditions.reordering = chance(random, 10, 1500);
    }
    if random.percent(40) {
        conditions.corruption = chance(random, 5, 400);
    }
    if random.percent(50) {
        conditions.delay = chance(random, 2, 100);
    }
    conditions
}

fn at_frames(random: &mut Random, plan: &Plan) -> When {
    When::Frames(random.between(20, plan.frames_planned()))
}

fn commands(random: &mut Random, plan: &mut Plan) {
    let commands = random.between(u64::from(CHECKPOINT_COMMANDS_MIN), 7);
    let spacing = plan.frames_planned() / commands;
    for n in 0..commands {
        let frames = n * spacing + random.between(1, spacing);
        let patient = !random.percent(10);
        plan.steps.push(Step { when: When::Frames(frames), action: Action::Checkpoint { patient } });
    }
}

fn rank(random: &mut Random, plan: &Plan) -> Which {
    Which::Number(u32::try_from(random.below(u64::from(plan.ranks))).unwrap_or(0))
}

fn node(random: &mut Random, plan: &Plan) -> u32 {
    u32::try_from(random.below(u64::from(plan.nodes))).unwrap_or(0)
}

fn down(random: &mut Random) -> Nanos {
    random.log_between(100 * MICRO, 20 * MILLI)
}

/// The crash that every history has.
fn crash(random: &mut Random, plan: &mut Plan) {
    let crash = Action::CrashProcess(rank(random, plan));
    let on = |random: &mut Random, moment, nth_max, after_max| When::On {
        moment,
        nth: u32::try_from(random.below(nth_max)).unwrap_or(0),
        after: random.below(after_max),
    };
    let write = plan.write_ns_max;
    // Moments of ranks: within the first checkpoints, of a small job of 4 ranks as of a large one.
    let each = u64::from(if plan.ranks > RANKS_SMALL_MAX { plan.ranks / 4 } else { 1 });
    let (when, action) = match random.below(12) {
        0..4 => (at_frames(random, plan), crash),
        4 => {
            (on(random, Moment::Frozen, 12 * each, plan.pause_ns_max / 2), Action::CrashProcess(Which::Cause))
        }
        5 => (on(random, Moment::Dumping, 12 * each, write / 2), Action::CrashProcess(Which::Cause)),
        6 => (on(random, Moment::Committing, 2, write), crash),
        // Some ranks have been saved, others never will be.
        10 | 11 => {
            let other = Which::Other(1 + u32::try_from(random.below(3)).unwrap_or(0));
            (on(random, Moment::Saved, 8 * each, write / 2), Action::CrashProcess(other))
        }
        7 => (
            on(random, Moment::Committing, 2, write),
            Action::CrashNode { node: Which::Number(0), down: down(random) },
        ),
        8 => (
            on(random, Moment::Dumping, 12 * each, write),
            Action::CrashNode { node: Which::Cause, down: down(random) },
        ),
        _ => {
            let node = Which::Number(node(random, plan));
            (at_frames(random, plan), Action::CrashNode { node, down: down(random) })
        }
    };
    plan.steps.push(Step { when, action });
    if random.percent(40) {
        let moment = random.pick(&[Moment::Decided, Moment::Restoring]);
        let which = random.pick(&[Which::Cause, Which::Other(1), Which::Other(2)]);
        let nth_max = if moment == Moment::Restoring { 3 * each } else { 3 };
        let when = on(random, moment, nth_max, 600 * MICRO);
        plan.steps.push(Step { when, action: Action::CrashProcess(which) });
    }
    if random.percent(12) {
        let when = on(random, Moment::Decided, 1, 600 * MICRO);
        let node = Which::Number(node(random, plan));
        plan.steps.push(Step { when, action: Action::CrashNode { node, down: down(random) } });
    }
}

/// Everything else that may happen.
fn troubles(random: &mut Random, plan: &mut Plan) {
    let rank_number =
        |random: &mut Random, plan: &Plan| u32::try_from(random.below(u64::from(plan.ranks))).unwrap_or(0);
    if random.percent(20) {
        let (one, other) = (node(random, plan), node(random, plan));
        let lasts = random.log_between(50 * MICRO, 30 * MILLI);
        let when = at_frames(random, plan);
        plan.steps.push(Step { when, action: Action::Partition { one, other, lasts } });
    }
    if random.percent(20) {
        let (rank, rail) =
            (rank_number(random, plan), u32::try_from(random.below(u64::from(plan.rails))).unwrap_or(0));
        let lasts = random.log_between(100 * MICRO, 30 * MILLI);
        let when = at_frames(random, plan);
        plan.steps.push(Step { when, action: Action::RailDown { rank, rail, lasts } });
    }
    if random.percent(20) {
        let size = i64::try_from(random.log_between(10 * MICRO, 100 * MILLI)).unwrap_or(0);
        let by = if random.percent(30) { -size / 100 } else { size };
        let when = at_frames(random, plan);
        let node = node(random, plan);
        plan.steps.push(Step { when, action: Action::ClockJump { node, by } });
    }
    if random.percent(12) {
        let when = at_frames(random, plan);
        let node = node(random, plan);
        plan.steps.push(Step { when, action: Action::BreakControl { node } });
    }
    if random.percent(15) {
        let when = at_frames(random, plan);
        let rank = rank_number(random, plan);
        let lasts = random.log_between(100 * MICRO, 5 * MILLI);
        plan.steps.push(Step { when, action: Action::Unsavable { rank, lasts } });
    }
    if random.percent(15) {
        let when = at_frames(random, plan);
        let (after, full) = (random.below(40), random.percent(50));
        plan.steps.push(Step { when, action: Action::DiskError { after, full } });
    }
    if random.percent(50) {
        let when = at_frames(random, plan);
        let (after, down) = (random.below(40), down(random));
        plan.steps.push(Step { when, action: Action::PowerLoss { after, down } });
    }
    if random.percent(20) {
        let when = at_frames(random, plan);
        let mut conditions = conditions(random);
        conditions.loss = conditions.loss.max(chance(random, 500, 5000));
        let lasts = random.log_between(50 * MICRO, 2 * MILLI);
        plan.steps.push(Step { when, action: Action::Storm { conditions, lasts } });
    }
    if random.percent(20) {
        let when = at_frames(random, plan);
        let rank = rank_number(random, plan);
        let lasts = random.log_between(50 * MICRO, 20 * MILLI);
        plan.steps.push(Step { when, action: Action::Stall { rank, lasts } });
    }
}

/// Checkpoints right behind a restore (R10): links still exchange their counters, and NICs are full of retransmitted frames. Frames due at a
/// cut then leave after it. Drawn from a stream of its own, too.
fn restores(seed: u64, plan: &mut Plan) {
    let random = &mut Random::stream(seed, STREAM_RESTORES);
    if !random.percent(RESTORES_PERCENT) {
        return;
    }
    // Pauses that are worth a hint, a checkpoint that follows the restore at once, and NICs that are full for long.
    plan.pause_ns_max = random.between(MILLI, 4 * MILLI);
    plan.control_ns_max = random.log_between(2 * MICRO, 16 * MICRO);
    plan.nic_frames = random.pick(&[4, 4, 8]);
    plan.completion_ns_max = random.log_between(COMPLETION_MAX, 25 * COMPLETION_MAX);
    let is_crash = |step: &&mut Step| matches!(step.action, Action::CrashProcess(_));
    if let Some(crash) = plan.steps.iter_mut().find(is_crash)
        && random.percent(70)
    {
        // The restored generation is an early one: links have no history in one direction, or in both.
        let after = random.below(plan.write_ns_max);
        crash.when = When::On { moment: Moment::Committing, nth: below(random, 2), after };
    }
    let each = if plan.ranks > RANKS_SMALL_MAX { plan.ranks / 4 } else { 1 };
    let restoring = |random: &mut Random, after_max| When::On {
        moment: Moment::Restoring,
        nth: below(random, u64::from(8 * each)),
        after: random.below(after_max),
    };
    for _ in 0..random.between(2, 4) {
        let when = if random.percent(75) {
            restoring(random, 50 * MICRO)
        } else {
            When::On { moment: Moment::Decided, nth: below(random, 2), after: random.below(MILLI) }
        };
        plan.steps.push(Step { when, action: Action::Checkpoint { patient: true } });
    }
    let a_rank = |random: &mut Random, plan: &Plan| below(random, u64::from(plan.ranks));
    if random.percent(20) {
        let when = restoring(random, 600 * MICRO);
        plan.steps.push(Step { when, action: Action::CrashProcess(Which::Cause) });
    }
    if random.percent(25) {
        let when = restoring(random, MILLI);
        let (rank, rail) = (a_rank(random, plan), below(random, u64::from(plan.rails)));
        let lasts = random.log_between(MICRO, 2 * MILLI);
        plan.steps.push(Step { when, action: Action::RailDown { rank, rail, lasts } });
    }
    if random.percent(25) {
        let when = restoring(random, MILLI);
        let (rank, lasts) = (a_rank(random, plan), random.log_between(50 * MICRO, 4 * MILLI));
        plan.steps.push(Step { when, action: Action::Stall { rank, lasts } });
    }
}

/// Makes committed generations unreadable while the first crash is recovered from.
fn unreadable(random: &mut Random, plan: &mut Plan) {
    let is_crash = |step: &&Step| matches!(step.action, Action::CrashProcess(_) | Action::CrashNode { .. });
    let crash = plan.steps.iter().find(is_crash).map(|step| step.when);
    if let Some(when) = crash.filter(|_| random.percent(20)) {
        let lasts = random.log_between(MILLI, 20 * MILLI);
        plan.steps.push(Step { when, action: Action::Unreadable { lasts } });
    }
}

/// Nodes with directories of their own, and the loss of some. Drawn from a stream of its own, so that the other draws of a seed stay as they are.
fn node_disks(seed: u64, plan: &mut Plan) {
    let random = &mut Random::stream(seed, STREAM_NODE_DISKS);
    // Of generations that cannot be read, the lost ones are the case here.
    let is_unreadable = plan.steps.iter().any(|step| matches!(step.action, Action::Unreadable { .. }));
    if plan.nodes < 2 || is_unreadable || !random.percent(50) {
        return;
    }
    plan.losses = if plan.nodes > 3 && random.percent(30) { 2 } else { 1 };
    if plan.nodes > RANKS_SMALL_MAX / 2 && plan.ranks > RANKS_SMALL_MAX {
        plan.group = random.pick(&[0, 4, 4, 8]).min(plan.nodes);
    }
    for _ in 0..random.between(1, 3) {
        let when = match random.below(4) {
            0 => When::On {
                moment: Moment::Committing,
                nth: below(random, 3),
                after: random.below(plan.write_ns_max),
            },
            1 => When::On { moment: Moment::Decided, nth: below(random, 2), after: random.below(MILLI) },
            _ => at_frames(random, plan),
        };
        let action = Action::DestroyNode { node: node(random, plan), down: down(random) };
        plan.steps.push(Step { when, action });
    }
    // A keeper that does not answer when the protectors are to meet, and goes on before its guard ends it.
    if random.percent(20) {
        let nth = below(random, 3);
        let when = When::On { moment: Moment::Surveyed, nth, after: random.below(plan.control_ns_max) };
        let lasts = random.between(19 * MILLI, 27 * MILLI);
        plan.calm = true;
        plan.steps.push(Step { when, action: Action::StopKeeper { node: node(random, plan), lasts } });
    }
}

/// Launchers that vanish, and keepers that stand still (R30). Drawn from a stream of its own, too.
fn lives(seed: u64, plan: &mut Plan) {
    let random = &mut Random::stream(seed, STREAM_LIVES);
    if random.percent(20) {
        let when = at_frames(random, plan);
        let cut_off = plan.nodes > 1 && random.percent(60);
        let down = random.log_between(100 * MICRO, 100 * MILLI);
        plan.steps.push(Step { when, action: Action::KillLauncher { cut_off, down } });
    }
    if random.percent(15) {
        let when = at_frames(random, plan);
        let node = node(random, plan);
        let lasts = random.log_between(MILLI, 200 * MILLI);
        plan.steps.push(Step { when, action: Action::StopKeeper { node, lasts } });
    }
}

/// Hosts that are cut off or stay without power for long, and spare ones (R31, R32). Drawn from a stream of its own, too.
fn hosts(seed: u64, plan: &mut Plan) {
    let random = &mut Random::stream(seed, STREAM_HOSTS);
    if plan.nodes < 2 || !random.percent(25) {
        return;
    }
    plan.spares = below(random, 3);
    for _ in 0..random.between(1, 2) {
        let when = at_frames(random, plan);
        let node = 1 + below(random, u64::from(plan.nodes) - 1);
        let lasts = random.log_between(MILLI, 200 * MILLI);
        let action = if random.percent(70) {
            Action::CutOff { node, lasts }
        } else {
            Action::CrashNode { node: Which::Number(node), down: lasts }
        };
        plan.steps.push(Step { when, action });
    }
    // A launcher that vanishes when a life has just begun, and answers to keepers in connections that nobody closes.
    if random.percent(30) {
        plan.spares = plan.spares.max(1);
        let (nth, after) = (below(random, 2), random.below(plan.control_ns_max));
        let when = When::On { moment: Moment::Restoring, nth, after };
        let node = 1 + below(random, u64::from(plan.nodes) - 1);
        let lasts = random.between(35 * MILLI, 90 * MILLI);
        plan.steps.push(Step { when, action: Action::CutOff { node, lasts } });
        let down = random.log_between(100 * MICRO, 5 * MILLI);
        plan.steps.push(Step { when, action: Action::KillLauncher { cut_off: true, down } });
    }
}

/// Nodes that a person takes for failing, with and without a spare host (R36). Drawn from a stream of its own, too.
fn suspects(seed: u64, plan: &mut Plan) {
    let random = &mut Random::stream(seed, STREAM_SUSPECTS);
    if plan.nodes < 2 || !random.percent(15) {
        return;
    }
    plan.spares = plan.spares.max(below(random, 3));
    for _ in 0..random.between(1, 2) {
        let when = at_frames(random, plan);
        let node = 1 + below(random, u64::from(plan.nodes) - 1);
        plan.steps.push(Step { when, action: Action::Suspect { node } });
    }
}

/// Other reactions to faults than the usual ones. Drawn from a stream of its own, too.
fn reactions(seed: u64, plan: &mut Plan) {
    let random = &mut Random::stream(seed, STREAM_REACTIONS);
    if plan.nodes >= 2 && random.percent(30) {
        plan.reactions =
            random.pick(&[Reactions::Moving, Reactions::Waiting, Reactions::Ending, Reactions::Ignoring]);
        plan.spares = plan.spares.max(below(random, 3));
    }
}

/// Ranks that go on elsewhere (R13). Drawn from a stream of its own, too.
fn moves(seed: u64, plan: &mut Plan) {
    let random = &mut Random::stream(seed, STREAM_MOVES);
    if plan.changes_rails() || !random.percent(20) {
        return;
    }
    for _ in 0..random.between(1, 4) {
        let when = at_frames(random, plan);
        let (rank, lasts) = (below(random, plan.ranks.into()), random.log_between(MICRO, 5 * MILLI));
        plan.steps.push(Step { when, action: Action::Move { rank, lasts } });
    }
}

fn below(random: &mut Random, bound: u64) -> u32 {
    u32::try_from(random.below(bound)).unwrap_or(0)
}

/// All ranks go over another NIC, and another.
fn changes_of_rails(random: &mut Random, plan: &mut Plan) {
    if random.percent(30) && plan.rails == 1 && !plan.pulls {
        plan.rails = 2;
        plan.steps.retain(|step| !matches!(step.action, Action::RailDown { .. }));
        for _ in 0..random.between(1, 3) {
            let frame_bytes_max = u32::try_from(random.between(320, 640)).unwrap_or(320);
            let when = at_frames(random, plan);
            plan.steps.push(Step { when, action: Action::ChangeRails { frame_bytes_max } });
        }
    }
}
