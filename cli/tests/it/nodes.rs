//! Jobs of several nodes, and keepers that end: each node has a keeper's process of its own.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::support::threads::Still;
use crate::support::{
    Place, Running, STILLWIRE, children, done, keepers, runs, signal, stillwire, verified, wait_until,
};

#[test]
fn a_killed_keeper_costs_a_rollback() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "30ms"]);
    for _ in 0..2 {
        job.wait_for("committed");
        job.wait_for("committed");
        let (ranks, keeper) = (job.ranks(), keepers(job.pid()));
        assert_eq!((ranks.len(), keeper.len()), (4, 1));
        signal(keeper[0], "KILL");
        job.wait_for("all ranks run again");
        assert!(ranks.iter().all(|rank| !runs(*rank)), "ranks of a dead keeper go on");
        let info = done(&mut stillwire(&["ps", "--json"]));
        assert!(info.stdout.contains(&place.job_text()), "the job is listed no more: {info:?}");
    }
    place.let_end();
    verified(&job.finish());
}

// R27
#[test]
fn a_node_that_did_not_answer_before_a_life_protects_its_next_generation() {
    let place = Place::new();
    let mut job = place.run(&["--nodes", "3", "--parity", "xor", "--ckpt-every", "1h"]);
    job.wait_for("all ranks run");
    job.checkpoint();
    let still = Still::new(keepers(job.pid())[2], "stillwire-parity");
    signal(job.ranks()[0], "KILL");
    job.wait_for("without which nothing is protected: ");
    job.wait_for("all ranks run");
    drop(still);
    let mut commits = || {
        job.signal("USR1");
        job.wait_for_any(&["committed", "was abandoned"]).contains("committed")
    };
    // A rank may pass the point of a cut just then.
    assert!((0..5).any(|_| commits()), "{:?}", job.seen);
    place.let_end();
    verified(&job.finish());
}

// The keeper can do nothing: the kernel ends it with its launcher, and its guard does the rest.
#[test]
fn a_stopped_keeper_outlives_no_launcher() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "30ms"]);
    job.wait_for("committed");
    let mut all = children(job.pid());
    all.extend(keepers(job.pid()));
    assert_eq!(all.len(), 6, "four ranks, a keeper, its guard");
    signal(keepers(job.pid())[0], "STOP");
    job.signal("KILL");
    job.finish();
    wait_until("every process is gone", || all.iter().all(|pid| !runs(*pid)));
}

#[test]
fn ranks_and_keepers_of_several_nodes_are_killed() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "30ms", "--nodes", "3"]);
    for round in 0..3 {
        job.wait_for("committed");
        job.wait_for("committed");
        let mut victims = keepers(job.pid());
        assert_eq!(victims.len(), 3);
        victims.extend(job.ranks());
        signal(victims[2 * round], "KILL");
        job.wait_for("all ranks run again");
    }
    place.let_end();
    verified(&job.finish());
}

#[test]
fn a_job_goes_on_on_other_nodes() {
    let place = Place::new();
    let shell = place.remote_shell("shift; exec \"$@\"");
    let mut job = place.run(&["--ckpt-every", "30ms", "--nodes", "2", "--parity", "none"]);
    job.wait_for("committed");
    job.signal("INT");
    job.finish();
    let hosts = "localhost:1@127.0.0.1,other:3@127.0.0.2";
    let mut command = stillwire(&["restart", &place.job_text(), "--hosts", hosts, "--remote-shell", &shell]);
    command.env("STILLWIRE_TEST_OF", "inherited");
    let mut job = Running::start(command);
    job.wait_for("all ranks run");
    assert_eq!(keepers(job.pid()).len(), 2);
    let other: Vec<u32> = job
        .ranks()
        .into_iter()
        .filter(|rank| crate::support::has_variable(*rank, "MPI_LOCALNRANKS=3"))
        .collect();
    assert_eq!(other.len(), 3);
    assert!(other.iter().all(|rank| crate::support::has_variable(*rank, "STILLWIRE_TEST_OF=inherited")));
    place.let_end();
    verified(&job.finish());
}

#[test]
fn a_host_that_is_of_no_use_is_named() {
    let place = Place::new();
    let refused = |script: &str, address: &str, words: &[&str]| {
        let hosts = format!("localhost:1@127.0.0.1,other:1@{address}");
        let shell = place.remote_shell(script);
        let mut command =
            stillwire(&["run", "-n", "2", "--hosts", &hosts, "--remote-shell", &shell, "--", "true"]);
        let done = done(&mut command);
        assert_eq!(done.code, Some(1), "{done:?}");
        done.says(words);
    };
    refused("exit 255", "127.0.0.1", &["on other", "its keeper has said nothing", "255"]);
    refused("echo Welcome to the cluster; sleep 5", "127.0.0.1", &["on other", "print something"]);
    refused("shift; exec \"$@\"", "203.0.113.9", &["on other", "cannot receive on 203.0.113.9"]);
}

#[test]
fn a_keeper_without_a_launcher_says_what_it_misses() {
    let keeper = |words: &[u8]| {
        let mut child = Command::new(STILLWIRE)
            .arg("__keeper")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the executable starts");
        // It may have ended before it has read all.
        let _ = child.stdin.take().expect("a pipe").write_all(words);
        let output = child.wait_with_output().expect("its end");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(keeper(b"").contains("no word of the launcher"));
    assert!(keeper(b"hello, keeper of mine").contains("at most 67108864 expected"));
    assert!(keeper(&[3, 0, 0, 0, 0xff, 0xff, 0xff]).contains("no frame"));
}
