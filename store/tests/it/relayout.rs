//! The records of a job whose images have come to other nodes: the former layout or the new one, after a crash at any instant.

use store::job::{GenerationState, JobDirectory};
use store::storage::Fault;
use store::{GenerationId, Manifest, Memory, StorageError, StoreError};

use crate::common::{JOB, Random, checkpoint, generation, job_file};

/// Three committed generations, of which the second moves.
fn job(disk: &mut Memory) -> (Vec<GenerationId>, Manifest) {
    let mut directory = JobDirectory::create(&mut *disk, &job_file()).unwrap();
    let life = directory.start_life(7, None).unwrap().life;
    let all: Vec<GenerationId> = (1..4).map(|epoch| generation(life, epoch)).collect();
    for id in &all {
        checkpoint(&mut directory, *id).unwrap();
    }
    let mut manifest = directory.manifest(all[1]).unwrap();
    manifest.nodes = vec!["x".to_owned(), "y".to_owned()];
    manifest.images.last_mut().unwrap().node = 1;
    (all, manifest)
}

fn committed(directory: &mut JobDirectory<&mut Memory>) -> Vec<GenerationId> {
    let all = directory.generations().unwrap();
    let committed = all.iter().filter(|found| found.state == GenerationState::Committed);
    committed.map(|found| found.id).collect()
}

#[test]
fn a_layout_that_is_taken_leaves_its_generation_alone() {
    let mut disk = Memory::new();
    let (all, manifest) = job(&mut disk);
    let mut directory = JobDirectory::attach(&mut disk, JOB);
    directory.write_layout(2, &manifest).unwrap();
    assert_eq!(directory.layouts().unwrap(), [2]);
    // It does not count yet.
    assert_eq!(committed(&mut directory), all);
    assert_ne!(directory.manifest(all[1]).unwrap(), manifest);
    assert_eq!(directory.take_layout(2).unwrap(), all[1]);
    assert_eq!(committed(&mut directory), [all[1]]);
    assert_eq!(directory.manifest(all[1]).unwrap(), manifest);
    assert!(directory.layouts().unwrap().is_empty());
    // Images are no business of this.
    assert!(directory.open_committed_image(all[1], transport::Rank(0)).is_ok());
}

#[test]
fn a_layout_that_is_given_up_changes_nothing() {
    let mut disk = Memory::new();
    let (all, manifest) = job(&mut disk);
    let mut directory = JobDirectory::attach(&mut disk, JOB);
    directory.write_layout(2, &manifest).unwrap();
    directory.remove_layout(2).unwrap();
    assert_eq!((directory.layouts().unwrap(), committed(&mut directory)), (vec![], all));
    let missing = directory.take_layout(2).unwrap_err();
    assert!(matches!(missing, StoreError::Storage(StorageError::NotFound { .. })), "{missing}");
    // And never the one of another job.
    let other = Manifest { job: transport::JobId(99), ..manifest };
    directory.write_layout(2, &other).unwrap();
    assert!(directory.take_layout(2).is_err());
}

#[test]
fn a_crash_while_a_layout_is_taken_leaves_a_record_with_which_it_is_taken() {
    let mut random = Random::new(11);
    for operations in 0.. {
        let mut disk = Memory::new();
        let (all, manifest) = job(&mut disk);
        JobDirectory::attach(&mut disk, JOB).write_layout(2, &manifest).unwrap();
        disk.fault_after(operations, Fault::Crash);
        let taken = JobDirectory::attach(&mut disk, JOB).take_layout(2);
        if disk.clear_fault() {
            assert_eq!(taken, Ok(all[1]));
            assert!(operations > 5, "{operations}");
            return;
        }
        disk.crash(&mut |bound| random.below(bound));
        let mut directory = JobDirectory::attach(&mut disk, JOB);
        match directory.layouts().unwrap()[..] {
            [2] => assert_eq!(directory.take_layout(2), Ok(all[1]), "after {operations}"),
            [] => {}
            ref others => panic!("{others:?}"),
        }
        assert_eq!(committed(&mut directory), [all[1]], "after {operations}");
        assert_eq!(directory.manifest(all[1]).unwrap(), manifest, "after {operations}");
    }
}
