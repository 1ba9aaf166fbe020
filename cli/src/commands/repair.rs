//! `stillwire repair`.

use std::io;

use launcher::nodes::{GenerationOutcome, NodeRepair, Repairs};
use launcher::registry::Registration;
use launcher::text;
use launcher::{self, Purpose};
use serde::Serialize;

use super::print_json;
use super::progress::Progress;
use super::restart::prepare;
use super::run::close;
use super::{print_message, say};
use crate::arguments::{RepairArguments, RestartArguments};
use crate::error::CliError;
use crate::exit::Exit;

/// The outcome of a repair, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    job: String,
    /// The newest generation that can be restored now; `null`: there is none.
    generation: Option<&'a str>,
    /// Every node holds the protection data of this generation, and of every other one that was asked for.
    protected: bool,
    #[serde(flatten)]
    repairs: &'a Repairs,
}

pub(crate) fn repair(arguments: RepairArguments, json: bool) -> Result<Exit, CliError> {
    let RepairArguments { directory, generation, hosts, bind, quiet } = arguments;
    let quiet = quiet || json;
    let restart =
        RestartArguments { directory, generation, hosts, bind, quiet, ..RestartArguments::default() };
    let (plan, place) = prepare(&restart, Purpose::Repair)?;
    if plan.own_directories.is_none() {
        return Err(CliError::NotOnNodes { path: place.path });
    }
    let mut progress = Progress::new(plan.ranks, restart.quiet, json)?;
    let registration = Registration::create(&plan)?;
    let outcome = launcher::run(&plan, &registration, &mut progress)?;
    drop(registration);
    close(&mut progress);
    let repairs = &outcome.repairs;
    let is_whole = !repairs.kept.is_empty() && repairs.kept.iter().all(|kept| kept.protected);
    if json {
        let generation = repairs.chosen.as_deref();
        print_json(&Report { job: plan.job.to_string(), generation, protected: is_whole, repairs })?;
    } else {
        repairs.kept.iter().try_for_each(|kept| say_kept(kept, repairs))?;
        if repairs.chosen.is_none() {
            say!(
                "no generation is left that can be restored; a copy, if there is one, is brought by `stillwire restart DIR --from LOCATION`"
            )?;
        }
    }
    Ok(if is_whole { Exit::Success } else { Exit::Unverified })
}

/// Prints the outcome for one generation.
fn say_kept(kept: &GenerationOutcome, repairs: &Repairs) -> io::Result<()> {
    let GenerationOutcome { generation, restorable, protected } = kept;
    let rebuilt: Vec<&NodeRepair> =
        repairs.rebuilt.iter().filter(|rebuilt| rebuilt.generation == *generation).collect();
    let bytes: u64 = rebuilt.iter().map(|rebuilt| rebuilt.received_bytes).sum();
    match (*restorable, *protected) {
        (_, true) if rebuilt.is_empty() => say!("generation {generation} is whole on all nodes"),
        (_, true) => {
            let (nodes, bytes) = (rebuilt.len(), text::bytes(bytes));
            say!("generation {generation} is whole on all nodes again: {nodes} rebuilt from {bytes}")
        }
        (true, false) => {
            say!("generation {generation} can be restored, and is not protected; the next checkpoint will be")
        }
        (false, false) => {
            let why = repairs.lost.iter().find(|lost| lost.generation == *generation);
            let why = why.map_or("no node has said why", |lost| lost.why.as_str());
            print_message(format_args!("generation {generation} is lost: {why}"));
            let say = |rebuilt: &&NodeRepair| {
                let (node, bytes) = (&rebuilt.node, text::bytes(rebuilt.received_bytes));
                say!("generation {generation}: {node} has what it had again, rebuilt from {bytes}")
            };
            rebuilt.iter().try_for_each(say)
        }
    }
}
