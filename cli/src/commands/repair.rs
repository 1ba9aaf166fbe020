//! `stillwire repair`.

use serde::Serialize;

use super::copies::FlushArguments;
use super::key::KeyArgument;
use super::print_json;
use super::progress::Progress;
use super::restart::prepare;
use super::run::close;
use super::{say, tell};
use crate::arguments::{NicArgument, RepairArguments, RestartArguments};
use crate::error::CliError;
use crate::exit::Exit;
use crate::launch::nodes::Repairs;
use crate::launch::registry::Registration;
use crate::launch::{self, Purpose};
use crate::text;

/// What a repair has done, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    job: String,
    /// The newest generation that is whole now; `null`: there is none.
    generation: Option<&'a str>,
    /// Every node keeps what protects it.
    protected: bool,
    #[serde(flatten)]
    repairs: &'a Repairs,
}

pub(crate) fn repair(arguments: RepairArguments, json: bool) -> Result<Exit, CliError> {
    let RepairArguments { directory, hosts, bind, quiet } = arguments;
    let restart = RestartArguments {
        directory,
        from: None,
        generation: None,
        time_limit: None,
        flush: FlushArguments::default(),
        key: KeyArgument::default(),
        hosts,
        bind,
        nic: NicArgument::default(),
        pid_namespace: false,
        no_pid_namespace: false,
        quiet: quiet || json,
    };
    let (plan, place) = prepare(&restart, Purpose::Repair)?;
    if plan.own_directories.is_none() {
        return Err(CliError::NotOnNodes { path: place.path });
    }
    let mut progress = Progress::new(plan.ranks, restart.quiet, json)?;
    let registration = Registration::create(&plan)?;
    let outcome = launch::run(&plan, &registration, &mut progress)?;
    drop(registration);
    close(&mut progress);
    let repairs = &outcome.repairs;
    let is_whole = repairs.chosen.is_some() && repairs.protected;
    if json {
        let generation = repairs.chosen.as_deref();
        print_json(&Report { job: plan.job.to_string(), generation, protected: repairs.protected, repairs })?;
    } else {
        for lost in &repairs.lost {
            tell(format_args!("generation {} is lost: {}", lost.generation, lost.why));
        }
        let bytes: u64 = repairs.rebuilt.iter().map(|rebuilt| rebuilt.received_bytes).sum();
        let nodes = repairs.rebuilt.len();
        match &repairs.chosen {
            Some(generation) if is_whole && nodes == 0 => {
                say!("generation {generation} is whole on all nodes")?
            }
            Some(generation) if is_whole => {
                let bytes = text::bytes(bytes);
                say!("generation {generation} is whole on all nodes again: {nodes} rebuilt from {bytes}")?
            }
            Some(generation) => say!(
                "generation {generation} can be restored, and is not protected; the next checkpoint will be"
            )?,
            None => say!(
                "no generation is left that can be restored; a copy, if there is one, is brought by `stillwire restart DIR --from PLACE`"
            )?,
        }
    }
    Ok(if is_whole { Exit::Success } else { Exit::Unverified })
}
