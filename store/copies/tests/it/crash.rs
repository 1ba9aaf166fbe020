//! A crash after any operation on the place of the copies, with unsynced data lost or kept, leaves the older copies,
//! each whole, or the new one besides, whole; and the next copy removes all remains.

use crate::common::{Disk, Job, Random, restore_newest};
use copies::{Copies, CopyError, Target as _};
use store::storage::Fault;

/// Every file is one that a copy names.
fn expect_nothing_left(disk: &Disk) {
    let target = disk.target();
    let listed = Copies::new(&target, crate::common::JOB, None).list().unwrap();
    assert_eq!(listed.bytes_and_leftovers().1, 0, "{:?}", target.list("").unwrap());
}

fn every_operation(fault: Fault, mut after: impl FnMut(u64, &Disk, &Job)) -> u64 {
    let mut job = Job::new();
    let ids = [1, 2, 3].map(|epoch| job.checkpoint(epoch));
    for operations in 0.. {
        let disk = Disk::default();
        for id in &ids[..2] {
            job.copy(&disk.target(), *id, None, 2).unwrap();
        }
        disk.hold().fault_after(operations, fault);
        let copied = job.copy(&disk.target(), ids[2], None, 2);
        if disk.hold().clear_fault() {
            copied.unwrap();
            return operations;
        }
        after(operations, &disk, &job);
    }
    unreachable!()
}

#[test]
fn a_crash_after_any_operation_leaves_whole_copies() {
    let mut newest = [0, 0];
    let operations = every_operation(Fault::Crash, |operations, disk, job| {
        for seed in 0..8 {
            let disk = disk.twin();
            let mut random = Random(operations << 8 | seed | 1 << 40);
            disk.hold().crash(&mut |bound| match seed {
                0 => 0,
                1 => 1,
                _ => random.below(bound),
            });
            let found = restore_newest(&disk.target(), None).unwrap().expect("two were there");
            newest[usize::from(found == job.id(3))] += 1;
            assert!(found == job.id(2) || found == job.id(3), "{found}");
            // The next one continues from any remains.
            job.copy(&disk.target(), job.id(3), None, 2).unwrap();
            expect_nothing_left(&disk);
            assert_eq!(restore_newest(&disk.target(), None).unwrap(), Some(job.id(3)));
        }
    });
    assert!(operations > 30 && newest[0] > 100 && newest[1] > 0, "{operations} {newest:?}");
}

#[test]
fn a_process_that_is_killed_leaves_what_the_next_copy_removes() {
    every_operation(Fault::Crash, |_, disk, job| {
        disk.hold().restart_process();
        let found = restore_newest(&disk.target(), None).unwrap().expect("two were there");
        assert!(found == job.id(2) || found == job.id(3), "{found}");
        job.copy(&disk.target(), job.id(3), None, 2).unwrap();
        expect_nothing_left(disk);
    });
}

#[test]
fn a_full_or_failing_place_costs_that_copy_alone() {
    for fault in [Fault::NoSpace, Fault::Device] {
        every_operation(fault, |_, disk, job| {
            let found = restore_newest(&disk.target(), None).unwrap().expect("two were there");
            // An error after the record had its name: the copy may exist all the same.
            assert!(found == job.id(2) || found == job.id(3), "{found}");
            job.copy(&disk.target(), job.id(3), None, 2).unwrap();
            expect_nothing_left(disk);
        });
    }
}

#[test]
fn what_was_written_to_a_place_that_is_full_is_taken_back() {
    let mut job = Job::new();
    let ids = [1, 2].map(|epoch| job.checkpoint(epoch));
    let disk = Disk::default();
    job.copy(&disk.target(), ids[0], None, 2).unwrap();
    let before = disk.target().list("").unwrap();
    let used: u64 = before.iter().map(|entry| entry.bytes).sum();
    disk.hold().set_capacity_bytes(Some(used + 80_000));
    let error = job.copy(&disk.target(), ids[1], None, 2).unwrap_err();
    let is_full =
        matches!(error, CopyError::Blocks { .. } | CopyError::Packets { .. } | CopyError::Storage(_));
    assert!(is_full && error.to_string().contains("disk full"), "{error}");
    assert_eq!(disk.target().list("").unwrap(), before);
    disk.hold().set_capacity_bytes(None);
    job.copy(&disk.target(), ids[1], None, 2).unwrap();
    assert_eq!(restore_newest(&disk.target(), None).unwrap(), Some(ids[1]));
}

#[test]
fn a_crash_while_a_copy_is_brought_back_leaves_a_directory_that_can_be_filled_again() {
    let mut job = Job::new();
    let id = [1, 2].map(|epoch| job.checkpoint(epoch))[1];
    let shared = Disk::default();
    job.copy(&shared.target(), id, None, 2).unwrap();
    let target = shared.target();
    let copies = Copies::new(&target, crate::common::JOB, None);
    let copied = copies.list().unwrap().newest().unwrap().clone();
    for operations in 0.. {
        let disk = Disk::default();
        let directory = store::JobDirectory::create(disk.clone(), &crate::common::job_file()).unwrap();
        disk.hold().fault_after(operations, Fault::Crash);
        let fetched = crate::common::fetch(&copies, &copied, &directory);
        if disk.hold().clear_fault() {
            fetched.unwrap();
            assert!(operations > 15, "{operations}");
            return;
        }
        for seed in 0..6 {
            let disk = disk.twin();
            let mut random = Random(operations << 8 | seed | 1 << 40);
            disk.hold().crash(&mut |bound| if seed == 0 { 0 } else { random.below(bound) });
            let mut directory = store::JobDirectory::attach(disk, crate::common::JOB);
            // A generation that counts as committed is whole.
            let newest = directory.newest_restorable(store::job::Depth::Everything).unwrap();
            assert_eq!(newest.refused, []);
            crate::common::restore_into(&copies, &copied, directory).unwrap();
        }
    }
}
