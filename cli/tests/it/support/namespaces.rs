//! Tests that run themselves again in namespaces of their own (the tools `unshare` and `ip`).

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{children_of, done, wait_until};

const INSIDE: &str = "STILLWIRE_TEST_INSIDE";

/// True inside: go on. False outside, when the test `name` of this module has run inside and passed. `options` of unshare(1) name the namespaces.
///
/// # Errors
/// The tools that are missing here.
pub(crate) fn enter(module: &str, name: &str, options: &[&str]) -> Result<bool, String> {
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
    command
        .args(["--exact", &format!("{module}::{name}"), "--nocapture"])
        .env(INSIDE, "1")
        .env("XDG_RUNTIME_DIR", runtime.path());
    let done = done(&mut command);
    assert_eq!(done.code, Some(0), "{}\n{}", done.stdout, done.stderr);
    Ok(false)
}

/// A host: network, processes and a name of its own, with the address 10.78.NUMBER.1. The namespace of the test, a user's own, is the router between all of them.
pub(crate) struct Host {
    unshare: Child,
    /// Its first process.
    pub(crate) first: u32,
}

impl Host {
    pub(crate) fn new(number: u32) -> Host {
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child", "sleep", "3600"]);
        let unshare = command.stdin(Stdio::null()).spawn().expect("the tool");
        let first = || {
            let found = children_of(unshare.id()).into_iter().next()?;
            let words = std::fs::read(format!("/proc/{found}/cmdline")).ok()?;
            words.starts_with(b"sleep").then_some(found)
        };
        wait_until("a host has come up", || first().is_some());
        let first = first().expect("it was there");
        let (outside, address) = (format!("to{number}"), format!("10.78.{number}"));
        tool("ip", &format!("link add {outside} type veth peer name eth0 netns {first}"));
        tool("ip", &format!("address add {address}.254/24 dev {outside}"));
        tool("ip", &format!("link set {outside} up"));
        for words in [
            format!("address add {address}.1/24 dev eth0"),
            "link set eth0 up".to_owned(),
            "link set lo up".to_owned(),
            format!("route add default via {address}.254"),
        ] {
            tool("nsenter", &format!("-t {first} -n ip {words}"));
        }
        Host { unshare, first }
    }

    /// The remote shell's command that runs its arguments there.
    pub(crate) fn entrance(&self) -> String {
        format!("exec nsenter -t {} -n -u -p -m -- \"$@\"", self.first)
    }
}

impl Drop for Host {
    /// All its processes end, and its network with them.
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// Runs a tool.
pub(crate) fn tool(name: &str, arguments: &str) {
    let status = Command::new(name).args(arguments.split(' ')).status().expect("the tool");
    assert!(status.success(), "{name} {arguments}");
}
