//! `stillwire demo`: a real job is checkpointed under full traffic, loses a process, and finishes with the right result: an MPI program that knows
//! nothing of it, or, where none is available, a program with points of its own.

mod mpi;
pub(crate) mod program;
mod timeline;

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ckpt_glue::config::{CheckpointConfig, JobConfig};
use ckpt_glue::interval::Every;
use ckpt_glue::protection::seat::Authority;
use ckpt_glue::recovery::Beginning;
use drivers::{RAILS_VARIABLE, RailChoice};
use launcher::error::LauncherError;
use launcher::input::InputPlan;
use launcher::mpi::replacement::MpiFrom;
use launcher::mpi::{MpiChoice, resolve};
use launcher::registry::Registration;
use launcher::spawn::preload;
use launcher::{Addresses, HostLoss, Node, Plan, Program, Purpose, Saves};
use transport::config::AuthLevel;

use crate::arguments::DemoArguments;
use crate::commands::interrupt::{InterruptGuard, is_stopped};
use crate::commands::outcome::exit_of;
use crate::commands::print_json;
use crate::commands::run::{create_job, equip, fresh_job, temporary_directory};
use crate::error::CliError;
use crate::exit::Exit;
use mpi::MpiProgram;
use timeline::{Script, Timeline};

/// Processes of the demo.
const RANKS: u32 = 4;

/// Time from one checkpoint to the next.
const EVERY: Duration = Duration::from_millis(250);

/// Committed generations before the kill, and the least that the whole demo must show.
const GENERATIONS_BEFORE_KILL: u32 = 3;

/// Committed generations after the rollback: the job is as well as before.
const GENERATIONS_AFTER_KILL: u32 = 2;

/// Bound of the random time between the last checkpoint before the kill and the kill: the whole cycle of a checkpoint and
/// the computing between two can be hit.
const KILL_AFTER_MS_MAX: u64 = 600;

/// After this time the demo asks the program to end, even if its events are incomplete.
const LONGEST: Duration = Duration::from_secs(45);

pub(crate) fn demo(arguments: &DemoArguments, json: bool) -> Result<Exit, CliError> {
    let started = Instant::now();
    let job = fresh_job()?;
    let name = format!("stillwire-demo-{job}");
    let directory = match &arguments.keep_dir {
        Some(directory) => directory.clone(),
        None => temporary_directory(&name)?,
    };
    let directory = std::path::absolute(&directory)?;
    let program = make_program(arguments, &directory)?;
    let mut plan = match &program {
        Ok(program) => mpi_plan(arguments, job, directory, program)?,
        Err(_) => plan(arguments, job, directory)?,
    };
    let place = create_job(plan.directory.clone(), arguments.keep_dir.is_none(), &plan)?;
    plan.directory.clone_from(&place.path);
    let script = Script {
        enough: enough_file(&place.path),
        before_kill: GENERATIONS_BEFORE_KILL,
        after_kill: GENERATIONS_AFTER_KILL,
        kill_after: kill_after(arguments)?,
        victim: random_below(u64::from(RANKS))?,
        longest: LONGEST,
    };
    let mut timeline = Timeline::new(script, program.as_ref().err().cloned(), json);
    timeline.begin(
        &arguments.class,
        RANKS,
        &place.path,
        program.as_ref().ok().map(|program| &*program.library),
    );
    let registration = Registration::create(&plan)?;
    let outcome = launcher::run(&plan, &registration, &mut timeline)?;
    drop(registration);
    if place.temporary {
        std::fs::remove_dir_all(&place.path)?;
    }
    let summary = timeline.summarize(&outcome.report, started.elapsed());
    if json {
        print_json(&summary)?;
    } else {
        summary.print()?;
    }
    let shown = summary.verified
        && summary.generations >= GENERATIONS_BEFORE_KILL
        && summary.killed == 1
        && summary.rollbacks == 1;
    Ok(match exit_of(&outcome) {
        Exit::Success if !shown => Exit::Unverified,
        exit => exit,
    })
}

/// Writes the MPI program into the job's future directory; the inner error is the reason why there is none. If the user ends the demo meanwhile,
/// nothing is left of it.
fn make_program(
    arguments: &DemoArguments,
    directory: &std::path::Path,
) -> Result<Result<MpiProgram, String>, CliError> {
    if arguments.native {
        return Ok(Err("--native asks for it".to_owned()));
    }
    let folder = directory.join("program");
    let _noticing = InterruptGuard::begin();
    let program = mpi::make(&folder);
    if !is_stopped() {
        return Ok(program);
    }
    let made = if arguments.keep_dir.is_none() { directory } else { &folder };
    if made.exists() {
        std::fs::remove_dir_all(made)?;
    }
    Err(CliError::Stopped)
}

fn plan(arguments: &DemoArguments, job: transport::JobId, directory: PathBuf) -> Result<Plan, CliError> {
    let program = std::env::current_exe()?;
    let words =
        ["__demo-rank", "--class", &arguments.class, "--rounds", &arguments.rounds.to_string(), "--until"];
    let mut command = vec![program.into_os_string()];
    command.extend(words.map(Into::into));
    command.push(enough_file(&directory).into_os_string());
    Ok(Plan {
        saves: Saves::Points,
        keeps_ids: false,
        job,
        ranks: RANKS,
        program: Program {
            command,
            directory: std::env::current_dir()?,
            environment: vec![(RAILS_VARIABLE.into(), RailChoice::Udp.name().into())],
            inherited: None,
        },
        directory,
        keep: 2,
        config: JobConfig {
            checkpoint: CheckpointConfig { every: Every::Fixed(EVERY), ..CheckpointConfig::default() },
            ..JobConfig::default()
        },
        beginning: Beginning::Fresh,
        suspects: std::collections::BTreeSet::new(),
        counter_last: 0,
        nodes: vec![Node::here(RANKS, &Addresses::one(Ipv4Addr::LOCALHOST.into()))],
        spares: Vec::new(),
        on_host_loss: HostLoss::default(),
        former_hosts: std::collections::BTreeSet::new(),
        former_silence: std::time::Duration::ZERO,
        unprotected: None,
        succession: launcher::succession::Succession::default(),
        auth: AuthLevel::Header,
        provider: None,
        is_mpi: false,
        mpi_problem: None,
        replacement: None,
        own_directories: None,
        flush: None,
        encryption: None,
        fetch: None,
        input: InputPlan::NONE,
        job_file: Vec::new(),
        purpose: Purpose::Run,
        authority: Authority::Person,
    })
}

/// As [`plan`], of the MPI program.
fn mpi_plan(
    arguments: &DemoArguments,
    job: transport::JobId,
    directory: PathBuf,
    mpi: &MpiProgram,
) -> Result<Plan, CliError> {
    let native = plan(arguments, job, directory)?;
    let keys = match arguments.class.as_str() {
        "A" | "a" => 1 << 23,
        "W" | "w" => 1 << 20,
        _ => 1 << 16,
    } / RANKS;
    let mut command: Vec<OsString> = vec![mpi.path.clone().into()];
    command.extend([keys.to_string(), arguments.rounds.to_string()].map(OsString::from));
    command.push(enough_file(&native.directory).into_os_string());
    let mut program = Program { command, ..native.program };
    let (detected, replacement) = resolve(&program, MpiChoice::Auto, &MpiFrom::Auto)?;
    equip(&mut program, &detected, &mpi.provider, Ipv4Addr::LOCALHOST.into());
    preload::equip(&mut program, &mpi.provider, None);
    let provider = Some(mpi.provider.clone());
    Ok(Plan { program, provider, is_mpi: true, replacement, saves: Saves::Process, ..native })
}

/// The file that ends the program when everything has been shown.
fn enough_file(directory: &std::path::Path) -> PathBuf {
    directory.join("enough")
}

fn kill_after(arguments: &DemoArguments) -> Result<Duration, CliError> {
    let millis = match arguments.kill_after {
        Some(millis) => millis,
        None => random_below(KILL_AFTER_MS_MAX)?,
    };
    Ok(Duration::from_millis(millis))
}

fn random_below(bound: u64) -> Result<u64, CliError> {
    // The bias of a remainder is below 2^-50 here.
    getrandom::u64().map(|random| random % bound).map_err(|_| LauncherError::NoRandomness.into())
}
