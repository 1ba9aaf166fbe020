//! Records of the launcher's directory that are damaged or lost while nodes have whole copies, and a generation that a person names, or that is the only one.

use std::path::{Path, PathBuf};

use crate::support::{Done, Place, done, flip, stillwire, verified};

const NODES: usize = 4;

fn remove(path: &Path) {
    std::fs::remove_file(path).expect("a file");
}

/// A job over nodes that has ended with two generations: their names, oldest first.
fn stopped(place: &Place) -> Vec<String> {
    let mut job = place.run(&["--ckpt-every", "50ms", "--nodes", "4", "--parity", "xor", "--keep", "2"]);
    for _ in 0..3 {
        job.wait_for("committed");
    }
    job.signal("INT");
    job.finish();
    let kept = place.generations("committed");
    assert_eq!(kept.len(), 2);
    kept
}

fn repair(place: &Place, options: &[&str]) -> Done {
    done(&mut stillwire(&[&["repair", &place.job_text()][..], options].concat()))
}

/// A file of a generation, as a node has it.
fn copy(place: &Place, number: usize, generation: &str, name: &str) -> PathBuf {
    let file = place.file(generation, name);
    let relative = file.strip_prefix(place.job()).expect("in the job's directory").to_owned();
    place.job().join("nodes").join(number.to_string()).join(relative)
}

type Damage = fn(&Path);

// R28
#[test]
fn a_named_generation_is_mended_from_the_nodes_as_the_newest_is() {
    let place = Place::new();
    let kept = stopped(&place);
    let flipped: Damage = |path| flip(path, 40);
    let cases: [(usize, &str, Damage); 5] = [
        (0, "commit", flipped),
        (0, "manifest", flipped),
        (0, "manifest", remove),
        (1, "commit", remove),
        (1, "commit", flipped),
    ];
    for (which, name, damage) in cases {
        let (named, path) = (&kept[which], place.file(&kept[which], name));
        let before = std::fs::read(&path).expect("a record");
        damage(&path);
        let repaired = repair(&place, &["--generation", named]);
        assert_eq!(repaired.code, Some(0), "{name} of {named}: {repaired:?}");
        repaired
            .says(&[&format!("generation {named}: its records were written anew from the nodes' copies")]);
        assert!(std::fs::read(&path).expect("a record") == before, "{name} of {named}: {repaired:?}");
    }
    flip(&place.file(&kept[0], "manifest"), 40);
    place.let_end();
    let epoch = kept[0].split_once('/').expect("LIFE/EPOCH").1;
    let done = place.restart(&["--generation", epoch]).finish();
    done.says(&["written anew from the nodes' copies", &format!("begins from generation {}", kept[0])]);
    verified(&done);
}

// A generation older than the committed ones may have been collected: it does not count as lost.
#[test]
fn a_named_generation_that_no_node_can_mend_is_named_and_nothing_begins() {
    let place = Place::new();
    let kept = stopped(&place);
    let lives = || std::fs::read_dir(place.job()).expect("a folder").count();
    let before = lives();
    let refused = |why: &str| {
        let done = place.restart(&["--generation", &kept[0]]).finish();
        assert_eq!(done.code, Some(4), "{done:?}");
        done.says(&[
            &format!("generation {} is passed over: ", kept[0]),
            why,
            "which was named, cannot be restored",
        ]);
    };
    for number in 0..NODES {
        flip(&copy(&place, number, &kept[0], "manifest"), 40);
    }
    flip(&place.file(&kept[0], "manifest"), 40);
    refused("manifest");
    remove(&place.file(&kept[0], "commit"));
    refused("it is not committed here, and no node has a commit record of it that counts");
    assert_eq!(lives(), before, "no life has been decided");
    // Nothing of the kind is there.
    let unknown = done(&mut stillwire(&["restart", &place.job_text(), "--generation", "77"]));
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    unknown.says(&["no life of the job has a committed generation with epoch 77"]);
}

#[test]
fn records_that_are_all_damaged_or_lost_are_had_from_the_nodes() {
    let place = Place::new();
    let kept = stopped(&place);
    for name in ["manifest", "commit"] {
        kept.iter().for_each(|generation| flip(&place.file(generation, name), 40));
        let repaired = repair(&place, &[]);
        assert_eq!(repaired.code, Some(0), "{repaired:?}");
        repaired.says(&["no generation has records here that can be read; nodes are asked for theirs"]);
        assert_eq!(place.generations("committed"), kept);
    }
    // All that was ever noted of the life, but for its decision, which is in the way of another one.
    let life = place.file(&kept[0], "commit").ancestors().nth(2).expect("a life's folder").to_owned();
    std::fs::remove_dir_all(life).expect("a folder");
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&[&format!("begins from generation {}", kept[1])]);
    verified(&done);
}

// A job that goes on never begins anew by itself.
#[test]
fn a_job_of_which_nothing_is_left_anywhere_does_not_begin_anew() {
    let place = Place::new();
    let kept = stopped(&place);
    let life = place.file(&kept[0], "commit").ancestors().nth(2).expect("a life's folder").to_owned();
    std::fs::remove_dir_all(life).expect("a folder");
    std::fs::remove_dir_all(place.job().join("nodes")).expect("the nodes' directories");
    let done = place.restart(&[]).finish();
    assert_eq!(done.code, Some(4), "{done:?}");
    let nodes = place.job().join("nodes").display().to_string();
    done.says(&["no generation is left that can be restored", &nodes]);
    assert!(!done.stderr.contains("from the beginning"), "{done:?}");
}
