//! Records taken over from a copy in place of damaged or lost ones (R27), and refused ones.

use crate::common::{JOB, checkpoint, generation, job_file, life, restore};
use store::job::{AbandonedBy, GenerationState, JobDirectory};
use store::{Decision, JobFile, Manifest, Memory, Storage, StoreError};
use transport::{JobId, Life};

type Job = JobDirectory<Memory>;

/// A job that has committed two generations of its first life: their manifests.
fn job() -> (Job, Manifest, Manifest) {
    let mut directory = JobDirectory::create(Memory::new(), &job_file()).unwrap();
    let life = directory.start_life(0xaaaa, None).unwrap().life;
    let mut manifest = |epoch| {
        checkpoint(&mut directory, generation(life, epoch)).unwrap();
        directory.manifest(generation(life, epoch)).unwrap()
    };
    let (first, second) = (manifest(1), manifest(2));
    (directory, first, second)
}

fn path(manifest: &Manifest, name: &str) -> String {
    format!("{}/{name}", store::job::folder(manifest.generation))
}

fn read(directory: &mut Job, path: &str) -> Vec<u8> {
    let length = directory.storage().length(path).unwrap();
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    directory.storage().read_range(path, 0, &mut bytes).unwrap();
    bytes
}

/// One bit is another one.
fn damage(directory: &mut Job, path: &str) {
    let bytes = read(directory, path);
    let storage = directory.storage();
    let mut file = storage.reopen(path).unwrap();
    storage.overwrite(&mut file, 40, &[bytes[40] ^ 0x10]).unwrap();
}

fn lose(directory: &mut Job, path: &str) {
    directory.storage().remove_file(path).unwrap();
}

/// The copy is refused, and nothing has been written.
fn refused(directory: &mut Job, copy: &Manifest) {
    let before = directory.storage().changes_done();
    assert_eq!(directory.repair_manifest(copy), Ok(false));
    assert_eq!(directory.storage().changes_done(), before, "something was written");
}

#[test]
fn damaged_and_lost_records_are_what_they_were() {
    let (directory, first, second) = job();
    let of_newest = [(&second, "commit", true), (&second, "manifest", true)];
    let damaged = [(&first, "commit", false), (&first, "manifest", false), (&second, "commit", false)];
    for (manifest, name, is_lost) in of_newest.into_iter().chain(damaged).chain([(&first, "manifest", true)])
    {
        let mut directory = directory.clone();
        let path = path(manifest, name);
        let before = read(&mut directory, &path);
        if is_lost {
            lose(&mut directory, &path)
        } else {
            damage(&mut directory, &path)
        };
        assert!(directory.manifest(manifest.generation).is_err(), "{path}");
        assert_eq!(directory.repair_manifest(manifest), Ok(true), "{path}");
        assert_eq!(read(&mut directory, &path), before, "{path}");
        assert_eq!(directory.repair_manifest(manifest), Ok(false), "{path}: it is whole");
        restore(&mut directory, manifest.generation).unwrap();
    }
}

#[test]
fn a_copy_of_another_job_or_another_commit_is_refused() {
    let (mut directory, first, second) = job();
    damage(&mut directory, &path(&first, "manifest"));
    refused(&mut directory, &Manifest { job: JobId(JOB.0 + 1), ..first.clone() });
    // The commit record names the manifest that was committed.
    refused(&mut directory, &Manifest { taken_unix_ms: first.taken_unix_ms + 1, ..first.clone() });
    refused(&mut directory, &Manifest { generation: first.generation, ..second });
    assert_eq!(directory.repair_manifest(&first), Ok(true));
    // Nothing is left that would name it.
    damage(&mut directory, &path(&first, "commit"));
    refused(&mut directory, &Manifest { job: JobId(JOB.0 + 1), ..first.clone() });
    assert_eq!(directory.repair_manifest(&first), Ok(true));
}

// Generations older than the committed one may have been collected, and a generation that is being collected has lost
// its images.
#[test]
fn what_may_have_been_collected_does_not_come_back() {
    let (mut directory, first, _) = job();
    let life = first.generation.life;
    let mut lost = directory.clone();
    lose(&mut lost, &path(&first, "commit"));
    refused(&mut lost, &first);
    // It is just being collected.
    let mut going = directory.clone();
    going.storage().create(&path(&first, "collected")).unwrap();
    damage(&mut going, &path(&first, "commit"));
    refused(&mut going, &first);
    directory.collect(life, 1, &[]).unwrap();
    refused(&mut directory, &first);
}

// R9: ranks went on without it.
#[test]
fn what_a_later_life_went_on_without_does_not_come_back() {
    let (mut directory, first, second) = job();
    damage(&mut directory, &path(&second, "commit"));
    let later = directory.start_life(0xbbbb, Some(first.generation)).unwrap();
    refused(&mut directory, &second);
    let listed = directory.generations().unwrap();
    let state = listed.iter().find(|found| found.id == second.generation).map(|found| found.state);
    assert_eq!(state, Some(GenerationState::Abandoned(AbandonedBy::Life(later.life))));
}

#[test]
fn only_a_damaged_decision_is_written_anew_and_by_its_own_job_and_counter() {
    let (mut directory, ..) = job();
    let first = directory.newest_decision().unwrap().unwrap();
    let path = "decision-00000001";
    let repair = |directory: &mut Job, decision: Decision| directory.repair_decision(&decision);
    // It is whole, or there is none of that number.
    let other = Decision { life: life(1, 0xcccc), ..first };
    assert_eq!(repair(&mut directory, other), Ok(false));
    assert_eq!(repair(&mut directory, Decision { life: life(2, 0xcccc), ..first }), Ok(false));
    assert_eq!(directory.decisions(), Ok(vec![first]));
    let before = read(&mut directory, path);
    damage(&mut directory, path);
    assert_eq!(directory.damaged_lives(), Ok(vec![1]));
    assert_eq!(repair(&mut directory, Decision { job: JobId(JOB.0 + 1), ..first }), Ok(false));
    assert_eq!(directory.damaged_lives(), Ok(vec![1]));
    assert_eq!(repair(&mut directory, first), Ok(true));
    assert_eq!(read(&mut directory, path), before);
    assert_eq!(directory.damaged_lives(), Ok(Vec::new()));
    let Life { counter, .. } = directory.newest_decision().unwrap().unwrap().life;
    assert_eq!(counter, 1);
}

#[test]
fn a_job_file_is_renewed_and_generations_stay() {
    let (mut directory, _, second) = job();
    damage(&mut directory, "job");
    let storage = directory.storage().clone();
    assert!(matches!(JobDirectory::open(storage.clone()), Err(StoreError::Record { .. })));
    let file = JobFile { ranks: 2, ..job_file() };
    let mut renewed = JobDirectory::renew(storage.clone(), &file).unwrap();
    assert_eq!(renewed.manifest(second.generation), Ok(second.clone()));
    let (_, found) = JobDirectory::open(renewed.storage().clone()).unwrap();
    assert_eq!(found, file);
    // That of another job makes nothing of this one's its own.
    let mut other = JobDirectory::renew(storage, &JobFile { job: JobId(JOB.0 + 1), ..job_file() }).unwrap();
    assert!(matches!(other.manifest(second.generation), Err(StoreError::Record { .. })));
    // A disk that refuses leaves the old one.
    let mut full = directory.clone();
    full.storage().fault_after(0, store::storage::Fault::NoSpace);
    let before = read(&mut directory, "job");
    let storage = full.storage().clone();
    assert!(JobDirectory::renew(storage.clone(), &file).is_err());
    let mut still = JobDirectory::attach(storage, JOB);
    assert_eq!(read(&mut still, "job"), before);
}
