//! Models of faults and the reactions to them, on hosts that are remote shells: `--recovery`, `tune --on`, `suspect`.

use std::fs;

use serde_json::Value;

use crate::support::hosts::Hosts;
use crate::support::{Done, Place, Running, children_of, done, rank_of, signal, stillwire, verified};

const SPARE: &[&str] = &["--parity", "xor", "--spare-hosts", "e@127.0.0.5"];

/// The job's number, as `ps` reports it.
fn id(job: &Running) -> String {
    let jobs = done(&mut stillwire(&["ps", "--json"])).json();
    let all = jobs["jobs"].as_array().expect("a list");
    let found = all.iter().find(|found| found["pid"] == job.pid()).expect("it runs");
    found["job"].as_str().expect("an id").to_owned()
}

fn suspect(job: &Running, node: &str) -> Done {
    done(&mut stillwire(&["suspect", &id(job), node]))
}

fn on(job: &Running, change: &str) -> Done {
    done(&mut stillwire(&["tune", &id(job), "--on", change]))
}

/// A file with these reactions.
fn policy(place: &Place, text: &str) -> String {
    let path = place.folder.path().join("recovery.toml");
    fs::write(&path, text).expect("a file");
    path.display().to_string()
}

/// A job on four hosts, of which everything is saved once.
fn saved(hosts: &Hosts, options: &[&str]) -> Running {
    let mut job = hosts.run(options);
    hosts.saved(&mut job);
    job
}

/// The ranks on a host.
fn ranks_on(hosts: &Hosts, host: &str) -> Vec<u32> {
    children_of(hosts.keeper(host)).into_iter().filter_map(rank_of).collect()
}

/// The only rank on a host is killed.
fn kill(hosts: &Hosts, host: &str) {
    let ranks = children_of(hosts.keeper(host)).into_iter().filter(|pid| rank_of(*pid).is_some());
    ranks.for_each(|pid| signal(pid, "KILL"));
}

fn rolled_back(job: &mut Running) -> String {
    job.wait_for("all ranks run again")
}

#[test]
fn a_spare_host_takes_the_place_of_a_node_that_a_person_suspects() {
    let hosts = Hosts::new();
    let mut job = saved(&hosts, SPARE);
    let unknown = suspect(&job, "x");
    unknown.says(&["the job has no node `x`", "0 to 3 or a host (a, b, c, d)"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    let answer = suspect(&job, "c");
    assert_eq!(answer.stdout, "c is taken for a failing node: migration, restart\n", "{answer:?}");
    job.wait_for("node 2 is said to fail; rolling back, and another host is to take the place of node 2");
    job.wait_for("e takes the place of c, which leaves the job");
    let again = rolled_back(&mut job);
    assert!(again.contains("(permanent fault, migration of node 2: 4 ranks rolled back)"), "{again}");
    assert_eq!(ranks_on(&hosts, "e"), [2]);
    job.wait_for("committed");
    // There is no other host any more, and nothing happens to the job.
    let refused = suspect(&job, "3");
    refused.says(&["d keeps its place: there is no spare host"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    job.wait_for("committed");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_node_goes_on_if_the_host_in_its_place_does_not_come_up() {
    let hosts = Hosts::new();
    let mut job = saved(&hosts, SPARE);
    hosts.is_down("e");
    assert_eq!(suspect(&job, "c").code, Some(0));
    job.wait_for("e takes the place of c, which leaves the job");
    job.wait_for("e does not answer any more: c takes its place");
    let again = rolled_back(&mut job);
    assert!(again.contains("(permanent fault, migration of node 2: 4 ranks rolled back)"), "{again}");
    assert_eq!(ranks_on(&hosts, "c"), [2]);
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn nothing_happens_to_a_job_that_would_lose_by_a_suspicion() {
    let hosts = Hosts::new();
    let job = saved(&hosts, SPARE);
    assert_eq!(on(&job, "permanent=restart").code, Some(0));
    suspect(&job, "c").says(&["c keeps its place: the reaction to permanent faults is restart"]);
    assert_eq!(on(&job, "permanent=stop").code, Some(0));
    suspect(&job, "c")
        .says(&["c keeps its place: the job would end: the reaction to permanent faults is stop"]);
    hosts.place.let_end();
    let done = job.finish();
    verified(&done);
    assert!(!done.stderr.contains("rolling back"), "{done:?}");
    let place = Place::new();
    let mut job = place.run(&["--nodes", "2", "--ckpt-every", "1h"]);
    job.wait_for("all ranks run");
    suspect(&job, "1").says(&["nothing is saved yet: take a checkpoint first"]);
    job.checkpoint();
    suspect(&job, "1").says(&["keeps its place: it is the launcher's own host"]);
    place.let_end();
    verified(&job.finish());
}

#[test]
fn processes_of_one_node_that_die_again_and_again_move_to_another_host() {
    let hosts = Hosts::new();
    let file = policy(&hosts.place, "[thresholds]\nrepeated-faults = 2\n");
    let mut job = saved(&hosts, &[SPARE, &["--recovery", &file]].concat());
    kill(&hosts, "b");
    assert!(rolled_back(&mut job).contains("(process fault, restart: 4 ranks rolled back)"));
    kill(&hosts, "b");
    let again = rolled_back(&mut job);
    assert!(again.contains("(repeated fault, migration of node 1: 4 ranks rolled back)"), "{again}");
    assert_eq!(ranks_on(&hosts, "e"), [1]);
    // The faults of the host before do not count for this one. The second one does, and nobody is left to take the place.
    kill(&hosts, "e");
    assert!(rolled_back(&mut job).contains("(process fault, restart"));
    kill(&hosts, "e");
    assert!(rolled_back(&mut job).contains("(repeated fault, restart: 4 ranks rolled back)"));
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_process_fault_can_end_the_job_or_move_the_node() {
    let hosts = Hosts::new();
    let mut job = saved(&hosts, SPARE);
    let table = on(&job, "process=migration,stop");
    for line in ["process    migration, stop", "permanent  migration, restart"] {
        assert!(table.stdout.contains(line), "{table:?}");
    }
    kill(&hosts, "a");
    let again = rolled_back(&mut job);
    assert!(again.contains("(process fault, migration of node 0: 4 ranks rolled back)"), "{again}");
    job.wait_for("committed");
    kill(&hosts, "e");
    let ended = job.finish();
    ended.says(&["no other host can take the place of node 0"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let mut job = hosts.place.restart(&["--recovery", &policy(&hosts.place, "[on]\nprocess = \"stop\"\n")]);
    job.wait_for("committed");
    kill(&hosts, "e");
    let ended = job.finish();
    ended.says(&["the reaction to process faults is stop"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
}

#[test]
fn a_node_that_is_lost_for_good_ends_the_job_if_the_policy_says_so() {
    let hosts = Hosts::new();
    let file = policy(&hosts.place, "[on]\npermanent = \"stop\"\n");
    let job = saved(&hosts, &[SPARE, &["--recovery", &file]].concat());
    hosts.vanish("b");
    let ended = job.finish();
    ended.says(&["node 1 is gone or cut off", "the reaction to permanent faults is stop"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
}

#[test]
fn a_lost_node_is_waited_for_if_the_policy_says_so() {
    let hosts = Hosts::new();
    let file = policy(&hosts.place, "[on]\npermanent = \"restart\"\n");
    let mut job = saved(&hosts, &[SPARE, &["--recovery", &file]].concat());
    hosts.vanish("b");
    job.wait_for(
        "b does not answer any more, and the reaction to permanent faults is restart: waiting for it",
    );
    hosts.comes_back("b");
    let again = rolled_back(&mut job);
    assert!(again.contains("(transient fault, restart: 4 ranks rolled back)"), "{again}");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_host_that_was_gone_and_answers_again_can_lose_its_place() {
    let hosts = Hosts::new();
    let file = policy(&hosts.place, "[on]\ntransient = \"migration, restart\"\npermanent = \"restart\"\n");
    let mut job = saved(&hosts, &[SPARE, &["--recovery", &file]].concat());
    hosts.vanish("b");
    hosts.comes_back("b");
    job.wait_for("e takes the place of b, which leaves the job");
    let again = rolled_back(&mut job);
    assert!(again.contains("migration of node 1: 4 ranks rolled back)"), "{again}");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_changed_reaction_is_reported_and_kept() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "100ms"]);
    job.wait_for("all ranks run");
    let changed = on(&job, "repeated=restart");
    assert_eq!(changed.code, Some(0), "{changed:?}");
    job.wait_for("faults have other reactions from now on, as asked");
    let of = |job: &Running| -> Value {
        let jobs = done(&mut stillwire(&["ps", "--json"])).json();
        let all = jobs["jobs"].as_array().expect("a list").clone();
        let found = all.into_iter().find(|found| found["pid"] == job.pid()).expect("it runs");
        found["status"]["recovery"]["on"].clone()
    };
    assert_eq!((&of(&job)["repeated"], &of(&job)["process"]), (&"restart".into(), &"restart".into()));
    job.wait_for("committed");
    job.signal("INT");
    job.finish();
    let mut job = place.restart(&[]);
    job.wait_for("committed");
    assert_eq!(of(&job)["repeated"], "restart");
    place.let_end();
    verified(&job.finish());
}

#[test]
fn wrong_files_and_changes_are_refused_before_anything_happens() {
    let place = Place::new();
    let file = policy(&place, "[on]\nprocess = \"forget\"\n");
    for command in [
        &["recovery", "check", &file][..],
        &["run", "-n", "2", "--ckpt-dir", "d", "--recovery", &file, "--", "true"],
        &["restart", "d", "--recovery", &file],
        &["tune", "job", "--on", "process=forget"],
    ] {
        let refused = done(&mut stillwire(command));
        refused
            .says(&["`forget` is no recovery protocol; expected wait, ignore, restart, migration or stop"]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
    }
    let missing = done(&mut stillwire(&["recovery", "check", "/nowhere/policy.toml"]));
    missing.says(&["/nowhere/policy.toml", "No such file"]);
    // The printed defaults are accepted.
    let defaults = done(&mut stillwire(&["recovery", "defaults"]));
    let file = policy(&place, &defaults.stdout);
    let table = done(&mut stillwire(&["recovery", "check", &file]));
    let line = "repeated   migration, restart  3 process faults of one node within 10m";
    assert!(table.stdout.contains(line), "{table:?}");
    let json = done(&mut stillwire(&["recovery", "check", &file, "--json"])).json();
    assert_eq!(json, done(&mut stillwire(&["recovery", "defaults", "--json"])).json());
}
