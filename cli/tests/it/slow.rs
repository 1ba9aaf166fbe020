//! One node among fast ones is slow: its link has a real limit (`tc`, token bucket), in namespaces that are hosts. The program runs on, and the late
//! node is reported.

use std::fs;
use std::process::Command;

use crate::support::namespaces::{Host, enter, tool};
use crate::support::{Place, Running, done, stillwire, verified, wait_until};

/// Of the slow link, in both directions: a round of the program takes about a second, and protecting takes several times as long as it may.
const RATE: &str = "1mbit";

/// Three hosts, `a`, `b` and `c`, with a rank each, and one more on `a`.
struct Hosts {
    place: Place,
    shell: String,
    hosts: Vec<Host>,
}

impl Hosts {
    /// `None` outside, when the test `name` has run inside, or cannot.
    fn inside(name: &str) -> Option<Hosts> {
        let inside = enter("slow", name, &["--user", "--map-root-user", "--mount", "--net"]);
        inside.as_ref().err().inspect(|missing| crate::skipped::skipped(name, missing));
        if inside != Ok(true) {
            return None;
        }
        if Command::new("tc").arg("-V").output().is_err() {
            crate::skipped::skipped(name, "no tool `tc`");
            return None;
        }
        tool("ip", "link set lo up");
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a router");
        let place = Place::new();
        let entrances = place.folder.path().join("entrances");
        fs::create_dir(&entrances).expect("a directory can be made");
        let host = |(number, name): (u32, &str)| {
            let host = Host::new(number);
            fs::write(entrances.join(name), host.entrance()).expect("a file can be written");
            host
        };
        let hosts = (1..).zip(["a", "b", "c"]).map(host).collect();
        let shell = place.remote_shell(&format!("host=$1; shift; cd /; . {}/$host", entrances.display()));
        Some(Hosts { place, shell, hosts })
    }

    fn run(&self) -> Running {
        let disks = self.place.folder.path().join("disks").display().to_string();
        let named = "a:2@10.78.1.1,b:1@10.78.2.1,c:1@10.78.3.1";
        let job = self.place.run(&[
            "--hosts",
            named,
            "--remote-shell",
            &self.shell,
            "--node-dir",
            &disks,
            "--parity",
            "xor",
            "--ckpt-every",
            "200ms",
            "--ckpt-timeout",
            "2s",
        ]);
        self.protected(job)
    }

    /// Two generations have been protected and committed.
    fn protected(&self, mut job: Running) -> Running {
        job.wait_for("committed");
        job.wait_for("committed");
        job
    }

    /// Changes both directions of the link of `c`.
    fn link(&self, change: &str) {
        tool("tc", &format!("qdisc {change}").replace("DEVICE", "to3"));
        let inside = format!("-t {} -n tc qdisc {change}", self.hosts[2].first);
        tool("nsenter", &inside.replace("DEVICE", "eth0"));
    }

    fn slow_down(&self) {
        self.link(&format!("add dev DEVICE root tbf rate {RATE} burst 8000 latency 100ms"));
    }

    fn speed_up(&self) {
        self.link("del dev DEVICE root");
    }

    /// Waits until a checkpoint is lost to `c`, and to no other one.
    fn wait_for_late(&self, job: &mut Running) -> String {
        let reported = job.wait_for("; late: ");
        let late = reported.split("; late: ").nth(1).expect("who is late").to_owned();
        assert!(late.starts_with("c (its data was on its link for "), "{reported}");
        assert!(!late.contains("a (") && !late.contains("b ("), "{reported}");
        assert!(reported.contains("the program continues, and generation"), "{reported}");
        job.wait_for("was abandoned");
        self.place.generations("committed").pop().expect("a generation")
    }
}

// R27: a late node costs that generation and nothing else.
#[test]
fn a_slow_node_is_named_and_costs_checkpoints_until_it_is_fast_again() {
    let Some(hosts) = Hosts::inside("a_slow_node_is_named_and_costs_checkpoints_until_it_is_fast_again")
    else {
        return;
    };
    let mut job = hosts.run();
    hosts.slow_down();
    hosts.wait_for_late(&mut job);
    // More than one is abandoned, which is reported once; one of which the program, which is slow as well, has changed little may come through in time.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let newest = hosts.place.generations("committed").pop().expect("a generation");
    // The last one that was protected stays as it was.
    let whole = done(&mut stillwire(&["verify", &hosts.place.job_text(), "--generation", &newest]));
    assert_eq!(whole.code, Some(0), "{whole:?}");
    hosts.speed_up();
    let mut job = hosts.protected(job);
    assert_ne!(hosts.place.generations("committed").pop(), Some(newest));
    job.wait_for("committed");
    hosts.place.let_end();
    let done = job.finish();
    assert!(!done.stderr.contains("rolling back"), "{done:?}");
    verified(&done);
}

#[test]
fn what_was_protected_before_a_node_became_slow_is_restored_while_it_is() {
    let Some(hosts) = Hosts::inside("what_was_protected_before_a_node_became_slow_is_restored_while_it_is")
    else {
        return;
    };
    let mut job = hosts.run();
    hosts.slow_down();
    let newest = hosts.wait_for_late(&mut job);
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || hosts.place.lock_is_free());
    hosts.place.let_end();
    let mut job = hosts.place.restart(&[]);
    job.wait_for(&format!("begins from generation {newest}"));
    job.wait_for("all ranks run");
    hosts.speed_up();
    verified(&job.finish());
}
