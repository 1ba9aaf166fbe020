//! One suite for every storage: the properties that the store relies on hold for the real directory and for the one in memory.

use crate::common::{checkpoint, generation, job_file, restore};
use store::job::{Depth, JobDirectory};
use store::storage::{DirectoryEntry, EntryKind, Operation};
use store::{Directory, Memory, Storage, StorageError, StoreError};

/// Makes each function of the suite a test of every storage.
macro_rules! over_every_storage {
    ($($name:ident)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn memory() {
                suite::$name(&mut Memory::new());
            }

            #[test]
            fn directory() {
                let scratch = tempfile::tempdir().unwrap();
                suite::$name(&mut Directory::open(scratch.path()).unwrap());
            }
        }
    )+};
}

over_every_storage! {
    files_are_read_as_they_were_written
    reading_is_bounded
    a_name_is_taken_once
    directories_are_listed_and_removed_when_empty
    what_is_not_there_is_named
    a_job_lives_in_every_storage
}

fn write<S: Storage>(storage: &mut S, path: &str, pieces: &[&[u8]]) -> Result<(), StorageError> {
    let mut file = storage.create(path)?;
    for piece in pieces {
        storage.append(&mut file, piece)?;
    }
    storage.sync_file(&mut file)
}

mod suite {
    use super::*;

    pub(super) fn files_are_read_as_they_were_written<S: Storage>(storage: &mut S) {
        write(storage, "a", &[b"one", b"", b"two"]).unwrap();
        assert_eq!(storage.length("a"), Ok(6));
        assert_eq!(storage.read("a", 6).unwrap(), b"onetwo");
        let mut middle = [0; 3];
        storage.read_range("a", 2, &mut middle).unwrap();
        assert_eq!(&middle, b"etw");
        let mut file = storage.create("b").unwrap();
        storage.append(&mut file, b"0123456789").unwrap();
        storage.overwrite(&mut file, 2, b"ab").unwrap();
        storage.append(&mut file, b"end").unwrap();
        assert_eq!(storage.read("b", 100).unwrap(), b"01ab456789end");
        let mut file = storage.create("c.tmp").unwrap();
        storage.append(&mut file, b"one").unwrap();
        storage.rename("c.tmp", "c").unwrap();
        storage.append(&mut file, b"two").unwrap();
        assert_eq!(storage.read("c", 100).unwrap(), b"onetwo");
    }

    pub(super) fn reading_is_bounded<S: Storage>(storage: &mut S) {
        write(storage, "a", &[&[7; 100]]).unwrap();
        let error = storage.read("a", 99).unwrap_err();
        assert!(matches!(error, StorageError::TooLong { bytes: 100, bytes_max: 99, .. }), "{error}");
        let error = storage.read_range("a", 90, &mut [0; 11]).unwrap_err();
        let short =
            matches!(error, StorageError::Short { offset: 90, wanted_bytes: 11, found_bytes: 100, .. });
        assert!(short, "{error}");
        assert!(storage.read_range("a", u64::MAX, &mut [0; 1]).is_err());
    }

    pub(super) fn a_name_is_taken_once<S: Storage>(storage: &mut S) {
        write(storage, "a", &[b"first"]).unwrap();
        let taken = |error: &StorageError| matches!(error, StorageError::AlreadyExists { .. });
        assert!(taken(&write(storage, "a", &[b"second"]).unwrap_err()));
        assert!(taken(&storage.create_directory("a").unwrap_err()));
        write(storage, "b", &[b"second"]).unwrap();
        assert!(taken(&storage.publish("b", "a").unwrap_err()));
        assert_eq!(storage.read("a", 9).unwrap(), b"first");
        assert_eq!(storage.read("b", 9).unwrap(), b"second");
        storage.publish("b", "c").unwrap();
        assert!(storage.length("b").is_err());
        storage.rename("c", "a").unwrap();
        assert_eq!(storage.read("a", 9).unwrap(), b"second");
    }

    pub(super) fn directories_are_listed_and_removed_when_empty<S: Storage>(storage: &mut S) {
        storage.create_directory("d").unwrap();
        storage.create_directory("d/e").unwrap();
        write(storage, "d/f", &[b"12"]).unwrap();
        storage.sync_directory("d").unwrap();
        storage.sync_directory("").unwrap();
        let entry = |name: &str, kind| DirectoryEntry { name: name.to_owned(), kind };
        let listed = [entry("e", EntryKind::Directory), entry("f", EntryKind::File { bytes: 2 })];
        assert_eq!(storage.list("d").unwrap(), listed);
        let error = storage.remove_directory("d").unwrap_err();
        assert!(matches!(error, StorageError::NotEmpty { .. }), "{error}");
        storage.remove_file("d/f").unwrap();
        storage.remove_directory("d/e").unwrap();
        storage.remove_directory("d").unwrap();
        assert_eq!(storage.list("").unwrap(), []);
    }

    pub(super) fn what_is_not_there_is_named<S: Storage>(storage: &mut S) {
        let named = |result: Result<(), StorageError>, operation: Operation| {
            let error = result.unwrap_err();
            let StorageError::NotFound { operation: of, path } = &error else { panic!("{error}") };
            assert!(*of == operation && path.contains('x'), "{error}");
        };
        named(write(storage, "x/file", &[]), Operation::Create);
        named(storage.create_directory("x/directory"), Operation::CreateDirectory);
        named(storage.rename("x", "y-x"), Operation::Rename);
        named(storage.publish("x", "y-x"), Operation::Publish);
        named(storage.remove_file("x"), Operation::RemoveFile);
        named(storage.remove_directory("x"), Operation::RemoveDirectory);
        named(storage.sync_directory("x"), Operation::SyncDirectory);
        named(storage.length("x").map(|_| ()), Operation::Length);
        named(storage.read_range("x", 0, &mut []), Operation::Read);
        named(storage.list("x").map(|_| ()), Operation::List);
    }

    pub(super) fn a_job_lives_in_every_storage<S: Storage>(storage: &mut S) {
        let mut directory = JobDirectory::create(storage, &job_file()).unwrap();
        let first = directory.start_life(1, None).unwrap().life;
        for epoch in 1..4 {
            checkpoint(&mut directory, generation(first, epoch)).unwrap();
            directory.collect(first, 2, &[]).unwrap();
        }
        let id = generation(first, 3);
        let second = directory.start_life(2, Some(id)).unwrap().life;
        restore(&mut directory, id).unwrap();
        checkpoint(&mut directory, generation(second, 4)).unwrap();
        let report = directory.collect(second, 2, &[]).unwrap();
        assert_eq!(report.kept, [id, generation(second, 4)]);
        let newest = directory.newest_restorable(Depth::Everything).unwrap();
        assert_eq!(newest.manifest.map(|manifest| manifest.generation), Some(generation(second, 4)));
        let late = checkpoint(&mut directory, generation(first, 9)).unwrap_err();
        assert!(matches!(late, StoreError::Commit { .. }), "{late}");
    }
}

#[test]
fn a_directory_is_made_with_what_is_missing_above_it() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().join("some/where/else");
    assert!(matches!(Directory::open(&root), Err(StorageError::NotFound { .. })));
    let mut directory = Directory::create(&root).unwrap();
    Directory::create(&root).unwrap();
    assert_eq!(directory.root(), root);
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    write(&mut directory, "secret", &[b"memory"]).unwrap();
    assert_eq!((mode(&root), mode(&root.join("secret"))), (0o700, 0o600));
    assert!(directory.free_bytes().unwrap().is_some_and(|free| free > 0));
    let file = root.join("secret");
    assert!(matches!(Directory::open(&file), Err(StorageError::WrongType { .. })));
    let error = Directory::create(file.join("below")).unwrap_err();
    assert!(matches!(error, StorageError::WrongType { .. }), "{error}");
}

#[test]
fn one_process_at_a_time_holds_a_job() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = Directory::open(scratch.path()).unwrap();
    let held = directory.lock().unwrap();
    let error = directory.lock().unwrap_err();
    assert!(matches!(error, StorageError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("another stillwire process"), "{error}");
    drop(held);
    directory.lock().unwrap();
}

#[test]
fn links_and_devices_are_never_followed() {
    let scratch = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/null", scratch.path().join("link")).unwrap();
    let mut directory = Directory::open(scratch.path()).unwrap();
    let error = write(&mut directory, "link", &[b"x"]).unwrap_err();
    assert!(matches!(error, StorageError::AlreadyExists { .. }), "{error}");
    let listed = directory.list("").unwrap();
    assert_eq!(listed, [DirectoryEntry { name: "link".to_owned(), kind: EntryKind::Other }]);
    assert!(matches!(directory.length("link"), Err(StorageError::WrongType { .. })));
}
