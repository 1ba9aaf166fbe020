//! For tests that need more than every machine has: included by path wherever there is one.

use std::io::Write as _;

/// Says that a test cannot run here: on standard error, which `cargo test` shows of tests that fail, and in the file that
/// CHECK_SKIPPED names, which `./check` prints at its end.
pub(crate) fn skipped(test: &str, missing: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {missing}");
    if let Some(path) = std::env::var_os("CHECK_SKIPPED") {
        let mut file =
            std::fs::OpenOptions::new().create(true).append(true).open(path).expect("the file of ./check");
        // One write, so that lines of several tests do not mix.
        file.write_all(format!("{test}: {missing}\n").as_bytes()).expect("room for a line");
    }
}
