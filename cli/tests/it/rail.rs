//! R29: all ranks of a job that runs go on at other addresses, by command, and none does if one cannot.

use std::process::Stdio;
use std::time::Duration;

use crate::support::namespaces::{enter, tool};
use crate::support::two_hosts::{TwoHosts, nics, rail, rail_when_free, wait_for_nics};
use crate::support::{Done, signal, stillwire, verified, wait_until};
use serde_json::Value;
use store::JobFile;

/// True outside, when the test `name` has run in a network of its own, or cannot. False inside: go on.
fn outside(name: &str) -> bool {
    let inside = enter("rail", name, &["--net", "--mount"]);
    inside.as_ref().err().inspect(|missing| crate::skipped::skipped(name, missing));
    inside != Ok(true)
}

/// Frames that a device has received.
fn frames(device: &str) -> u64 {
    let listed =
        crate::support::done(std::process::Command::new("ip").args(["-j", "-s", "link", "show", device]));
    listed.json()[0]["stats64"]["rx"]["packets"].as_u64().expect("a number")
}

/// The process of a rank, on whichever host.
fn process_of(rank: usize) -> u32 {
    let pid = || {
        let listed = crate::support::done(&mut stillwire(&["ps", "--json"])).json();
        listed["jobs"][0]["status"]["each_rank"][rank]["pid"].as_u64()
    };
    wait_until("the rank has a process", || pid().is_some());
    pid().and_then(|pid| u32::try_from(pid).ok()).expect("it was there")
}

fn moved(options: &[&str], nic: &str) {
    let moved = rail(options);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    let expected = [format!("rank 0  over {nic}"), format!("rank 1  over {nic}")];
    assert_eq!(moved.stdout.lines().collect::<Vec<_>>(), expected, "{moved:?}");
}

fn refused(options: &[&str], words: &[&str]) -> Done {
    let asked = rail(options);
    assert_eq!(asked.code, Some(1), "{asked:?}");
    for words in words {
        assert!(asked.stdout.contains(words) || asked.stderr.contains(words), "{words}: {asked:?}");
    }
    asked
}

#[test]
fn all_ranks_go_to_another_address_and_back_while_they_run() {
    if outside("all_ranks_go_to_another_address_and_back_while_they_run") {
        return;
    }
    let hosts = TwoHosts::new();
    let mut job = hosts.run(&["--nic", "udp"]);
    job.wait_for("committed");
    moved(&["--nic", "udp:eth1"], "udp:eth1");
    wait_for_nics("udp:eth1");
    let before = [frames("eth0"), frames("eth1")];
    job.wait_for("committed");
    job.wait_for("committed");
    let [first, second] = [frames("eth0") - before[0], frames("eth1") - before[1]];
    assert!(second > 20 && first * 10 < second, "{first} frames by eth0, {second} by eth1");
    // To and fro, to frames that are shorter and longer, while the sort goes on and is saved.
    for turn in 0..10 {
        let nic = ["udp", "udp:eth1"][turn % 2];
        moved(&["--nic", nic], nic);
    }
    if drivers::xdp::check_capabilities().is_ok() {
        // The next one stays where this one is, the one after that does not.
        for nic in ["xdp:eth1", "udp:eth1", "xdp:eth0", "xdp:eth1"] {
            let asked = rail_when_free(&["--nic", nic]);
            assert!(
                asked.code == Some(0) && asked.stdout.contains(&format!("rank 1  over {nic}")),
                "{asked:?}"
            );
        }
    }
    moved(&["--nic", "udp:eth1"], "udp:eth1");
    // The job's own choice is another one; a rolled-back rank comes back over the NIC that was decided last.
    signal(process_of(0), "KILL");
    job.wait_for("all ranks run again");
    wait_for_nics("udp:eth1");
    job.wait_for("committed");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_change_that_one_rank_cannot_make_changes_none() {
    if outside("a_change_that_one_rank_cannot_make_changes_none") {
        return;
    }
    let hosts = TwoHosts::new();
    let mut job = hosts.run(&["--nic", "udp"]);
    job.wait_for("committed");
    refused(&["--nic", "udp:eth1", "--rank", "1"], &["all ranks have to change it together", "1 of 1 ranks"]);
    // A device that is on one host alone.
    tool("ip", "link add eth2 type veth peer name far2");
    tool("ip", "addr add 10.80.0.1/24 dev eth2");
    tool("ip", "link set eth2 up");
    let why = "the NIC udp:eth2 is not available: this host has no such interface";
    let others = format!("rank 0  over udp  refused: rank 1 does not: {why}");
    refused(&["--nic", "udp:eth2"], &[&others, &format!("rank 1  over udp  refused: {why}"), "2 of 2 ranks"]);
    // A silent one.
    let rank = process_of(1);
    signal(rank, "STOP");
    let silent = "rank 0  over udp  refused: rank 1: it has not answered in 10 s";
    refused(&["--nic", "udp:eth1"], &[silent]);
    signal(rank, "CONT");
    assert_eq!(nics(), ["udp", "udp"]);
    job.wait_for("committed");
    moved(&["--nic", "udp:eth1"], "udp:eth1");
    job.wait_for("committed");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_rank_that_is_killed_in_the_middle_leaves_all_on_one_nic() {
    if outside("a_rank_that_is_killed_in_the_middle_leaves_all_on_one_nic") {
        return;
    }
    let hosts = TwoHosts::new();
    let mut job = hosts.run(&["--nic", "udp"]);
    job.wait_for("committed");
    let listed = crate::support::done(&mut stillwire(&["ps", "--json"])).json();
    let id = listed["jobs"][0]["job"].as_str().expect("it runs").to_owned();
    let begin = |nic: &str| {
        let mut command = stillwire(&["rail", &id, "--nic", nic, "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tool")
    };
    // One stands still, so that it cannot be decided: the next life is over the NIC from before.
    let ranks = [0, 1].map(process_of);
    signal(ranks[1], "STOP");
    let asked = begin("udp:eth1");
    std::thread::sleep(Duration::from_millis(300));
    signal(ranks[0], "KILL");
    job.wait_for("all ranks run again");
    let answer = asked.wait_with_output().expect("it ends");
    let answer: Value = serde_json::from_slice(&answer.stdout).expect("an answer");
    let why = answer["ranks"][1]["refused"].as_str().expect("it is refused");
    assert!(why.contains("the NIC that they had") || why.contains("it has ended"), "{answer}");
    wait_for_nics("udp");
    assert_eq!(nics(), ["udp", "udp"]);
    job.wait_for("committed");
    // At any moment: both are over one, the old or the new.
    for (turn, delay) in (0..8).map(|turn| (turn, Duration::from_millis(turn * 4))) {
        let rank = process_of(usize::from(turn % 2 == 0));
        let asked = begin(["udp:eth1", "udp"][usize::from(turn % 4 > 1)]);
        std::thread::sleep(delay);
        signal(rank, "KILL");
        job.wait_for("all ranks run again");
        asked.wait_with_output().expect("it ends");
        wait_until("both ranks say over what they are", || nics().len() == 2);
        let nics = nics();
        assert_eq!(nics[0], nics[1], "in turn {turn}");
        job.wait_for("committed");
    }
    hosts.place.let_end();
    verified(&job.finish());
}

// A restarted job goes over the NIC that it went over when it ended.
#[test]
fn a_restart_goes_over_what_was_decided_last_while_its_hosts_are_the_same() {
    if outside("a_restart_goes_over_what_was_decided_last_while_its_hosts_are_the_same") {
        return;
    }
    let hosts = TwoHosts::new();
    let mut job = hosts.run(&["--nic", "udp"]);
    job.wait_for("committed");
    moved(&["--nic", "udp:eth1"], "udp:eth1");
    // Written down behind the checkpoints that are under way.
    wait_until("the job's file has the decision", || {
        let file = std::fs::read(hosts.place.job().join("job")).expect("a job has a file");
        JobFile::parse(&file).is_ok_and(|file| file.settings.values().any(|value| value == "udp:eth1"))
    });
    hosts.kill(job);
    for _ in 0..2 {
        let mut job = hosts.place.restart(&[]);
        job.wait_for("committed");
        wait_for_nics("udp:eth1");
        hosts.kill(job);
    }
    // Where a host was not before, nobody knows its NICs: the user's choice counts.
    let mut job = hosts.place.restart(&["--hosts", "localhost:1@10.78.0.1,third:1@10.78.0.2"]);
    job.wait_for(
        "ranks went over udp:eth1 last; with new hosts they go over udp, unless --nic says otherwise",
    );
    job.wait_for("committed");
    wait_until("both ranks say udp", || nics() == ["udp", "udp"]);
    moved(&["--nic", "udp:eth1"], "udp:eth1");
    hosts.kill(job);
    // Another choice counts from then on.
    for options in [&["--nic", "udp"][..], &[]] {
        let mut job = hosts.place.restart(options);
        job.wait_for("committed");
        wait_until("both ranks say udp", || nics() == ["udp", "udp"]);
        hosts.kill(job);
    }
    hosts.place.let_end();
    verified(&hosts.place.restart(&[]).finish());
}
