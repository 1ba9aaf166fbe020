//! A plan as text: settings that are not the plain ones, a line each, then the steps.

use core::fmt::{self, Display, Formatter};

use super::plain;
use super::units::{duration, percent, signed_duration};
use crate::network::NetworkConditions;
use crate::plan::{Action, Auth, Floors, Mode, Moment, Plan, Step, When, Which};

/// The plan in the language of scenarios; [`super::parse_plan`] reads it back.
#[must_use]
pub fn write_plan(plan: &Plan) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String, usual: String| {
        if value != usual || name == "seed" || name == "ranks" {
            text += &format!("{name} {value}\n");
        }
    };
    // Taken apart, so that a new setting cannot be forgotten here.
    let Plan {
        seed,
        ranks,
        nodes,
        losses,
        group,
        spares,
        reactions,
        ports,
        rails,
        mode,
        auth,
        frame_bytes_max,
        floors,
        calm,
        messages_min,
        messages_reserved,
        message_bytes_max,
        tight_bounds,
        congested,
        pulls,
        helper,
        conditions: usual_conditions,
        control_ns_max,
        write_ns_max,
        pause_ns_max,
        nic_frames,
        completion_ns_max,
        drift,
        steps: _,
    } = plain();
    let numbers = [
        ("seed", plan.seed, seed),
        ("ranks", plan.ranks.into(), ranks.into()),
        ("nodes", plan.nodes.into(), nodes.into()),
        ("losses", plan.losses.into(), losses.into()),
        ("group", plan.group.into(), group.into()),
        ("spares", plan.spares.into(), spares.into()),
        ("ports", plan.ports.into(), ports.into()),
        ("rails", plan.rails.into(), rails.into()),
        ("frame-bytes", plan.frame_bytes_max.into(), frame_bytes_max.into()),
        ("messages", plan.messages_min.into(), messages_min.into()),
        ("reserve", plan.messages_reserved.into(), messages_reserved.into()),
        ("message-bytes", plan.message_bytes_max.into(), message_bytes_max.into()),
        ("nic-frames", plan.nic_frames.into(), nic_frames.into()),
    ];
    for (name, value, usual) in numbers {
        line(name, value.to_string(), usual.to_string());
    }
    line("reactions", plan.reactions.name().into(), reactions.name().into());
    line("floors", floor_words(&plan.floors), floor_words(&floors));
    line("mode", mode_word(plan.mode).into(), mode_word(mode).into());
    line("auth", auth_word(plan.auth).into(), auth_word(auth).into());
    let switches = [
        ("calm", plan.calm, calm),
        ("tight-bounds", plan.tight_bounds, tight_bounds),
        ("congested", plan.congested, congested),
        ("pulls", plan.pulls, pulls),
        ("helper", plan.helper, helper),
    ];
    for (name, value, usual) in switches {
        line(name, yes_or_no(value).into(), yes_or_no(usual).into());
    }
    line("network", conditions(&plan.conditions), conditions(&usual_conditions));
    let times = [
        ("control-time", plan.control_ns_max, control_ns_max),
        ("write-time", plan.write_ns_max, write_ns_max),
        ("pause-time", plan.pause_ns_max, pause_ns_max),
        ("completion-time", plan.completion_ns_max, completion_ns_max),
    ];
    for (name, value, usual) in times {
        line(name, duration(value), duration(usual));
    }
    line("drift", drifts(&plan.drift), drifts(&drift));
    for step in &plan.steps {
        text += &format!("{}\n", StepText(step));
    }
    text
}

fn floor_words(floors: &Floors) -> String {
    let Floors { frames, commands, restarts, crash_by_frames } = floors;
    format!("{frames} frames, {commands} commands, {restarts} restarts, crash by {crash_by_frames} frames")
}

fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Instant => "instant",
        Mode::Counted => "counted",
    }
}

fn auth_word(auth: Auth) -> &'static str {
    match auth {
        Auth::Off => "off",
        Auth::Header => "header",
        Auth::Full => "full",
    }
}

fn yes_or_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Nodes behind the last one whose clock drifts are left out.
fn drifts(drift: &[i64]) -> String {
    let end = drift.iter().rposition(|drift| *drift != 0).map_or(1, |last| last + 1);
    let words: Vec<String> = drift.iter().take(end).map(ToString::to_string).collect();
    words.join(" ")
}

fn conditions(conditions: &NetworkConditions) -> String {
    let NetworkConditions { loss, duplication, reordering, corruption, delay, jitter_ns } = *conditions;
    let chances = [
        ("loss", loss),
        ("duplication", duplication),
        ("reordering", reordering),
        ("corruption", corruption),
        ("delay", delay),
    ];
    let chances = chances.into_iter().filter(|(_, chance)| *chance > 0);
    let mut parts: Vec<String> =
        chances.map(|(name, chance)| format!("{name} {}", percent(chance))).collect();
    if jitter_ns > 0 {
        parts.push(format!("jitter {}", duration(jitter_ns.into())));
    }
    if parts.is_empty() { "still".into() } else { parts.join(", ") }
}

struct StepText<'a>(&'a Step);

impl Display for StepText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.when {
            When::At(at) => write!(f, "at {}: ", duration(at))?,
            When::Frames(frames) => write!(f, "at {frames} frames: ")?,
            When::On { moment, nth, after } => {
                write!(f, "on {} #{nth}", moment_word(moment))?;
                if after > 0 {
                    write!(f, " after {}", duration(after))?;
                }
                f.write_str(": ")?;
            }
        }
        write_action(f, &self.0.action)
    }
}

fn moment_word(moment: Moment) -> &'static str {
    match moment {
        Moment::Frozen => "frozen",
        Moment::Dumping => "dumping",
        Moment::Saved => "saved",
        Moment::Committing => "committing",
        Moment::Surveyed => "surveyed",
        Moment::Decided => "decided",
        Moment::Restoring => "restoring",
    }
}

/// `thing` is the counted kind: `rank` or `node`.
fn which(which: Which, thing: &str) -> String {
    let of = if thing == "node" { "node of " } else { "" };
    match which {
        Which::Number(number) => format!("{thing} {number}"),
        Which::Cause => format!("{of}cause"),
        Which::Other(further) => format!("{of}other {further}"),
    }
}

fn write_action(f: &mut Formatter<'_>, action: &Action) -> fmt::Result {
    match *action {
        Action::Checkpoint { patient: true } => f.write_str("checkpoint when ready"),
        Action::Checkpoint { patient: false } => f.write_str("checkpoint at once"),
        Action::CrashProcess(rank) => write!(f, "crash {}", which(rank, "rank")),
        Action::CrashNode { node, down } => {
            write!(f, "switch off {} for {}", which(node, "node"), duration(down))
        }
        Action::KillLauncher { cut_off, down } => {
            write!(f, "kill launcher {}for {}", if cut_off { "cut off " } else { "" }, duration(down))
        }
        Action::StopKeeper { node, lasts } => write!(f, "stop keeper of node {node} for {}", duration(lasts)),
        Action::CutOff { node, lasts } => write!(f, "cut off node {node} for {}", duration(lasts)),
        Action::Suspect { node } => write!(f, "suspect node {node}"),
        Action::Move { rank, lasts } => write!(f, "move rank {rank} in {}", duration(lasts)),
        Action::DestroyNode { node, down } => write!(f, "destroy node {node} for {}", duration(down)),
        Action::PowerLoss { after, down } => {
            write!(f, "power loss after {after} writes for {}", duration(down))
        }
        Action::Partition { one, other, lasts } => {
            write!(f, "partition nodes {one} and {other} for {}", duration(lasts))
        }
        Action::RailDown { rank, rail, lasts } => {
            write!(f, "rail {rail} of rank {rank} dead for {}", duration(lasts))
        }
        Action::ChangeRails { frame_bytes_max } => {
            write!(f, "rails change to frames of {frame_bytes_max} bytes")
        }
        Action::ClockJump { node, by } => write!(f, "clock of node {node} jumps {}", signed_duration(by)),
        Action::BreakControl { node } => write!(f, "break control of node {node}"),
        Action::Unsavable { rank, lasts } => write!(f, "rank {rank} unsavable for {}", duration(lasts)),
        Action::DiskError { after, full: true } => write!(f, "disk full after {after} writes"),
        Action::DiskError { after, full: false } => write!(f, "disk error after {after} writes"),
        Action::Unreadable { lasts } => write!(f, "generations unreadable for {}", duration(lasts)),
        Action::Storm { conditions: storm, lasts } => {
            write!(f, "storm {}, for {}", conditions(&storm), duration(lasts))
        }
        Action::Stall { rank, lasts } => write!(f, "stall rank {rank} for {}", duration(lasts)),
    }
}
