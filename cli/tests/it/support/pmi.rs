//! Ranks that speak PMI-1 step by step, in the steps of a test, and a file that stands for the provider.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::programs::compiled;
use super::{Done, done, stillwire};

pub(crate) fn cc(arguments: &[&str]) {
    let output = Command::new("cc").args(arguments).output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The client.
pub(crate) fn client() -> String {
    compiled("/tests/pmi/client.c")
}

/// A folder with a file that stands for the provider.
pub(crate) fn provider() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libstillwire_fi.so"), vec![0; 4096]).unwrap();
    folder
}

pub(crate) const INIT: [&str; 2] =
    ["say:cmd=init pmi_version=1 pmi_subversion=1", "hear:cmd=response_to_init"];
pub(crate) const BARRIER: [&str; 2] = ["say:cmd=barrier_in", "hear:cmd=barrier_out"];
pub(crate) const END: [&str; 2] = ["say:cmd=finalize", "hear:cmd=finalize_ack"];

/// Runs clients with these steps after `init`.
pub(crate) fn clients(provider: &Path, ranks: u32, options: &[&str], steps: &[&[&str]]) -> Command {
    let mut command = stillwire(&["run", "-n", &ranks.to_string()]);
    command.env("STILLWIRE_PROVIDER", provider).args(options).args(["--", &client()]).args(INIT);
    for step in steps {
        command.args(*step);
    }
    command
}

pub(crate) fn ends(ranks: u32, options: &[&str], steps: &[&[&str]]) -> Done {
    let provider = provider();
    done(&mut clients(provider.path(), ranks, options, steps))
}
