//! `stillwire restart`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ckpt_glue::names::NodeIndex;
use ckpt_glue::protection::seat::Authority;
use ckpt_glue::recovery::Beginning;
use ckpt_glue::{JobConfig, parse_duration, write_duration};
use drivers::NicChoice;
use launcher::error::LauncherError;
use launcher::nodes::NO_NODE;
use launcher::spawn::preload;
use launcher::{
    Addresses, Encryption, Flush, Node, NodeRoot, OwnDirectories, Plan, Program, Purpose, Saves, former_host,
};
use store::job::{Depth, Generation, GenerationState};
use store::record::ManifestImage;
use store::{Directory, GenerationId, JobDirectory, JobFile, Manifest, StorageError, StoreError, kinds};
use transport::config::AuthLevel;

use super::copies;
use super::domains::When;
use super::files::utc;
use super::hosts::HostArguments;
use super::node_placement::{Placement, place_nodes};
use super::progress::Progress;
use super::protection;
use super::relayout;
use super::run::{
    RunDirectory, Settings, check_bind, job_file, lock, read_saves, read_settings, setting, supervise,
};
use super::succession::{self, SuccessionJob};
use super::{print_message, progress_of};
use crate::arguments::{GenerationArgument, RestartArguments};
use crate::background::DetachedLauncher;
use crate::error::CliError;
use crate::exit::Exit;

pub(crate) fn restart(
    arguments: RestartArguments,
    json: bool,
    detached: Option<&DetachedLauncher>,
) -> Result<Exit, CliError> {
    relayout::change_layout(&arguments, json)?;
    let (plan, place) = prepare(&arguments, Purpose::Run)?;
    if let Some(detached) = detached {
        if plan.input.has_terminal {
            return Err(CliError::TerminalDetached);
        }
        detached.begin(&plan, &place.path)?;
    }
    let mut progress = Progress::new(plan.ranks, arguments.quiet, json)?
        .on_terminal(plan.input.has_terminal)
        .verbose(arguments.verbose);
    supervise(&plan, place, &mut progress, json, detached)
}

/// A job that is there, and its directory, which belongs to this launcher from now on.
pub(crate) fn prepare(
    arguments: &RestartArguments,
    purpose: Purpose,
) -> Result<(Plan, RunDirectory), CliError> {
    let brought = match &arguments.from {
        Some(from) => Some(copies::bring(arguments, from)?),
        None => None,
    };
    let generation = brought.as_ref().map(|brought| GenerationArgument::Whole(brought.generation));
    let (mut directory, mut file) = open_job(&arguments.directory)?;
    let path = arguments.directory.canonicalize()?;
    let lock = lock(&Directory::open(&path)?, &path)?;
    if relayout::complete(&path)? {
        (directory, file) = open_job(&arguments.directory)?;
    }
    let encryption = arguments.key.encryption_as_before(&file, purpose == Purpose::Run)?;
    let key = encryption.as_ref().and_then(Encryption::image_key);
    directory = directory.encrypted(key);
    let argument = generation.or(arguments.generation);
    let (beginning, mut suspects) = if protection::is_in(&file) {
        choose_on_nodes(&mut directory, argument)?
    } else {
        choose(&mut directory, argument, arguments.quiet)?
    };
    let newest = beginning_manifest(&mut directory, beginning)?;
    if purpose == Purpose::Run && encryption.is_none() && newest.as_ref().is_some_and(is_encrypted) {
        return Err(CliError::EncryptedUnsaid { path });
    }
    let Settings { mut config, hosts, bind, auth, keeps_ids: kept, replacement } = read_settings(&file)?;
    config.fault.on_exit = arguments.on_exit.map_or(config.fault.on_exit, Into::into);
    if let Some(policy) = &arguments.recovery {
        config.fault.policy = policy.clone();
    }
    arguments.interval.apply(&mut config.checkpoint)?;
    let reported = config.clone();
    config.time_limit = arguments.time_limit.or(config.time_limit);
    let bind = arguments.bind.clone().unwrap_or(bind);
    check_bind(&bind)?;
    let before = if hosts.names_hosts() { hosts.nodes(file.ranks, &bind)? } else { Vec::new() };
    let programs = Programs::new(&file, arguments, &hosts)?;
    let hosts = arguments.hosts.clone().or(hosts);
    config.keeper = hosts.keeper_config(config.keeper);
    if let Some(manifest) = newest.as_ref().filter(|_| protection::is_in(&file)) {
        // Its images have not been read yet, but by their nodes before it is chosen.
        suspects.insert(manifest.generation);
    }
    let Placement { nodes, spares } = if arguments.is_candidates {
        Placement { nodes: hosts.nodes(file.ranks, &bind)?, spares: hosts.spare_nodes(&bind)? }
    } else {
        place(&file, newest.as_ref(), &hosts, &bind, arguments.quiet)?
    };
    if purpose == Purpose::Repair {
        // A repair has to know whether all is whole, so every byte is read.
        let committed = |found: &Generation| found.state == GenerationState::Committed;
        suspects.extend(directory.generations()?.into_iter().filter(committed).map(|found| found.id));
    }
    let own_directories = protection::read(&file, &path, &nodes)?;
    if arguments.hosts.names_domains() && !protection::is_any_protected(own_directories.as_ref()) {
        return Err(CliError::DomainsOfNothing);
    }
    let flush = flush(arguments, &file, purpose, encryption.is_some())?;
    flush.iter().filter(|_| !arguments.quiet).for_each(copies::warn_of_writers);
    // Lives that the directory knows nothing of have left copies.
    let counter_last =
        brought.as_ref().map_or(0, |brought| brought.counter_last).max(directory.counter_last()?);
    let saves = read_saves(&file);
    let is_whole = saves == Saves::Process;
    let provider = preload::library(&programs.program).filter(|_| is_whole);
    let keeps_ids = keeps_ids(arguments, kept, is_whole)?;
    let authority = authority(arguments, own_directories.as_ref(), &path);
    let mpi_problem = "it has no checkpoint to go on from; start it anew (`stillwire run`)".to_owned();
    let former_silence = former_silence(&file, &reported, &config);
    let succession = arguments.succession.succession(&SuccessionJob {
        detached: arguments.detach,
        before: succession::read(&file),
        nodes: &nodes,
        has_own_directories: own_directories.is_some(),
        needs_key: encryption.is_some() || flush.as_ref().is_some_and(|flush| flush.key.is_some()),
        key: &arguments.key,
        sign: &arguments.sign,
        quiet: arguments.quiet,
        verbose: arguments.verbose,
    })?;
    let mut plan = Plan {
        job: file.job,
        ranks: file.ranks,
        program: programs.program,
        directory: path.clone(),
        keep: file.checkpoint.keep,
        config,
        beginning,
        suspects,
        counter_last,
        spares,
        on_host_loss: hosts.on_host_loss.map(Into::into).unwrap_or_default(),
        former_hosts: former_hosts(&file, &before),
        former_silence,
        unprotected: unprotected(&file, newest.as_ref()),
        succession,
        auth: auth_between(&nodes, auth),
        nodes,
        provider,
        is_mpi: false,
        mpi_problem: (!is_whole).then_some(mpi_problem),
        // A repair runs no program, so it needs no replacement.
        replacement: replacement.clone().filter(|_| purpose == Purpose::Run),
        saves,
        own_directories,
        job_file: Vec::new(),
        keeps_ids,
        flush,
        encryption,
        fetch: brought.and_then(|brought| brought.fetch),
        input: arguments.stdin.plan(&file)?,
        purpose,
        authority,
    };
    // Settings for this run alone, or derived from where it runs, do not go into the job file.
    let keeps_ids = plan.keeps_ids || kept;
    let mut file = job_file(&Plan {
        program: programs.named,
        config: reported,
        auth,
        keeps_ids,
        replacement,
        ..plan.clone()
    });
    file.settings.extend(programs.rail.map(|rail| (setting::RAIL.to_owned(), rail.to_string())));
    plan.job_file = file.emit();
    if purpose == Purpose::Run {
        note_former_hosts(&mut plan, &Directory::open(&path)?, arguments.quiet)?;
    }
    if !arguments.quiet {
        protection::announce(&plan, When::GoesOn, purpose == Purpose::Run);
    }
    Ok((plan, RunDirectory { path, temporary: false, _lock: lock }))
}

/// The hosts of this run, and their ranks.
fn place(
    file: &JobFile,
    newest: Option<&Manifest>,
    hosts: &HostArguments,
    bind: &Addresses,
    is_quiet: bool,
) -> Result<Placement, CliError> {
    let spares = hosts.spare_nodes(bind)?;
    if let Some(manifest) = newest.filter(|_| protection::is_in(file)) {
        let found = place_nodes(manifest, &hosts.nodes_of_images(file.ranks, bind)?, hosts)?;
        return Ok(Placement { spares: [found.spares, spares].concat(), ..found });
    }
    if protection::is_in(file) && !is_quiet {
        print_message(format_args!(
            "warning: no generation has records here that can be read; nodes are asked for theirs, in the order in which the job names them"
        ));
    }
    let nodes = hosts.nodes(file.ranks, bind)?;
    if protection::is_in(file) {
        let Settings { hosts: before, bind, .. } = read_settings(file)?;
        let before = before.nodes(file.ranks, &bind)?;
        if before.len() != nodes.len() {
            let names = before.iter().map(Node::name).collect::<Vec<_>>().join(", ");
            return Err(CliError::NodesWithoutGeneration { nodes: before.len(), names, found: nodes.len() });
        }
    }
    Ok(Placement { nodes, spares })
}

/// The program of the ranks.
struct Programs {
    /// As the job's file names it.
    named: Program,
    /// With the settings of this run alone.
    program: Program,
    /// The NIC that was decided on while the job ran.
    rail: Option<NicChoice>,
}

impl Programs {
    /// `before`: the hosts that the job was on.
    fn new(
        file: &JobFile,
        arguments: &RestartArguments,
        before: &HostArguments,
    ) -> Result<Programs, CliError> {
        let mut named = program(file);
        if let Some(nic) = &arguments.nic.choice {
            named.set_nic(nic);
        }
        let rail = rail(file, arguments, before, &named)?;
        let mut program = named.clone();
        if let Some(rail) = &rail {
            program.set_nic(rail);
        }
        if let Some(name) = &arguments.changed_files {
            program.set_changed_files(name);
        }
        program.check()?;
        Ok(Programs { named, program, rail })
    }
}

/// A launcher in the job's own directory, and one that begins from a copy, do what a person wants. One in a node's directory cannot know whether the job goes on
/// elsewhere (R34).
fn authority(arguments: &RestartArguments, own: Option<&OwnDirectories>, path: &Path) -> Authority {
    // A node's directory stays the launcher's when images move to another layout.
    if arguments.is_candidates {
        return Authority::Candidate;
    }
    let is_of_node = own.is_some_and(|own| own.root.layouts().any(|root| is_parent(&root, path)));
    if is_of_node && arguments.from.is_none() { Authority::Votes } else { Authority::Person }
}

/// Whether this directory is one of a node in this root.
pub(crate) fn is_parent(root: &NodeRoot, directory: &Path) -> bool {
    let root = root.here().ok().and_then(|root| root.canonicalize().ok());
    root.is_some_and(|root| directory.parent() == Some(&root))
}

/// Checks the options of copies, and returns their destination.
fn flush(
    arguments: &RestartArguments,
    file: &JobFile,
    purpose: Purpose,
    is_encrypted: bool,
) -> Result<Option<Flush>, CliError> {
    let flush = match purpose {
        Purpose::Run => arguments.flush.or_as_before(file, arguments.sign.copy_key(&arguments.key)?)?,
        Purpose::Repair | Purpose::Gather | Purpose::Protect => None,
    };
    let has_copies = arguments.from.is_some() || flush.is_some();
    if arguments.sign.is_named() && !has_copies {
        return Err(CliError::SignOfNothing);
    }
    let encrypts_copies = has_copies && !arguments.sign.is_named();
    if arguments.key.is_named() && !encrypts_copies && !is_encrypted {
        return Err(CliError::KeyOfNothing);
    }
    Ok(flush)
}

/// Messages to another host are authenticated in full, even if a lower level was enough before.
fn auth_between(nodes: &[Node], before: AuthLevel) -> AuthLevel {
    let is_here = |node: &Node| node.addresses().iter().all(|address| address.is_loopback());
    if nodes.iter().all(is_here) { before } else { AuthLevel::Full }
}

/// Whether each rank has a pid namespace. `kept`: it had one.
fn keeps_ids(arguments: &RestartArguments, kept: bool, is_whole: bool) -> Result<bool, CliError> {
    let keeps_ids = (kept || arguments.pid_namespace) && !arguments.no_pid_namespace;
    if keeps_ids && !is_whole {
        return Err(CliError::PidNamespace {
            why: "its images hold what it names at its points, and it runs anew",
        });
    }
    if kept && !keeps_ids && !arguments.quiet {
        print_message(format_args!(
            "warning: ranks had pid namespaces, and get new ids now: ids that the program itself has stored are wrong"
        ));
    }
    Ok(keeps_ids)
}

/// The generation that the job begins from, if its images have been moved and are not protected yet.
fn unprotected(file: &JobFile, newest: Option<&Manifest>) -> Option<GenerationId> {
    let moved: GenerationId = file.settings.get(setting::UNPROTECTED)?.parse().ok()?;
    (newest?.generation == moved).then_some(moved)
}

/// Hosts on which ranks of an earlier launcher may run.
fn former_hosts(file: &JobFile, before: &[Node]) -> BTreeSet<String> {
    let former = file.settings.get(setting::FORMER_HOSTS).map(String::as_str).unwrap_or_default();
    let former = former.split(',').filter(|host| !host.is_empty()).map(str::to_owned);
    let before = (0..).map(NodeIndex).zip(before).filter_map(|(node, place)| former_host(node, place));
    former.chain(before).collect()
}

/// How long they may run at most: by the time-outs of that launcher and this one.
fn former_silence(file: &JobFile, before: &JobConfig, now: &JobConfig) -> Duration {
    let former = file.settings.get(setting::FORMER_SILENCE).and_then(|text| parse_duration(text).ok());
    former.unwrap_or_default().max(before.keeper.watch().silence()).max(now.keeper.watch().silence())
}

/// R32: before ranks run on hosts that the job's file does not name, it names all on which any may run. The launcher writes it anew when all ranks run.
fn note_former_hosts(plan: &mut Plan, storage: &Directory, quiet: bool) -> Result<(), CliError> {
    let left_out: BTreeSet<&str> = plan.left_out().collect();
    if !left_out.is_empty() && !quiet {
        print_message(format_args!(
            "ranks of the job may still run on {}: waiting {} until they have ended by themselves",
            left_out.into_iter().collect::<Vec<_>>().join(", "),
            write_duration(plan.former_silence)
        ));
    }
    let now: BTreeSet<String> =
        (0..).map(NodeIndex).zip(&plan.nodes).filter_map(|(node, place)| former_host(node, place)).collect();
    let (_, mut file) = JobDirectory::open(storage.clone())?;
    let before = read_settings(&file)?.config;
    let is_known =
        now.is_subset(&plan.former_hosts) && plan.former_silence <= former_silence(&file, &before, &before);
    if is_known {
        return Ok(());
    }
    plan.former_hosts.extend(now);
    let all = plan.former_hosts.iter().cloned().collect::<Vec<_>>().join(",");
    let settings =
        [(setting::FORMER_HOSTS, all), (setting::FORMER_SILENCE, write_duration(plan.former_silence))];
    file.settings.extend(settings.map(|(name, value)| (name.to_owned(), value)));
    JobDirectory::renew(storage.clone(), &file)?;
    Ok(())
}

/// The NIC that the job used last, if that was decided while it ran and no option replaces it. Only on the hosts that it was on: the NICs of other
/// ones are unknown.
fn rail(
    file: &JobFile,
    arguments: &RestartArguments,
    before: &HostArguments,
    named: &Program,
) -> Result<Option<NicChoice>, CliError> {
    let decided = file.settings.get(setting::RAIL).and_then(|nic| nic.parse::<NicChoice>().ok());
    let Some(decided) = decided.filter(|_| arguments.nic.choice.is_none()) else { return Ok(None) };
    if arguments.bind.is_none() && !arguments.hosts.has_others_than(before) {
        if !arguments.quiet {
            print_message(format_args!(
                "ranks go over {decided}, as they did last, unless --nic says otherwise"
            ));
        }
        return Ok(Some(decided));
    }
    let nic = named.nic()?;
    if !arguments.quiet {
        print_message(format_args!(
            "ranks went over {decided} last; with new hosts they go over {nic}, unless --nic says otherwise"
        ));
    }
    Ok(None)
}

/// Opens a job's directory, or explains why it is none.
pub(crate) fn open_job(path: &Path) -> Result<(JobDirectory<Directory>, JobFile), CliError> {
    path.metadata().map_err(|error| LauncherError::File {
        path: path.to_path_buf(),
        error,
        expected: "the directory of a job, as `stillwire run` names it when it begins (--ckpt-dir)",
    })?;
    match JobDirectory::open(Directory::open(path)?) {
        // Then only records lie there.
        Ok((directory, file)) if protection::is_in(&file) => Ok((directory.on_node(NO_NODE), file)),
        Ok(opened) => Ok(opened),
        Err(StoreError::Storage(StorageError::NotFound { .. })) => {
            Err(CliError::NoJob { path: path.to_path_buf() })
        }
        Err(error) => Err(error.into()),
    }
}

/// The generation that a person means.
pub(crate) fn resolve(
    directory: &mut JobDirectory<Directory>,
    argument: GenerationArgument,
) -> Result<GenerationId, CliError> {
    let generations = directory.generations()?;
    let mut committed = generations.iter().rev().filter(|found| found.state == GenerationState::Committed);
    let found = match argument {
        GenerationArgument::Whole(id) => committed.find(|found| found.id == id),
        GenerationArgument::Epoch(epoch) => committed.find(|found| found.id.epoch.0 == epoch),
    };
    match (found, argument) {
        (Some(found), _) => Ok(found.id),
        (None, GenerationArgument::Whole(generation)) => Err(StoreError::NotCommitted { generation }.into()),
        (None, GenerationArgument::Epoch(epoch)) => Err(CliError::NoSuchEpoch { epoch }),
    }
}

/// The generation from which a new life begins, and the generations that are not whole. A generation must exist: a restart never begins a job anew.
fn choose(
    directory: &mut JobDirectory<Directory>,
    argument: Option<GenerationArgument>,
    is_quiet: bool,
) -> Result<(Beginning, BTreeSet<GenerationId>), CliError> {
    let Some(argument) = argument else {
        if let Some(end) = directory.end()? {
            return Err(CliError::Finished { at: utc(end.ended_unix_ms) });
        }
        let generations = directory.generations()?;
        let newest = generations.iter().rfind(|found| found.state == GenerationState::Committed);
        let newest = newest.ok_or(CliError::NothingToRestart)?;
        return newest_whole(directory, &reading(is_quiet, newest.bytes));
    };
    let generation = resolve(directory, argument)?;
    let damages = match directory.manifest(generation) {
        Ok(manifest) => {
            let generations = directory.generations()?;
            let found = generations.iter().find(|found| found.id == generation);
            let progress = reading(is_quiet, found.map_or(0, |found| found.bytes));
            let looked_at = |images, bytes| looked_at(&progress, generation, images, bytes);
            directory.verify_images(&manifest, Depth::Everything, looked_at)?
        }
        Err(_) => directory.verify(generation, Depth::Records)?,
    };
    match damages.first() {
        None => Ok((Beginning::Named(generation), BTreeSet::new())),
        Some(damage) => Err(CliError::Damaged { generation, problem: damage.error.to_string() }),
    }
}

/// The same for a job whose images lie on its nodes. Nodes may have records that are damaged or lost here, and are asked for them before a life is
/// decided (R28).
pub(crate) fn choose_on_nodes(
    directory: &mut JobDirectory<Directory>,
    argument: Option<GenerationArgument>,
) -> Result<(Beginning, BTreeSet<GenerationId>), CliError> {
    let generations = directory.generations()?;
    let Some(argument) = argument else {
        if let Some(end) = directory.end()? {
            return Err(CliError::Finished { at: utc(end.ended_unix_ms) });
        }
        // Then none has begun.
        if directory.counter_last()? == 0 {
            return Err(CliError::NothingToRestart);
        }
        return Ok((Beginning::Newest, BTreeSet::new()));
    };
    let generation = resolve(directory, argument).or_else(|error| {
        let is_meant = |found: &&Generation| match argument {
            GenerationArgument::Whole(id) => found.id == id,
            GenerationArgument::Epoch(epoch) => found.id.epoch.0 == epoch,
        };
        // It may have lost its commit record.
        let is_left = |found: &&Generation| found.state != GenerationState::Collected;
        generations.iter().rev().filter(is_meant).find(is_left).map(|found| found.id).ok_or(error)
    })?;
    Ok((Beginning::Named(generation), BTreeSet::new()))
}

/// Images to be restored are read once before, so that no life begins from damaged ones.
fn reading(is_quiet: bool, bytes: u64) -> console::Progress {
    progress_of(is_quiet, format_args!("reading what is restored"), bytes)
}

fn looked_at(progress: &console::Progress, generation: GenerationId, images: u32, bytes: u64) {
    progress.doing(format_args!("generation {generation}, {images} images"));
    progress.set(bytes);
}

/// The manifest of the named generation, if the job's own records have it; otherwise that of the newest committed one.
pub(crate) fn beginning_manifest(
    directory: &mut JobDirectory<Directory>,
    beginning: Beginning,
) -> Result<Option<Manifest>, CliError> {
    if let Beginning::Named(generation) = beginning
        && let Ok(manifest) = directory.manifest(generation)
    {
        return Ok(Some(manifest));
    }
    Ok(directory.newest_committed()?)
}

/// Whether any of its images is encrypted.
fn is_encrypted(manifest: &Manifest) -> bool {
    let is_sealed = |image: &ManifestImage| image.summary.kinds.iter().any(|kind| kind.kind == kinds::SEAL);
    manifest.images.iter().any(is_sealed)
}

fn newest_whole(
    directory: &mut JobDirectory<Directory>,
    progress: &console::Progress,
) -> Result<(Beginning, BTreeSet<GenerationId>), CliError> {
    let looked_at = |generation, images, bytes| looked_at(progress, generation, images, bytes);
    let found = directory.newest_restorable_at(|_| Depth::Everything, looked_at)?;
    match (found.manifest, found.refused.first()) {
        (Some(_), _) => Ok((Beginning::Newest, found.refused.into_iter().map(|(id, _)| id).collect())),
        (None, Some((generation, damages))) => {
            let problem = damages.first().map(|damage| damage.error.to_string()).unwrap_or_default();
            Err(CliError::Damaged { generation: *generation, problem })
        }
        (None, None) => Err(CliError::NothingToRestart),
    }
}

fn program(file: &JobFile) -> Program {
    let word = |bytes: &Vec<u8>| OsStr::from_bytes(bytes).to_os_string();
    let entry = |bytes: &Vec<u8>| -> (OsString, OsString) {
        let split = bytes.iter().position(|byte| *byte == b'=').unwrap_or(bytes.len());
        let value = bytes.get(split + 1..).unwrap_or_default();
        (OsStr::from_bytes(&bytes[..split]).to_os_string(), OsStr::from_bytes(value).to_os_string())
    };
    Program {
        command: file.command.iter().map(word).collect(),
        directory: PathBuf::from(OsStr::from_bytes(&file.directory)),
        environment: file.environment.iter().map(entry).collect(),
        inherited: None,
    }
}
