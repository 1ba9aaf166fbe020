//! The program `stillwire-dev`, and beside it the launcher and the provider, as cargo has built them.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nothing in these tests takes so long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// The executable under test.
pub(crate) const DEV: &str = env!("CARGO_BIN_EXE_stillwire-dev");

pub(crate) fn dev(arguments: &[&str]) -> Command {
    let mut command = Command::new(DEV);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn done(command: &mut Command) -> Done {
    let Output { status, stdout, stderr } = command.output().expect("the executable starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Done { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The message is on standard error and has all these words.
    pub(crate) fn says(&self, words: &[&str]) {
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is missing: {self:?}");
        }
    }
}

/// The command line is rejected with a message that has these words.
pub(crate) fn refused(arguments: &[&str], words: &[&str]) {
    let done = done(&mut dev(arguments));
    assert_eq!(done.code, Some(2), "{done:?}");
    done.says(words);
}

/// The launcher. Tests of the workspace build it; where this package's are built alone, it is built here.
pub(crate) fn launcher() -> &'static Path {
    static LAUNCHER: OnceLock<PathBuf> = OnceLock::new();
    LAUNCHER.get_or_init(|| {
        let path = Path::new(DEV).with_file_name("stillwire");
        if !path.is_file() {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let status = Command::new(cargo)
                .args(["build", "--quiet", "--package", "stillwire"])
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .status();
            assert!(status.is_ok_and(|status| status.success()), "cargo builds the launcher");
        }
        assert!(path.is_file(), "{}: cargo build --package stillwire makes it", path.display());
        path
    })
}

/// The provider's library.
pub(crate) fn library() -> PathBuf {
    let path = Path::new(DEV).with_file_name("deps").join("libstillwire_fi.so");
    assert!(path.is_file(), "{}: a dependency of these tests", path.display());
    path
}

pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.is_ok(), "kill -{name} {pid}");
}

pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("a proc file system");
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(ppid, _)| ppid == parent)).collect()
}

/// All processes below one.
pub(crate) fn descendants(of: u32) -> Vec<u32> {
    children_of(of).into_iter().flat_map(|pid| [vec![pid], descendants(pid)].concat()).collect()
}

/// Whether a process exists and is not only waiting to be collected.
pub(crate) fn runs(pid: u32) -> bool {
    stat(pid).is_some_and(|(_, state)| state != 'Z')
}

/// Parent and state of a process.
fn stat(pid: u32) -> Option<(u32, char)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "waited {PATIENCE:?} until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
