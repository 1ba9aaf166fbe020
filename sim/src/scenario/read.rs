//! Reading a scenario. Believes nothing: every number has its range, so that no text can make a world that panics.

use super::settings::SETTINGS;
use super::words::{ScenarioError, Words};
use super::{Expectation, Scenario, plain};
use crate::engine::queue::{Nanos, SECOND};
use crate::limits::{NODES_MAX, RANKS_MAX};
use crate::network::NetworkConditions;
use crate::plan::{Action, Auth, Floors, Mode, Moment, NODES, Plan, Reactions, Step, When, Which};

/// Bytes of a scenario.
pub const TEXT_BYTES_MAX: usize = 1 << 16;
/// Steps of a scenario: an ordinary history has about 15.
pub const STEPS_MAX: usize = 256;
/// Expectations of a scenario: one for each rule, and one with none out.
const EXPECTATIONS_MAX: usize = 64;
/// Seeds that one scenario runs.
const SEEDS_MAX: u32 = 1000;
/// Ports of a rank and rails of a port.
const PORTS_MAX: u32 = 4;
const RAILS_MAX: u32 = 4;
/// Frames are at least so large that a head with all of its options fits.
const FRAME_BYTES: core::ops::RangeInclusive<u32> = 320..=4096;
const MESSAGES_MAX: u32 = 20_000;
const MESSAGE_BYTES_MAX: u32 = 1 << 16;
/// Longest time of anything: below the time within which a history must end.
const TIME_MAX: Nanos = 10 * SECOND;
/// Drift of a clock, see [`crate::engine::clock::Clock`]: a per mille.
const DRIFT_MAX: i64 = 1 << 10;
const FRAMES_MAX: u64 = 1 << 32;
const COUNT_MAX: u32 = 1 << 10;
const MOMENTS_MAX: u32 = 1 << 16;
const WRITES_MAX: u64 = 1 << 32;

/// Reads a scenario.
///
/// # Errors
/// With the first line that is wrong.
pub fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    let mut scenario = Scenario { expectations: Vec::new(), seeds: 1, plan: plain() };
    // Checked once all lines are read, so that the order of lines has no meaning.
    let (mut nodes_line, mut losses_line, mut group_line) = (0, 0, 0);
    let mut read: Vec<&str> = Vec::new();
    if text.len() > TEXT_BYTES_MAX {
        let (expected, found) = (format!("at most {TEXT_BYTES_MAX} bytes"), format!("{}", text.len()));
        return Err(ScenarioError { line: 1, expected, found });
    }
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let mut words = Words::new(line, text);
        let first = words.next().unwrap_or_default();
        match first {
            "expect" => {
                if scenario.expectations.len() == EXPECTATIONS_MAX {
                    return Err(words.wrong(format!("at most {EXPECTATIONS_MAX} expectations"), Some(text)));
                }
                scenario.expectations.push(expectation(&mut words)?);
            }
            "at" | "on" => {
                if scenario.plan.steps.len() == STEPS_MAX {
                    return Err(words.wrong(format!("at most {STEPS_MAX} steps"), Some(text)));
                }
                scenario.plan.steps.push(step(first, &mut words)?);
            }
            name if read.contains(&name) => {
                return Err(words.wrong(format!("one line '{name}'"), Some(text)));
            }
            "seeds" if read.contains(&"seed") => {
                return Err(words.wrong("one line 'seed' or 'seeds'", Some(text)));
            }
            "seeds" => {
                let last_max = u64::MAX - u64::from(SEEDS_MAX);
                scenario.plan.seed = words.number("the first seed", 0..=last_max)?;
                words.all("to")?;
                let first = scenario.plan.seed;
                let last = words.number("the last seed", first..=first + u64::from(SEEDS_MAX) - 1)?;
                scenario.seeds = u32::try_from(last - first + 1).unwrap_or(SEEDS_MAX);
                read.extend(["seed", "seeds"]);
            }
            name => {
                setting(&mut scenario.plan, name, &mut words)?;
                read.push(name);
                if name == "nodes" || name == "ranks" {
                    nodes_line = line;
                } else if name == "losses" {
                    losses_line = line;
                } else if name == "group" {
                    group_line = line;
                }
            }
        }
        words.end()?;
    }
    let Plan { ranks, nodes, losses, group, .. } = scenario.plan;
    if losses >= nodes && losses > 0 {
        let expected = format!("fewer losses than nodes ({nodes})");
        return Err(ScenarioError { line: losses_line, expected, found: format!("{losses}") });
    }
    if group > 0 && !(losses + 1..=nodes).contains(&group) {
        let expected =
            format!("a group of more nodes than losses ({losses}), and at most all of them ({nodes}); or 0");
        return Err(ScenarioError { line: group_line, expected, found: format!("{group}") });
    }
    if nodes > ranks {
        let expected = format!("at most as many nodes as ranks ({ranks})");
        return Err(ScenarioError { line: nodes_line, expected, found: format!("{nodes}") });
    }
    Ok(scenario)
}

fn expectation(words: &mut Words<'_>) -> Result<Expectation, ScenarioError> {
    let without = if words.has("without") {
        let rule = words.name("the name of a rule")?;
        // The list is long; `sim sabotage` prints it.
        if crate::sabotage::Switch::named(rule).is_none() {
            return Err(words.wrong("the name of a rule, as 'sim sabotage' lists them", Some(rule)));
        }
        Some(rule.to_owned())
    } else {
        None
    };
    words.all(":")?;
    let kind = words.name("'holds' or the kind of a violation")?;
    let violation = (kind != "holds").then(|| kind.to_owned());
    Ok(Expectation { without, violation })
}

fn setting(plan: &mut Plan, name: &str, words: &mut Words<'_>) -> Result<(), ScenarioError> {
    const YES_OR_NO: [(&str, bool); 2] = [("yes", true), ("no", false)];
    const MODES: [(&str, Mode); 2] = [("instant", Mode::Instant), ("counted", Mode::Counted)];
    const AUTHS: [(&str, Auth); 3] = [("off", Auth::Off), ("header", Auth::Header), ("full", Auth::Full)];
    const NIC_FRAMES: [(&str, u32); 4] = [("4", 4), ("8", 8), ("16", 16), ("32", 32)];
    // A name outside of the list is no setting: help and errors are made of the list.
    if name != "seed" && SETTINGS.iter().all(|setting| setting.name != name) {
        return Err(no_setting(words, name));
    }
    match name {
        "seed" => plan.seed = words.number("a seed", 0..=u64::MAX)?,
        "ranks" => plan.ranks = words.small_number("ranks", 2..=RANKS_MAX)?,
        "nodes" => plan.nodes = words.small_number("nodes", 1..=NODES_MAX)?,
        "losses" => plan.losses = words.small_number("nodes that may be lost", 0..=NODES_MAX - 1)?,
        "spares" => plan.spares = words.small_number("spare hosts", 0..=NODES_MAX)?,
        "reactions" => plan.reactions = words.one_of(&Reactions::ALL)?,
        "group" => plan.group = words.small_number("nodes of a group", 0..=NODES_MAX)?,
        "ports" => plan.ports = words.small_number("ports", 1..=PORTS_MAX)?,
        "rails" => plan.rails = words.small_number("rails", 1..=RAILS_MAX)?,
        "frame-bytes" => plan.frame_bytes_max = words.small_number("bytes", FRAME_BYTES)?,
        "messages" => plan.messages_min = words.small_number("messages", 1..=MESSAGES_MAX)?,
        "reserve" => plan.messages_reserved = words.small_number("messages", 0..=MESSAGES_MAX)?,
        "floors" => plan.floors = floors(words)?,
        "calm" => plan.calm = words.one_of(&YES_OR_NO)?,
        "message-bytes" => plan.message_bytes_max = words.small_number("bytes", 1..=MESSAGE_BYTES_MAX)?,
        "mode" => plan.mode = words.one_of(&MODES)?,
        "auth" => plan.auth = words.one_of(&AUTHS)?,
        "tight-bounds" => plan.tight_bounds = words.one_of(&YES_OR_NO)?,
        "congested" => plan.congested = words.one_of(&YES_OR_NO)?,
        "pulls" => plan.pulls = words.one_of(&YES_OR_NO)?,
        "helper" => plan.helper = words.one_of(&YES_OR_NO)?,
        "network" => plan.conditions = conditions(words)?,
        "control-time" => plan.control_ns_max = words.duration(TIME_MAX)?,
        "write-time" => plan.write_ns_max = words.duration(TIME_MAX)?,
        "pause-time" => plan.pause_ns_max = words.duration(TIME_MAX)?,
        "nic-frames" => plan.nic_frames = words.one_of(&NIC_FRAMES)?,
        "completion-time" => plan.completion_ns_max = words.duration(TIME_MAX)?,
        "drift" => {
            plan.drift = [0; NODES];
            for (node, drift) in plan.drift.iter_mut().enumerate() {
                if node == 0 || words.peek().is_some() {
                    *drift = words.signed_number("the drift of a clock", DRIFT_MAX)?;
                }
            }
        }
        _ => return Err(no_setting(words, name)),
    }
    Ok(())
}

fn no_setting(words: &Words<'_>, name: &str) -> ScenarioError {
    let names = SETTINGS.map(|setting| setting.name).join(", ");
    words.wrong(format!("'expect', 'at', 'on' or a setting (seed or seeds, {names})"), Some(name))
}

fn floors(words: &mut Words<'_>) -> Result<Floors, ScenarioError> {
    let frames = words.number("frames", 0..=FRAMES_MAX)?;
    words.all("frames ,")?;
    let commands = words.small_number("commands", 0..=COUNT_MAX)?;
    words.all("commands ,")?;
    let restarts = words.small_number("restarts", 0..=COUNT_MAX)?;
    words.all("restarts , crash by")?;
    let crash_by_frames = words.number("frames", 0..=FRAMES_MAX)?;
    words.all("frames")?;
    Ok(Floors { frames, commands, restarts, crash_by_frames })
}

/// Ends at the end of the line, or at a `for`, which stays.
fn conditions(words: &mut Words<'_>) -> Result<NetworkConditions, ScenarioError> {
    let mut conditions = NetworkConditions::default();
    if words.has("still") {
        // A storm goes on with the comma before its `for`.
        if words.peek() == Some(",") {
            words.next();
        }
        return Ok(conditions);
    }
    loop {
        let found = words.next();
        match found {
            Some("loss") => conditions.loss = words.percent()?,
            Some("duplication") => conditions.duplication = words.percent()?,
            Some("reordering") => conditions.reordering = words.percent()?,
            Some("corruption") => conditions.corruption = words.percent()?,
            Some("delay") => conditions.delay = words.percent()?,
            Some("jitter") => {
                let jitter = words.duration(u64::from(u32::MAX))?;
                conditions.jitter_ns = u32::try_from(jitter).unwrap_or(u32::MAX);
            }
            _ => {
                let kinds = "'still', 'loss', 'duplication', 'reordering', 'corruption', 'delay' or 'jitter'";
                return Err(words.wrong(kinds, found));
            }
        }
        if !words.has(",") || words.peek() == Some("for") {
            return Ok(conditions);
        }
    }
}

fn step(first: &str, words: &mut Words<'_>) -> Result<Step, ScenarioError> {
    const MOMENTS: [(&str, Moment); 7] = [
        ("frozen", Moment::Frozen),
        ("dumping", Moment::Dumping),
        ("saved", Moment::Saved),
        ("committing", Moment::Committing),
        ("surveyed", Moment::Surveyed),
        ("decided", Moment::Decided),
        ("restoring", Moment::Restoring),
    ];
    let when = if first == "on" {
        let moment = words.one_of(&MOMENTS)?;
        let nth = words.ordinal(MOMENTS_MAX)?;
        let after = if words.has("after") { words.duration(TIME_MAX)? } else { 0 };
        When::On { moment, nth, after }
    } else {
        let is_count = words.peek().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
        if is_count {
            let frames = words.number("frames", 0..=FRAMES_MAX)?;
            words.all("frames")?;
            When::Frames(frames)
        } else {
            When::At(words.duration(TIME_MAX)?)
        }
    };
    words.all(":")?;
    Ok(Step { when, action: action(words)? })
}

fn rank(words: &mut Words<'_>) -> Result<u32, ScenarioError> {
    words.small_number("the number of a rank", 0..=RANKS_MAX - 1)
}

fn node(words: &mut Words<'_>) -> Result<u32, ScenarioError> {
    words.small_number("the number of a node", 0..=NODES_MAX - 1)
}

fn lasts(words: &mut Words<'_>) -> Result<Nanos, ScenarioError> {
    words.all("for")?;
    words.duration(TIME_MAX)
}

fn after_writes(words: &mut Words<'_>) -> Result<u64, ScenarioError> {
    words.all("after")?;
    let after = words.number("changes of the disk", 0..=WRITES_MAX)?;
    words.all("writes")?;
    Ok(after)
}

/// The cause of the moment, or another.
fn somebody(words: &mut Words<'_>) -> Result<Which, ScenarioError> {
    if words.one_of(&[("cause", true), ("other", false)])? {
        return Ok(Which::Cause);
    }
    Ok(Which::Other(rank(words)?))
}

fn action(words: &mut Words<'_>) -> Result<Action, ScenarioError> {
    let found = words.next();
    Ok(match found {
        Some("checkpoint") => {
            let patient = words.one_of(&[("when", true), ("at", false)])?;
            words.all(if patient { "ready" } else { "once" })?;
            Action::Checkpoint { patient }
        }
        Some("crash") => Action::CrashProcess(if words.has("rank") {
            Which::Number(rank(words)?)
        } else {
            somebody(words)?
        }),
        Some("switch") => {
            words.all("off node")?;
            let node = if words.has("of") { somebody(words)? } else { Which::Number(node(words)?) };
            Action::CrashNode { node, down: lasts(words)? }
        }
        Some("kill") => {
            words.all("launcher")?;
            let cut_off = words.has("cut");
            if cut_off {
                words.all("off")?;
            }
            Action::KillLauncher { cut_off, down: lasts(words)? }
        }
        Some("stop") => {
            words.all("keeper of node")?;
            Action::StopKeeper { node: node(words)?, lasts: lasts(words)? }
        }
        Some("cut") => {
            words.all("off node")?;
            Action::CutOff { node: node(words)?, lasts: lasts(words)? }
        }
        Some("suspect") => {
            words.all("node")?;
            Action::Suspect { node: node(words)? }
        }
        Some("move") => {
            words.all("rank")?;
            let rank = rank(words)?;
            words.all("in")?;
            Action::Move { rank, lasts: words.duration(TIME_MAX)? }
        }
        Some("destroy") => {
            words.all("node")?;
            Action::DestroyNode { node: node(words)?, down: lasts(words)? }
        }
        Some("power") => {
            words.all("loss")?;
            Action::PowerLoss { after: after_writes(words)?, down: lasts(words)? }
        }
        Some("partition") => {
            words.all("nodes")?;
            let one = node(words)?;
            words.all("and")?;
            Action::Partition { one, other: node(words)?, lasts: lasts(words)? }
        }
        Some("rail") => {
            let rail = words.small_number("the number of a rail", 0..=RAILS_MAX - 1)?;
            words.all("of rank")?;
            let rank = rank(words)?;
            words.all("dead")?;
            Action::RailDown { rank, rail, lasts: lasts(words)? }
        }
        Some("rails") => {
            words.all("change to frames of")?;
            let frame_bytes_max = words.small_number("bytes of a frame", FRAME_BYTES)?;
            words.all("bytes")?;
            Action::ChangeRails { frame_bytes_max }
        }
        Some("clock") => {
            words.all("of node")?;
            let node = node(words)?;
            words.all("jumps")?;
            Action::ClockJump { node, by: words.signed_duration(TIME_MAX)? }
        }
        Some("break") => {
            words.all("control of node")?;
            Action::BreakControl { node: node(words)? }
        }
        Some("rank") => {
            let rank = rank(words)?;
            words.all("unsavable")?;
            Action::Unsavable { rank, lasts: lasts(words)? }
        }
        Some("disk") => {
            let full = words.one_of(&[("full", true), ("error", false)])?;
            Action::DiskError { after: after_writes(words)?, full }
        }
        Some("generations") => {
            words.all("unreadable")?;
            Action::Unreadable { lasts: lasts(words)? }
        }
        Some("storm") => Action::Storm { conditions: conditions(words)?, lasts: lasts(words)? },
        Some("stall") => {
            words.all("rank")?;
            Action::Stall { rank: rank(words)?, lasts: lasts(words)? }
        }
        _ => return Err(words.wrong(ACTIONS, found)),
    })
}

const ACTIONS: &str = "what happens ('checkpoint when ready', 'checkpoint at once', 'crash rank N', 'crash cause', \
                       'crash other N', 'switch off node N for TIME', 'cut off node N for TIME', 'suspect node N', 'move rank N in TIME', 'destroy node N for TIME', 'kill launcher for TIME', 'kill launcher cut off for TIME', 'stop keeper of node N for TIME', 'power loss after N writes for TIME', \
                       'partition nodes N and N for TIME', 'rail N of rank N dead for TIME', 'rails change to frames of N bytes', \
                       'clock of node N jumps TIME', 'break control of node N', 'rank N unsavable for TIME', \
                       'disk full after N writes', 'disk error after N writes', 'generations unreadable for TIME', 'storm CONDITIONS, for TIME', \
                       'stall rank N for TIME')";
