//! Tests that run themselves again in namespaces of their own (the tools `unshare` and `ip`).

use std::path::Path;
use std::process::{Command, Stdio};

use super::done;

const INSIDE: &str = "STILLWIRE_TEST_INSIDE";

/// True inside: go on. False outside, when the test `name` has run inside and passed. `options` of unshare(1) say which namespaces.
///
/// # Errors
/// What is missing here.
pub(crate) fn enter(name: &str, options: &[&str]) -> Result<bool, String> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(true);
    }
    let in_namespaces = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(options).arg("--").arg(program);
        command
    };
    let works = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if !works(&mut in_namespaces(Path::new("true"))) || !works(Command::new("ip").arg("-V")) {
        return Err(format!("no namespaces of one's own here (unshare {}, ip)", options.join(" ")));
    }
    let runtime = tempfile::tempdir().expect("a folder");
    let mut command = in_namespaces(&std::env::current_exe().expect("it runs"));
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").env("XDG_RUNTIME_DIR", runtime.path());
    let done = done(&mut command);
    assert_eq!(done.code, Some(0), "{}\n{}", done.stdout, done.stderr);
    Ok(false)
}

/// Runs a tool.
pub(crate) fn tool(name: &str, arguments: &str) {
    let status = Command::new(name).args(arguments.split(' ')).status().expect("the tool");
    assert!(status.success(), "{name} {arguments}");
}
