//! Copies are restored; shared data is stored once; faults of copies are reported.

use std::num::NonZeroUsize;

use crate::common::{Disk, JOB, Job, base_path, restore_into, restore_newest};
use copies::{Copies, CopyError, CopyKey, Report, Target as _, jobs};
use store::delta::DeltaError;
use store::error::RecordError;
use store::packets::{Key, KeyUse, PacketsError};
use store::{JobDirectory, Storage as _, StorageError, StoreError};
use transport::JobId;

fn key(byte: u8) -> Option<CopyKey> {
    Some(CopyKey::encrypting(Key([byte; 32])))
}

fn files_of_ranks(disk: &Disk) -> usize {
    let entries = disk.target().list("").unwrap();
    entries.iter().filter(|entry| entry.path.contains("/rank-")).count()
}

#[test]
fn copies_share_what_has_not_changed_and_old_ones_that_nobody_needs_go() {
    let mut job = Job::new();
    let disk = Disk::default();
    assert_eq!(restore_newest(&disk.target(), None).unwrap(), None);
    let mut stored = Vec::new();
    for epoch in 1..=4 {
        let id = job.checkpoint(epoch);
        let written = job.copy(&disk.target(), id, None, 2).unwrap();
        assert_eq!(written.unremoved, None);
        // They build upon the first one, until they take more room than it.
        let expected: Vec<_> = (epoch == 4).then(|| job.id(2)).into_iter().collect();
        assert_eq!(written.removed, expected);
        assert_eq!(
            written.copied.upon.map(|upon| upon.generation),
            [2, 3].contains(&epoch).then(|| job.id(1))
        );
        stored.push((written.copied.stored_bytes(), written.copied.bytes()));
        assert_eq!(files_of_ranks(&disk), [4, 8, 12, 12][epoch as usize - 1]);
        assert_eq!(restore_newest(&disk.target(), None).unwrap(), Some(id));
    }
    // Whole; then the noise of an image, and a delta, and nothing of that one's base.
    assert!(stored[0].0 < stored[0].1, "compressible: {stored:?}");
    assert!(stored[1..3].iter().all(|(stored, of)| *stored < of / 2), "{stored:?}");
    assert!(stored[1].0 + stored[2].0 > stored[0].0 && stored[3].0 > stored[2].0, "whole again: {stored:?}");
    assert_eq!(jobs(&disk.target()).unwrap(), [JOB]);
    // Once more: nothing is read or written but records.
    let again = job.copy(&disk.target(), job.id(4), None, 2).unwrap();
    assert_eq!((again.new_bytes, again.removed), (0, vec![]));
}

#[test]
fn with_a_key_nothing_is_readable_without_it() {
    let mut job = Job::new();
    let ids = [1, 2].map(|epoch| job.checkpoint(epoch));
    let disk = Disk::default();
    job.copy(&disk.target(), ids[0], key(1), 4).unwrap();
    assert_eq!(restore_newest(&disk.target(), key(1)).unwrap(), Some(ids[0]));
    for wrong in [None, key(2)] {
        // `verify` names it, and so does a reader.
        let target = disk.target();
        let copies = Copies::new(&target, JOB, wrong.clone());
        let listed = copies.list().unwrap();
        let found = copies.verify(&listed.copies, NonZeroUsize::MIN, &|_| ()).unwrap();
        let expected = CopyError::Key { generation: ids[0], usage: KeyUse::Encrypt, given: wrong.is_some() };
        assert_eq!(found[0].error, expected);
        assert_eq!(copies.job_file(&listed.copies[0]).unwrap_err(), expected);
        let directory = JobDirectory::attach(Disk::default(), JOB);
        assert_eq!(crate::common::fetch(&copies, &listed.copies[0], &directory).unwrap_err(), expected);
    }
    let text = b"SECRET=hush";
    for entry in disk.target().list("").unwrap() {
        let bytes = disk.target().read(&entry.path, u64::MAX).unwrap();
        assert!(!bytes.windows(text.len()).any(|window| window == text), "{}", entry.path);
    }
    // Another key from now on: older copies stay readable with theirs.
    job.copy(&disk.target(), ids[1], key(2), 4).unwrap();
    let target = disk.target();
    for (at, own) in [(0, key(1)), (1, key(2))] {
        let copies = Copies::new(&target, JOB, own);
        let listed = copies.list().unwrap();
        assert_eq!(copies.verify(&listed.copies[at..=at], NonZeroUsize::MIN, &|_| ()).unwrap(), []);
    }
    // A key for a copy that has none.
    let plain = Disk::default();
    job.copy(&plain.target(), ids[0], None, 4).unwrap();
    let target = plain.target();
    let copies = Copies::new(&target, JOB, key(1));
    let listed = copies.list().unwrap();
    let directory = JobDirectory::attach(Disk::default(), JOB);
    let error = restore_into(&copies, &listed.copies[0], directory).unwrap_err();
    assert!(matches!(error, CopyError::Packets { error: PacketsError::NotEncrypted, .. }), "{error}");
}

#[test]
fn every_damaged_byte_is_found_and_its_packet_named() {
    let mut job = Job::new();
    let ids = [1, 2].map(|epoch| job.checkpoint(epoch));
    let disk = Disk::default();
    job.copy(&disk.target(), ids[0], None, 4).unwrap();
    job.copy(&disk.target(), ids[1], None, 4).unwrap();
    let (mut packets, mut refused) = (0, 0);
    for entry in disk.target().list("").unwrap() {
        for offset in (0..entry.bytes).step_by(1 + usize::try_from(entry.bytes / 60).unwrap()) {
            let disk = disk.twin();
            assert!(disk.hold().damage(&entry.path, offset, 0x10));
            let target = disk.target();
            let copies = Copies::new(&target, JOB, None);
            let listed = copies.list().unwrap();
            let found = copies.verify(&listed.copies, NonZeroUsize::MIN, &|_| ()).unwrap();
            assert!(!found.is_empty() || !listed.damaged.is_empty(), "{} at {offset}", entry.path);
            // A copy whose base has a damaged record names that base.
            let named = entry.path.rsplit('/').next().unwrap();
            let hangs = format!("builds upon that of {}", ids[0]);
            let words = found.iter().map(|found| found.error.to_string());
            let words: Vec<_> =
                words.chain(listed.damaged.iter().map(|(_, error)| error.to_string())).collect();
            assert!(words.iter().all(|words| words.contains(named) || words.contains(&hangs)), "{words:?}");
            packets += usize::from(words.iter().any(|words| words.contains("packet ")));
            // A damaged copy is never brought back as if it were right.
            for copied in &listed.copies {
                let restored = restore_into(&copies, copied, JobDirectory::attach(Disk::default(), JOB));
                let is_damaged = found.iter().any(|found| found.generation == copied.generation);
                // A file may be damaged where this copy does not need it.
                assert!(restored.is_ok() || is_damaged, "{} at {offset}: {restored:?}", entry.path);
                refused += usize::from(restored.is_err());
            }
        }
    }
    assert!(packets > 100 && refused > 200, "{packets} {refused}");
}

#[test]
fn a_missing_file_is_named() {
    let mut job = Job::new();
    let id = [1, 2].map(|epoch| job.checkpoint(epoch))[1];
    let whole = Disk::default();
    job.copy(&whole.target(), id, None, 4).unwrap();
    for entry in whole.target().list("").unwrap() {
        let disk = whole.twin();
        disk.hold().remove_file(&entry.path).unwrap();
        let target = disk.target();
        let copies = Copies::new(&target, JOB, None);
        let listed = copies.list().unwrap();
        if entry.path.ends_with("/copied") {
            assert!(listed.copies.is_empty());
        } else {
            let found = copies.verify(&listed.copies, NonZeroUsize::MIN, &|_| ()).unwrap();
            let error = &found[0].error;
            let is_lost = matches!(error, CopyError::Storage(StorageError::NotFound { .. }));
            assert!(is_lost || matches!(error, CopyError::Lacks { .. }), "{error}");
            assert!(error.to_string().contains(&entry.path), "{error}");
        }
        // The next copy of the generation mends it.
        job.copy(&disk.target(), id, None, 4).unwrap();
        assert_eq!(restore_newest(&disk.target(), None).unwrap(), Some(id));
    }
}

#[test]
fn an_image_that_is_damaged_is_not_copied() {
    let mut job = Job::new();
    let id = [1, 2].map(|epoch| job.checkpoint(epoch))[1];
    for path in [job.directory.image_path(id, transport::Rank(0)), base_path(id)] {
        let disk = Disk::default();
        let undamaged = job.directory.storage().twin();
        assert!(job.directory.storage().hold().damage(&path, 5000, 1));
        let error = job.copy(&disk.target(), id, None, 4).unwrap_err();
        assert!(matches!(error, CopyError::Store(StoreError::Image { .. })), "{error}");
        assert_eq!(disk.target().list("").unwrap(), []);
        *job.directory.storage() = undamaged;
    }
}

#[test]
fn what_a_directory_has_stays_and_the_rest_is_brought() {
    let mut job = Job::new();
    let id = [1, 2].map(|epoch| job.checkpoint(epoch))[1];
    let disk = Disk::default();
    job.copy(&disk.target(), id, None, 4).unwrap();
    let target = disk.target();
    let copies = Copies::new(&target, JOB, None);
    let copied = copies.list().unwrap().newest().unwrap().clone();
    let image = |rank| job.directory.image_path(id, transport::Rank(rank));
    let (first, second, base) = (image(0), image(1), base_path(id));
    let commit = format!("{}/commit", store::job::folder(id));
    let cases: [(&str, u32); 5] = [(&first, 1), (&second, 2), (&base, 2), (&commit, 0), ("", 0)];
    for (path, brought) in cases {
        for is_removed in [true, false] {
            let own = job.directory.clone().storage().twin();
            if path.is_empty() {
            } else if is_removed {
                own.hold().remove_file(path).unwrap();
            } else {
                assert!(own.hold().damage(path, 20, 1));
            }
            let mut directory = JobDirectory::attach(own, JOB);
            let files = crate::common::fetch(&copies, &copied, &directory).unwrap();
            assert_eq!(files, brought, "{path}");
            assert_eq!(directory.verify(id, store::job::Depth::Everything).unwrap(), []);
            assert_eq!(directory.newest_committed().unwrap().unwrap().generation, id);
        }
    }
}

/// Whether this is the disk's error for this file.
fn is_unreadable(error: &CopyError, path: &str) -> bool {
    let error = match error {
        CopyError::Storage(error) | CopyError::Store(StoreError::Storage(error)) => error,
        CopyError::Packets { error: PacketsError::Storage(error), .. } => error,
        CopyError::Blocks { error: DeltaError::Packets(PacketsError::Storage(error)), .. } => error,
        _ => return false,
    };
    matches!(error, StorageError::Io { errno: crate::common::EIO, path: found, .. } if found == path)
}

// A file that is there is not taken for a missing one, even if its disk fails: neither is another copy taken in its
// place, nor is it written over.
#[test]
fn a_file_that_cannot_be_read_is_reported_with_its_own_error() {
    let mut job = Job::new();
    let id = [1, 2].map(|epoch| job.checkpoint(epoch))[1];
    let whole = Disk::default();
    job.copy(&whole.target(), id, None, 4).unwrap();
    // At the place of the copies.
    for entry in whole.target().list("").unwrap() {
        let disk = whole.twin();
        disk.make_unreadable(&entry.path);
        let target = disk.target();
        let copies = Copies::new(&target, JOB, None);
        let found = copies.list().and_then(|listed| {
            let found = copies.verify(&listed.copies, NonZeroUsize::MIN, &|_| ())?;
            Ok(found.into_iter().next().expect("a file cannot be read").error)
        });
        let error = found.unwrap_or_else(|error| error);
        assert!(is_unreadable(&error, &entry.path) && !error.is_damage(), "{}: {error}", entry.path);
    }
    // In a job's directory, to which images are brought, and from which they are copied.
    let target = whole.target();
    let copies = Copies::new(&target, JOB, None);
    let copied = copies.list().unwrap().newest().unwrap().clone();
    for path in [job.directory.image_path(id, transport::Rank(0)), base_path(id)] {
        let own = job.directory.storage().twin();
        own.make_unreadable(&path);
        let error =
            crate::common::fetch(&copies, &copied, &JobDirectory::attach(own.clone(), JOB)).unwrap_err();
        assert!(is_unreadable(&error, &path), "{path}: {error}");
        let before = std::mem::replace(job.directory.storage(), own);
        let error = job.copy(&Disk::default().target(), id, None, 4).unwrap_err();
        assert!(is_unreadable(&error, &path), "{path}: {error}");
        *job.directory.storage() = before;
    }
}

#[test]
fn a_job_that_went_on_elsewhere_is_not_written_over() {
    let mut job = Job::new();
    let ids = [1, 2].map(|epoch| job.checkpoint(epoch));
    let disk = Disk::default();
    job.copy(&disk.target(), ids[0], None, 4).unwrap();
    // The same job, restarted from the copy.
    let mut other = Job::new();
    other.checkpoint(1);
    other.life = other.directory.start_life(0xcccc, Some(ids[0])).unwrap().life;
    let later = other.checkpoint(2);
    other.copy(&disk.target(), later, None, 4).unwrap();
    let error = job.copy(&disk.target(), ids[1], None, 4).unwrap_err();
    assert_eq!(error, CopyError::Superseded { by: later });
    // From an older life's view the later one counts.
    assert!(job.directory.clone().passed_over(ids[1]).unwrap().is_none());
    assert_eq!(other.directory.passed_over(ids[1]).unwrap(), Some(other.life));
    assert_eq!(other.directory.passed_over(ids[0]).unwrap(), None);
}

#[test]
fn nothing_is_removed_while_a_record_cannot_be_read() {
    let mut job = Job::new();
    let disk = Disk::default();
    for epoch in 1..=2 {
        let id = job.checkpoint(epoch);
        job.copy(&disk.target(), id, None, 8).unwrap();
    }
    let record = format!("{JOB}/{}/copied", store::job::folder(job.id(2)));
    assert!(disk.hold().damage(&record, 30, 1));
    let before = files_of_ranks(&disk);
    let id = job.checkpoint(3);
    let written = job.copy(&disk.target(), id, None, 1).unwrap();
    assert_eq!((written.removed, files_of_ranks(&disk)), (vec![], before + 4));
    let why = written.unremoved.expect("they stay").to_string();
    assert!(why.contains(&record) && why.contains("remove it"), "{why}");
    // Files that it may need are not reported as leftovers.
    let listed = Copies::new(&disk.target(), JOB, None).list().unwrap();
    assert_eq!((listed.damaged.len(), listed.bytes_and_leftovers().1), (1, 0));
    disk.hold().remove_file(&record).unwrap();
    let written = job.copy(&disk.target(), id, None, 1).unwrap();
    // The newest one, and its base.
    assert_eq!((written.unremoved, files_of_ranks(&disk)), (None, 8));
}

#[test]
fn what_is_taken_onto_a_node_is_durable_before_the_records_of_the_job_are() {
    let mut job = Job::new();
    let id = [1, 2].map(|epoch| job.checkpoint(epoch))[1];
    let disk = Disk::default();
    job.copy(&disk.target(), id, None, 4).unwrap();
    let target = disk.target();
    let copies = Copies::new(&target, JOB, None);
    let copied = copies.list().unwrap().newest().unwrap().clone();
    let mut records =
        JobDirectory::create(Disk::default(), &crate::common::job_file()).unwrap().on_node(u32::MAX);
    let mut node = JobDirectory::attach(Disk::default(), JOB);
    let images = crate::common::One(node.clone());
    copies.fetch(&copied, &mut records, &images, NonZeroUsize::MIN, &Report::default()).unwrap();
    node.storage().hold().crash_losing_all();
    let manifest = records.manifest(id).unwrap();
    let damages = node.verify_images(&manifest, store::job::Depth::Everything, |_, _| ()).unwrap();
    assert_eq!(damages, []);
}

#[test]
fn a_job_file_that_claims_to_be_huge_is_refused_before_it_is_read() {
    let mut job = Job::new();
    let id = job.checkpoint(1);
    let disk = Disk::default();
    job.copy(&disk.target(), id, None, 4).unwrap();
    let target = disk.target();
    let copies = Copies::new(&target, JOB, None);
    let mut copied = copies.list().unwrap().newest().unwrap().clone();
    copied.job_file.bytes = u64::MAX;
    let error = copies.job_file(&copied).unwrap_err();
    assert!(matches!(error, CopyError::Storage(StorageError::TooLong { .. })), "{error}");
}

#[test]
fn a_manifest_of_another_job_is_reported_as_that() {
    let mut job = Job::new();
    let id = job.checkpoint(1);
    let disk = Disk::default();
    job.copy(&disk.target(), id, None, 4).unwrap();
    let target = disk.target();
    let other = store::Manifest { job: JobId(7), ..job.directory.clone().manifest(id).unwrap() }.emit();
    target.write(&format!("{JOB}/{}/manifest", store::job::folder(id)), &other).unwrap();
    let copies = Copies::new(&target, JOB, None);
    let mut copied = copies.list().unwrap().newest().unwrap().clone();
    copied.manifest = store::Manifest::checksum(&other);
    let error = copies.manifest(&copied).unwrap_err();
    let expected = RecordError::WrongJob { expected: JOB, found: JobId(7) };
    assert!(matches!(&error, CopyError::Record { error, .. } if *error == expected), "{error}");
}

#[test]
fn a_copy_that_is_stopped_leaves_nothing() {
    let mut job = Job::new();
    let id = job.checkpoint(1);
    let disk = Disk::default();
    let report = Report::default();
    report.stop();
    assert_eq!(job.copy_with(&disk.target(), id, None, 4, &report).unwrap_err(), CopyError::Stopped);
    assert_eq!(disk.target().list("").unwrap(), []);
}
