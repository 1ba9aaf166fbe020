//! `stillwire run`, and the parts that it shares with `restart` and `demo`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ckpt_glue::config::{CheckpointConfig, FaultConfig, JobConfig, KeeperConfig, OnFault};
use ckpt_glue::interval::Every;
use ckpt_glue::protection::seat::Authority;
use ckpt_glue::recovery::{Beginning, Ending, StopReason};
use drivers::{CAPTURE_VARIABLE, RAILS_VARIABLE};
use launcher::OUTPUT_GRACE;
use launcher::error::LauncherError;
use launcher::mpi::environment;
use launcher::mpi::program::Detected;
use launcher::mpi::replacement::Replacement;
use launcher::mpi::{Family, Mpi, MpiChoice, provider, resolve};
use launcher::registry::{Registration, runtime_directory};
use launcher::spawn::preload;
use launcher::{self, Addresses, HostLoss, Node, Observer, Plan, Program, Purpose, Saves};
use store::job::GenerationState;
use store::storage::DirectoryLock;
use store::{CheckpointSettings, Directory, JobDirectory, JobFile, StorageError, StoreError};
use transport::JobId;
use transport::config::AuthLevel;

use super::copies;
use super::domains::When;
use super::hosts::{self, HostArgument, HostArguments, HostLossArgument};
use super::outcome::{exit_of, summarize};
use super::progress::Progress;
use super::protection;
use super::stdin;
use super::succession::SuccessionJob;
use super::{print_json, print_message};
use crate::arguments::{
    AuthArgument, CheckpointArguments, ExitAction, FaultAction, RunArguments, checkpoint_options,
};
use crate::background::DetachedLauncher;
use crate::error::CliError;
use crate::exit::Exit;

/// Names of the launcher's own settings in a job file.
pub(crate) mod setting {
    pub(crate) const BIND: &str = "bind";
    pub(crate) const AUTH: &str = "auth";
    pub(crate) const SAVES: &str = "saves";
    pub(crate) const IDS: &str = "ids";
    pub(crate) const ENCRYPT: &str = "encrypt";
    pub(crate) const MPI_FROM: &str = "mpi-from";
    pub(crate) const NODES: &str = "nodes";
    pub(crate) const REMOTE_SHELL: &str = "remote-shell";
    pub(crate) const DOMAINS: &str = "domains";
    pub(crate) use launcher::setting::{
        CONFIG, FORMER_HOSTS, FORMER_SILENCE, HOSTS, NODE_DIRECTORY, ON_HOST_LOSS, ON_LAUNCHER_LOSS, RAIL,
        SPARE_HOSTS, UNPROTECTED,
    };
    pub(crate) const FLUSH_TO: &str = "flush-to";
    pub(crate) const FLUSH_EVERY: &str = "flush-every";
    pub(crate) const FLUSH_KEEP: &str = "flush-keep";
    pub(crate) const FLUSH_WHOLE_EVERY: &str = "flush-whole-every";
    pub(crate) const FLUSH_PATIENCE_MS: &str = "flush-patience-ms";
    pub(crate) const FLUSH_KEY: &str = "flush-key";
    pub(crate) const FLUSH_SIGN: &str = "flush-sign";
    pub(crate) const PARITY: &str = "parity";
    pub(crate) const GROUPS: &str = "groups";
    pub(crate) const ENCODE_BUDGET: &str = "encode-budget";
    pub(crate) const SHAPE: &str = "shape";
    pub(crate) const STDIN: &str = "stdin";
    pub(crate) const STDIN_LIMIT: &str = "stdin-limit";
    pub(crate) const TTY: &str = "tty";
}

/// A job's directory that belongs to this launcher until it ends.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    pub(crate) path: PathBuf,
    /// Removed when the job has ended well, or has committed nothing: nobody asked for checkpoints that outlive it.
    pub(crate) temporary: bool,
    pub(crate) _lock: DirectoryLock,
}

impl RunDirectory {
    /// Removes the directory if nobody asked for it and nothing is committed in it.
    fn remove_if_unused(&self) {
        let committed = || -> Result<bool, StoreError> {
            let (mut directory, _) = JobDirectory::open(Directory::open(&self.path)?)?;
            Ok(directory.generations()?.iter().any(|found| found.state == GenerationState::Committed))
        };
        // A directory that cannot be read is kept.
        if self.temporary && committed().is_ok_and(|any| !any) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

pub(crate) fn run(
    arguments: RunArguments,
    json: bool,
    detached: Option<&DetachedLauncher>,
) -> Result<Exit, CliError> {
    let job = fresh_job()?;
    let mut config = job_config(&arguments)?;
    config.validate()?;
    check_bind(&arguments.bind)?;
    let mut program = program(&arguments)?;
    let (detected, replacement) = resolve(&program, arguments.mpi.library, &arguments.mpi.from())?;
    let provider = provider::find(None);
    if let Some(mpi) = &detected.mpi {
        check_options(&arguments, mpi)?;
        if !wants_checkpoints(&arguments) && !config.fault.policy.ignores() {
            // There is no image of it to go back to. The launcher knows that of a job that can go on without a rank.
            config.fault.on_fault = OnFault::Abort;
        }
        if let Err(error) = provider {
            return Err(error.into());
        }
    }
    if let Some(replacement) = replacement.as_ref().filter(|_| !arguments.quiet) {
        print_message(format_args!("{} (--mpi-from)", replacement.words()));
    }
    let nodes = arguments.hosts.nodes(arguments.ranks, &arguments.bind)?;
    let is_saved = wants_checkpoints(&arguments);
    let own_directories = arguments.protection.own_directories(job, &nodes, is_saved)?;
    if arguments.hosts.names_domains() && !protection::is_any_protected(own_directories.as_ref()) {
        return Err(CliError::LimitOfNothing { option: "--domains" });
    }
    if arguments.sign.is_named() && !arguments.flush.any() {
        return Err(CliError::SignOfNothing);
    }
    let encrypts_copies = arguments.flush.any() && !arguments.sign.is_named();
    if arguments.key.is_named() && !encrypts_copies && !arguments.checkpoint.encrypt {
        return Err(CliError::KeyOfNothing);
    }
    if arguments.checkpoint.encrypt && !wants_checkpoints(&arguments) {
        return Err(CliError::NothingToEncrypt);
    }
    let encryption = if arguments.checkpoint.encrypt { Some(arguments.key.encryption()?) } else { None };
    let flush = arguments.flush.flush(arguments.sign.copy_key(&arguments.key)?)?;
    flush.iter().filter(|_| !arguments.quiet).for_each(copies::warn_of_writers);
    if let Ok(library) = &provider
        && arguments.mpi.library != MpiChoice::None
    {
        equip(&mut program, &detected, library, arguments.bind.first);
    }
    if let Some(mpi) = detected.mpi.as_ref().filter(|mpi| mpi.family == Family::OpenMpi) {
        return super::mpirun::run(mpi, &program, &arguments, json);
    }
    let wanted = saves(&arguments, &program)?;
    let saves = if provider.is_ok() { wanted } else { Saves::Points };
    let keeps_ids = arguments.checkpoint.pid_namespace;
    if keeps_ids {
        check_namespace(&arguments, wanted, saves)?;
    }
    if wanted == Saves::Process {
        match &provider {
            Ok(library) => preload::equip(&mut program, library, arguments.checkpoint.capture.as_deref()),
            // It may be a script that starts one with points of its own.
            Err(error) if !arguments.quiet => {
                print_message(format_args!(
                    "only a program that names its own points can be saved now: {error}"
                ));
            }
            Err(_) => {}
        }
    }
    let mpi_problem = match &provider {
        Ok(_) if saves == Saves::Points && wants_checkpoints(&arguments) => Some(
            concat!(
                "its file says that it names the points at which it is saved, as no MPI program can; start it without ",
                checkpoint_options!()
            )
            .to_owned(),
        ),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    let auth = match arguments.auth {
        Some(AuthArgument::Header) => AuthLevel::Header,
        Some(AuthArgument::Full) => AuthLevel::Full,
        None if nodes.iter().all(|node| node.addresses().iter().all(|address| address.is_loopback())) => {
            AuthLevel::Header
        }
        None => AuthLevel::Full,
    };
    let succession = arguments.succession.succession(&SuccessionJob {
        detached: detached.is_some(),
        before: None,
        nodes: &nodes,
        has_own_directories: own_directories.is_some(),
        needs_key: encryption.is_some() || flush.as_ref().is_some_and(|flush| flush.key.is_some()),
        key: &arguments.key,
        sign: &arguments.sign,
        quiet: arguments.quiet,
        verbose: arguments.verbose,
    })?;
    let mut plan = Plan {
        job,
        ranks: arguments.ranks,
        program,
        directory: PathBuf::new(),
        keep: arguments.checkpoint.keep,
        config,
        beginning: Beginning::Fresh,
        suspects: BTreeSet::new(),
        counter_last: 0,
        spares: arguments.hosts.spare_nodes(&arguments.bind)?,
        on_host_loss: arguments.hosts.on_host_loss.map(Into::into).unwrap_or_default(),
        former_hosts: BTreeSet::new(),
        former_silence: Duration::ZERO,
        unprotected: None,
        succession,
        nodes,
        auth,
        provider: provider.ok(),
        is_mpi: detected.mpi.is_some(),
        mpi_problem,
        replacement,
        saves,
        own_directories,
        job_file: Vec::new(),
        keeps_ids,
        flush,
        encryption,
        fetch: None,
        input: arguments.stdin.plan(arguments.ranks, is_saved)?,
        purpose: Purpose::Run,
        authority: Authority::Person,
    };
    let place = make_run_directory(&arguments, &plan)?;
    plan.directory = place.path.clone();
    if let Some(detached) = detached {
        detached.begin(&plan, &place.path)?;
    }
    if let Some(own) = &mut plan.own_directories {
        own.root = own.root.below(&place.path);
    }
    plan.job_file = job_file(&plan).emit();
    if !arguments.quiet {
        protection::announce(&plan, When::Begins, is_saved);
    }
    let mut progress = Progress::new(plan.ranks, arguments.quiet, json)?
        .on_terminal(plan.input.has_terminal)
        .verbose(arguments.verbose);
    supervise(&plan, place, &mut progress, json, detached)
}

/// The program of a command line, which can be started.
fn program(arguments: &RunArguments) -> Result<Program, CliError> {
    let to_os = |(name, value): &(String, String)| (OsString::from(name), OsString::from(value));
    let mut program = Program {
        command: arguments.program.clone(),
        directory: std::env::current_dir()?,
        environment: arguments
            .rails
            .iter()
            .map(|rails| (OsString::from(RAILS_VARIABLE), OsString::from(rails)))
            .chain(arguments.environment.iter().map(to_os))
            .collect(),
        inherited: None,
    };
    if let Some(folder) = &arguments.pcap {
        let folder = made(folder).map_err(|error| LauncherError::File {
            path: folder.clone(),
            error,
            expected: "a folder for captures, or a name for one that can be made",
        })?;
        program.environment.push((CAPTURE_VARIABLE.into(), folder.into()));
    }
    if let Some(nic) = &arguments.nic.choice {
        program.set_nic(nic);
    }
    program.check()?;
    Ok(program)
}

/// The whole path of a folder, which is made.
fn made(folder: &Path) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    folder.canonicalize()
}

fn wants_checkpoints(arguments: &RunArguments) -> bool {
    let CheckpointArguments { interval, directory, time_limit, .. } = &arguments.checkpoint;
    interval.every.is_some_and(|every| every != Every::OnRequest)
        || directory.is_some()
        || time_limit.is_some()
        || arguments.protection.any()
        || arguments.flush.any()
}

/// How a program is saved. A program without checkpoint options is left as it is.
fn saves(arguments: &RunArguments, program: &Program) -> Result<Saves, CliError> {
    let whole = wants_checkpoints(arguments) && !preload::is_native(program)?;
    Ok(if whole { Saves::Process } else { Saves::Points })
}

/// Rejects a pid namespace for a job that would restore no process with its ids.
fn check_namespace(arguments: &RunArguments, wanted: Saves, saves: Saves) -> Result<(), CliError> {
    let why = match (wanted, saves) {
        (Saves::Process, Saves::Process) => return Ok(()),
        (Saves::Process, Saves::Points) => {
            "the provider, which saves them, was not found (`stillwire doctor`)"
        }
        (Saves::Points, _) if wants_checkpoints(arguments) => {
            "its file says that it names the points at which it is saved, and it runs anew from there"
        }
        (Saves::Points, _) => concat!("nobody asks for checkpoints (", checkpoint_options!(), ")"),
    };
    Err(CliError::PidNamespace { why })
}

/// Reasons why Open MPI's programs cannot use an option, and the alternative.
const NOT_SAVED: &str =
    "Open MPI's programs are started by its own mpirun, and cannot be saved yet: start it without";
const NOT_PLACED: &str = "Open MPI's own mpirun places its ranks, all on this host: start it without, or with that mpirun (`stillwire env`)";

const NO_TERMINAL: &str = "Open MPI's own mpirun connects its ranks by pipes: start it without";

const NOT_DETACHED: &str = "Open MPI's own mpirun starts its programs, and its job ends with it: start it without, behind nohup or setsid";

const NOTHING_SAVED: &str = concat!("Without ", checkpoint_options!(), " there is nothing to go back to");

/// Rejects options that an MPI program cannot use, before anything is created.
fn check_options(arguments: &RunArguments, mpi: &Mpi) -> Result<(), CliError> {
    let RunArguments { checkpoint, protection, flush, hosts, .. } = arguments;
    let is_open = mpi.family == Family::OpenMpi;
    let is_unsaved = !wants_checkpoints(arguments);
    let rolls_back = arguments.fault.on_fault == Some(FaultAction::Restart) && is_unsaved;
    let begins_again = arguments.fault.on_exit == Some(ExitAction::Restart) && is_unsaved;
    // A job that is not saved can go on without a rank all the same.
    let policy = arguments.fault.recovery.as_ref();
    let rolls_back_only = is_unsaved && policy.is_some_and(|policy| is_open || !policy.ignores());
    let refused = [
        (is_open && checkpoint.interval.every.is_some(), "--ckpt-every", NOT_SAVED),
        (is_open && checkpoint.interval.mtbf.is_some(), "--mtbf", NOT_SAVED),
        (is_open && checkpoint.interval.budget.is_some(), "--ckpt-budget", NOT_SAVED),
        (is_open && checkpoint.directory.is_some(), "--ckpt-dir", NOT_SAVED),
        (is_open && checkpoint.time_limit.is_some(), "--time-limit", NOT_SAVED),
        (is_open && checkpoint.pid_namespace, "--pid-namespace", NOT_SAVED),
        (is_open && checkpoint.encrypt, "--encrypt", NOT_SAVED),
        (is_open && protection.parity.is_some(), "--parity", NOT_SAVED),
        (is_open && protection.node_dir.is_some(), "--node-dir", NOT_SAVED),
        (is_open && flush.any(), "--flush-to", NOT_SAVED),
        (is_open && hosts.names_hosts(), "--hosts", NOT_PLACED),
        (is_open && hosts.nodes.is_some(), "--nodes", NOT_PLACED),
        (is_open && hosts.names_domains(), "--domains", NOT_PLACED),
        (is_open && arguments.stdin.has_terminal(), "--tty", NO_TERMINAL),
        (is_open && arguments.detach, "--detach", NOT_DETACHED),
        (rolls_back, "--on-fault restart", NOTHING_SAVED),
        (begins_again, "--on-exit restart", NOTHING_SAVED),
        (rolls_back_only, "--recovery", NOTHING_SAVED),
        (arguments.auth.is_some(), "--auth", "The provider always authenticates headers"),
    ];
    match refused.into_iter().find(|(is_given, ..)| *is_given) {
        Some((_, option, instead)) => {
            Err(CliError::NotForMpi { option, library: mpi.library.clone(), instead })
        }
        None => Ok(()),
    }
}

/// Gives a program the provider's variables, before the user's own, which count; and behind those the variables that its library
/// needs besides, which holds it.
pub(crate) fn equip(program: &mut Program, detected: &Detected, library: &Path, bind: IpAddr) {
    let to_os = |(name, value): (&str, OsString)| (OsString::from(name), value);
    let mut variables: Vec<_> = environment::variables(library).into_iter().map(to_os).collect();
    if bind != Ipv4Addr::LOCALHOST {
        variables.push(("STILLWIRE_ADDRESS".into(), bind.to_string().into()));
    }
    let own =
        detected.mpi.as_ref().map(|mpi| environment::own(mpi, &program.environment)).unwrap_or_default();
    variables.append(&mut program.environment);
    variables.extend(own.into_iter().map(to_os));
    program.environment = variables;
}

/// Runs a job that has its directory, and reports how it ended.
pub(crate) fn supervise(
    plan: &Plan,
    place: RunDirectory,
    observer: &mut dyn Observer,
    json: bool,
    detached: Option<&DetachedLauncher>,
) -> Result<Exit, CliError> {
    let started = Instant::now();
    let registration = Registration::create(plan).inspect_err(|_| place.remove_if_unused())?;
    let outcome = match detached {
        Some(detached) => launcher::run(plan, &registration, &mut detached.observer(observer, plan.ranks)),
        None => launcher::run(plan, &registration, observer),
    };
    let outcome = outcome.inspect_err(|_| place.remove_if_unused())?;
    drop(registration);
    let summary = summarize(plan, &outcome, started.elapsed());
    if let Some(detached) = detached {
        detached.note_report(&summary);
    }
    let exit = exit_of(&outcome);
    match outcome.report.ending {
        Ending::Finished if place.temporary => std::fs::remove_dir_all(&place.path)?,
        Ending::Finished => {}
        Ending::Stopped | Ending::Failed { .. } => place.remove_if_unused(),
    }
    // Nothing is left to clean up: from here on a signal may end this process where it stands.
    launcher::give_signals_back();
    let limit = (exit == Exit::Stopped).then_some(OUTPUT_GRACE);
    if !observer.finish(limit) {
        return Ok(exit);
    }
    if json {
        print_json(&summary)?;
        return Ok(exit);
    }
    for warning in &summary.warnings {
        print_message(format_args!("warning: {warning}"));
    }
    if let Some(reason) = &summary.reason {
        print_message(format_args!("{reason}"));
        if let Some(generation) = &summary.committed {
            let path = place.path.display();
            let elsewhere = if plan.nodes.len() > 1 { ", on other hosts with --hosts" } else { "" };
            let is_lost =
                matches!(outcome.report.ending, Ending::Failed { reason: StopReason::NothingToRestore, .. });
            let kept = if is_lost { "can be restored if its lost images come back" } else { "is kept" };
            print_message(format_args!(
                "generation {generation} {kept}; go on with `stillwire restart {path}`{elsewhere}"
            ));
        }
    }
    Ok(exit)
}

/// All notices have been printed when this returns.
pub(crate) fn close(observer: &mut dyn Observer) {
    launcher::give_signals_back();
    observer.finish(None);
}

/// Ranks that cannot receive on the given address would all end, in life after life.
pub(crate) fn check_bind(addresses: &Addresses) -> Result<(), CliError> {
    addresses.iter().try_for_each(|address| {
        UdpSocket::bind((address, 0)).map(drop).map_err(|error| CliError::Bind { address, error })
    })
}

pub(crate) fn fresh_job() -> Result<JobId, CliError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| LauncherError::NoRandomness)?;
    Ok(JobId(u128::from_le_bytes(bytes)))
}

fn job_config(arguments: &RunArguments) -> Result<JobConfig, CliError> {
    let fault = &arguments.fault;
    let mut checkpoint =
        CheckpointConfig { timeout: arguments.checkpoint.timeout, ..CheckpointConfig::default() };
    arguments.checkpoint.interval.apply(&mut checkpoint)?;
    Ok(JobConfig {
        checkpoint,
        time_limit: arguments.checkpoint.time_limit,
        fault: FaultConfig {
            on_fault: fault.on_fault.unwrap_or(FaultAction::Restart).into(),
            on_exit: fault.on_exit.unwrap_or(ExitAction::Fail).into(),
            policy: fault.recovery.clone().unwrap_or_default(),
            restarts_max: fault.retries,
            start_timeout: fault.start_timeout,
            ..FaultConfig::default()
        },
        keeper: arguments.hosts.keeper_config(KeeperConfig::default()),
    })
}

fn make_run_directory(arguments: &RunArguments, plan: &Plan) -> Result<RunDirectory, CliError> {
    let name = format!("stillwire-{}", &plan.job.to_string()[..8]);
    let (path, temporary) = match &arguments.checkpoint.directory {
        Some(directory) => (directory.clone(), false),
        // The output of a detached job lies there too.
        None if wants_checkpoints(arguments) || arguments.detach => (PathBuf::from(name), false),
        // Others may make names there: this one has all 128 bits of the job's number, so that nobody makes it first.
        None => (temporary_directory(&format!("stillwire-{}", plan.job))?, true),
    };
    create_job(path, temporary, plan)
}

/// Where a job's directory lies that nobody asked for.
pub(crate) fn temporary_directory(name: &str) -> Result<PathBuf, CliError> {
    // Images may be as large as memory, and the runtime directory often is memory.
    let root = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    if !root.is_dir() {
        return Ok(runtime_directory()?.join(name));
    }
    Ok(root.join(name))
}

/// Makes the directory of a new job, takes it, and writes the job file.
pub(crate) fn create_job(path: PathBuf, temporary: bool, plan: &Plan) -> Result<RunDirectory, CliError> {
    let storage = Directory::create(&path).map_err(|error| match error {
        StorageError::NotFound { .. } => CliError::DirectoryNotMade { path: path.clone() },
        other => other.into(),
    })?;
    let path = path.canonicalize()?;
    let lock = lock(&storage, &path)?;
    match JobDirectory::create(storage, &job_file(plan)) {
        Ok(_) => Ok(RunDirectory { path, temporary, _lock: lock }),
        Err(StoreError::Storage(StorageError::AlreadyExists { .. })) => {
            Err(CliError::DirectoryTaken { path })
        }
        Err(error) => Err(error.into()),
    }
}

/// Longest wait for a job's directory whose holder is about to leave it: the guard of a launcher that was killed cleans up behind it, and so
/// a restart right after a kill meets it.
const LOCK_MAX: Duration = Duration::from_secs(2);

/// Takes a job's directory.
pub(crate) fn lock(storage: &Directory, path: &Path) -> Result<DirectoryLock, CliError> {
    let until = Instant::now() + LOCK_MAX;
    loop {
        match storage.lock() {
            Err(StorageError::Locked { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(StorageError::Locked { .. }) => {
                return Err(CliError::Locked { path: path.to_path_buf() });
            }
            taken => return Ok(taken?),
        }
    }
}

/// Where ranks run, for a restart without options of its own.
pub(crate) fn write_places(nodes: &[Node], settings: &mut BTreeMap<String, String>) {
    settings.extend(hosts::write_domains(nodes).map(|domains| (setting::DOMAINS.to_owned(), domains)));
    if let Some(hosts) = launcher::write_places(nodes) {
        settings.insert(setting::HOSTS.to_owned(), hosts);
        let shell = nodes[0].remote_shell.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>();
        settings.insert(setting::REMOTE_SHELL.to_owned(), shell.join(" "));
        return;
    }
    settings.insert(setting::BIND.to_owned(), nodes[0].addresses().to_string());
    settings.insert(setting::NODES.to_owned(), nodes.len().to_string());
}

pub(crate) fn job_file(plan: &Plan) -> JobFile {
    let every = plan.config.checkpoint.every;
    let mut settings = BTreeMap::from([
        (setting::CONFIG.to_owned(), plan.config.emit()),
        (setting::AUTH.to_owned(), if plan.auth == AuthLevel::Full { "full" } else { "header" }.to_owned()),
        (setting::SAVES.to_owned(), saves_word(plan.saves).to_owned()),
    ]);
    if plan.keeps_ids {
        settings.insert(setting::IDS.to_owned(), IDS_KEPT.to_owned());
    }
    let given = plan.replacement.as_ref().map(|given| (setting::MPI_FROM.to_owned(), given.emit()));
    settings.extend(given);
    if let Some(encryption) = &plan.encryption {
        settings.insert(setting::ENCRYPT.to_owned(), encryption.name.clone());
    }
    write_places(&plan.nodes, &mut settings);
    let spares = launcher::write_places(&plan.spares).map(|spares| (setting::SPARE_HOSTS.to_owned(), spares));
    settings.extend(spares);
    if plan.on_host_loss != HostLoss::default() {
        let loss = HostLossArgument::of(plan.on_host_loss);
        settings.insert(setting::ON_HOST_LOSS.to_owned(), loss.to_owned());
    }
    let named =
        plan.succession.named.map(|loss| (setting::ON_LAUNCHER_LOSS.to_owned(), loss.name().to_owned()));
    settings.extend(named);
    settings.extend(plan.unprotected.map(|moved| (setting::UNPROTECTED.to_owned(), moved.to_string())));
    if let Some(own) = &plan.own_directories {
        settings.insert(setting::NODE_DIRECTORY.to_owned(), own.root.emit());
        settings.insert(setting::PARITY.to_owned(), own.scheme.to_string());
        settings
            .extend(protection::groups_text(own.groups()).map(|groups| (setting::GROUPS.to_owned(), groups)));
        let budget = protection::budget_text(&own.budget.limits);
        settings.extend(budget.map(|limits| (setting::ENCODE_BUDGET.to_owned(), limits)));
        settings.extend(own.budget.shape.map(|shape| (setting::SHAPE.to_owned(), shape.to_string())));
    }
    settings.extend(plan.flush.iter().flat_map(copies::settings));
    settings.extend(stdin::settings(&plan.input));
    let bytes = |text: &std::ffi::OsStr| text.as_bytes().to_vec();
    let entry = |(name, value): &(OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
    JobFile {
        job: plan.job,
        ranks: plan.ranks,
        checkpoint: CheckpointSettings {
            every_ms: every.fixed().map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX)),
            keep: plan.keep,
        },
        directory: bytes(plan.program.directory.as_os_str()),
        command: plan.program.command.iter().map(|word| bytes(word)).collect(),
        environment: plan.program.environment.iter().map(entry).collect(),
        settings,
    }
}

/// Value of [`setting::IDS`] of a job whose ranks have pid namespaces.
const IDS_KEPT: &str = "kept";

const fn saves_word(saves: Saves) -> &'static str {
    match saves {
        Saves::Points => "points",
        Saves::Process => "process",
    }
}

/// How a job's program is saved, from the setting that [`job_file`] wrote.
pub(crate) fn read_saves(file: &JobFile) -> Saves {
    let is_whole = file.settings.get(setting::SAVES).is_some_and(|text| text == saves_word(Saves::Process));
    if is_whole { Saves::Process } else { Saves::Points }
}

/// The settings of a run, from a job file.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: JobConfig,
    pub(crate) hosts: HostArguments,
    /// Where ranks receive that run here.
    pub(crate) bind: Addresses,
    pub(crate) auth: AuthLevel,
    /// Each rank has a pid namespace.
    pub(crate) keeps_ids: bool,
    /// The MPI library in the place of the program's own.
    pub(crate) replacement: Option<Replacement>,
}

/// The settings that [`job_file`] wrote.
pub(crate) fn read_settings(file: &JobFile) -> Result<Settings, CliError> {
    let text = |name: &str| file.settings.get(name).map(String::as_str);
    let config = match text(setting::CONFIG) {
        Some(text) => JobConfig::parse(text.as_bytes())?,
        None => JobConfig::default(),
    };
    let bind = text(setting::BIND).and_then(|text| text.parse::<Addresses>().ok());
    let places = |name: &str| -> Vec<HostArgument> {
        let names = text(name).unwrap_or_default().split(',');
        names.filter_map(|host| host.parse().ok()).collect()
    };
    let hosts = HostArguments {
        spare_hosts: places(setting::SPARE_HOSTS),
        on_host_loss: text(setting::ON_HOST_LOSS).and_then(HostLossArgument::read),
        ..HostArguments::read(
            text(setting::HOSTS),
            text(setting::REMOTE_SHELL),
            text(setting::NODES),
            text(setting::DOMAINS),
        )
    };
    let auth = if text(setting::AUTH) == Some("header") { AuthLevel::Header } else { AuthLevel::Full };
    let keeps_ids = text(setting::IDS) == Some(IDS_KEPT);
    let bind = bind.unwrap_or_else(|| Addresses::one(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    let replacement = text(setting::MPI_FROM).map(Replacement::parse).transpose()?;
    Ok(Settings { config, hosts, bind, auth, keeps_ids, replacement })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_being_left_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let storage = Directory::create(folder.path()).expect("a directory");
        let guard = storage.lock().expect("nobody has it");
        assert!(storage.lock().is_err(), "held");
        let leaving = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(guard);
        });
        assert!(lock(&storage, folder.path()).is_ok());
        leaving.join().expect("it has left");
    }
}
