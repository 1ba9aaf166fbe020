//! Signed copies: everybody reads them, and nobody without the key changes one unnoticed.

use std::num::NonZeroUsize;

use crate::common::{Disk, JOB, Job, restore_into, restore_newest};
use copies::{Copies, CopyError, CopyKey, Target as _};
use store::packets::{Key, KeyUse};
use store::record::Copied;
use store::{JobDirectory, Manifest};

const KEY: Key = Key([1; 32]);
const OTHER: Key = Key([2; 32]);

fn signed() -> Option<CopyKey> {
    Some(CopyKey::signing(KEY))
}

/// The messages of everybody who reads the newest copy with the key: `verify`, and a restore.
fn refusals(disk: &Disk) -> Vec<String> {
    let target = disk.target();
    let copies = Copies::new(&target, JOB, signed());
    let listed = copies.list().unwrap();
    let newest = listed.newest().expect("a record that can be read");
    let found = copies.verify(core::slice::from_ref(newest), NonZeroUsize::MIN, &|_| ()).unwrap();
    let restored = copies.job_file(newest).and_then(|_| {
        // As a keeper does it, which takes no listing's word.
        copies.with_needs(newest.generation)?;
        restore_into(&copies, newest, JobDirectory::attach(Disk::default(), JOB))
    });
    found.into_iter().map(|found| found.error).chain(restored.err()).map(|error| error.to_string()).collect()
}

fn write(disk: &Disk, path: &str, bytes: &[u8]) {
    disk.target().remove(path).unwrap();
    disk.target().write(path, bytes).unwrap();
}

fn read(disk: &Disk, path: &str) -> Vec<u8> {
    disk.target().read(path, u64::MAX).unwrap()
}

/// Two copies, the second of which builds upon the first.
fn two(key: Option<CopyKey>) -> Disk {
    let (mut job, disk) = (Job::new(), Disk::default());
    for epoch in [1, 2] {
        let id = job.checkpoint(epoch);
        job.copy(&disk.target(), id, key.clone(), 4).unwrap();
    }
    disk
}

#[test]
fn everybody_reads_a_signed_copy_and_its_key_vouches_for_it() {
    let disk = two(signed());
    let newest = Copies::new(&disk.target(), JOB, None).list().unwrap().newest().unwrap().clone();
    assert!(newest.upon.is_some(), "one that builds upon another");
    assert_eq!(newest.key.map(|key| key.usage), Some(KeyUse::Sign));
    assert_eq!(refusals(&disk), Vec::<String>::new());
    // The owner of the key may give it as a key of encryption, too: the signature is the same.
    for key in [None, signed(), Some(CopyKey::encrypting(KEY))] {
        assert_eq!(restore_newest(&disk.target(), key).unwrap(), Some(newest.generation));
    }
    let target = disk.target();
    let copies = Copies::new(&target, JOB, Some(CopyKey::signing(OTHER)));
    let expected = CopyError::Key { generation: newest.generation, usage: KeyUse::Sign, given: true };
    assert_eq!(copies.job_file(&newest).unwrap_err(), expected);
    assert_eq!(copies.manifest(&newest).unwrap_err(), expected);
}

#[test]
fn a_file_that_somebody_without_the_key_wrote_is_refused_by_name() {
    let disk = two(signed());
    // The same job, copied by somebody who has no key, or one of their own.
    let mut exchanged = 0;
    for forger in [None, Some(CopyKey::signing(OTHER)), Some(CopyKey::encrypting(OTHER))] {
        let forged = two(forger);
        for entry in disk.target().list("").unwrap() {
            let (own, other) = (read(&disk, &entry.path), read(&forged, &entry.path));
            // A base's places are not read for the copy upon it.
            let is_unread = entry.path.contains("epoch-00000001")
                && (entry.path.ends_with(".places") || !entry.path.contains("rank-"))
                && !entry.path.ends_with("copied");
            if own == other || is_unread {
                continue;
            }
            let disk = disk.twin();
            write(&disk, &entry.path, &other);
            let refusals = refusals(&disk);
            let name = entry.path.rsplit('/').next().unwrap();
            // An exchanged record has a key of its own, or none: then its generation, or its job file is named.
            let is_record = name == "copied";
            assert!(!refusals.is_empty(), "{}", entry.path);
            assert!(is_record || refusals.iter().all(|words| words.contains(name)), "{name}: {refusals:?}");
            exchanged += 1;
        }
    }
    assert!(exchanged >= 18, "{exchanged}");
}

/// A change of a record, or of its signature.
type Change = fn(&mut Copied);

#[test]
fn a_record_that_was_changed_is_refused_by_name_wherever_it_lies_in_a_chain() {
    let changes: [(&str, Change); 5] = [
        ("its signature was taken away", |copied| copied.signature = None),
        ("a time was changed", |copied| copied.taken_unix_ms += 1),
        ("the file of another rank was named", |copied| copied.ranks.swap(0, 1)),
        ("another manifest was named", |copied| copied.manifest ^= 1),
        ("somebody signed it with another key", |copied| copied.sign(&OTHER, [7; 24], b"")),
    ];
    for epoch in [1, 2] {
        for (what, change) in changes {
            let disk = two(signed());
            let paths: Vec<String> = disk.target().list("").unwrap().into_iter().map(|at| at.path).collect();
            let path = |name: &str, epoch: u32| {
                let of = format!("epoch-{epoch:08}/{name}");
                paths.iter().find(|path| path.ends_with(&of)).unwrap()
            };
            let mut copied = Copied::parse(&read(&disk, path("copied", epoch))).unwrap();
            change(&mut copied);
            write(&disk, path("copied", epoch), &copied.emit());
            if epoch == 1 {
                // As if nobody compared the checksum of the base's record: the copy upon it is signed anew, for the changed one.
                let mut upper = Copied::parse(&read(&disk, path("copied", 2))).unwrap();
                let manifest = read(&disk, path("manifest", 2));
                upper.upon.as_mut().unwrap().record = copied.checksum();
                upper.sign(&KEY, [8; 24], &manifest);
                write(&disk, path("copied", 2), &upper.emit());
            }
            let refusals = refusals(&disk);
            let named = |words: &String| words.contains("copied is not signed with the key");
            assert!(!refusals.is_empty() && refusals.iter().all(named), "{what}, {epoch}: {refusals:?}");
        }
    }
}

#[test]
fn a_manifest_that_was_changed_is_refused_by_name() {
    let disk = two(signed());
    let paths = disk.target().list("").unwrap().into_iter().map(|at| at.path);
    let [copied_at, manifest_at] = ["epoch-00000002/copied", "epoch-00000002/manifest"]
        .map(|name| paths.clone().find(|path| path.ends_with(name)).unwrap());
    let mut manifest = Manifest::parse(&read(&disk, &manifest_at)).unwrap();
    manifest.nodes[0].push('x');
    // As if its checksum had been made to fit, which is easy for a checksum against accidents.
    let mut copied = Copied::parse(&read(&disk, &copied_at)).unwrap();
    let true_manifest = read(&disk, &manifest_at);
    copied.manifest = Manifest::checksum(&manifest.emit());
    copied.sign(&KEY, [8; 24], &true_manifest);
    write(&disk, &copied_at, &copied.emit());
    write(&disk, &manifest_at, &manifest.emit());
    let refusals = refusals(&disk);
    let named = |words: &String| words.contains("manifest is not signed with the key");
    assert!(!refusals.is_empty() && refusals.iter().all(named), "{refusals:?}");
}

#[test]
fn encrypted_copies_of_earlier_versions_are_read_only_on_request() {
    let disk = two(Some(CopyKey::encrypting(KEY)));
    for entry in disk.target().list("").unwrap() {
        if entry.path.ends_with("copied") {
            let mut copied = Copied::parse(&read(&disk, &entry.path)).unwrap();
            copied.signature = None;
            if let Some(upon) = &mut copied.upon {
                let base = entry.path.replace("epoch-00000002", "epoch-00000001");
                upon.record = Copied::parse(&read(&disk, &base)).unwrap().checksum();
            }
            write(&disk, &entry.path, &copied.emit());
        }
    }
    assert!(refusals(&disk).iter().all(|words| words.contains("--trust")), "{:?}", refusals(&disk));
    let accepted = CopyKey { accepts_unsigned: true, ..CopyKey::encrypting(KEY) };
    assert!(restore_newest(&disk.target(), Some(accepted)).unwrap().is_some());
}
