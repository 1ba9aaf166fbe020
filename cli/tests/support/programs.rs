//! Programs that know nothing of checkpoints.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The provider's library, as cargo has built it for these tests.
pub(crate) fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a running test");
    let path = own.parent().expect("target/…/deps").join("libstillwire_fi.so");
    assert!(path.is_file(), "{}: a dependency of these tests", path.display());
    path
}

/// A program of the folder `tests/programs`, compiled once by each test executable, or before (`tests/guest`).
pub(crate) fn program(name: &str) -> String {
    if let Ok(prebuilt) = std::env::var("STILLWIRE_TEST_PREBUILT") {
        return format!("{prebuilt}/{name}");
    }
    static PROGRAMS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = programs.get(name) {
        return program.clone();
    }
    let source = format!("{}/../tests/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let program = format!("{}/{name}-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let output = Command::new("cc").args(["-O1", "-o", &program, &source]).output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    programs.insert(name.to_owned(), program.clone());
    program
}

pub(crate) fn steps() -> String {
    program("steps")
}

/// What `steps` prints last when nothing happens to it.
pub(crate) fn sum(arguments: &[&str]) -> String {
    let output = Command::new(steps()).args(arguments).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("words");
    text.lines().last().expect("a sum").to_owned()
}
