//! A crash after any storage operation, with everything unsynced lost, kept or torn, leaves the newest committed
//! generation whole; so does a full or failing disk.

use store::job::{Depth, GenerationState, JobDirectory};
use store::storage::Fault;
use store::{CommitError, GenerationId, Memory, StorageError, StoreError};

use crate::common::{JOB, Random, checkpoint, generation, job_file, restore};

/// The results that the program got before the fault.
#[derive(Clone, Debug, Default)]
struct Acknowledged {
    created: bool,
    counter: u32,
    committed: Option<GenerationId>,
    /// Begun, but not acknowledged as committed: may or may not exist.
    attempted: Option<GenerationId>,
}

/// Three checkpoints, a restart, three more; old generations collected on the way.
fn work(disk: &mut Memory, acknowledged: &mut Acknowledged, nonce: u64) -> Result<(), StoreError> {
    let mut directory = match JobDirectory::create(&mut *disk, &job_file()) {
        Err(StoreError::Storage(StorageError::AlreadyExists { .. })) => JobDirectory::open(&mut *disk)?.0,
        created => {
            let directory = created?;
            acknowledged.created = true;
            directory
        }
    };
    for attempt in 0..2 {
        let from = directory.newest_restorable(Depth::Everything)?;
        assert_eq!(from.refused, vec![], "a committed generation is damaged");
        let from = from.manifest.map(|manifest| manifest.generation);
        if let Some(from) = from {
            restore(&mut directory, from)?;
        }
        // Until the decision is durable, no caller got an acknowledgement that the visible state lasts.
        acknowledged.attempted = from.or(acknowledged.attempted);
        let life = directory.start_life(nonce + attempt, from)?.life;
        assert!(life.counter > acknowledged.counter, "the counter of a life is never used again");
        acknowledged.counter = life.counter;
        acknowledged.created = true;
        acknowledged.committed = from;
        let first = from.map_or(1, |from| from.epoch.0 + 1);
        for epoch in first..first + 3 {
            let id = generation(life, epoch);
            acknowledged.attempted = Some(id);
            checkpoint(&mut directory, id)?;
            acknowledged.committed = Some(id);
            directory.collect(life, 1, &[])?;
        }
    }
    Ok(())
}

/// After a fault: the newest committed generation is an acknowledged one, or the one attempted, and is exactly as
/// saved.
fn check(disk: &mut Memory, acknowledged: &Acknowledged) {
    let (mut directory, file) = match JobDirectory::open(&mut *disk) {
        Ok(opened) => opened,
        Err(StoreError::Storage(StorageError::NotFound { .. })) if !acknowledged.created => return,
        Err(error) => panic!("the job cannot be opened: {error}"),
    };
    assert_eq!(file, job_file());
    let newest = directory.newest_restorable(Depth::Everything).unwrap();
    assert_eq!(newest.refused, vec![], "a committed generation is damaged");
    let found = newest.manifest.map(|manifest| manifest.generation);
    for listed in directory.generations().unwrap() {
        if listed.state == GenerationState::Committed {
            assert_eq!(directory.verify(listed.id, Depth::Everything).unwrap(), vec![], "{}", listed.id);
        }
    }
    assert!(
        found == acknowledged.committed || (found.is_some() && found == acknowledged.attempted),
        "found {found:?}, told {acknowledged:?}"
    );
    if let Some(found) = found {
        restore(&mut directory, found).unwrap();
    }
}

/// Runs the work with a fault after each number of operations, until one run passes unharmed.
fn every_operation(fault: Fault, mut after: impl FnMut(u64, &mut Memory, &Acknowledged)) -> u64 {
    for operations in 0.. {
        let mut disk = Memory::new();
        disk.fault_after(operations, fault);
        let mut acknowledged = Acknowledged::default();
        let result = work(&mut disk, &mut acknowledged, 1000);
        if disk.clear_fault() {
            assert_eq!(result, Ok(()));
            return operations;
        }
        if fault != Fault::Crash {
            // A caller can rely on a failure without a loss of power: a failed commit is never found later.
            assert!(!matches!(result, Err(StoreError::Unsettled { .. })), "{result:?}");
            acknowledged.attempted = None;
        }
        after(operations, &mut disk, &acknowledged);
    }
    unreachable!()
}

#[test]
fn a_crash_after_any_operation_leaves_the_newest_committed_generation() {
    let seeds = 12;
    let operations = every_operation(Fault::Crash, |operations, disk, acknowledged| {
        assert!(disk.is_crashed());
        for seed in 0..seeds {
            let mut disk = disk.clone();
            match seed {
                0 => disk.crash(&mut |_| 0),
                1 => disk.crash(&mut |_| 1),
                _ => {
                    let mut random = Random::new(operations << 8 | seed);
                    disk.crash(&mut |bound| random.below(bound));
                }
            }
            check(&mut disk, acknowledged);
            // And the job goes on from there.
            let mut acknowledged = acknowledged.clone();
            work(&mut disk, &mut acknowledged, 2000).unwrap();
            check(&mut disk, &acknowledged);
        }
    });
    assert!(operations > 150, "only {operations} operations: the work is not what it was");
}

#[test]
fn a_second_crash_during_recovery_harms_no_more_than_the_first() {
    every_operation(Fault::Crash, |operations, disk, acknowledged| {
        let mut random = Random::new(operations);
        for _ in 0..12 {
            let (mut disk, mut acknowledged) = (disk.clone(), acknowledged.clone());
            disk.crash(&mut |bound| random.below(bound));
            for nonce in [2000, 3000] {
                disk.fault_after(random.below(120), Fault::Crash);
                let _ = work(&mut disk, &mut acknowledged, nonce);
                disk.crash(&mut |bound| random.below(bound));
                check(&mut disk, &acknowledged);
            }
        }
    });
}

#[test]
fn a_process_killed_at_any_operation_and_a_later_loss_of_power_harm_nothing_committed() {
    every_operation(Fault::Crash, |operations, disk, acknowledged| {
        disk.restart_process();
        check(disk, acknowledged);
        // The killed process's changes can be seen, and are not durable when the next one builds on them.
        let mut random = Random::new(operations);
        for _ in 0..12 {
            let (mut disk, mut acknowledged) = (disk.clone(), acknowledged.clone());
            disk.fault_after(random.below(60), Fault::Crash);
            let _ = work(&mut disk, &mut acknowledged, 2000);
            disk.crash(&mut |bound| if random.below(4) == 0 { random.below(bound) } else { 0 });
            check(&mut disk, &acknowledged);
        }
    });
}

#[test]
fn an_image_is_durable_when_it_is_written() {
    let mut disk = Memory::new();
    let mut directory = JobDirectory::create(&mut disk, &job_file()).unwrap();
    let id = generation(directory.start_life(1, None).unwrap().life, 1);
    directory.begin_generation(id).unwrap();
    let claims = crate::common::write_images(&mut directory, id).unwrap();
    directory.storage().crash_losing_all();
    for claim in claims {
        let reader = directory.open_image(id, claim.rank).unwrap();
        reader.expect_digest(claim.digest).unwrap();
        reader.verify(directory.storage()).unwrap();
    }
}

#[test]
fn an_image_that_failed_leaves_nothing_behind() {
    let mut disk = Memory::new();
    let mut directory = JobDirectory::create(&mut disk, &job_file()).unwrap();
    let id = generation(directory.start_life(1, None).unwrap().life, 1);
    directory.begin_generation(id).unwrap();
    // Larger than the writer's buffer, so that it is written piece by piece.
    let large = vec![7; 200_000];
    let sections = [store::Section::new(1, 1, &large), store::Section::new(2, 1, b"small")];
    for operations in 0.. {
        directory.storage().fault_after(operations, Fault::NoSpace);
        let written = directory.write_image(id, transport::Rank(0), &sections);
        if directory.storage().clear_fault() {
            assert!(written.is_ok() && operations > 5, "{operations}");
            return;
        }
        assert!(matches!(written, Err(StoreError::Storage(StorageError::NoSpace { .. }))), "{written:?}");
        let listed = directory.generations().unwrap();
        assert_eq!((listed[0].images, listed[0].half_written), (0, 0), "{operations}");
    }
}

#[test]
fn a_full_disk_at_any_operation_harms_nothing_committed() {
    every_operation(Fault::NoSpace, |_, disk, acknowledged| {
        check(disk, acknowledged);
        let mut acknowledged = acknowledged.clone();
        work(disk, &mut acknowledged, 2000).unwrap();
        check(disk, &acknowledged);
    });
}

#[test]
fn a_failing_device_at_any_operation_harms_nothing_committed() {
    every_operation(Fault::Device, |_, disk, acknowledged| {
        check(disk, acknowledged);
        // Power may fail now, or while the job goes on after the fault.
        for operations in [0, 5, 10, 20, 40, 80] {
            let (mut disk, mut acknowledged) = (disk.clone(), acknowledged.clone());
            disk.fault_after(operations, Fault::Crash);
            let _ = work(&mut disk, &mut acknowledged, 2000);
            disk.crash_losing_all();
            check(&mut disk, &acknowledged);
        }
    });
}

#[test]
fn a_full_disk_says_how_much_was_wanted_and_leaves_no_half_image() {
    let mut disk = Memory::new();
    let mut acknowledged = Acknowledged::default();
    work(&mut disk, &mut acknowledged, 1000).unwrap();
    let mut directory = JobDirectory::attach(&mut disk, JOB);
    let life = directory.newest_decision().unwrap().unwrap().life;
    let before = directory.generations().unwrap();
    let id = generation(life, 50);
    directory.begin_generation(id).unwrap();
    directory.storage().set_capacity_bytes(Some(0));
    let changes = directory.storage().changes_done();
    let large = [store::Section::new(1, 1, &[7; 100_000])];
    let error = directory.write_image(id, transport::Rank(0), &large).unwrap_err();
    let StoreError::Storage(StorageError::NoSpace { wanted_bytes, free_bytes, .. }) = &error else {
        panic!("{error}")
    };
    // Padding to a page, the section, an entry of the table, its checksum.
    assert_eq!((*wanted_bytes, *free_bytes), (4096 + 100_000 + 48 + 8, Some(0)), "{error}");
    assert_eq!(directory.storage().changes_done(), changes, "refused before anything is written");
    assert!(error.to_string().contains("free some space"), "{error}");
    let after = directory.generations().unwrap();
    assert_eq!(after[..before.len()], before[..]);
    assert_eq!((after[before.len()].images, after[before.len()].half_written), (0, 0));
    restore(&mut directory, acknowledged.committed.unwrap()).unwrap();
}

#[test]
fn an_older_life_commits_nothing_from_the_decision_on() {
    let mut disk = Memory::new();
    let mut acknowledged = Acknowledged::default();
    work(&mut disk, &mut acknowledged, 1000).unwrap();
    let mut old = JobDirectory::attach(disk, JOB);
    let old_life = old.newest_decision().unwrap().unwrap().life;
    let late = generation(old_life, 90);
    old.begin_generation(late).unwrap();
    let claims = crate::common::write_images(&mut old, late).unwrap();

    let new_life = old.start_life(5, acknowledged.committed).unwrap().life;
    let refused = old.commit(&crate::common::request(late, claims)).unwrap_err();
    assert_eq!(
        refused,
        StoreError::Commit { generation: late, error: CommitError::Fenced { life: new_life } }
    );
    let refused = old.begin_generation(generation(old_life, 91)).unwrap_err();
    assert!(matches!(refused, StoreError::Commit { error: CommitError::Fenced { .. }, .. }));
    let newest = old.newest_committed().unwrap().unwrap().generation;
    assert_eq!(Some(newest), acknowledged.committed);
}
