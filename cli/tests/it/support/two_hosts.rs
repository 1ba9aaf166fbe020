//! Two hosts that are network namespaces, with two pairs of virtual Ethernet devices between them, and a job on them.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::namespaces::tool;
use super::{Done, Place, Running, done, stillwire, wait_until};

/// Here is one host, 10.78.0.1; the other one, 10.78.0.2, is the namespace of a process that does nothing. On a second network, for shorter frames, they are
/// 10.79.0.1 and 10.79.0.2.
pub(crate) struct TwoHosts {
    pub(crate) place: Place,
    other: Child,
    shell: String,
}

impl TwoHosts {
    pub(crate) fn new() -> TwoHosts {
        let place = Place::new();
        let mut other = Command::new("unshare")
            .args(["--net", "--mount", "--", "sh", "-c", "echo; exec sleep 600"])
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .expect("a namespace");
        let pid = other.id();
        let mut line = [0];
        let said = std::io::Read::read_exact(&mut other.stdout.take().expect("a pipe"), &mut line);
        said.expect("it is in its namespace");
        tool("ip", "link set lo up");
        let there = |arguments: &str| {
            let mut command = Command::new("nsenter");
            command.args(["-t", &pid.to_string(), "-n", "ip"]).args(arguments.split(' '));
            assert!(command.status().expect("the tool").success(), "over there: {arguments}");
        };
        there("link set lo up");
        for (device, network, mtu) in [("eth0", "10.78.0", 1500), ("eth1", "10.79.0", 1280)] {
            tool("ip", &format!("link add {device} type veth peer name {device} netns {pid}"));
            tool("ip", &format!("addr add {network}.1/24 dev {device}"));
            tool("ip", &format!("link set {device} up mtu {mtu}"));
            there(&format!("addr add {network}.2/24 dev {device}"));
            there(&format!("link set {device} up mtu {mtu}"));
        }
        let shell =
            place.remote_shell(&format!("shift; exec nsenter -t {pid} -n -m --wd=\"$PWD\" sh -c \"$*\""));
        TwoHosts { place, other, shell }
    }

    /// Options that have one rank run on each; the network is all that they talk over, and it carries no parity.
    pub(crate) fn options(&self) -> Vec<&str> {
        let hosts = "localhost:1@10.78.0.1,other:1@10.78.0.2";
        vec!["--hosts", hosts, "--remote-shell", &self.shell, "--parity", "none"]
    }

    /// Runs a command on the other one.
    pub(crate) fn there(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.other.id().to_string(), "-n", "-m"]).args(words);
        command
    }

    /// Starts the sort on both, with its checkpoints.
    pub(crate) fn run(&self, options: &[&str]) -> Running {
        self.run_by(&[], options)
    }

    /// The same by a program that starts it.
    pub(crate) fn run_by(&self, starter: &[&str], options: &[&str]) -> Running {
        let mut command = stillwire(&["run", "-n", "2", "--ckpt-every", "60ms", "--rails", "nic"]);
        command.arg("--ckpt-dir").arg(self.place.job()).args(self.options()).args(options);
        command.arg("--").args(starter).args(self.place.sort());
        Running::start(command)
    }

    /// Kills the job's launcher, and with it the job.
    pub(crate) fn kill(&self, job: Running) {
        job.signal("KILL");
        job.finish();
        wait_until("the guards have cleaned up", || self.place.lock_is_free());
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        let _ = self.other.kill();
        let _ = self.other.wait();
    }
}

/// The NICs over which the ranks of the one job here report that they reach other hosts.
pub(crate) fn nics() -> Vec<String> {
    let listed = done(&mut stillwire(&["ps", "--json"])).json();
    let ranks = listed["jobs"][0]["status"]["each_rank"].as_array().cloned().unwrap_or_default();
    ranks.iter().filter_map(|rank: &Value| Some(rank["nic"].as_str()?.to_owned())).collect()
}

pub(crate) fn wait_for_nics(expected: &str) {
    wait_until(&format!("both ranks say {expected}"), || {
        let nics = nics();
        nics.len() == 2 && nics.iter().all(|nic| nic.starts_with(expected))
    });
}

/// Asks the one job here to have its ranks go over another NIC.
pub(crate) fn rail(options: &[&str]) -> Done {
    let listed = done(&mut stillwire(&["ps", "--json"])).json();
    let job = listed["jobs"][0]["job"].as_str().expect("it runs").to_owned();
    done(stillwire(&["rail", &job]).args(options))
}

/// As [`rail`], of a NIC that a rank here may have left a moment ago: on a busy machine the kernel lets go of its queue later than a new rail waits for it.
pub(crate) fn rail_when_free(options: &[&str]) -> Done {
    let mut asked = rail(options);
    wait_until("the kernel has let go of the queue", || {
        let is_held =
            asked.stdout.contains("binding to a queue of the device failed (Device or resource busy");
        if is_held {
            asked = rail(options);
        }
        !is_held
    });
    asked
}
