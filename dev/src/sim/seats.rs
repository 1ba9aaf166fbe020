//! `stillwire-dev sim seats`: all ways in which launchers of several directories can follow each other.

use std::io::{self, Write as _};

use clap::Args;
use console::number;
use sim::seats::{Bounds, search};

use crate::error::DevError;
use crate::exit::Exit;
use crate::print_json;

/// Arguments of `sim seats`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SeatsArguments {
    /// Nodes of the job
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::<u32>(1..=16))]
    nodes: u32,
    /// Launchers, each in a directory of its own
    #[arg(long, value_name = "L", default_value_t = 2, value_parser = number::<u32>(1..=8))]
    launchers: u32,
    /// Empty directories on spare hosts
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = number::<u32>(0..=16))]
    spares: u32,
    /// Seats that launchers begin to take, the first one included; states grow about twentyfold with each
    #[arg(long, value_name = "T", default_value_t = 3, value_parser = number::<u32>(1..=16))]
    seats: u32,
    /// Take one rule out: 34-seat-by-half, 34-seat-unknown or 34-seat-stale
    #[arg(long, value_name = "RULE")]
    without: Option<String>,
}

/// The text of `--help`.
pub(super) const HELP: &str = "\
Try every order in which launchers of one job can begin lives, die, and lose hosts (R34).

Each launcher has a directory of its own, as after the loss of the first one's host. It begins a life on one directory for each node \
that nobody has locked, its old one or an empty one, if the production rule lets it. A launcher that takes the seat may die with any part \
of the directories knowing it. The search ends at the first way in which two launchers run the job at one time, or one begins \
without knowing of a life that ran, and prints its steps.

The exit code is 3 if there is such a way.";

pub(super) fn seats(arguments: &SeatsArguments, json: bool) -> Result<Exit, DevError> {
    let sabotage = match &arguments.without {
        Some(name) => sim::seats::without(name).ok_or_else(|| DevError::NoSuchRule {
            rule: name.clone(),
            known: sim::seats::RULES.map(ckpt_glue::Rule::name).join(", "),
        })?,
        None => ckpt_glue::Sabotage::none(),
    };
    let bounds = Bounds {
        nodes: arguments.nodes,
        launchers: arguments.launchers as usize,
        spares: arguments.spares as usize,
        seats: arguments.seats.into(),
    };
    let found = search(bounds, sabotage);
    let is_fine = found.violation.is_none();
    if json {
        print_json(&found)?;
    } else {
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "{} states, {} lives, {} of them with a seat that another launcher held",
            found.states, found.lives, found.takeovers
        )?;
        for step in found.violation.iter().flatten() {
            writeln!(out, "  {step}")?;
        }
        writeln!(out, "{}", if is_fine { "no two launchers run the job" } else { "VIOLATION" })?;
    }
    Ok(super::verdict(is_fine))
}
