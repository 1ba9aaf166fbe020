//! Nodes with directories of their own: images lie on their nodes only, records on all of them and in the job's directory.

use std::path::PathBuf;

use crate::support::{Place, Running, done, keepers, signal, stillwire, verified, wait_until};

/// A node's directory of a job whose nodes are on this machine.
fn node(place: &Place, number: usize) -> PathBuf {
    let root = place.folder.path().join("disks");
    let jobs =
        std::fs::read_dir(root).expect("the nodes' folder").map(|entry| entry.expect("an entry").path());
    jobs.into_iter().next().expect("a job").join(number.to_string())
}

fn run(place: &Place, options: &[&str]) -> Running {
    let disks = place.folder.path().join("disks").display().to_string();
    let mut all = vec!["--ckpt-every", "50ms", "--nodes", "3", "--parity", "none", "--node-dir", &disks];
    all.extend(options);
    place.run(&all)
}

/// Files of images in a directory of a job.
fn images(directory: PathBuf) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let count = |path: PathBuf| match path.is_dir() {
        true => images(path),
        false => usize::from(path.extension().is_some_and(|extension| extension == "image")),
    };
    entries.map(|entry| count(entry.expect("an entry").path())).sum()
}

#[test]
fn images_lie_on_their_nodes_and_records_on_all() {
    let place = Place::new();
    let mut job = run(&place, &["--keep", "1"]);
    for _ in 0..3 {
        job.wait_for("committed");
    }
    for victim in [0, 2] {
        signal(keepers(job.pid())[victim], "KILL");
        job.wait_for("all ranks run again");
        job.wait_for("committed");
    }
    job.signal("INT");
    assert_eq!(job.finish().code, Some(130));
    assert_eq!(images(place.job()), 0);
    let newest = place.generations("committed").pop().expect("a generation");
    // Four ranks on three nodes, the first of which has two; the second generation may not have been removed yet.
    for (number, ranks) in [2, 1, 1].into_iter().enumerate() {
        let directory = node(&place, number);
        let found = images(directory.clone());
        assert!(found == ranks || found == 2 * ranks, "{found} images on node {number}");
        let listed = done(&mut stillwire(&["ls", &directory.display().to_string()]));
        assert!(listed.stdout.contains(&newest), "{listed:?}");
    }
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&[&format!("begins from generation {newest}")]);
    verified(&done);
}

#[test]
fn a_launcher_that_is_killed_leaves_what_its_nodes_have() {
    let place = Place::new();
    let mut job = run(&place, &[]);
    job.wait_for("committed");
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    place.let_end();
    verified(&place.restart(&[]).finish());
}

#[test]
fn a_lost_node_is_named_and_nothing_runs_without_it() {
    let place = Place::new();
    let mut job = run(&place, &[]);
    job.wait_for("committed");
    job.signal("INT");
    job.finish();
    let generations = place.generations("committed");
    let listed = done(&mut stillwire(&["ls", &place.job_text()]));
    assert!(listed.stdout.contains("4 images, ") && listed.stdout.contains("on 3 of 3 nodes"), "{listed:?}");
    let verified = || done(&mut stillwire(&["verify", &place.job_text()]));
    assert_eq!(verified().code, Some(0), "{:?}", verified());
    std::fs::remove_dir_all(node(&place, 1)).expect("a directory");
    let damaged = verified();
    assert!(damaged.code == Some(3) && damaged.stdout.contains("node 1: "), "{damaged:?}");
    let done = place.restart(&[]).finish();
    assert_eq!(done.code, Some(4), "{done:?}");
    done.says(&["is passed over", "node 1: ", "no generation is left"]);
    let newest = generations.last().expect("one");
    let named = place.restart(&["--generation", newest]).finish();
    named.says(&[&format!("generation {newest}, which was named, cannot be restored")]);
}

#[test]
fn another_number_of_nodes_moves_images_that_nobody_protects() {
    let place = Place::new();
    let mut job = run(&place, &[]);
    job.wait_for("committed");
    job.signal("INT");
    job.finish();
    place.let_end();
    let done = place.restart(&["--nodes", "2"]).finish();
    done.says(&["moved from node 0", "to node 0:2, node 1:2"]);
    verified(&done);
}
