//! Copies in object stores: in memory and in files, as the crate has them. A real server is asked by tests/copies/run.
#![cfg(feature = "s3")]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{JOB, Job, restore_newest};
use copies::objects::Objects;
use copies::{Copies, CopyError, Entry, Target, Writing, jobs};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};
use store::storage::Operation;
use store::{StorageError, packets};

fn objects(store: &Arc<InMemory>) -> Objects {
    Objects::new(Arc::clone(store) as Arc<dyn ObjectStore>, "some/prefix", "s3://test/some/prefix".to_owned())
        .unwrap()
}

#[test]
fn copies_come_back_from_objects_in_memory_and_in_files() {
    let scratch = tempfile::tempdir().unwrap();
    let files = LocalFileSystem::new_with_prefix(scratch.path()).unwrap();
    let stores: [Arc<dyn ObjectStore>; 2] = [Arc::new(InMemory::new()), Arc::new(files)];
    for store in stores {
        let target = Objects::new(store, "some/prefix", "s3://test/some/prefix".to_owned()).unwrap();
        assert_eq!(jobs(&target).unwrap(), []);
        assert_eq!(restore_newest(&target, None).unwrap(), None);
        let mut job = Job::new();
        for epoch in 1..=4 {
            let id = job.checkpoint(epoch);
            let written = job.copy(&target, id, None, 2).unwrap();
            assert_eq!(written.unremoved, None);
            assert_eq!(restore_newest(&target, None).unwrap(), Some(id));
        }
        assert_eq!(jobs(&target).unwrap(), [JOB]);
        let listed = Copies::new(&target, JOB, None).list().unwrap();
        let generations: Vec<_> = listed.copies.iter().map(|copy| copy.generation).collect();
        assert_eq!(
            (generations, listed.bytes_and_leftovers().1),
            ([1, 3, 4].map(|epoch| job.id(epoch)).to_vec(), 0)
        );
    }
}

#[test]
fn an_object_of_many_parts_is_what_was_put() {
    let store = Arc::new(InMemory::new());
    let target = objects(&store);
    let piece: Vec<u8> = (0..1_000_003u32).map(|at| (at * 11 % 253).to_le_bytes()[0]).collect();
    let mut writing = target.create("large", 40 << 20).unwrap();
    for _ in 0..30 {
        writing.put(&piece).unwrap();
    }
    writing.finish().unwrap();
    assert_eq!(target.read("large", u64::MAX).unwrap(), piece.repeat(30));
    let source = target.open("large").unwrap();
    let mut middle = vec![0; 2_000_006];
    source.read_at(9 * 1_000_003, &mut middle).unwrap();
    assert_eq!(middle, piece.repeat(2));
    assert!(matches!(source.read_at(29_999_999, &mut middle), Err(StorageError::Short { .. })));
    // One that is given up leaves nothing.
    let mut writing = target.create("given up", 40 << 20).unwrap();
    for _ in 0..30 {
        writing.put(&piece).unwrap();
    }
    drop(writing);
    assert_eq!(target.list("").unwrap(), [Entry { path: "large".to_owned(), bytes: 30 * 1_000_003 }]);
    target.remove("large").unwrap();
    target.remove("large").unwrap();
    assert!(matches!(target.open("large").map(drop), Err(StorageError::NotFound { .. })));
}

#[test]
fn an_object_that_is_missing_or_exchanged_is_found() {
    let store = Arc::new(InMemory::new());
    let target = objects(&store);
    let mut job = Job::new();
    let id = [1, 2].map(|epoch| job.checkpoint(epoch))[1];
    job.copy(&target, id, None, 2).unwrap();
    let copies = Copies::new(&target, JOB, None);
    let listed = copies.list().unwrap();
    for entry in target.list("").unwrap().iter().filter(|entry| !entry.path.ends_with("/copied")) {
        let bytes = target.read(&entry.path, u64::MAX).unwrap();
        target.remove(&entry.path).unwrap();
        let found = copies.verify(&listed.copies, NonZeroUsize::MIN, &|_| ()).unwrap();
        assert!(
            matches!(
                &found[0].error,
                CopyError::Storage(StorageError::NotFound { path, .. }) | CopyError::Lacks { path, .. }
                    if path.contains(&entry.path)
            ),
            "{found:?}"
        );
        // As long as it was, and another one.
        let mut other = bytes.clone();
        *other.last_mut().unwrap() ^= 1;
        target.write(&entry.path, &other).unwrap();
        let found = copies.verify(&listed.copies, NonZeroUsize::MIN, &|_| ()).unwrap();
        assert!(
            matches!(
                found[0].error,
                CopyError::Exchanged { .. } | CopyError::Record { .. } | CopyError::Blocks { .. }
            ),
            "{found:?}"
        );
        target.write(&entry.path, &bytes).unwrap();
    }
    assert_eq!(restore_newest(&target, None).unwrap(), Some(id));
}

/// A store whose user dies at some operation.
struct Dying {
    of: Objects,
    left: AtomicU64,
}

impl Dying {
    fn step(&self) -> Result<(), StorageError> {
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map(drop).map_err(|_| StorageError::Crashed)
    }
}

struct DyingWriting<'a>(Option<Box<dyn Writing + 'a>>, &'a Dying);

impl Writing for DyingWriting<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.1.step()?;
        self.0.as_mut().unwrap().put(bytes)
    }

    fn finish(mut self: Box<Self>) -> Result<(), StorageError> {
        self.1.step()?;
        self.0.take().unwrap().finish()?;
        // Done, but the acknowledgement was lost.
        self.1.step()
    }
}

impl Target for Dying {
    fn create(&self, path: &str, bytes_max: u64) -> Result<Box<dyn Writing + '_>, StorageError> {
        self.step()?;
        Ok(Box::new(DyingWriting(Some(self.of.create(path, bytes_max)?), self)))
    }
    fn open(&self, path: &str) -> Result<Box<dyn packets::Source + '_>, StorageError> {
        self.step()?;
        self.of.open(path)
    }
    fn list(&self, folder: &str) -> Result<Vec<Entry>, StorageError> {
        self.step()?;
        self.of.list(folder)
    }
    fn top(&self) -> Result<Vec<String>, StorageError> {
        self.step()?;
        self.of.top()
    }
    fn remove(&self, path: &str) -> Result<(), StorageError> {
        self.step()?;
        self.of.remove(path)
    }
    fn shown(&self, path: &str) -> String {
        self.of.shown(path)
    }
}

#[test]
fn whoever_dies_at_any_request_leaves_whole_copies() {
    let mut job = Job::new();
    let ids = [1, 2, 3, 4].map(|epoch| job.checkpoint(epoch));
    let mut newest = [0, 0];
    for steps in 0.. {
        let store = Arc::new(InMemory::new());
        for id in &ids[..3] {
            job.copy(&objects(&store), *id, None, 2).unwrap();
        }
        let dying = Dying { of: objects(&store), left: AtomicU64::new(steps) };
        let copied = job.copy(&dying, ids[3], None, 2);
        if copied.is_ok_and(|written| written.unremoved.is_none()) {
            assert!(steps > 30 && newest[0] > 20 && newest[1] > 5, "{steps} {newest:?}");
            return;
        }
        let target = objects(&store);
        let found = restore_newest(&target, None).unwrap().expect("three were there");
        newest[usize::from(found == ids[3])] += 1;
        assert!(found == ids[2] || found == ids[3], "{found}");
        job.copy(&target, ids[3], None, 2).unwrap();
        assert_eq!(restore_newest(&target, None).unwrap(), Some(ids[3]));
        let listed = Copies::new(&target, JOB, None).list().unwrap();
        assert_eq!(listed.bytes_and_leftovers().1, 0);
    }
}

#[test]
fn what_lies_beside_the_prefix_is_not_ours() {
    let store = Arc::new(InMemory::new());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for path in ["some/other", "some/prefixed/file", "some/prefix/notes.txt"] {
        runtime.block_on(store.put(&path.into(), PutPayload::from_static(b"x"))).unwrap();
    }
    let target = objects(&store);
    let mut job = Job::new();
    let id = job.checkpoint(1);
    job.copy(&target, id, None, 1).unwrap();
    assert_eq!(jobs(&target).unwrap(), [JOB]);
    assert_eq!(target.list("").unwrap().iter().filter(|entry| entry.path == "notes.txt").count(), 1);
    let error = Objects::new(store, "", String::new()).unwrap().open("nothing").map(drop).unwrap_err();
    assert!(matches!(error, StorageError::NotFound { operation: Operation::Read, .. }));
}
