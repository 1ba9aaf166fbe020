//! Copies of generations outside the nodes: their command-line options, and commands that fetch, list and check them.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use console::number;
use copies::{Copies, CopyError, CopyKey, CopyLocation, Listed, Report, Target, job_parsed, jobs};
use launcher::COPY_SILENT_MAX;
use launcher::error::LauncherError;
use launcher::nodes::lives::joined;
use launcher::text;
use launcher::{Directories, Fetch, Flush};
use serde::Serialize;
use store::limits::KEEP_MAX;
use store::packets::KeyUse;
use store::record::Copied;
use store::{Decision, Directory, GenerationId, JobDirectory, JobFile, StorageError, StoreError};
use transport::JobId;

use super::files::utc;
use super::interrupt::{InterruptGuard, is_stopped};
use super::key::key_name;
use super::node_listing::directories;
use super::run::{lock, setting};
use super::trust::Consent;
use super::{print_json, print_message, progress_of, protection, say};
use crate::arguments::{GenerationArgument, RestartArguments, duration_argument};
use crate::error::CliError;
use crate::exit::Exit;

/// Copies that are kept by default.
const KEEP: u32 = 2;

/// Copies that depend on one whole copy, likewise: they share the cost of the whole one, and none depends on an older one.
const WHOLE_EVERY: u32 = 64;

/// Copies outside the nodes, and their places.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FlushArguments {
    /// Copy every Nth generation, in the background [default with --flush-to: 1]
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=1_000_000), requires = "flush_to")]
    flush_every: Option<u32>,
    /// Copy generations to this place: a shared directory, which must exist, or s3://BUCKET/PREFIX. Several jobs may use the same place.
    ///
    /// For S3, the region, the endpoint and the credentials come from AWS_REGION, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    #[arg(long, value_name = "LOCATION")]
    flush_to: Option<CopyLocation>,
    /// Number of copies that are kept: the newest ones, and the copies that these depend on [default: 2]
    #[arg(long, value_name = "G", value_parser = number::<u32>(1..=u64::from(KEEP_MAX)), requires = "flush_to")]
    flush_keep: Option<u32>,
    /// Write a whole copy after this many incremental ones, or earlier, if these have taken more room than the last whole copy [default: 64]
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=1_000_000), requires = "flush_to")]
    flush_whole_every: Option<u32>,
    /// Give up a copy that makes no progress for this time, and try the next one when the place answers [default: 180s]
    #[arg(long, value_name = "D", value_parser = duration_argument, requires = "flush_to")]
    flush_patience: Option<Duration>,
}

impl FlushArguments {
    /// Whether copies are wanted.
    pub(crate) fn any(&self) -> bool {
        self.flush_to.is_some()
    }

    /// The copies that these options ask for; `None` without --flush-to. A directory must exist.
    pub(crate) fn flush(&self, key: Option<CopyKey>) -> Result<Option<Flush>, CliError> {
        let Some(to) = &self.flush_to else { return Ok(None) };
        let to = absolute(to)?;
        to.open()?;
        let flush = Flush {
            every: self.flush_every.unwrap_or(1),
            to,
            keep: self.flush_keep.unwrap_or(KEEP),
            whole_every: self.flush_whole_every.unwrap_or(WHOLE_EVERY),
            patience: self.flush_patience.unwrap_or(COPY_SILENT_MAX),
            key,
        };
        Ok(Some(flush))
    }

    /// The same for a job that is restarted: the job file's settings, unless another place is named here.
    pub(crate) fn or_as_before(
        &self,
        file: &JobFile,
        key: Option<CopyKey>,
    ) -> Result<Option<Flush>, CliError> {
        let text = |name: &str| file.settings.get(name).map(String::as_str);
        let Some(to) = text(setting::FLUSH_TO).filter(|_| !self.any()) else { return self.flush(key) };
        let count = |name| text(name).and_then(|text| text.parse().ok());
        // Copies that were encrypted or signed stay so: without their key this is an error, so that none becomes readable, or is forged, by an oversight.
        for usage in [KeyUse::Encrypt, KeyUse::Sign] {
            let own = key.as_ref().filter(|key| key.usage == usage).map(|of| key_name(&of.key));
            let place = || to.to_owned();
            match (text(key_setting(usage)), usage) {
                (Some(id), KeyUse::Encrypt) if own.as_deref() != Some(id) => {
                    return Err(CliError::FlushKey { place: place() });
                }
                (Some(id), KeyUse::Sign) if own.as_deref() != Some(id) => {
                    return Err(CliError::FlushSign { place: place() });
                }
                _ => {}
            }
        }
        let to = to.parse().map_err(|error| CliError::CopyLocation { error })?;
        let flush = Flush {
            every: count(setting::FLUSH_EVERY).unwrap_or(1),
            to,
            keep: count(setting::FLUSH_KEEP).unwrap_or(KEEP),
            whole_every: count(setting::FLUSH_WHOLE_EVERY).unwrap_or(WHOLE_EVERY),
            patience: count(setting::FLUSH_PATIENCE_MS)
                .map_or(COPY_SILENT_MAX, |ms| Duration::from_millis(u64::from(ms))),
            key,
        };
        Ok(Some(flush))
    }
}

/// Warns of copies with neither encryption nor signature, in a place that other users can write to.
pub(crate) fn warn_of_writers(flush: &Flush) {
    let to = &flush.to;
    if flush.key.is_none()
        && let Some(exposure) = to.exposure()
    {
        print_message(format_args!(
            "copies in {to} are neither signed nor encrypted, and other users can change them ({} belongs to user {} and has mode {:04o}): a changed copy \
             would run as the user who restarts from it. Sign copies (--sign FILE), encrypt them (--encrypt), or use a directory of your own",
            exposure.path, exposure.owner, exposure.mode
        ));
    }
}

/// The setting that names the key of copies.
fn key_setting(usage: KeyUse) -> &'static str {
    match usage {
        KeyUse::Encrypt => setting::FLUSH_KEY,
        KeyUse::Sign => setting::FLUSH_SIGN,
    }
}

/// The job file's settings for copies.
pub(crate) fn settings(flush: &Flush) -> Vec<(String, String)> {
    let mut settings = vec![
        (setting::FLUSH_TO, flush.to.to_string()),
        (setting::FLUSH_EVERY, flush.every.to_string()),
        (setting::FLUSH_KEEP, flush.keep.to_string()),
        (setting::FLUSH_WHOLE_EVERY, flush.whole_every.to_string()),
        (setting::FLUSH_PATIENCE_MS, flush.patience.as_millis().to_string()),
    ];
    settings.extend(flush.key.as_ref().map(|of| (key_setting(of.usage), key_name(&of.key))));
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A place, and the job that its last part names, if it does.
fn split(place: &CopyLocation) -> (CopyLocation, Option<JobId>) {
    match place {
        CopyLocation::Folder(path) => {
            let named = path.file_name().and_then(|name| name.to_str()).and_then(job_parsed);
            let above = path.parent().filter(|_| named.is_some()).unwrap_or(path);
            (CopyLocation::Folder(above.to_owned()), named)
        }
        CopyLocation::Objects { bucket, prefix } => {
            let (above, last) = prefix.rsplit_once('/').unwrap_or(("", prefix));
            let named = job_parsed(last);
            let prefix = if named.is_some() { above } else { prefix };
            (CopyLocation::Objects { bucket: bucket.clone(), prefix: prefix.to_owned() }, named)
        }
    }
}

/// The jobs that a command is about: the one that is named, else all.
fn chosen(target: &dyn Target, named: Option<JobId>) -> Result<Vec<JobId>, CliError> {
    Ok(match named {
        Some(job) => vec![job],
        None => jobs(target)?,
    })
}

fn threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// A generation that was fetched from a place of copies.
#[derive(Debug)]
pub(crate) struct Brought {
    /// The generation, which is committed in the job's directory now.
    pub(crate) generation: GenerationId,
    /// The largest counter of any life that left a copy.
    pub(crate) counter_last: u32,
    /// Its images lie on other hosts' disks, and are brought there by their keepers.
    pub(crate) fetch: Option<Fetch>,
}

/// The place as keepers find it, too, which have working directories of their own.
fn absolute(place: &CopyLocation) -> Result<CopyLocation, CliError> {
    Ok(match place {
        CopyLocation::Folder(path) => CopyLocation::Folder(std::path::absolute(path)?),
        objects @ CopyLocation::Objects { .. } => objects.clone(),
    })
}

/// Brings a copy into a job's directory, which is made if it does not exist.
pub(crate) fn bring(arguments: &RestartArguments, from: &CopyLocation) -> Result<Brought, CliError> {
    let RestartArguments { directory: path, generation, trust, .. } = arguments;
    let argument = *generation;
    let mut key = arguments.sign.copy_key(&arguments.key)?;
    key.iter_mut().for_each(|key| key.accepts_unsigned = *trust);
    let mut consent = Consent::new(*trust);
    let (place, named) = split(&absolute(from)?);
    let target = place.open()?;
    let known = known_file(path)?.map(|file| file.job);
    let job = match named.or(known) {
        Some(job) => job,
        None => match &jobs(&*target)?[..] {
            [job] => *job,
            [] => return Err(CliError::NoCopies { place: from.to_string() }),
            several => {
                let jobs = several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                return Err(CliError::SeveralJobs { place: from.to_string(), jobs });
            }
        },
    };
    if let Some(known) = known.filter(|known| *known != job) {
        return Err(CliError::OtherJob { path: path.to_owned(), known, job });
    }
    let copies = Copies::new(&*target, job, key.clone());
    let listed = copies.list()?;
    for (_, error) in &listed.damaged {
        print_message(format_args!("{error}"));
    }
    let mut candidates = listed.copies.iter().rev().filter(|copy| is_meant(argument, copy.generation));
    let mut copied = candidates.next().ok_or_else(|| CliError::NoCopies { place: from.to_string() })?;
    let (generation, brings) = loop {
        let tried = bring_copy(arguments, from, &copies, copied, &mut consent);
        // If the user has named a generation, no other one is an alternative.
        let other = candidates.next().filter(|_| argument.is_none());
        match (tried, other) {
            (Err(CliError::Launcher(LauncherError::Copy(error))), Some(other)) if error.is_damage() => {
                print_message(format_args!(
                    "the copy of generation {} cannot be used: {error}. The one of {} is taken, which is older",
                    copied.generation, other.generation
                ));
                copied = other;
            }
            (tried, _) => break (copied.generation, tried?),
        }
    };
    let fetch = (brings == Brings::Records).then_some(Fetch { generation, from: place, key });
    Ok(Brought { generation, counter_last: listed.counter_last(), fetch })
}

/// The files that this process itself fetches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Brings {
    All,
    /// The keepers of the nodes bring the images.
    Records,
}

/// Brings one copy.
fn bring_copy(
    arguments: &RestartArguments,
    from: &CopyLocation,
    copies: &Copies<'_>,
    copied: &Copied,
    consent: &mut Consent,
) -> Result<Brings, CliError> {
    let RestartArguments { directory: path, quiet, .. } = arguments;
    let (path, quiet) = (path.as_path(), *quiet);
    let file = copies.job_file(copied)?;
    let job = file.job;
    if !copies.is_authentic() {
        // The job file of a directory that has the job already is the one that counts.
        let known = known_file(path)?;
        consent.obtain(from, copied, known.as_ref().unwrap_or(&file))?;
    }
    let storage = Directory::create(path)?;
    let _lock = lock(&storage, path)?;
    let mut records = match JobDirectory::create(storage.clone(), &file) {
        Err(StoreError::Storage(StorageError::AlreadyExists { .. })) => {
            let (opened, known) = JobDirectory::open(storage)?;
            if known.job != job {
                return Err(CliError::OtherJob { path: path.to_owned(), known: known.job, job });
            }
            opened
        }
        made => made?,
    };
    let own = protection::own_root(&file, path).map(|root| root.here()).transpose()?;
    let is_here = protection::is_here(&file);
    if let Some(root) = own.as_ref().filter(|_| is_here) {
        adopt_lives(&mut records, root, job)?;
    }
    if let Some(life) = records.passed_over(copied.generation)? {
        return Err(CliError::PassedOver { generation: copied.generation, life, path: path.to_owned() });
    }
    let newer =
        records.generations()?.into_iter().rev().find(|found| {
            found.id > copied.generation && found.state == store::job::GenerationState::Committed
        });
    if let Some(newer) = newer.filter(|_| !quiet) {
        print_message(format_args!(
            "generation {} in {} is newer than the copy of {}, and is passed over, because --from asks for the copy",
            newer.id,
            path.display(),
            copied.generation
        ));
    }
    if own.is_some() && !is_here {
        // Find missing files here, once, rather than on every node.
        copies.list()?.needs(copied)?;
        copies.take_over(copied, &mut records.on_node(launcher::nodes::NO_NODE))?;
        return Ok(Brings::Records);
    }
    let manifest = copies.manifest(copied)?;
    let nodes: Vec<PathBuf> = (0..manifest.nodes.len())
        .map(|node| own.as_ref().map_or_else(|| path.to_owned(), |root| root.join(node.to_string())))
        .collect();
    for node in &nodes {
        Directory::create(node)?;
    }
    let images = Directories::new(job, nodes, &manifest);
    let fetch = |report: &Report| {
        if own.is_some() {
            records = records.clone().on_node(launcher::nodes::NO_NODE);
        }
        copies.fetch(copied, &mut records, &images, threads(), report)
    };
    let began = Instant::now();
    let files = watched(copied, path, quiet, fetch)?;
    if !quiet {
        print_message(format_args!(
            "generation {} brought from {from}: {files} files of {}, in {:.1} s",
            copied.generation,
            text::bytes(copied.bytes()),
            began.elapsed().as_secs_f64()
        ));
    }
    Ok(Brings::All)
}

/// A new directory takes over the lives that the remaining nodes know: they take part in no life that contradicts it.
fn adopt_lives(records: &mut JobDirectory<Directory>, root: &Path, job: JobId) -> Result<(), CliError> {
    if !records.decisions()?.is_empty() {
        return Ok(());
    }
    let mut known: Vec<(String, Vec<Decision>)> = Vec::new();
    for (node, storage) in directories(root) {
        let path = root.join(node.to_string());
        known.push((path.display().to_string(), JobDirectory::attach(storage?, job).decisions()?));
    }
    let joined = joined(known).map_err(|divergence| LauncherError::LivesDiverge { divergence })?;
    Ok(records.adopt_decisions(&joined)?)
}

/// The job file of a directory, if a job lives there.
fn known_file(path: &Path) -> Result<Option<JobFile>, CliError> {
    if !path.join("job").exists() {
        return Ok(None);
    }
    Ok(Some(JobDirectory::open(Directory::open(path)?)?.1))
}

fn choose(listed: &Listed, argument: Option<GenerationArgument>) -> Option<&Copied> {
    listed.copies.iter().rev().find(|copy| is_meant(argument, copy.generation))
}

/// Reports from time to time how much has been brought. Ctrl-C ends it in good order.
fn watched(
    copied: &Copied,
    path: &Path,
    quiet: bool,
    work: impl FnOnce(&Report) -> Result<u32, CopyError> + Send,
) -> Result<u32, CliError> {
    let (report, _guard) = (Report::default(), InterruptGuard::begin());
    let of = text::bytes(copied.bytes());
    let outcome = std::thread::scope(|scope| {
        let working = scope.spawn(|| work(&report));
        let what = format!("bringing generation {}", copied.generation);
        let progress = progress_of(quiet, format_args!("{what}"), copied.bytes());
        let mut is_reported = false;
        while !working.is_finished() {
            if is_stopped() && !is_reported {
                is_reported = true;
                report.stop();
                progress.note(format_args!(
                    "stillwire: stopping; once more ends it at once, and what came whole stays as well"
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
            progress.set(report.bytes());
        }
        working.join()
    });
    let outcome = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if is_stopped() && matches!(outcome, Ok(_) | Err(CopyError::Stopped)) {
        return Err(CliError::BringingStopped {
            generation: copied.generation,
            bytes: text::bytes(report.bytes()),
            of,
            path: path.to_owned(),
        });
    }
    Ok(outcome?)
}

/// Whether a path, or a text that looks like one, is a place of copies and not a job's directory.
pub(crate) fn place_of(path: &Path) -> Result<Option<CopyLocation>, CliError> {
    if let Some(text) = path.to_str().filter(|text| CopyLocation::is_url(text)) {
        return text.parse().map(Some).map_err(|error| CliError::CopyLocation { error });
    }
    if path.join("job").exists() {
        return Ok(None);
    }
    let place = CopyLocation::Folder(path.to_owned());
    let (above, named) = split(&place);
    let found = match above.open().and_then(|target| jobs(&*target)) {
        // A caller that wants a job's directory there reports the error itself.
        Err(StorageError::NotFound { .. } | StorageError::WrongType { .. }) => return Ok(None),
        found => found?,
    };
    let is_place = named.map_or(!found.is_empty(), |job| found.contains(&job));
    Ok(is_place.then_some(place))
}

/// The copies of a job.
#[derive(Serialize)]
struct JobCopies {
    job: String,
    copies: Vec<CopyReport>,
    damaged: Vec<String>,
    /// Of all files, each once.
    bytes: u64,
    /// Files that belong to no copy.
    leftovers: usize,
}

#[derive(Serialize)]
struct CopyReport {
    generation: String,
    /// The copy that has the blocks which this one has not; none: it is whole.
    upon: Option<String>,
    ranks: usize,
    /// Images that are deltas themselves.
    deltas: usize,
    bytes: u64,
    stored_bytes: u64,
    taken_unix_ms: u64,
    copied_unix_ms: u64,
    encrypted: bool,
    signed: bool,
    /// Why it cannot be used: something is missing; or the damage that `verify` has found.
    damages: Vec<String>,
}

impl CopyReport {
    fn of(listed: &Listed, copied: &Copied) -> CopyReport {
        CopyReport {
            generation: copied.generation.to_string(),
            upon: copied.upon.map(|upon| upon.generation.to_string()),
            ranks: copied.ranks.len(),
            deltas: copied.ranks.iter().filter(|rank| rank.base.is_some()).count(),
            bytes: copied.bytes(),
            stored_bytes: copied.stored_bytes(),
            taken_unix_ms: copied.taken_unix_ms,
            copied_unix_ms: copied.copied_unix_ms,
            encrypted: copied.key.is_some_and(|key| key.usage == KeyUse::Encrypt),
            signed: copied.key.is_some_and(|key| key.usage == KeyUse::Sign),
            damages: listed.needs(copied).err().iter().map(ToString::to_string).collect(),
        }
    }
}

fn report(job: JobId, listed: &Listed) -> JobCopies {
    let (bytes, leftovers) = listed.bytes_and_leftovers();
    JobCopies {
        job: job.to_string(),
        copies: listed.copies.iter().map(|copy| CopyReport::of(listed, copy)).collect(),
        damaged: listed.damaged.iter().map(|(_, error)| error.to_string()).collect(),
        bytes,
        leftovers,
    }
}

fn print(report: &JobCopies) -> io::Result<()> {
    say!("copies of job {}: {} in all", report.job, text::bytes(report.bytes))?;
    say!(
        "{:<32}  {:>5}  {:>11}  {:>11}  {:<19}  {:<19}  UPON",
        "GENERATION",
        "RANKS",
        "SIZE",
        "STORED",
        "TAKEN (UTC)",
        "COPIED (UTC)"
    )?;
    for copy in &report.copies {
        let (bytes, stored) = (text::bytes(copy.bytes), text::bytes(copy.stored_bytes));
        let (taken, copied) = (utc(copy.taken_unix_ms), utc(copy.copied_unix_ms));
        let upon = copy.upon.as_deref().unwrap_or("nothing: it is whole");
        let key = match (copy.encrypted, copy.signed) {
            (true, _) => ", encrypted",
            (_, true) => ", signed",
            _ => "",
        };
        say!(
            "{:<32}  {:>5}  {bytes:>11}  {stored:>11}  {taken}  {copied}  {upon}{key}",
            copy.generation,
            copy.ranks
        )?;
        if copy.deltas > 0 {
            say!("    {} of its images are deltas, with their bases", copy.deltas)?;
        }
        copy.damages.iter().try_for_each(|damage| say!("    {damage}"))?;
    }
    report.damaged.iter().try_for_each(|problem| say!("{problem}"))?;
    if report.leftovers > 0 {
        say!(
            "{} files belong to no copy: one is being written, or was given up; the next one removes them",
            report.leftovers
        )?;
    }
    Ok(())
}

pub(crate) fn list(place: &CopyLocation, json: bool) -> Result<Exit, CliError> {
    let (above, named) = split(place);
    let target = above.open()?;
    let mut reports = Vec::new();
    for job in chosen(&*target, named)? {
        reports.push(report(job, &Copies::new(&*target, job, None).list()?));
    }
    show(&reports, json)?;
    Ok(Exit::Success)
}

fn show(reports: &[JobCopies], json: bool) -> Result<(), CliError> {
    if json {
        print_json(&serde_json::json!({ "jobs": reports }))?;
    } else if reports.is_empty() {
        say!("no copies")?;
    } else {
        reports.iter().try_for_each(print)?;
    }
    Ok(())
}

/// Whether a generation is the one that is asked for.
fn is_meant(argument: Option<GenerationArgument>, generation: GenerationId) -> bool {
    match argument {
        None => true,
        Some(GenerationArgument::Whole(id)) => id == generation,
        Some(GenerationArgument::Epoch(epoch)) => epoch == generation.epoch.0,
    }
}

/// Checks every byte.
pub(crate) fn verify(
    place: &CopyLocation,
    argument: Option<GenerationArgument>,
    key: Option<&CopyKey>,
    json: bool,
) -> Result<Exit, CliError> {
    let (above, named) = split(place);
    let target = above.open()?;
    let mut reports = Vec::new();
    for job in chosen(&*target, named)? {
        let copies = Copies::new(&*target, job, key.cloned());
        let listed = copies.list()?;
        let mut report = report(job, &listed);
        let meant = match argument {
            None => listed.copies.clone(),
            Some(_) => choose(&listed, argument).cloned().into_iter().collect(),
        };
        let damaged = listed.damaged.iter().filter(|(generation, _)| is_meant(argument, *generation));
        report.damaged = damaged.map(|(_, error)| error.to_string()).collect();
        if argument.is_some() && meant.is_empty() && report.damaged.is_empty() {
            continue;
        }
        let bytes = meant.iter().map(Copied::bytes).sum();
        let progress = progress_of(json, format_args!("reading the copies of job {job}"), bytes);
        let found = copies.verify(&meant, threads(), &|bytes| progress.add(bytes))?;
        drop(progress);
        report.copies = meant.iter().map(|copy| CopyReport::of(&listed, copy)).collect();
        for (copy, of) in report.copies.iter_mut().zip(&meant) {
            let own = found.iter().filter(|found| found.generation == of.generation);
            copy.damages = own.map(|found| found.error.to_string()).collect();
        }
        reports.push(report);
    }
    if argument.is_some() && reports.is_empty() {
        return Err(CliError::NoCopies { place: place.to_string() });
    }
    let of_copies = |report: &JobCopies| report.copies.iter().all(|copy| copy.damages.is_empty());
    let is_whole = reports.iter().all(|report| report.damaged.is_empty() && of_copies(report));
    let any = reports.iter().any(|report| !report.copies.is_empty());
    show(&reports, json)?;
    if !json && any {
        let damaged = "damaged: see above. A copy that depends on a damaged one cannot be used either. New copies may depend on it, too, until you remove its folder";
        say!("{}", if is_whole { "every byte is as it was copied" } else { damaged })?;
    }
    Ok(if is_whole { Exit::Success } else { Exit::Unverified })
}
