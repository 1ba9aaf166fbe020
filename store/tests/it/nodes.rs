//! A generation whose images lie on several nodes, each with a disk of its own.

use crate::common::{job_file, memory, request};
use store::job::{Depth, JobDirectory};
use store::{CommitError, GenerationId, Memory, Section, Storage, StorageError, StoreError};
use transport::{Life, Rank};

type Job = JobDirectory<Memory>;

fn refusal(error: StoreError) -> CommitError {
    match error {
        StoreError::Commit { error, .. } => error,
        other => panic!("{other}"),
    }
}

/// Two nodes with a disk each; rank 0 runs on the first, rank 1 on the second.
fn two_nodes() -> ([Job; 2], Life) {
    let mut nodes =
        [0, 1].map(|node| JobDirectory::create(Memory::new(), &job_file()).unwrap().on_node(node));
    let decision = nodes[0].start_life(0xaaaa, None).unwrap();
    nodes[1].write_decision(&decision).unwrap();
    nodes[1].write_decision(&decision).unwrap();
    (nodes, decision.life)
}

/// Writes each rank's image on its own node and commits on the first.
fn checkpoint_on_nodes(nodes: &mut [Job; 2], id: GenerationId) -> store::Manifest {
    let mut claims = Vec::new();
    for (node, directory) in (0..).zip(nodes.iter_mut()) {
        let rank = Rank(node);
        directory.begin_generation(id).unwrap();
        let content = memory(id, rank);
        let summary = directory.write_image(id, rank, &[Section::new(0x101, 1, &content)]).unwrap();
        claims.push(store::ImageClaim { rank, node, digest: summary.digest, bytes: summary.bytes });
    }
    let nodes_named = vec!["a".to_owned(), "b".to_owned()];
    nodes[0].commit(&store::CommitRequest { nodes: nodes_named, ..request(id, claims) }).unwrap()
}

#[test]
fn a_generation_on_several_nodes_is_committed_on_each() {
    let (mut nodes, life) = two_nodes();
    let id = crate::common::generation(life, 1);
    let manifest = checkpoint_on_nodes(&mut nodes, id);
    assert_eq!(nodes[1].newest_committed().unwrap(), None);
    nodes[1].replicate(&manifest).unwrap();
    nodes[1].replicate(&manifest).unwrap();
    for (rank, directory) in (0..).map(Rank).zip(&mut nodes) {
        assert_eq!(directory.newest_committed().unwrap().as_ref(), Some(&manifest));
        assert_eq!(directory.verify(id, Depth::Everything).unwrap(), []);
        let reader = directory.open_committed_image(id, rank).unwrap();
        assert_eq!(reader.read_section(directory.storage(), 0).unwrap(), memory(id, rank));
        directory.collect(life, 1, &[]).unwrap();
    }
    assert_eq!(manifest.images[0].summary.bytes + manifest.images[1].summary.bytes, manifest.image_bytes());

    // A node without images holds records only, and takes part in the fence.
    let mut third = JobDirectory::create(Memory::new(), &job_file()).unwrap().on_node(2);
    assert_eq!(refusal(third.replicate(&manifest).unwrap_err()), CommitError::UndecidedLife);
    let first = nodes[0].newest_decision().unwrap().unwrap();
    third.write_decision(&first).unwrap();
    third.replicate(&manifest).unwrap();
    let later = third.start_life(0xbbbb, Some(id)).unwrap();
    let fenced = CommitError::Fenced { life: later.life };
    assert_eq!(refusal(third.replicate(&manifest).unwrap_err()), fenced);
    assert_eq!(third.write_decision(&first).unwrap_err(), StoreError::LifeTaken { counter: 1 });
}

#[test]
fn a_node_does_not_vouch_for_an_image_that_it_lost() {
    let (mut nodes, life) = two_nodes();
    let id = crate::common::generation(life, 1);
    let manifest = checkpoint_on_nodes(&mut nodes, id);
    let image = nodes[1].image_path(id, Rank(1));
    nodes[1].storage().remove_file(&image).unwrap();
    let error = nodes[1].replicate(&manifest).unwrap_err();
    assert!(matches!(error, StoreError::Storage(StorageError::NotFound { .. })), "{error}");
    assert_eq!(nodes[1].newest_committed().unwrap(), None);
}

#[test]
fn a_node_that_was_not_there_takes_over_what_was_decided_and_committed() {
    let (mut nodes, life) = two_nodes();
    let id = crate::common::generation(life, 1);
    let manifest = checkpoint_on_nodes(&mut nodes, id);
    let later = nodes[0].start_life(0xbbbb, Some(id)).unwrap();
    let decisions = nodes[0].decisions().unwrap();
    assert_eq!(decisions.last(), Some(&later));
    // The second node has missed the later life, and the commit record; the third is new.
    assert_eq!(refusal(nodes[0].replicate(&manifest).unwrap_err()), CommitError::Fenced { life: later.life });
    let mut third = JobDirectory::create(Memory::new(), &job_file()).unwrap().on_node(2);
    let [_, second] = &mut nodes;
    for directory in [second, &mut third] {
        for _ in 0..2 {
            directory.adopt_decisions(&decisions).unwrap();
            directory.adopt(&manifest).unwrap();
        }
        assert_eq!(directory.newest_decision().unwrap(), Some(later));
        assert_eq!(directory.newest_committed().unwrap().as_ref(), Some(&manifest));
    }
    // Half a record is written anew.
    let path = format!("{}/commit", third.image_path(id, Rank(0)).rsplit_once('/').unwrap().0);
    third.storage().remove_file(&path).unwrap();
    third.storage().create(&path).unwrap();
    assert_eq!(third.newest_committed().unwrap(), None);
    third.adopt(&manifest).unwrap();
    assert_eq!(third.newest_committed().unwrap().as_ref(), Some(&manifest));
    // A life that only the third node knows belongs to another job's history.
    third.start_life(0xcccc, Some(id)).unwrap();
    assert_eq!(third.adopt_decisions(&decisions), Err(StoreError::LifeTaken { counter: 3 }));
}
