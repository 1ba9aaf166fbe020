//! More processes, as an MPI program asks for them: one command of PMI for each program to start.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::line::Command;
use super::{Broken, Refused};
use crate::limits::{PMI_SPAWN_COMMANDS_MAX, PMI_SPAWN_PROCESSES_MAX};

/// A program to start, and how many times.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnCommand {
    /// How many processes run it.
    pub processes: u32,
    /// Its name.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// How to start it (`MPI_Info`), each key with its value.
    pub hints: Vec<(String, String)>,
}

/// A spawn of which not all parts have come.
#[derive(Clone, Debug)]
pub(super) struct Spawning {
    parts: u32,
    commands: Vec<SpawnCommand>,
    /// Keys and values that the new processes find.
    keys: Vec<(String, String)>,
}

/// A spawn with all its parts.
#[derive(Clone, Debug)]
pub(super) struct Spawn {
    pub(super) commands: Vec<SpawnCommand>,
    pub(super) keys: Vec<(String, String)>,
    pub(super) processes: u32,
}

/// The result of one part of a spawn.
#[derive(Debug)]
pub(super) enum Heard {
    /// More parts will come.
    Part(Spawning),
    /// It is whole.
    Whole(Spawn),
    /// It is whole, and too large.
    Refused(Refused),
}

/// Takes the next part of a spawn, which is the first if there is none `before`.
pub(super) fn hear(before: Option<Spawning>, command: &Command) -> Result<Heard, Broken> {
    let bad = |problem| Broken::BadSpawn { problem };
    let parts = command.number("totspawns").unwrap_or(1);
    let part: usize = command.number("spawnssofar").unwrap_or(1);
    let mut spawning = before.unwrap_or(Spawning { parts, commands: Vec::new(), keys: Vec::new() });
    if parts == 0 || parts != spawning.parts || part != spawning.commands.len() + 1 {
        return Err(bad("has parts that are not numbered one after the other"));
    }
    if parts > PMI_SPAWN_COMMANDS_MAX {
        return Err(Broken::ManyPrograms { asked: parts });
    }
    let missing = |key| Broken::Missing { name: command.name.clone(), key };
    let program = command.get("execname").filter(|name| !name.is_empty());
    spawning.commands.push(SpawnCommand {
        processes: command.number("nprocs").ok_or_else(|| missing("nprocs"))?,
        program: program.ok_or_else(|| missing("execname"))?.to_string(),
        arguments: arguments(command).ok_or_else(|| bad("has fewer arguments than it says"))?,
        hints: pairs(command, "info").ok_or_else(|| bad("has fewer hints than it says"))?,
    });
    let keys = pairs(command, "preput").ok_or_else(|| bad("has fewer keys than it says"))?;
    spawning.keys.extend(keys);
    if part < parts as usize {
        return Ok(Heard::Part(spawning));
    }
    let asked = spawning.commands.iter().fold(0, |sum: u32, command| sum.saturating_add(command.processes));
    Ok(match asked {
        0 => Heard::Refused(Refused::None),
        1..=PMI_SPAWN_PROCESSES_MAX => {
            Heard::Whole(Spawn { commands: spawning.commands, keys: spawning.keys, processes: asked })
        }
        asked => Heard::Refused(Refused::Processes { asked, running: 0 }),
    })
}

/// `arg1` to `argN`, N being `argcnt`. Every one is a field of the command, so a large number fails at once.
fn arguments(command: &Command) -> Option<Vec<String>> {
    let count: u32 = command.number("argcnt").unwrap_or(0);
    (1..=count).map(|at| command.get(&format!("arg{at}")).map(String::from)).collect()
}

/// `NAME_key_0` and `NAME_val_0` on, `NAME_num` of them.
fn pairs(command: &Command, name: &str) -> Option<Vec<(String, String)>> {
    let count: u32 = command.number(&format!("{name}_num")).unwrap_or(0);
    let value = |what: &str, at| command.get(&format!("{name}_{what}_{at}")).map(String::from);
    (0..count).map(|at| Some((value("key", at)?, value("val", at)?))).collect()
}
