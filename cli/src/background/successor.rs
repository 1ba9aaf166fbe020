//! The process that a lost launcher's keeper leaves on its host: waits for its turn, and continues the job from the node's directory.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ckpt_glue::names::NodeIndex;
use launcher::error::LauncherError;
use launcher::succession::Candidacy;
use store::{Directory, JobDirectory};

use super::candidate::{Attempt, Candidate, Sight, Step};
use super::records::{EndRecord, Records};
use super::takeover::{LIMIT_MIN, Launch};
use super::watched_jobs::WatchingProcess;
use super::watcher::{Watched, Watcher, note};
use crate::arguments::RestartArguments;
use crate::commands::hosts::HostPlace;
use crate::commands::key::{KeyArgument, SignArgument};
use crate::commands::restart::open_job;
use crate::commands::run::{lock, read_settings, setting};
use crate::commands::succession::SuccessionArguments;
use crate::error::CliError;
use crate::exit::Exit;

/// Bytes of a candidacy: its paths have 4096 each.
const CANDIDACY_BYTES_MAX: u64 = 64 << 10;

/// Reads the candidacy from standard input. Returns when another launcher has the job, the job is over, or nothing is left to try.
pub(crate) fn succeed() -> Result<Exit, CliError> {
    let mut text = Vec::new();
    io::stdin().lock().take(CANDIDACY_BYTES_MAX).read_to_end(&mut text)?;
    let candidacy: Candidacy = serde_json::from_slice(&text).map_err(io::Error::from)?;
    Successor::new(candidacy)?.run()
}

struct Successor {
    candidacy: Candidacy,
    machine: Candidate,
    started: Instant,
    records: Records,
    watcher: Watcher,
    /// The records of the run have been begun, so somebody may read them.
    has_begun: bool,
}

impl Successor {
    fn new(candidacy: Candidacy) -> Result<Successor, CliError> {
        let (silence, tries_for) = (candidacy.silence, candidacy.options.tries_for);
        Ok(Successor {
            machine: Candidate::new(candidacy.position, silence, tries_for, random()?),
            started: Instant::now(),
            records: Records::of(&candidacy.directory),
            watcher: Watcher::new(None)?,
            has_begun: false,
            candidacy,
        })
    }

    fn run(&mut self) -> Result<Exit, CliError> {
        let _listed = WatchingProcess::list(&self.candidacy.job)?;
        loop {
            match self.machine.poll(self.started.elapsed()) {
                Step::Wait(time) => {
                    if self.watcher.pause(time)? {
                        return self.give_up(Exit::Stopped, "a user ended it");
                    }
                }
                Step::Look => {
                    let sight = look(&self.candidacy);
                    self.machine.saw(self.started.elapsed(), sight);
                }
                Step::Begin => match self.attempt() {
                    Ok(exit) => return Ok(exit),
                    Err(attempt) => self.machine.tried(self.started.elapsed(), attempt, random()?),
                },
                Step::Leave => return self.leave(),
                Step::GiveUp(why) => return self.give_up(Exit::JobFailed, &why),
            }
        }
    }

    /// Starts a launcher, and watches the job to its end if it runs.
    fn attempt(&mut self) -> Result<Exit, Attempt> {
        let failed = |error: CliError| judge(&error);
        let launch = self.begin().map_err(failed)?;
        match self.watcher.run(launch).map_err(failed)? {
            Watched::Over(code) => Ok(Exit::Program(code)),
            Watched::NotBegun(attempt) => Err(attempt),
        }
    }

    fn begin(&mut self) -> Result<Launch, CliError> {
        let candidacy = &self.candidacy;
        let directory = &candidacy.directory;
        move_here(directory, candidacy)?;
        if !core::mem::replace(&mut self.has_begun, true) {
            self.records.begin(candidacy.job.clone())?;
            self.watcher.follow_job(directory)?;
            note(
                &self.records,
                &format!(
                    "the launcher of job {} is lost; this host, {}, continues the job from {}",
                    candidacy.job,
                    launcher::node_name(),
                    directory.display()
                ),
            );
        }
        Ok(Launch::Restart(Box::new(restart(candidacy))))
    }

    fn leave(&self) -> Result<Exit, CliError> {
        if self.has_begun {
            let why = "another launcher has the job now: `stillwire ps` on its hosts shows which";
            note(&self.records, why);
            let end = EndRecord { exit_code: Exit::Failed.code(), error: Some(why.to_owned()), report: None };
            self.records.note_end(&end)?;
        }
        Ok(Exit::Success)
    }

    fn give_up(&self, exit: Exit, why: &str) -> Result<Exit, CliError> {
        if self.has_begun {
            let path = self.candidacy.directory.display();
            let error = format!(
                "the job is not continued from this host: {why}. `stillwire restart {path}` here tries again"
            );
            note(&self.records, &error);
            self.records.note_end(&EndRecord { exit_code: exit.code(), error: Some(error), report: None })?;
        }
        Ok(exit)
    }
}

/// The command of the new launcher.
fn restart(candidacy: &Candidacy) -> RestartArguments {
    let options = &candidacy.options;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = |ends| Duration::from_millis(ends).saturating_sub(now).max(LIMIT_MIN);
    RestartArguments {
        directory: candidacy.directory.clone(),
        time_limit: candidacy.ends_unix_ms.map(left),
        key: KeyArgument::of(options.key_file.clone().map(PathBuf::from)),
        sign: SignArgument::of(options.sign_file.clone().map(PathBuf::from)),
        quiet: options.quiet,
        verbose: options.verbose,
        detach: true,
        // The job file has the rest. Too few hosts to continue the job once more are no reason not to run it.
        succession: SuccessionArguments { successor_tries: Some(options.tries_for), ..Default::default() },
        is_candidates: true,
        ..RestartArguments::default()
    }
}

/// The lock is free for an instant only while its holder's guard and the next keeper change places, and a candidate waits longer than that.
fn look(candidacy: &Candidacy) -> Sight {
    let is_held = match File::open(&candidacy.lock) {
        Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
        Err(_) => false,
    };
    if is_held {
        return Sight::Taken;
    }
    if launcher::nodes::is_of_former_layout(&candidacy.directory) {
        return Sight::Over;
    }
    match open_job(&candidacy.directory).and_then(|(mut directory, _)| is_over(&mut directory)) {
        Ok(false) => Sight::Free,
        Ok(true) | Err(_) => Sight::Over,
    }
}

fn is_over(directory: &mut JobDirectory<Directory>) -> Result<bool, CliError> {
    // A record that cannot be read says nothing: other nodes have it too.
    Ok(directory.end()?.is_some() || directory.job_end().is_ok_and(|end| end.is_some()))
}

/// In the job file, this host becomes the launcher's, and the lost launcher's host one that is reached like any other.
fn move_here(path: &Path, candidacy: &Candidacy) -> Result<(), CliError> {
    // A resolver may take its time.
    let launcher = candidacy.launcher.reachable_name();
    let storage = Directory::open(path)?;
    let _lock = lock(&storage, path)?;
    let (_, mut file) = open_job(path)?;
    let settings = read_settings(&file)?;
    let addresses = candidacy.addresses.parse().map_err(io::Error::other)?;
    let here = HostPlace { node: NodeIndex(candidacy.node), addresses, launcher: &launcher };
    let moved = settings.hosts.moved_to(&here);
    let texts = [(setting::HOSTS, moved.hosts_text()), (setting::SPARE_HOSTS, moved.spare_hosts_text())];
    let before = file.settings.clone();
    for (name, text) in texts {
        match text {
            Some(text) => file.settings.insert(name.to_owned(), text),
            None => file.settings.remove(name),
        };
    }
    if file.settings != before {
        JobDirectory::renew(storage, &file)?;
    }
    Ok(())
}

/// What an error means for later attempts.
pub(super) fn judge(error: &CliError) -> Attempt {
    match error {
        CliError::Locked { .. } => Attempt::Taken,
        CliError::Finished { .. }
        | CliError::NothingToRestart
        | CliError::NoJob { .. }
        | CliError::EncryptedUnsaid { .. }
        | CliError::NoImageKey { .. }
        | CliError::OtherImageKey { .. }
        | CliError::FlushKey { .. }
        | CliError::FlushSign { .. }
        | CliError::Launcher(
            LauncherError::NodeAhead { .. }
            | LauncherError::LivesDiverge { .. }
            | LauncherError::OtherLayout { .. }
            | LauncherError::JobOver { .. },
        ) => Attempt::Impossible(error.to_string()),
        _ => Attempt::Failed(error.to_string()),
    }
}

fn random() -> Result<u64, CliError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|_| LauncherError::NoRandomness)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use ckpt_glue::protection::seat::JobEnd;
    use launcher::succession::{LauncherHost, SuccessorOptions};
    use store::{CheckpointSettings, JobFile};
    use transport::JobId;

    use super::*;

    /// A node's directory of a job with one life, below a root of its own.
    fn node(root: &Path) -> (Candidacy, JobDirectory<Directory>) {
        let path = root.join("1");
        let file = JobFile {
            job: JobId(7),
            ranks: 1,
            checkpoint: CheckpointSettings { every_ms: None, keep: 1 },
            directory: b"/".to_vec(),
            command: vec![b"program".to_vec()],
            environment: Vec::new(),
            settings: std::collections::BTreeMap::new(),
        };
        let storage = Directory::create(&path).expect("a folder");
        let mut directory = JobDirectory::create(storage, &file).expect("a job");
        directory.start_life(1, None).expect("a life");
        let candidacy = Candidacy {
            job: "7".to_owned(),
            node: 1,
            directory: path,
            lock: root.join("lock-1"),
            addresses: "10.0.0.2".to_owned(),
            launcher: LauncherHost { name: "a".to_owned(), address: Some([10, 0, 0, 1].into()) },
            position: 0,
            silence: Duration::from_secs(5),
            ends_unix_ms: None,
            options: SuccessorOptions::default(),
        };
        (candidacy, directory)
    }

    #[test]
    fn a_candidate_leaves_a_job_that_is_over_or_has_another_layout() {
        let root = tempfile::tempdir().expect("a folder");
        let (candidacy, mut directory) = node(root.path());
        assert_eq!(look(&candidacy), Sight::Free);
        std::fs::write(root.path().join("left"), b"").expect("a file");
        assert_eq!(look(&candidacy), Sight::Over);
        std::fs::remove_file(root.path().join("left")).expect("a file");
        let life = directory.newest_decision().expect("readable").expect("a life").life;
        directory.write_job_end(JobEnd { life, has_finished: false }).expect("it is written");
        assert_eq!(look(&candidacy), Sight::Over);
        directory.start_life(2, None).expect("a person restarts it");
        assert_eq!(look(&candidacy), Sight::Free);
        for error in [
            LauncherError::JobOver { has_finished: false },
            LauncherError::OtherLayout { host: String::new(), problem: String::new() },
        ] {
            assert!(matches!(judge(&error.into()), Attempt::Impossible(_)));
        }
    }

    #[test]
    fn the_job_file_is_not_changed_below_another_launcher() {
        let root = tempfile::tempdir().expect("a folder");
        let (candidacy, mut directory) = node(root.path());
        let held = directory.storage().lock().expect("a lock");
        let refused = move_here(&candidacy.directory, &candidacy).expect_err("another one has it");
        assert_eq!(judge(&refused), Attempt::Taken);
        drop(held);
        move_here(&candidacy.directory, &candidacy).expect("it is free");
    }
}
