//! Files that ranks write, and that are longer at a restart than at the checkpoint: cut if they are the same files, and otherwise kept or refused.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::support::programs::library;
use crate::support::{Place, Running, stillwire, wait_until};

/// Appends lines to a log until a file exists.
const PROGRAM: &str = "\
import os, sys, time
log = open(sys.argv[1], 'a')
step = 0
while not os.path.exists(sys.argv[2]):
    step += 1
    print('step', step, 'of the log', file=log, flush=True)
    time.sleep(0.01)
print('done', flush=True)
";

struct Logging {
    place: Place,
    log: PathBuf,
}

impl Logging {
    /// A job that was killed after its second checkpoint.
    fn killed() -> Logging {
        let place = Place::new();
        let (program, log) = (place.folder.path().join("program.py"), place.folder.path().join("log"));
        fs::write(&program, PROGRAM).unwrap();
        let mut command = stillwire(&["run", "-n", "1", "--ckpt-every", "100ms", "--ckpt-dir"]);
        command.arg(place.job()).args(["--", "python3"]).arg(program).arg(&log).arg(place.enough());
        command.env("STILLWIRE_PROVIDER", library());
        let mut job = Running::start(command);
        job.wait_for("committed");
        job.wait_for("committed");
        job.signal("KILL");
        job.finish();
        wait_until("the guard has cleaned up", || place.lock_is_free());
        place.let_end();
        Logging { place, log }
    }

    fn restart(&self, options: &[&str]) -> crate::support::Done {
        let mut command = stillwire(&["restart", &self.place.job_text()]);
        command.args(options).env("STILLWIRE_PROVIDER", library());
        Running::start(command).finish()
    }

    fn kept(&self) -> PathBuf {
        self.place.folder.path().join("log.stillwire-kept-1")
    }
}

/// Steps of a log: each once, in order.
fn is_log(content: &str) -> bool {
    let steps = content.lines().map(|line| line.split(' ').nth(1)?.parse().ok());
    steps.eq((1..=content.lines().count()).map(Some))
}

#[test]
fn a_log_that_grew_after_the_checkpoint_is_cut_and_no_copy_is_kept() {
    let logging = Logging::killed();
    let before = fs::read_to_string(&logging.log).unwrap();
    let done = logging.restart(&["--changed-files", "refuse"]);
    assert!(done.code == Some(0) && done.stdout.contains("done"), "{done:?}");
    let after = fs::read_to_string(&logging.log).unwrap();
    assert!(is_log(&after) && before.starts_with(after.lines().next().unwrap()), "{after}");
    assert!(!logging.kept().exists());
}

/// Puts another file in the place of `path`, under the same number: as a program does that removes its log and begins anew. False: this file system gives no
/// number twice.
fn begun_anew(path: &Path, content: &[u8]) -> bool {
    let number = fs::metadata(path).unwrap().ino();
    fs::remove_file(path).unwrap();
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.metadata().unwrap().ino() == number
}

#[test]
fn a_file_that_took_the_place_of_the_log_is_kept_or_refused() {
    let logging = Logging::killed();
    let others = "all that another program has written since, for longer than the job has run\n".repeat(1000);
    if !begun_anew(&logging.log, others.as_bytes()) {
        // Then the file has another number, and is refused anyway.
        logging.restart(&[]).says(&["is not the file that was open at the checkpoint"]);
        return;
    }
    let refused = logging.restart(&["--changed-files", "refuse"]);
    refused.says(&["cannot be recognised as the file of then", "--changed-files keep-copy"]);
    assert!(refused.code != Some(0), "{refused:?}");
    assert_eq!(fs::read_to_string(&logging.log).unwrap(), others);
    let done = logging.restart(&[]);
    done.says(&["log.stillwire-kept-1 is a copy of it as it was found"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(fs::read_to_string(logging.kept()).unwrap(), others);
}
