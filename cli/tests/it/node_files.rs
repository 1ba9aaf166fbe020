//! Every file of a node, damaged: `verify` names it, `repair` mends it, and then `verify` finds nothing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Done, Place, done, flip, stillwire, wait_until};

fn node(place: &Place) -> PathBuf {
    place.job().join("nodes/1")
}

/// The node's folder of a generation.
fn folder(place: &Place, generation: &str) -> PathBuf {
    let folder = place.file(generation, "");
    node(place).join(folder.strip_prefix(place.job()).expect("in the job's directory"))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
    found.sort();
    found
}

fn damage(path: &Path) {
    let length = fs::metadata(path).expect("a file").len();
    assert!(length > 0, "{}", path.display());
    flip(path, usize::try_from(length / 2).expect("small"));
}

fn verify(place: &Place) -> Done {
    done(&mut stillwire(&["verify", &place.job_text()]))
}

/// It is found and mended.
fn is_mended(place: &Place, what: &str) {
    let found = verify(place);
    assert_eq!(found.code, Some(3), "{what}: {found:?}");
    assert!(found.stdout.contains("damaged: see above"), "{what}: {found:?}");
    let repaired = done(&mut stillwire(&["repair", &place.job_text()]));
    assert_eq!(repaired.code, Some(0), "{what}: {repaired:?}");
    let after = verify(place);
    assert_eq!(after.code, Some(0), "{what}: {after:?} after {repaired:?}");
    assert!(after.stdout.contains("every byte is as it was committed"), "{what}: {after:?}");
}

#[test]
fn every_file_of_a_node_is_looked_at_and_mended() {
    let place = Place::new();
    let kept = place.stopped(2, 2);
    let whole = verify(&place);
    assert_eq!(whole.code, Some(0), "{whole:?}");
    assert!(!whole.stdout.contains("no commit record"), "{whole:?}");
    let mut all = files(&folder(&place, &kept[1]));
    all.extend(files(&node(&place)));
    all.extend(files(&node(&place).join("parity")));
    let mut names = std::collections::BTreeSet::new();
    for path in &all {
        let name = path.file_name().and_then(|name| name.to_str()).expect("text").to_owned();
        if name == "job" {
            // Nothing can be rebuilt in a directory that does not name its job.
            let before = fs::read(path).expect("a file");
            damage(path);
            let found = verify(&place);
            assert!(found.code == Some(3) && found.stdout.contains("node 1: "), "{found:?}");
            fs::write(path, before).expect("a file");
        } else {
            damage(path);
            is_mended(&place, &name);
        }
        names.insert(name.split('-').next().unwrap_or_default().to_owned());
    }
    for name in ["rank", "content", "sums", "protected", "manifest", "commit", "job", "decision", "seats"] {
        assert!(names.contains(name), "no file of the kind {name} in {names:?}");
    }
    // All that a node has of an older one, at once.
    for path in files(&folder(&place, &kept[0])) {
        damage(&path);
    }
    is_mended(&place, &kept[0]);
}

// Records alone do not show how many there were.
#[test]
fn parity_that_ends_at_a_record_is_found_and_mended() {
    let place = Place::new();
    place.stopped(2, 2);
    for left in [3, 0] {
        let found = files(&node(&place).join("parity"));
        let path = found.first().expect("a file with all pages");
        let length = fs::metadata(path).expect("a file").len();
        assert!(length > 3 * 4104 && length.is_multiple_of(4104), "{length}");
        fs::OpenOptions::new().write(true).open(path).expect("a file").set_len(left * 4104).expect("shorter");
        let inspected = done(&mut stillwire(&["inspect", &path.display().to_string()]));
        assert!(
            inspected.code == Some(1) && inspected.stderr.contains("the file is cut off"),
            "{inspected:?}"
        );
        is_mended(&place, &format!("{left} records left"));
        assert!(!path.exists() || fs::metadata(path).expect("a file").len() > left * 4104);
    }
}

// A group that lost the records of one node in two places would lose that node with the second one.
#[test]
fn what_nodes_have_noted_of_another_one_is_mended_before_that_one_is_lost() {
    let place = Place::new();
    let kept = place.stopped(2, 2);
    damage(&folder(&place, &kept[1]).join("content-00000000"));
    let repaired = done(&mut stillwire(&["repair", &place.job_text()]));
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    fs::remove_dir_all(place.job().join("nodes/0")).expect("a directory");
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&["rebuilding what node 0 had", &format!("begins from generation {}", kept[1])]);
    crate::support::verified(&done);
}

/// How far the newest generation has come, as the nodes have it: its state, nodes that have something of it, those of them that protect it, and images.
fn newest_on_nodes(place: &Place) -> (String, usize, usize, u64) {
    let listed = done(&mut stillwire(&["ls", "--json", &place.job_text()])).json();
    let Some(newest) = listed["nodes"]["generations"].as_array().and_then(|all| all.last()) else {
        return (String::new(), 0, 0, 0);
    };
    let count = |key: &str| newest[key].as_array().expect("a list").len();
    let state = newest["state"].as_str().expect("a word").to_owned();
    (state, count("nodes"), count("protected_on"), newest["images"].as_u64().expect("a number"))
}

#[test]
fn ls_says_how_far_a_generation_has_come() {
    let place = Place::new();
    // Durable images stay unprotected as long as the links are slow.
    let mut job = place.run(&["--nodes", "2", "--parity", "xor", "--encode-budget", "link=100"]);
    job.wait_for("all ranks run");
    job.signal("USR1");
    wait_until("all images are durable", || {
        // A rank may have passed the point already.
        if job.has_printed("was abandoned") {
            job.signal("USR1");
        }
        newest_on_nodes(&place).3 == 4
    });
    assert_eq!(newest_on_nodes(&place), ("local".to_owned(), 2, 0, 4));
    job.signal("KILL");
    job.finish();
    let place = Place::new();
    let kept = place.stopped(2, 2);
    assert_eq!(newest_on_nodes(&place), ("committed".to_owned(), 2, 2, 4));
    // The last step of a commit is the job's own record.
    fs::remove_file(place.file(&kept[1], "commit")).expect("a record");
    assert_eq!(newest_on_nodes(&place), ("protected".to_owned(), 2, 2, 4));
}
