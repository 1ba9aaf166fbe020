//! Records and protection data are damaged on more nodes than may be lost, while all images are whole: nothing is lost, and
//! `repair` restores the protection.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Done, Place, done, flip, stillwire, verified};

const NODES: usize = 4;

fn node(place: &Place, number: usize) -> PathBuf {
    place.job().join("nodes").join(number.to_string())
}

/// A file of a generation, as a node has it.
fn copy(place: &Place, number: usize, generation: &str, name: &str) -> PathBuf {
    let file = place.file(generation, name);
    node(place, number).join(file.strip_prefix(place.job()).expect("in the job's directory"))
}

fn damage(path: &Path) {
    let length = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).len();
    flip(path, usize::try_from(length / 2).expect("small"));
}

fn verify(place: &Place) -> Done {
    done(&mut stillwire(&["verify", &place.job_text()]))
}

/// It is found, `repair` mends it, and then any node may be lost again.
fn is_protected_again(place: &Place, kept: &[String], what: &str) {
    let found = verify(place);
    assert_eq!(found.code, Some(3), "{what}: {found:?}");
    let repaired = done(&mut stillwire(&["repair", &place.job_text()]));
    assert_eq!(repaired.code, Some(0), "{what}: {repaired:?}");
    let after = verify(place);
    assert_eq!(after.code, Some(0), "{what}: {after:?} after {repaired:?}");
    assert!(after.stdout.contains("every byte is as it was committed"), "{what}: {after:?}");
    for number in 0..NODES {
        fs::remove_dir_all(node(place, number)).expect("a directory");
        let rebuilt = done(&mut stillwire(&["repair", &place.job_text()]));
        assert_eq!(rebuilt.code, Some(0), "{what}: {rebuilt:?}");
        for generation in kept {
            let words = format!("generation {generation} is whole on all nodes again: 1 rebuilt");
            assert!(rebuilt.stdout.contains(&words), "{what}: {rebuilt:?}");
        }
    }
    assert_eq!(verify(place).code, Some(0), "{what}");
}

#[test]
fn notes_damaged_on_more_nodes_than_may_be_lost_are_written_anew() {
    let place = Place::new();
    let kept = place.stopped(4, 2);
    for name in ["protected", "sums", "content-00000000"] {
        for generation in &kept {
            (0..3).for_each(|number| damage(&copy(&place, number, generation, name)));
        }
        is_protected_again(&place, &kept, name);
    }
    // On all of them; and lost, not damaged.
    (0..NODES).for_each(|number| damage(&copy(&place, number, &kept[1], "protected")));
    (1..NODES)
        .for_each(|number| fs::remove_file(copy(&place, number, &kept[0], "protected")).expect("a file"));
    is_protected_again(&place, &kept, "all");
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&[&format!("begins from generation {}", kept[1])]);
    verified(&done);
}

#[test]
fn parity_damaged_on_more_nodes_than_may_be_lost_is_computed_anew() {
    let place = Place::new();
    let kept = place.stopped(4, 2);
    let parity = |number: usize| {
        let mut all: Vec<PathBuf> = fs::read_dir(node(&place, number).join("parity"))
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        all.extend([copy(&place, number, &kept[1], "parity")].into_iter().filter(|path| path.exists()));
        all
    };
    for number in 0..3 {
        parity(number).iter().for_each(|path| damage(path));
    }
    is_protected_again(&place, &kept, "damaged parity");
    // With the notes, and gone.
    for number in 0..3 {
        parity(number).iter().for_each(|path| fs::remove_file(path).expect("a file"));
        damage(&copy(&place, number, &kept[1], "protected"));
        damage(&copy(&place, number, &kept[1], "sums"));
    }
    is_protected_again(&place, &kept, "parity that is gone");
}

// R28
#[test]
fn a_group_without_its_notes_does_not_keep_another_one_from_being_rebuilt() {
    let place = Place::new();
    let mut job = place.run(&["--nodes", "4", "--parity", "partner"]);
    job.wait_for("all ranks run");
    job.checkpoint();
    job.signal("INT");
    job.finish();
    let newest = place.generations("committed").pop().expect("a generation");
    // Nodes 0 and 2 have each other, and so have 1 and 3.
    [0, 2].iter().for_each(|number| damage(&copy(&place, *number, &newest, "protected")));
    fs::remove_dir_all(node(&place, 1)).expect("a directory");
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&["rebuilding what node 1 had", &format!("begins from generation {newest}")]);
    verified(&done);
}

// One node is lost, and the notes of others are damaged: they have all that its images are rebuilt from.
#[test]
fn a_lost_node_is_rebuilt_from_nodes_whose_notes_are_damaged() {
    for name in ["protected", "content-00000003"] {
        let place = Place::new();
        let kept = place.stopped(4, 2);
        damage(&copy(&place, 0, &kept[1], name));
        (name == "protected").then(|| damage(&copy(&place, 2, &kept[1], name)));
        fs::remove_dir_all(node(&place, 1)).expect("a directory");
        place.let_end();
        let done = place.restart(&[]).finish();
        done.says(&["rebuilding what node 1 had", &format!("begins from generation {}", kept[1])]);
        verified(&done);
    }
    let place = Place::new();
    let kept = place.stopped(4, 2);
    damage(&copy(&place, 0, &kept[1], "protected"));
    fs::remove_dir_all(node(&place, 1)).expect("a directory");
    is_protected_again(&place, &kept, "a node and a note");
}

// Where an image is lost as well, nothing can be computed, and nothing is claimed.
#[test]
fn where_images_are_lost_too_it_stays_lost() {
    let place = Place::new();
    let kept = place.stopped(4, 2);
    for number in 0..2 {
        damage(&copy(&place, number, &kept[1], "protected"));
        fs::remove_file(copy(&place, number, &kept[1], &format!("rank-{number:08}.image")))
            .expect("an image");
    }
    let repaired = done(&mut stillwire(&["repair", &place.job_text()]));
    assert_eq!(repaired.code, Some(3), "{repaired:?}");
    repaired.says(&[&format!("generation {} is lost", kept[1]), "2 of 4 nodes that protect each other"]);
    assert!(
        repaired.stdout.contains(&format!("generation {} is whole on all nodes", kept[0])),
        "{repaired:?}"
    );
}
