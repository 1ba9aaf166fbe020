//! Hosts that vanish without a word, and who gets the place of their nodes (R31, R32). A host is a remote shell whose connection stays open when
//! everything behind it is gone, as when power or a cable is.

use std::time::{Duration, Instant};

use crate::support::hosts::{HOSTS, Hosts};
use crate::support::{Place, children_of, rank_of, runs, verified, wait_until};

/// After which a host is lost here; the usual time is longer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// After which a keeper without ranks takes its launcher for gone.
const LAUNCHER_SILENT_MAX: Duration = Duration::from_secs(60);

#[test]
fn a_spare_host_takes_the_place_of_one_that_vanishes() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor", "--spare-hosts", "e@127.0.0.5,f@127.0.0.6"]);
    hosts.saved(&mut job);
    let since = Instant::now();
    hosts.lose("c", 2);
    job.wait_for("c does not answer any more: e takes its place");
    let decided = since.elapsed();
    job.wait_for("all ranks run again");
    println!("lost after {decided:?}, all ranks run again after {:?}", since.elapsed());
    assert!(decided > NODE_TIMEOUT, "{decided:?}: its ranks may run for so long");
    assert_eq!(children_of(hosts.keeper("e")).into_iter().filter_map(rank_of).collect::<Vec<_>>(), [2]);
    job.wait_for("committed");
    let file = hosts.job_file();
    assert!(file.contains("e:1@127.0.0.5") && !file.contains("c:1@127.0.0.3"), "{file}");
    assert!(!file.contains("former-"), "all ranks run: {file}");
    let launcher = job.pid();
    wait_until("connections that were given up are collected", || {
        children_of(launcher).into_iter().all(runs)
    });
    // The next one, too; the host that lost its place is not asked again.
    hosts.lose("a", 0);
    job.wait_for("a does not answer any more: f takes its place");
    job.wait_for("all ranks run again");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn without_a_spare_host_the_ranks_go_to_one_that_is_left() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor", "--on-host-loss", "spread"]);
    hosts.saved(&mut job);
    hosts.lose("d", 3);
    job.wait_for("d does not answer any more: a takes its place");
    job.wait_for("all ranks run again");
    job.wait_for("committed");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn without_another_host_the_lost_one_is_waited_for() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor"]);
    hosts.saved(&mut job);
    hosts.vanish("b");
    job.wait_for("b does not answer any more, and there is no spare host");
    hosts.comes_back("b");
    job.wait_for("all ranks run again");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_host_whose_login_is_slow_comes_back_too() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor"]);
    hosts.saved(&mut job);
    std::fs::write(hosts.path("slow-b"), b"").expect("a file");
    hosts.vanish("b");
    hosts.comes_back("b");
    job.wait_for("it has not answered within 10s: another one is started");
    job.wait_for("all ranks run again");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn more_hosts_than_their_images_bear_are_waited_for() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor", "--spare-hosts", "e@127.0.0.5,f@127.0.0.6"]);
    hosts.saved(&mut job);
    hosts.vanish("b");
    hosts.vanish("c");
    job.wait_for("images of 2 lost hosts cannot be rebuilt (xor protects against the loss of 1)");
    hosts.comes_back("b");
    hosts.comes_back("c");
    job.wait_for("all ranks run again");
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_lost_host_ends_the_job_if_that_is_wanted() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor", "--on-host-loss", "end"]);
    hosts.saved(&mut job);
    hosts.vanish("b");
    job.wait_for("b does not answer any more (--on-host-loss end)");
    let done = job.finish();
    assert_eq!(done.code, Some(4), "{done:?}");
}

#[test]
fn a_restart_that_leaves_out_a_host_waits_for_its_ranks() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor"]);
    hosts.saved(&mut job);
    job.signal("KILL");
    job.finish();
    // Nobody there has seen it.
    let old: Vec<u32> =
        children_of(hosts.keeper("c")).into_iter().filter(|pid| rank_of(*pid).is_some()).collect();
    assert!(!old.is_empty() && old.iter().all(|pid| runs(*pid)));
    // Nothing else keeps the next life waiting.
    for host in ["a", "b", "d"] {
        hosts.vanish(host);
        hosts.comes_back(host);
    }
    let since = Instant::now();
    let mut job = hosts
        .place
        .restart(&["--hosts", "a:1@127.0.0.1,b:1@127.0.0.2,g:1@127.0.0.5,d:1@127.0.0.4"])
        .reading();
    job.wait_for("ranks of the job may still run on c: waiting 2s");
    job.wait_for("all ranks run");
    assert!(since.elapsed() > NODE_TIMEOUT, "ranks on c may run for so long");
    assert!(!old.iter().any(|pid| runs(*pid)), "two lives at once");
    hosts.place.let_end();
    verified(&job.finish_reading());
}

/// As OpenSSH prints them.
const NO_ROUTE: &str = "ssh: connect to host b port 22: No route to host";
const NO_LOGIN: &str = "me@b: Permission denied (publickey).";

#[test]
fn a_restart_waits_for_a_host_that_is_just_coming_back() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor"]);
    hosts.saved(&mut job);
    job.signal("INT");
    job.finish();
    hosts.refuses("b", &[NO_ROUTE; 2]);
    let mut job = hosts.place.restart(&[]).reading();
    job.wait_for("No route to host; the restart keeps trying until b answers, for 30 s at most");
    job.wait_for("all ranks run");
    assert_eq!(hosts.refusals_left("b"), 0);
    hosts.place.let_end();
    let done = job.finish_reading();
    assert_eq!(done.stderr.matches("keeps trying").count(), 1, "{done:?}");
    verified(&done);
}

#[test]
fn a_spare_host_takes_the_place_of_one_that_a_restart_misses() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor", "--spare-hosts", "e@127.0.0.5"]);
    hosts.saved(&mut job);
    job.signal("INT");
    job.finish();
    let disks = hosts.job_on_disks().expect("a job");
    std::fs::remove_dir_all(disks.join("2")).expect("a directory");
    hosts.refuses("c", &[NO_ROUTE; 99]);
    let since = Instant::now();
    let mut job = hosts.place.restart(&[]).reading();
    job.wait_for("the restart keeps trying until c answers, after 5 s another host may take its place");
    job.wait_for("c does not answer: e takes its place");
    let decided = since.elapsed();
    assert!(decided > 2 * NODE_TIMEOUT, "{decided:?}: a launcher that is cut off may have ranks there");
    job.wait_for("all ranks run");
    assert_eq!(children_of(hosts.keeper("e")).into_iter().filter_map(rank_of).collect::<Vec<_>>(), [2]);
    job.wait_for("committed");
    let file = hosts.job_file();
    assert!(file.contains("e:1@127.0.0.5") && !file.contains("c:1@127.0.0.3"), "{file}");
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn more_hosts_than_their_images_bear_are_waited_for_by_a_restart() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor", "--on-host-loss", "spread"]);
    hosts.saved(&mut job);
    job.signal("INT");
    job.finish();
    let disks = hosts.job_on_disks().expect("a job");
    std::fs::remove_dir_all(disks.join("1")).expect("a directory");
    ["b", "c"].iter().for_each(|host| hosts.is_down(host));
    let mut job = hosts.place.restart(&[]).reading();
    job.wait_for("b does not answer: ");
    job.wait_for("c does not answer, and images of 2 lost hosts cannot be rebuilt");
    assert!(!job.has_printed("all ranks run"), "{:?}", job.seen);
    hosts.comes_back("c");
    job.signal("INT");
    job.finish_reading();
    let mut job = hosts.place.restart(&[]).reading();
    job.wait_for("all ranks run");
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn a_login_that_is_refused_is_not_tried_again() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor"]);
    hosts.saved(&mut job);
    job.signal("INT");
    job.finish();
    hosts.refuses("b", &[NO_LOGIN; 3]);
    let done = hosts.place.restart(&[]).finish();
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["no rank can be started on b: its keeper has said nothing", NO_LOGIN]);
    assert_eq!(hosts.refusals_left("b"), 2);
}

#[test]
fn a_new_job_does_not_wait_for_a_host_that_cannot_be_reached() {
    let hosts = Hosts::new();
    hosts.refuses("b", &[NO_ROUTE; 3]);
    let done = hosts.run(&["--parity", "xor"]).finish();
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["no rank can be started on b: its keeper has said nothing", NO_ROUTE]);
    assert_eq!(hosts.refusals_left("b"), 2);
}

#[test]
fn a_restart_has_any_number_of_hosts() {
    let hosts = Hosts::new();
    let mut job = hosts.run(&["--parity", "xor"]);
    hosts.saved(&mut job);
    job.signal("INT");
    job.finish();
    // One host fewer: a host that is left has the images of its node rebuilt, and both nodes' ranks.
    hosts.lose("d", 3);
    let mut job = hosts.place.restart(&["--hosts", "c@127.0.0.3,a@127.0.0.1,b@127.0.0.2"]).reading();
    job.wait_for("c takes the place of d");
    job.wait_for("warning: if host c fails");
    job.wait_for("all ranks run");
    job.wait_for("committed");
    let file = hosts.job_file();
    assert!(file.contains("a:1@127.0.0.1,b:1@127.0.0.2,c:1@127.0.0.3,c:1@127.0.0.3"), "{file}");
    job.signal("KILL");
    job.finish_reading();
    // As many as at first, and one more.
    hosts.comes_back("d");
    let mut job =
        hosts.place.restart(&["--hosts", &format!("{HOSTS},e:1@127.0.0.5").replace(":1", "")]).reading();
    job.wait_for("d takes the place of c");
    job.wait_for("e is a spare host: the job has 4 nodes");
    job.wait_for("all ranks run");
    job.wait_for("committed");
    hosts.lose("b", 1);
    job.wait_for("b does not answer any more: e takes its place");
    job.wait_for("all ranks run again");
    hosts.place.let_end();
    verified(&job.finish_reading());
}

// Its host is gone, too, and the connections stay open. A launcher that only stands still loses no keeper of its own host.
#[test]
fn keepers_that_hear_nothing_of_their_launcher_end() {
    let here = Place::new();
    // On several nodes, its ranks would have a lease.
    let mut stopped = here.run(&[]);
    stopped.wait_for("all ranks run");
    let local = children_of(stopped.pid());
    stopped.signal("STOP");
    let hosts = Hosts::new();
    // Ranks on b would have a lease. There are none yet: a host does not answer.
    hosts.is_down("d");
    let job = hosts.run(&[]);
    wait_until("keepers have begun", || hosts.has_locks(&[0, 1, 2]));
    job.signal("KILL");
    job.finish();
    let since = Instant::now();
    let keepers = ["a", "b", "c"].map(|host| hosts.keeper(host));
    std::thread::sleep((LAUNCHER_SILENT_MAX / 2).saturating_sub(since.elapsed()));
    assert!(keepers.iter().all(|keeper| runs(*keeper)), "their connections are open");
    wait_until("the keepers end", || !keepers.iter().any(|keeper| runs(*keeper)));
    println!("they ended after {:?}", since.elapsed());
    std::thread::sleep((LAUNCHER_SILENT_MAX * 5 / 4).saturating_sub(since.elapsed()));
    assert!(!local.is_empty() && local.iter().all(|pid| runs(*pid)), "they see their launcher");
    stopped.signal("CONT");
    here.let_end();
    verified(&stopped.finish());
}

#[test]
fn spare_hosts_that_cannot_be_are_refused() {
    let place = Place::new();
    let refused = |options: &[&str]| {
        let done = place.run(options).finish();
        assert!(matches!(done.code, Some(1 | 2)), "{done:?}");
        done.stderr
    };
    let hosts = ["--hosts", "a:2@127.0.0.1,b:2@127.0.0.2"];
    let with = |options: &[&'static str]| refused(&[hosts.as_slice(), options].concat());
    assert!(with(&["--spare-hosts", "a@127.0.0.3"]).contains("a is named as a spare host and once more"));
    assert!(with(&["--spare-hosts", "localhost"]).contains("cannot be a spare host"));
    assert!(with(&["--spares", "2"]).contains("expected fewer"));
    assert!(with(&["--node-timeout", "100ms"]).contains("expected 2s to 10m"));
    assert!(refused(&["--spare-hosts", "e@127.0.0.5"]).contains("--hosts names none"));
}
