//! Programs that know nothing of checkpoints.

use std::path::PathBuf;
use std::process::Command;

/// The provider's library, as cargo has built it for these tests.
pub(crate) fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a running test");
    let path = own.parent().expect("target/…/deps").join("libstillwire_fi.so");
    assert!(path.is_file(), "{}: a dependency of these tests", path.display());
    path
}

/// A program of the folder `tests/programs`, compiled once, or before (`tests/guest`).
pub(crate) fn program(name: &str) -> String {
    if let Ok(prebuilt) = std::env::var("STILLWIRE_TEST_PREBUILT") {
        return format!("{prebuilt}/{name}");
    }
    compiled(&format!("/../tests/programs/{name}.c"))
}

/// The program of a C file, which is named from the crate's folder on.
pub(crate) fn compiled(source: &str) -> String {
    let source = format!("{}{source}", env!("CARGO_MANIFEST_DIR"));
    let program = crate::compiled::compiled(source.as_ref(), &["-O1"], env!("CARGO_TARGET_TMPDIR").as_ref());
    program.to_str().expect("a path of words").to_owned()
}

/// A library of the folder `tests/programs/libraries`.
pub(crate) fn compiled_library(name: &str) -> PathBuf {
    let source = format!("{}/../tests/programs/libraries/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let options = ["-O1", "-shared", "-fPIC", "-ldl"];
    crate::compiled::compiled(source.as_ref(), &options, env!("CARGO_TARGET_TMPDIR").as_ref())
}

pub(crate) fn steps() -> String {
    program("steps")
}

/// The last line that `steps` prints when nothing happens to it.
pub(crate) fn sum(arguments: &[&str]) -> String {
    let output = Command::new(steps()).args(arguments).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("words");
    text.lines().last().expect("a sum").to_owned()
}
