//! Blocks that a disk does not give any more: they are rebuilt from the other members, into another file.

use std::collections::BTreeSet;

use crate::group::{Calls, Cluster, generation, life};
use store::Manifest;
use store::storage::{EntryKind, Storage as _, StorageError};

/// Two generations, both kept: the parity of the newer one lies in a file with all pages, and in changes.
fn protected() -> (Cluster, Manifest) {
    let mut cluster = Cluster::new(3, 1);
    cluster.start(1, None).unwrap();
    let mut from = None;
    for epoch in 1..=3 {
        let id = generation(1, epoch);
        let claims = cluster.protect(id, from).unwrap();
        cluster.commit(id, claims, || ()).unwrap();
        if epoch < 3 {
            cluster.collect(life(1), 1).unwrap();
        }
        from = Some(id);
    }
    let manifest = cluster.committed().remove(0);
    (cluster, manifest)
}

/// Files of a node that are of use to this generation, and their lengths.
fn files(cluster: &Cluster, node: usize) -> Vec<(String, u64)> {
    let mut disk = cluster.disks[node].clone().unwrap();
    let image = cluster.directory(node).image_path(generation(1, 3), transport::Rank(0));
    let mut found = Vec::new();
    for folder in [image.rsplit_once('/').unwrap().0, "parity"] {
        for entry in disk.list(folder).unwrap() {
            if let EntryKind::File { bytes } = entry.kind {
                found.push((format!("{folder}/{}", entry.name), bytes));
            }
        }
    }
    found.retain(|(path, _)| !path.ends_with("/commit") && !path.ends_with("/manifest"));
    found
}

#[test]
fn a_block_that_the_device_does_not_give_is_rebuilt_into_another_file() {
    let (whole, manifest) = protected();
    let id = manifest.generation;
    let (mut kinds, mut computed) = (BTreeSet::new(), 0);
    for node in 0..3 {
        for (path, bytes) in files(&whole, node) {
            for place in [0, bytes / 3, bytes / 2, bytes - 1] {
                let cluster = whole.copy();
                cluster.disks[node].as_ref().unwrap().lose_byte(&path, place);
                let held = cluster.member(node).holds(id, true).unwrap();
                let mut others = Calls::new(&cluster, node, &[]);
                let repaired = cluster.member(node).repair(id, &mut others).unwrap();
                assert_eq!(held, repaired.is_nothing(), "byte {place} of {path}");
                // Only the unreadable part of a file is requested from other nodes.
                computed += repaired.pages + repaired.parity_pages;
                cluster.check(id);
                let name = path.rsplit('/').next().unwrap();
                kinds.insert(name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned());
            }
        }
    }
    assert!(kinds.len() >= 6, "{kinds:?}");
    assert!(computed > 10, "{computed}");
}

#[test]
fn a_node_of_which_nothing_can_be_read_is_rebuilt() {
    let (cluster, manifest) = protected();
    for (path, bytes) in files(&cluster, 1) {
        (0..bytes).step_by(512).for_each(|at| cluster.disks[1].as_ref().unwrap().lose_byte(&path, at));
    }
    let id = manifest.generation;
    assert!(!cluster.member(1).holds(id, false).unwrap());
    cluster.member(1).repair(id, &mut Calls::new(&cluster, 1, &[])).unwrap();
    cluster.check(id);
}

#[test]
fn a_node_helps_others_with_what_it_can_read() {
    let (mut cluster, manifest) = protected();
    let id = manifest.generation;
    let image = cluster.directory(0).image_path(id, transport::Rank(0));
    let bytes = cluster.disks[0].clone().unwrap().length(&image).unwrap();
    cluster.disks[0].as_ref().unwrap().lose_byte(&image, bytes / 2);
    cluster.replace(&[2]);
    cluster.start(1, None).unwrap();
    let error = cluster.member(2).repair(id, &mut Calls::new(&cluster, 2, &[2])).unwrap_err();
    // One page of one node is missing, and not all of it.
    let words = error.to_string();
    assert!(words.contains("data of its group is lost on node 0 too"), "{words}");
    let StorageError::Device { path, .. } =
        cluster.disks[0].clone().unwrap().read(&image, 1 << 20).unwrap_err()
    else {
        panic!("it can be read")
    };
    assert_eq!(path, image);
}
