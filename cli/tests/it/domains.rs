//! Failure domains: names mark the nodes that fail together, and a job survives the loss of all of one domain's at once.

use std::path::PathBuf;

use crate::support::{
    Place, Running, children_of, done, keepers, parent, rank_of, signal, stillwire, verified,
};

/// Six nodes with eight ranks, whose domains are not in the order of their numbers.
const DOMAINS: &str = "a,b,a,b,c,c";
/// Nodes of domain a, and of b.
const OF_A: [usize; 2] = [0, 2];
const OF_B: [usize; 2] = [1, 3];

fn node(place: &Place, number: usize) -> PathBuf {
    place.job().join("nodes").join(number.to_string())
}

fn run(place: &Place, options: &[&str]) -> Running {
    let mut command = stillwire(&["run", "-n", "8", "--nodes", "6", "--parity", "rs:2+1"]);
    command.args(["--ckpt-every", "60ms", "--ckpt-dir", &place.job_text()]).args(options);
    command.arg("--").args(place.sort());
    Running::start(command)
}

/// Keepers, by their nodes: the first two have two ranks each, the others one.
fn keepers_by_node(job: &Running) -> Vec<u32> {
    let ranks = job.ranks();
    assert_eq!(ranks.len(), 8, "{:?}", job.seen);
    [0, 2, 4, 5, 6, 7].iter().map(|rank| parent(ranks[*rank]).expect("a keeper")).collect()
}

/// Keepers, ranks and directories of these nodes are gone.
fn destroy(place: &Place, job: &Running, numbers: &[usize]) {
    let keepers = keepers_by_node(job);
    assert_eq!(self::keepers(job.pid()).len(), keepers.len());
    let ranks: Vec<u32> = numbers.iter().flat_map(|number| children_of(keepers[*number])).collect();
    assert!(ranks.iter().filter(|pid| rank_of(**pid).is_some()).count() >= numbers.len());
    numbers.iter().map(|number| keepers[*number]).chain(ranks).for_each(|pid| signal(pid, "KILL"));
    numbers.iter().for_each(|number| lose(place, *number));
}

/// A directory is gone at one instant, also while a process still writes into it.
fn lose(place: &Place, number: usize) {
    let gone = place.folder.path().join("gone");
    std::fs::rename(node(place, number), &gone).expect("a directory");
    let _ = std::fs::remove_dir_all(gone);
}

fn stop(place: &Place, mut job: Running) -> String {
    for _ in 0..2 {
        job.wait_for("committed");
    }
    job.signal("INT");
    job.finish();
    place.generations("committed").pop().expect("a generation")
}

// R27, R28
#[test]
fn all_nodes_of_a_domain_are_destroyed_at_once_and_rebuilt() {
    let place = Place::new();
    let mut job = run(&place, &["--domains", DOMAINS]);
    for _ in 0..2 {
        job.wait_for("committed");
    }
    destroy(&place, &job, &OF_A);
    job.wait_for("rebuilding what node 0, node 2 had");
    job.wait_for("all ranks run again");
    assert!(!job.seen.iter().any(|line| line.contains("warning: if")), "{:?}", job.seen);
    let newest = stop(&place, job);
    // Another one, when nothing runs; the groups of nodes are those of the job's file.
    OF_B.iter().for_each(|number| lose(&place, *number));
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&["rebuilding what node 1, node 3 had", &format!("begins from generation {newest}")]);
    assert!(!done.stderr.contains("warning: if"), "{done:?}");
    verified(&done);
}

#[test]
fn the_same_loss_is_too_much_if_nobody_has_named_the_domains() {
    let place = Place::new();
    let newest = stop(&place, run(&place, &[]));
    OF_A.iter().for_each(|number| lose(&place, *number));
    let done = place.restart(&[]).finish();
    assert_eq!(done.code, Some(4), "{done:?}");
    done.says(&[
        &format!("generation {newest} is passed over"),
        "2 of 3 nodes that protect each other have lost all their data of it (node 0, node 2), and 1 may",
        "no generation is left",
    ]);
}

#[test]
fn a_domain_that_is_too_much_is_reported_and_nothing_is_refused() {
    let place = Place::new();
    let mut job = run(&place, &["--domains", "a,a,a,b,b,c"]);
    let reported = job.wait_for("warning: if domain a fails as a whole, images are lost");
    assert!(reported.contains("--parity rs:1+1 would survive that"), "{reported}");
    assert!(job.wait_for("begins from the beginning").contains("life 1"));
    stop(&place, job);
    assert!(!place.generations("committed").is_empty());
    place.let_end();
    // Groups stay; nodes may lie elsewhere.
    let moved = place.restart(&["--domains", "a,b,c,d,e,f"]).finish();
    assert!(!moved.stderr.contains("warning: if"), "{moved:?}");
    verified(&moved);
}

#[test]
fn a_restart_reports_of_the_domains_that_nodes_lie_in_now() {
    let place = Place::new();
    let newest = stop(&place, run(&place, &["--domains", DOMAINS]));
    place.let_end();
    let done = place.restart(&["--domains", "x,x,y,y,z,z", "--generation", &newest]).finish();
    done.says(&[
        "warning: if domain x fails as a whole, images are lost: node 0, node 1 lie in it",
        "hosts of other domains in their places",
    ]);
    verified(&done);
}

#[test]
fn names_that_do_not_fit_the_nodes_are_refused() {
    for (options, code, words) in [
        (
            &["--nodes", "4", "--domains", "a,b,c"][..],
            1,
            "3 names for 4 nodes (node 0, node 1, node 2, node 3)",
        ),
        (&["--nodes", "4", "--domains", "a,b,,c"], 2, "expected a name of letters"),
        (&["--nodes", "4", "--domains", "a,b,-c,d"], 2, "found `-c`"),
        (
            &["--hosts", "h@10.0.0.1,h@10.0.0.1,i@10.0.0.2", "--domains", "r,s,s"],
            1,
            "h cannot be in r and in s",
        ),
    ] {
        let place = Place::new();
        let mut all = vec!["run", "-n", "4", "--parity", "xor", "--ckpt-dir"];
        let job = place.job_text();
        all.push(&job);
        all.extend(options);
        let refused = done(&mut stillwire(&[&all[..], &["--", "true"]].concat()));
        assert_eq!(refused.code, Some(code), "{refused:?}");
        refused.says(&[words]);
        assert!(!place.job().exists(), "nothing is made");
    }
    let alone = done(&mut stillwire(&["run", "-n", "2", "--nodes", "2", "--domains", "a,b", "--", "true"]));
    assert_eq!(alone.code, Some(2), "{alone:?}");
    alone.says(&["--domains is about parity between nodes"]);
}
