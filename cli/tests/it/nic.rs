//! Jobs over a NIC of their own: two hosts that are network namespaces, with a pair of virtual Ethernet devices between them.
//!
//! AF_XDP takes the rights of the system's administrator, and those of a user namespace do not count: elsewhere the tests that need it are skipped
//! with a message.

use std::process::{Command, Stdio};

use crate::support::namespaces::{enter, tool};
use crate::support::two_hosts::{TwoHosts, nics, rail, rail_when_free, wait_for_nics};
use crate::support::{Place, Running, STILLWIRE, done, runs, signal, stillwire, verified, wait_until};
use serde_json::Value;

/// True outside, when the test `name` has run in a network of its own, or cannot. False inside: go on.
fn outside(name: &str) -> bool {
    let inside = match drivers::xdp::check_capabilities() {
        Ok(()) => enter("nic", name, &["--net", "--mount"]),
        Err(missing) => Err(missing.to_string()),
    };
    inside.as_ref().err().inspect(|missing| crate::skipped::skipped(name, missing));
    inside != Ok(true)
}

/// Frames that have passed around the kernel are in no counter of its sockets, but the device has counted them.
fn device_frames() -> u64 {
    let output = Command::new("ip").args(["-j", "-s", "link", "show", "eth0"]).output().expect("the tool");
    let listed: Value = serde_json::from_slice(&output.stdout).expect("a list");
    listed[0]["stats64"]["rx"]["packets"].as_u64().expect("a number")
}

/// Packets that the kernel has handed to sockets in this namespace.
fn kernel_datagrams() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("a proc file system");
    // The second line of each protocol has its numbers; these are InDatagrams and InSegs.
    let of = |protocol: &str, at: usize| -> u64 {
        let line = text.lines().filter(|line| line.starts_with(protocol)).nth(1).expect("numbers");
        line.split(' ').nth(at).and_then(|number| number.parse().ok()).expect("a number")
    };
    of("Udp: ", 1) + of("Tcp: ", 10)
}

/// Of the frames that come from here on, less than half are handed to sockets.
fn frames_pass_around_the_kernel() {
    let (frames, datagrams) = (device_frames(), kernel_datagrams());
    wait_until("frames come", || device_frames() > frames + 200);
    let (frames, datagrams) = (device_frames() - frames, kernel_datagrams() - datagrams);
    assert!(datagrams * 2 < frames, "{datagrams} of {frames} came through the kernel");
}

#[test]
fn a_job_goes_from_one_nic_to_another_by_being_restarted() {
    if outside("a_job_goes_from_one_nic_to_another_by_being_restarted") {
        return;
    }
    let hosts = TwoHosts::new();
    let mut job = hosts.run(&["--nic", "xdp:eth0"]);
    job.wait_for("committed");
    wait_for_nics("xdp:eth0 (native, copying");
    frames_pass_around_the_kernel();
    hosts.kill(job);
    for nic in ["udp", "xdp:eth0", "udp"] {
        let mut job = hosts.place.restart(&["--nic", nic]);
        job.wait_for("begins from generation");
        job.wait_for("committed");
        wait_for_nics(nic);
        hosts.kill(job);
    }
    // Without a word it is the NIC that was named last; a rank that dies comes back on it.
    let mut job = hosts.place.restart(&["--nic", "xdp:eth0"]);
    job.wait_for("committed");
    hosts.kill(job);
    let mut job = hosts.place.restart(&[]);
    job.wait_for("committed");
    wait_for_nics("xdp:eth0");
    let rank = job.ranks()[0];
    signal(rank, "KILL");
    job.wait_for("rolling back");
    job.wait_for("all ranks run again");
    wait_for_nics("xdp:eth0");
    assert!(!runs(rank));
    job.wait_for("committed");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn auto_stays_with_udp_where_a_device_copies() {
    if outside("auto_stays_with_udp_where_a_device_copies") {
        return;
    }
    let hosts = TwoHosts::new();
    let mut job = hosts.run(&[]);
    job.wait_for("committed");
    let copies = "udp (not xdp:eth0: its driver copies frames";
    wait_for_nics(copies);
    hosts.kill(job);
    // Somebody else has a program at the device: it is left alone, and reported.
    let config = drivers::xdp::XdpConfig::new("eth0", "10.78.0.1:0".parse().expect("an address"));
    let theirs = drivers::xdp::XdpDriver::open(&config).expect("rights and a device");
    let mut job = hosts.place.restart(&[]);
    job.wait_for("committed");
    let taken = "attaching the program to the device failed, Device or resource busy";
    wait_until("each rank has told", || nics().len() == 2);
    let nics = nics();
    assert!(nics[0].starts_with("udp (not xdp:eth0: ") && nics[0].contains(taken), "{nics:?}");
    assert!(nics[1].starts_with(copies), "{nics:?}");
    drop(theirs);
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn ranks_go_from_one_nic_to_another_while_they_run() {
    if outside("ranks_go_from_one_nic_to_another_while_they_run") {
        return;
    }
    let hosts = TwoHosts::new();
    let mut job = hosts.run(&["--nic", "udp"]);
    job.wait_for("committed");
    let moved = rail(&["--nic", "xdp:eth0"]);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    let lines = ["rank 0  over xdp:eth0 (native, copying)", "rank 1  over xdp:eth0 (native, copying)"];
    assert_eq!(moved.stdout.lines().collect::<Vec<_>>(), lines);
    wait_for_nics("xdp:eth0");
    frames_pass_around_the_kernel();
    // To and fro, one of the two or both, while the sort goes on.
    for turn in 0..20 {
        let nic = if turn % 4 < 2 { "udp" } else { "xdp:eth0" };
        let rank = ["0", "1", "all"][turn % 3];
        let moved = rail_when_free(&["--nic", nic, "--rank", rank]);
        assert_eq!(moved.code, Some(0), "{moved:?}");
        assert!(moved.stdout.lines().all(|line| line.contains(&format!("  over {nic}"))), "{moved:?}");
    }
    let moved = rail_when_free(&["--nic", "xdp:eth0", "--json"]);
    assert_eq!(moved.json()["ranks"][1]["refused"], Value::Null, "{moved:?}");
    // The job's own choice is UDP; a rolled-back rank comes back over the NIC that it was given.
    signal(job.ranks()[0], "KILL");
    job.wait_for("all ranks run again");
    wait_for_nics("xdp:eth0");
    job.wait_for("committed");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_rank_that_cannot_have_a_nic_goes_on_as_it_was() {
    if outside("a_rank_that_cannot_have_a_nic_goes_on_as_it_was") {
        return;
    }
    let hosts = TwoHosts::new();
    let mut job = hosts.run(&["--nic", "udp"]);
    job.wait_for("committed");
    let refused = |options: &[&str], words: &str| {
        let asked = rail(options);
        assert_eq!(asked.code, Some(1), "{asked:?}");
        assert!(asked.stdout.contains(words) || asked.stderr.contains(words), "{words}: {asked:?}");
    };
    refused(&["--nic", "xdp:eth7"], "rank 1  over udp  refused: the NIC xdp:eth7 is not available");
    refused(&["--nic", "xdp:eth7"], "2 of 2 ranks do not go over xdp:eth7");
    refused(&["--nic", "xdp:lo"], "is not an address of lo");
    refused(&["--nic", "verbs:rxe0"], "rank 0  over udp  refused: ");
    refused(&["--nic", "verbs:rxe0"], "the NIC verbs:rxe0 is not available");
    refused(&["--nic", "verbs:rxe0", "--rank", "1"], "all ranks have to change it together");
    refused(&["--nic", "xdp:eth0", "--rank", "2"], "there is no rank 2, only 0 to 1");
    // The holder of the queue keeps it, and the rail is unchanged.
    let at = "10.78.0.1:0".parse().expect("an address");
    let config = drivers::xdp::XdpConfig::new("eth0", at);
    let theirs = drivers::xdp::XdpDriver::open(&config).expect("rights and a device");
    refused(&["--nic", "xdp:eth0", "--rank", "0"], "the rail is unchanged");
    drop(theirs);
    wait_for_nics("udp");
    job.wait_for("committed");
    // A rank that stands still answers nobody.
    let rank = job.ranks()[0];
    signal(rank, "STOP");
    refused(&["--nic", "udp", "--rank", "0"], "it has not answered in 10 s");
    signal(rank, "CONT");
    job.wait_for("committed");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_rank_without_rights_goes_on_as_it_was() {
    if outside("a_rank_without_rights_goes_on_as_it_was") {
        return;
    }
    let hosts = TwoHosts::new();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", STILLWIRE, "run", "-n", "1", "--rails", "nic"]);
    command.args(["--ckpt-every", "60ms", "--bind", "10.78.0.1", "--ckpt-dir"]).arg(hosts.place.job());
    command.stdin(Stdio::null()).arg("--").args(hosts.place.sort());
    let mut job = Running::start(command);
    job.wait_for("committed");
    let asked = rail(&["--nic", "xdp:eth0"]);
    assert_eq!(asked.code, Some(1), "{asked:?}");
    let missing = "AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, which this process lacks";
    assert!(asked.stdout.contains(missing), "{asked:?}");
    job.wait_for("committed");
    hosts.place.let_end();
    verified(&job.finish());
}

/// A helper that opens AF_XDP sockets for ranks here, until it is dropped.
struct Helper(Running);

impl Helper {
    /// On the host that `command` enters. Each host has its own folder for sockets.
    fn start(mut command: Command, arguments: &[&str]) -> Helper {
        let mut running = Running::start({
            command.args(arguments);
            command
        });
        running.wait_for("serves at /run/stillwire/nic.sock");
        Helper(running)
    }
}

#[test]
fn ranks_without_rights_have_a_helper() {
    if outside("ranks_without_rights_have_a_helper") {
        return;
    }
    let hosts = TwoHosts::new();
    tool("mount", "-t tmpfs none /run");
    let mounted = hosts.there(&["mount", "-t", "tmpfs", "none", "/run"]).status();
    assert!(mounted.is_ok_and(|status| status.success()), "a folder of the other host's own");
    let here = || Helper::start(stillwire(&[]), &["nic-helper", "--interface", "eth0"]);
    let helper = here();
    let there = Helper::start(hosts.there(&[STILLWIRE]), &["nic-helper", "--interface", "eth0"]);
    // Ranks may do nothing that the system's administrator alone may.
    let without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let mut job = hosts.run_by(&without, &["--nic", "xdp:eth0"]);
    job.wait_for("committed");
    let by_helper = "xdp:eth0 (native, copying, by nic-helper)";
    wait_for_nics(by_helper);
    for rank in job.ranks() {
        let status = std::fs::read_to_string(format!("/proc/{rank}/status")).expect("it runs");
        assert!(status.contains("CapEff:\t0000000000000000"), "rank with rights: {status}");
    }
    frames_pass_around_the_kernel();
    // A rank that dies leaves the queue to the one that comes for it.
    signal(job.ranks()[0], "KILL");
    job.wait_for("all ranks run again");
    job.wait_for("committed");
    wait_for_nics(by_helper);
    // The helper dies: frames go through the kernel, which the rank reports.
    helper.0.signal("KILL");
    helper.0.finish();
    let gone = "xdp:eth0 (its nic-helper is gone: frames pass through the kernel)";
    job.wait_for(&format!("rank 0: goes on over {gone}"));
    wait_until("`ps` says so", || nics().first().is_some_and(|nic| nic == gone));
    assert_eq!(nics()[1], by_helper);
    job.wait_for("committed");
    // Another one comes.
    let helper = here();
    let moved = rail_when_free(&["--nic", "xdp:eth0", "--rank", "0"]);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    wait_for_nics(by_helper);
    job.wait_for("committed");
    hosts.kill(job);
    let mut job = hosts.place.restart(&[]);
    job.wait_for("committed");
    wait_for_nics(by_helper);
    hosts.place.let_end();
    verified(&job.finish());
    for helper in [helper, there] {
        helper.0.signal("TERM");
        let ended = helper.0.finish();
        assert!(ended.stderr.contains("no program of it is left at any device"), "{ended:?}");
    }
}

/// The one sends no longer frames than the other takes, although its own device would: they would be lost without a report.
#[test]
fn hosts_of_different_mtus_understand_each_other() {
    if outside("hosts_of_different_mtus_understand_each_other") {
        return;
    }
    let hosts = TwoHosts::new();
    tool("ip", "link set eth0 mtu 9000");
    for nic in ["xdp:eth0", "udp"] {
        let mut job = hosts.run(&["--nic", nic]);
        job.wait_for("committed");
        job.wait_for("committed");
        wait_for_nics(nic);
        hosts.kill(job);
        std::fs::remove_dir_all(hosts.place.job()).expect("the job's folder");
    }
}

#[test]
fn a_rail_whose_device_goes_down_goes_on_over_udp() {
    if outside("a_rail_whose_device_goes_down_goes_on_over_udp") {
        return;
    }
    let hosts = TwoHosts::new();
    let mut job = hosts.run(&["--nic", "xdp:eth0"]);
    job.wait_for("committed");
    wait_for_nics("xdp:eth0");
    tool("ip", "link set eth0 down");
    job.wait_for("rank 0: goes on over udp (the rail before it died)");
    tool("ip", "link set eth0 up");
    wait_until("`ps` says so", || nics().first().is_some_and(|nic| nic == "udp (the rail before it died)"));
    assert!(nics()[1].starts_with("xdp:eth0"), "{:?}", nics());
    job.wait_for("committed");
    job.wait_for("committed");
    // With the device back it is available again.
    let moved = rail_when_free(&["--nic", "xdp:eth0", "--rank", "0"]);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    wait_for_nics("xdp:eth0");
    job.wait_for("committed");
    hosts.place.let_end();
    verified(&job.finish());
}

fn refused(ranks: &str, options: &[&str], prefix: &[&str], words: &[&str]) {
    let place = Place::new();
    let mut command = match prefix {
        [] => Command::new(STILLWIRE),
        [tool, rest @ ..] => {
            let mut command = Command::new(tool);
            command.args(rest).arg(STILLWIRE);
            command
        }
    };
    command.args(["run", "-n", ranks, "--ckpt-dir"]).arg(place.job()).args(options);
    let done = done(command.arg("--").args(place.sort()).stdin(Stdio::null()));
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(words);
    assert!(!done.stderr.contains("begins from"), "no rank is started: {done:?}");
}

#[test]
fn a_nic_that_is_named_and_cannot_be_had_is_an_error() {
    if outside("a_nic_that_is_named_and_cannot_be_had_is_an_error") {
        return;
    }
    let _hosts = TwoHosts::new();
    let here = ["--bind", "10.78.0.1", "--nic", "xdp:eth0"];
    let without_rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let grant = "have root run `stillwire nic-helper` on this host";
    let missing = "AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, which this process lacks";
    refused("1", &here, &without_rights, &["the NIC xdp:eth0 is not available", missing, grant]);
    let without_one = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"];
    refused("1", &here, &without_one, &["AF_XDP needs CAP_NET_RAW, which this process lacks", grant]);
    let elsewhere = "receive on 127.0.0.1, which is not an address of eth0 (10.78.0.1";
    refused("1", &["--nic", "xdp:eth0"], &[], &[elsewhere, "--bind"]);
    refused("1", &["--nic", "xdp:eth7"], &[], &["xdp:eth7 is not available", "No such device"]);
}

#[test]
fn ranks_that_share_a_host_cannot_share_a_device() {
    let shared = ["2 ranks share this host, and a device serves one AF_XDP rail"];
    refused("2", &["--nic", "xdp:lo"], &[], &shared);
}

#[test]
fn a_device_for_rdma_that_is_not_there_is_an_error() {
    refused(
        "1",
        &["--nic", "verbs:none"],
        &[],
        &["no rank can be started", "the NIC verbs:none is not available: "],
    );
}

#[test]
fn a_nic_is_checked_before_anything_starts() {
    let run = |options: &[&str]| {
        let mut command = stillwire(&["run", "-n", "1"]);
        done(command.args(options).args(["--", "true"]).env("STILLWIRE_NIC", "tcp"))
    };
    let by_variable = run(&[]);
    assert_eq!(by_variable.code, Some(2), "{by_variable:?}");
    by_variable.says(&["STILLWIRE_NIC: the NIC is 'tcp', expected auto, udp, xdp:INTERFACE"]);
    // The command's option takes precedence.
    let by_option = run(&["--nic", "udp"]);
    assert_eq!(by_option.code, Some(0), "{by_option:?}");
    let contradiction = run(&["--nic", "xdp:eth0", "--rails", "shm"]);
    contradiction.says(&["the rails are 'shm', which leaves no room for the NIC xdp:eth0"]);
}
