//! A disk that stands still holds up no keeper: it answers heartbeats, and its ranks keep their lease.

use std::fs;

use crate::support::programs::compiled_library;
use crate::support::{Place, Running, signal, stillwire, verified};

/// A job on two nodes, whose keepers load the library that makes their disks stand still while the file `stall` is there.
fn run(place: &Place) -> Running {
    let folder = place.folder.path();
    let disks = folder.join("disks").display().to_string();
    let mut command = stillwire(&["run", "-n", "4", "--ckpt-dir", &place.job_text()]);
    command.args(["--nodes", "2", "--parity", "none", "--node-dir", &disks, "--node-timeout", "2s"]);
    command.args(["--ckpt-every", "1h", "--"]).args(place.sort());
    command.env("LD_PRELOAD", compiled_library("stalled_disk"));
    command.env("STILLWIRE_TEST_STALL", folder.join("stall"));
    command.env("STILLWIRE_TEST_STALL_BELOW", &disks);
    command.env("STILLWIRE_TEST_STALL_LOG", folder.join("calls"));
    // Longer than the time after which a silent node is lost.
    command.env("STILLWIRE_TEST_STALL_S", "4");
    Running::start(command)
}

#[test]
fn a_disk_that_stands_still_while_ranks_are_restored_costs_no_node() {
    let place = Place::new();
    let mut job = run(&place);
    job.wait_for("all ranks run");
    job.checkpoint();
    fs::write(place.folder.path().join("stall"), b"").expect("a file");
    signal(job.ranks()[1], "KILL");
    let before = job.seen.len();
    job.wait_for("all ranks run again");
    fs::remove_file(place.folder.path().join("stall")).expect("the file");
    let calls = fs::read_to_string(place.folder.path().join("calls")).expect("the keepers use their disks");
    let by_main: Vec<&str> = calls.lines().filter(|call| call.starts_with("main ")).collect();
    assert!(by_main.is_empty(), "main loops wait for their disks:\n{}", by_main.join("\n"));
    let read = |call: &str| call.starts_with("other read ") && call.ends_with(".image");
    assert!(calls.lines().any(read), "no image was read:\n{calls}");
    // The life that was lost with the rank is the only one.
    let begun = job.seen[before..].iter().filter(|line| line.contains("begins from generation")).count();
    assert_eq!(begun, 1, "{}", job.seen.join("\n"));
    place.let_end();
    verified(&job.finish());
}
