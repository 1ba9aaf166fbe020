//! The permitted and forbidden effects of a loss of power.

use std::collections::BTreeSet;

use super::*;

const CONTENT: &[u8] = b"0123456789";

/// Every state that a crash can leave, found by trying every sequence of choices.
fn all_outcomes<T: Ord>(disk: &Memory, look: impl Fn(&mut Memory) -> T) -> BTreeSet<T> {
    let mut outcomes = BTreeSet::new();
    let mut script: Vec<u64> = Vec::new();
    loop {
        let mut crashed = disk.clone();
        let mut bounds = Vec::new();
        crashed.crash(&mut |bound| {
            bounds.push(bound);
            script.get(bounds.len() - 1).copied().unwrap_or(0)
        });
        outcomes.insert(look(&mut crashed));
        script.resize(bounds.len(), 0);
        // The next script in the order of an odometer.
        while let Some(last) = script.pop() {
            if last + 1 < bounds[script.len()] {
                script.push(last + 1);
                break;
            }
        }
        if script.is_empty() {
            return outcomes;
        }
    }
}

fn content(disk: &mut Memory, path: &str) -> Option<Vec<u8>> {
    disk.read(path, 1 << 20).ok()
}

fn file_with(disk: &mut Memory, path: &str, bytes: &[u8]) -> MemoryFile {
    let mut file = disk.create(path).unwrap();
    disk.append(&mut file, bytes).unwrap();
    file
}

#[test]
fn an_unsynced_write_is_torn_at_any_byte() {
    let mut disk = Memory::new();
    let mut file = disk.create("a").unwrap();
    disk.sync_directory("").unwrap();
    disk.append(&mut file, CONTENT).unwrap();
    let outcomes = all_outcomes(&disk, |disk| content(disk, "a").unwrap());
    let expected: BTreeSet<Vec<u8>> = (0..=CONTENT.len()).map(|length| CONTENT[..length].to_vec()).collect();
    assert_eq!(outcomes, expected);
    disk.sync_file(&mut file).unwrap();
    assert_eq!(all_outcomes(&disk, |disk| content(disk, "a").unwrap()), BTreeSet::from([CONTENT.to_vec()]));
}

#[test]
fn a_later_write_may_survive_an_earlier_one() {
    let mut disk = Memory::new();
    let mut file = file_with(&mut disk, "a", b"....");
    disk.sync_file(&mut file).unwrap();
    disk.sync_directory("").unwrap();
    disk.append(&mut file, b"ab").unwrap();
    disk.overwrite(&mut file, 0, b"X").unwrap();
    disk.append(&mut file, b"c").unwrap();
    let outcomes = all_outcomes(&disk, |disk| content(disk, "a").unwrap());
    for expected in [&b"...."[..], b"X...", b"....ab", b"X...abc", b"X...a\0c", b"....\0\0c", b"X...\0\0c"] {
        assert!(outcomes.contains(expected), "{:?}", str::from_utf8(expected));
    }
    assert!(outcomes.iter().all(|outcome| outcome[1..4] == *b"..."), "what was synced stays");
}

#[test]
fn an_unsynced_name_may_be_lost_though_the_file_was_synced() {
    let mut disk = Memory::new();
    let mut file = file_with(&mut disk, "a", CONTENT);
    disk.sync_file(&mut file).unwrap();
    let outcomes = all_outcomes(&disk, |disk| content(disk, "a"));
    assert_eq!(outcomes, BTreeSet::from([None, Some(CONTENT.to_vec())]));
    disk.sync_directory("").unwrap();
    assert_eq!(all_outcomes(&disk, |disk| content(disk, "a")), BTreeSet::from([Some(CONTENT.to_vec())]));
}

#[test]
fn a_rename_is_lost_or_kept_but_never_half() {
    let mut disk = Memory::new();
    let mut old = file_with(&mut disk, "a", b"old");
    let mut new = file_with(&mut disk, "a.tmp", b"new");
    disk.sync_file(&mut old).unwrap();
    disk.sync_file(&mut new).unwrap();
    disk.sync_directory("").unwrap();
    disk.rename("a.tmp", "a").unwrap();
    let both = |disk: &mut Memory| (content(disk, "a").unwrap(), content(disk, "a.tmp"));
    let before = (b"old".to_vec(), Some(b"new".to_vec()));
    let after = (b"new".to_vec(), None);
    assert_eq!(all_outcomes(&disk, both), BTreeSet::from([before, after.clone()]));
    disk.sync_directory("").unwrap();
    assert_eq!(all_outcomes(&disk, both), BTreeSet::from([after]));
}

#[test]
fn an_unsynced_removal_may_be_undone() {
    let mut disk = Memory::new();
    let mut file = file_with(&mut disk, "a", CONTENT);
    disk.sync_file(&mut file).unwrap();
    disk.sync_directory("").unwrap();
    disk.remove_file("a").unwrap();
    let outcomes = all_outcomes(&disk, |disk| content(disk, "a"));
    assert_eq!(outcomes, BTreeSet::from([None, Some(CONTENT.to_vec())]));
}

#[test]
fn a_change_never_survives_an_earlier_one_of_the_same_name() {
    let mut disk = Memory::new();
    disk.create("a").unwrap();
    disk.rename("a", "b").unwrap();
    disk.create("a").unwrap();
    disk.create("c").unwrap();
    let names =
        |disk: &mut Memory| disk.list("").unwrap().into_iter().map(|entry| entry.name).collect::<String>();
    let outcomes = all_outcomes(&disk, names);
    let expected = ["", "a", "b", "ab", "c", "ac", "bc", "abc"].map(str::to_owned);
    assert_eq!(outcomes, BTreeSet::from(expected));
}

#[test]
fn a_lost_directory_takes_its_files_along() {
    let mut disk = Memory::new();
    disk.create_directory("d").unwrap();
    let mut file = file_with(&mut disk, "d/a", CONTENT);
    disk.sync_file(&mut file).unwrap();
    disk.sync_directory("d").unwrap();
    assert_eq!(
        all_outcomes(&disk, |disk| content(disk, "d/a")),
        BTreeSet::from([None, Some(CONTENT.to_vec())])
    );
    disk.crash_losing_all();
    assert_eq!((disk.list("").unwrap(), disk.used_bytes), (vec![], 0));
    assert_eq!(disk.nodes.len(), 1);
}

#[test]
fn nothing_works_between_crash_and_restart() {
    let mut disk = Memory::new();
    disk.fault_after(1, Fault::Crash);
    let mut file = disk.create("a").unwrap();
    assert_eq!(disk.append(&mut file, CONTENT), Err(StorageError::Crashed));
    assert!(disk.is_crashed());
    assert_eq!(disk.length("a"), Err(StorageError::Crashed));
    assert_eq!(disk.list(""), Err(StorageError::Crashed));
    assert_eq!(disk.sync_directory(""), Err(StorageError::Crashed));
    // The write during which power was lost may have reached the disk.
    disk.crash(&mut |_| 1);
    assert_eq!(content(&mut disk, "a"), Some(CONTENT.to_vec()));
}

#[test]
fn a_full_disk_takes_what_fits() {
    let mut disk = Memory::new();
    disk.set_capacity_bytes(Some(15));
    let mut file = file_with(&mut disk, "a", CONTENT);
    let error = disk.append(&mut file, CONTENT).unwrap_err();
    assert!(matches!(error, StorageError::NoSpace { wanted_bytes: 10, free_bytes: Some(0), .. }), "{error}");
    assert_eq!(content(&mut disk, "a").unwrap(), b"012345678901234");
    disk.overwrite(&mut file, 3, b"xyz").unwrap();
    disk.remove_file("a").unwrap();
    assert_eq!(disk.free_bytes(), Ok(Some(15)));
    file_with(&mut disk, "b", CONTENT);
}

#[test]
fn a_fault_is_met_once_at_its_operation() {
    let mut disk = Memory::new();
    disk.fault_after(2, Fault::Device);
    let mut file = file_with(&mut disk, "a", CONTENT);
    let error = disk.sync_file(&mut file).unwrap_err();
    assert!(matches!(error, StorageError::Device { operation: Operation::SyncFile, .. }), "{error}");
    disk.sync_file(&mut file).unwrap();
    assert_eq!(disk.changes_done(), 4);
    assert!(!disk.clear_fault());
}

#[test]
fn what_no_name_leads_to_is_forgotten() {
    let mut disk = Memory::new();
    for _ in 0..3 {
        let mut file = file_with(&mut disk, "a.tmp", CONTENT);
        disk.sync_file(&mut file).unwrap();
        disk.rename("a.tmp", "a").unwrap();
        disk.sync_directory("").unwrap();
    }
    assert_eq!((disk.nodes.len(), disk.used_bytes), (2, 10));
}
