//! Lives and generations: which may be begun, committed, restored, removed, and by whom.

use crate::common::{JOB, checkpoint, generation, job_file, life, memory, request, restore, write_images};
use ckpt_glue::protection::seat::JobEnd;
use store::image::Exited;
use store::job::{AbandonedBy, Damage, Depth, GenerationState, JobDirectory};
use store::{
    CommitError, GenerationId, ImageError, Memory, RecordError, Section, Storage, StorageError, StoreError,
};
use transport::{Epoch, JobId, Life, Rank};

type Job = JobDirectory<Memory>;

/// A job in its first life.
fn job() -> (Job, Life) {
    let mut directory = JobDirectory::create(Memory::new(), &job_file()).unwrap();
    let life = directory.start_life(0xaaaa, None).unwrap().life;
    (directory, life)
}

fn states(directory: &mut Job) -> Vec<(u32, u32, GenerationState)> {
    let listed = directory.generations().unwrap();
    listed.iter().map(|found| (found.id.life.counter, found.id.epoch.0, found.state)).collect()
}

fn refusal(error: StoreError) -> CommitError {
    match error {
        StoreError::Commit { error, .. } => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_generation_goes_through_its_states() {
    let (mut directory, life) = job();
    let id = generation(life, 1);
    directory.begin_generation(id).unwrap();
    directory.begin_generation(id).unwrap();
    assert_eq!(states(&mut directory), [(1, 1, GenerationState::Writing)]);
    let claims = write_images(&mut directory, id).unwrap();
    assert_eq!(states(&mut directory), [(1, 1, GenerationState::Writing)]);
    assert_eq!(directory.newest_committed().unwrap(), None);

    // The last operation of a commit but one gives the record its name.
    let mut interrupted = directory.clone();
    interrupted.storage().fault_after(7, store::storage::Fault::Device);
    let error = interrupted.commit(&request(id, claims.clone())).unwrap_err();
    assert!(matches!(error, StoreError::Storage(StorageError::Device { .. })), "{error}");
    assert_eq!(states(&mut interrupted), [(1, 1, GenerationState::Complete)]);

    let manifest = directory.commit(&request(id, claims.clone())).unwrap();
    assert_eq!(states(&mut directory), [(1, 1, GenerationState::Committed)]);
    assert_eq!(directory.newest_committed().unwrap().as_ref(), Some(&manifest));
    assert_eq!(manifest.nodes, ["node one"]);
    restore(&mut directory, id).unwrap();

    // The same again is no error, another content is.
    assert_eq!(directory.commit(&request(id, claims.clone())).unwrap(), manifest);
    assert_eq!(refusal(directory.begin_generation(id).unwrap_err()), CommitError::AlreadyCommitted);

    let next = generation(life, 2);
    checkpoint(&mut directory, next).unwrap();
    let report = directory.collect(life, 1, &[]).unwrap();
    assert_eq!((report.kept, report.removed), (vec![next], vec![id]));
    assert_eq!(states(&mut directory), [(1, 2, GenerationState::Committed)]);
}

#[test]
fn what_is_abandoned_is_never_committed() {
    let (mut directory, life) = job();
    let (first, second) = (generation(life, 1), generation(life, 2));
    directory.begin_generation(first).unwrap();
    let claims = write_images(&mut directory, first).unwrap();
    directory.begin_generation(second).unwrap();
    let overtaken = CommitError::Overtaken { by: Epoch(2) };
    assert_eq!(refusal(directory.commit(&request(first, claims)).unwrap_err()), overtaken);
    assert_eq!(refusal(directory.begin_generation(first).unwrap_err()), overtaken);
    let abandoned = GenerationState::Abandoned(AbandonedBy::Epoch(Epoch(2)));
    assert_eq!(states(&mut directory), [(1, 1, abandoned), (1, 2, GenerationState::Writing)]);

    directory.abandon(second).unwrap();
    directory.collect(life, 1, &[]).unwrap();
    assert_eq!(states(&mut directory), [(1, 2, GenerationState::Writing)]);
    let still = refusal(directory.begin_generation(first).unwrap_err());
    assert_eq!(still, overtaken, "a number that was used stays used");
}

#[test]
fn a_life_must_be_decided_before_it_writes() {
    let (mut directory, of_first) = job();
    let same_counter = life(of_first.counter, 0xbbbb);
    for stranger in [same_counter, life(7, 1)] {
        let error = directory.begin_generation(generation(stranger, 1)).unwrap_err();
        assert_eq!(refusal(error), CommitError::UndecidedLife);
        assert!(directory.expect_current(stranger).is_err());
    }
    assert!(directory.expect_current(of_first).is_ok());
}

#[test]
fn a_new_life_is_newer_than_everything_on_disk() {
    let (mut directory, first) = job();
    let second = directory.start_life(1, None).unwrap().life;
    assert_eq!((first.counter, second.counter), (1, 2));
    let storage = directory.storage();
    storage.create_directory("life-00000041-0000000000000000").unwrap();
    storage.create("decision-00000050.00000000000000aa.tmp").unwrap();
    assert_eq!(
        directory.start_life(2, None).unwrap().life.counter,
        42,
        "a decision never made takes no number"
    );
    directory.storage().create("decision-00000060").unwrap();
    let third = directory.start_life(3, None).unwrap().life;
    assert_eq!(third.counter, 61, "a decision that cannot be read keeps its number");
    directory.storage().create("decision-4294967295").unwrap();
    let error = directory.start_life(4, None).unwrap_err();
    assert_eq!(error, StoreError::LivesUsedUp { counter_max: u32::MAX });
}

#[test]
fn a_life_starts_only_from_what_is_committed() {
    let (mut directory, of_first) = job();
    let id = generation(of_first, 1);
    directory.begin_generation(id).unwrap();
    write_images(&mut directory, id).unwrap();
    for from in [id, generation(of_first, 9), generation(life(9, 9), 1)] {
        assert_eq!(
            directory.start_life(5, Some(from)).unwrap_err(),
            StoreError::NotCommitted { generation: from }
        );
    }
    assert_eq!(directory.newest_decision().unwrap().unwrap().life, of_first);
}

#[test]
fn a_commit_that_raced_a_decision_does_not_count() {
    let (mut old, old_life) = job();
    let base = generation(old_life, 1);
    checkpoint(&mut old, base).unwrap();
    let late = generation(old_life, 2);
    checkpoint(&mut old, late).unwrap();
    // The decider had looked before the second commit: its decision names the first generation.
    let mut decider = JobDirectory::attach(old.storage().clone(), JOB);
    let decision = decider.start_life(5, Some(base)).unwrap();
    let fenced = GenerationState::Abandoned(AbandonedBy::Life(decision.life));
    assert_eq!(states(&mut decider), [(1, 1, GenerationState::Committed), (1, 2, fenced)]);
    assert_eq!(decider.newest_committed().unwrap().unwrap().generation, base);
    let error = decider.collect(old_life, 1, &[]).unwrap_err();
    assert_eq!(refusal(error), CommitError::Fenced { life: decision.life });
    let report = decider.collect(decision.life, 1, &[]).unwrap();
    assert_eq!((report.kept, report.removed), (vec![base], vec![late]));
}

type Act = Box<dyn FnOnce(&mut Memory)>;

/// A storage in which another process acts just before a name is published.
struct Raced {
    disk: Memory,
    at: &'static str,
    act: Option<Act>,
}

impl Storage for Raced {
    type File = <Memory as Storage>::File;

    fn publish(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        if to.ends_with(self.at)
            && let Some(act) = self.act.take()
        {
            act(&mut self.disk);
        }
        self.disk.publish(from, to)
    }
    fn create_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.disk.create_directory(path)
    }
    fn create(&mut self, path: &str) -> Result<Self::File, StorageError> {
        self.disk.create(path)
    }
    fn reopen(&mut self, path: &str) -> Result<Self::File, StorageError> {
        self.disk.reopen(path)
    }
    fn append(&mut self, file: &mut Self::File, bytes: &[u8]) -> Result<(), StorageError> {
        self.disk.append(file, bytes)
    }
    fn overwrite(&mut self, file: &mut Self::File, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.disk.overwrite(file, offset, bytes)
    }
    fn sync_file(&mut self, file: &mut Self::File) -> Result<(), StorageError> {
        self.disk.sync_file(file)
    }
    fn sync_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.disk.sync_directory(path)
    }
    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.disk.rename(from, to)
    }
    fn remove_file(&mut self, path: &str) -> Result<(), StorageError> {
        self.disk.remove_file(path)
    }
    fn remove_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.disk.remove_directory(path)
    }
    fn length(&mut self, path: &str) -> Result<u64, StorageError> {
        self.disk.length(path)
    }
    fn read_range(&mut self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.disk.read_range(path, offset, into)
    }
    fn list(&mut self, path: &str) -> Result<Vec<store::storage::DirectoryEntry>, StorageError> {
        self.disk.list(path)
    }
    fn free_bytes(&mut self) -> Result<Option<u64>, StorageError> {
        self.disk.free_bytes()
    }
}

#[test]
fn of_two_deciders_at_the_same_time_one_succeeds() {
    let (mut directory, _) = job();
    let act: Act = Box::new(|disk| {
        JobDirectory::attach(disk, JOB).start_life(0xbbbb, None).unwrap();
    });
    let raced = Raced { disk: directory.storage().clone(), at: "decision-00000002", act: Some(act) };
    let mut slower = JobDirectory::attach(raced, JOB);
    assert_eq!(slower.start_life(0xcccc, None).unwrap_err(), StoreError::LifeTaken { counter: 2 });
    assert_eq!(slower.newest_decision().unwrap().unwrap().life, life(2, 0xbbbb));
    assert_eq!(slower.start_life(0xcccc, None).unwrap().life, life(3, 0xcccc));
}

#[test]
fn a_decider_overtaken_while_it_writes_has_no_life() {
    let (mut directory, _) = job();
    let act: Act = Box::new(|disk| {
        let decision = store::Decision { job: JOB, life: life(3, 0xbbbb), from: None };
        JobDirectory::attach(disk, JOB).write_decision(&decision).unwrap();
    });
    let raced = Raced { disk: directory.storage().clone(), at: "decision-00000002", act: Some(act) };
    let mut slower = JobDirectory::attach(raced, JOB);
    assert_eq!(slower.start_life(0xcccc, None).unwrap_err(), StoreError::LifeTaken { counter: 2 });
    assert_eq!(slower.newest_decision().unwrap().unwrap().life, life(3, 0xbbbb));
}

#[test]
fn a_commit_repeated_after_its_process_was_killed_is_durable() {
    let (directory, life) = job();
    let id = generation(life, 1);
    for operations in 0..20 {
        let mut directory = directory.clone();
        directory.begin_generation(id).unwrap();
        let claims = write_images(&mut directory, id).unwrap();
        directory.storage().fault_after(operations, store::storage::Fault::Crash);
        let _ = directory.commit(&request(id, claims.clone()));
        directory.storage().restart_process();
        directory.commit(&request(id, claims)).unwrap();
        directory.storage().crash_losing_all();
        restore(&mut directory, id).unwrap();
    }
}

#[test]
fn a_decision_during_a_commit_fences_it() {
    let (mut directory, old_life) = job();
    let base = generation(old_life, 1);
    checkpoint(&mut directory, base).unwrap();
    let late = generation(old_life, 2);
    directory.begin_generation(late).unwrap();
    let claims = write_images(&mut directory, late).unwrap();
    let act: Act = Box::new(move |disk| {
        JobDirectory::attach(disk, JOB).start_life(0xbbbb, Some(base)).unwrap();
    });
    let raced = Raced { disk: directory.storage().clone(), at: "commit", act: Some(act) };
    let mut old = JobDirectory::attach(raced, JOB);
    let fenced = CommitError::Fenced { life: life(2, 0xbbbb) };
    assert_eq!(refusal(old.commit(&request(late, claims)).unwrap_err()), fenced);
    assert_eq!(old.newest_committed().unwrap().unwrap().generation, base);
}

#[test]
fn a_decision_whose_generation_goes_away_meanwhile_fails() {
    let (mut directory, old_life) = job();
    let (base, next) = (generation(old_life, 1), generation(old_life, 2));
    checkpoint(&mut directory, base).unwrap();
    let act: Act = Box::new(move |disk| {
        let mut old = JobDirectory::attach(disk, JOB);
        checkpoint(&mut old, next).unwrap();
        old.collect(old_life, 1, &[]).unwrap();
    });
    let raced = Raced { disk: directory.storage().clone(), at: "decision-00000002", act: Some(act) };
    let mut decider = JobDirectory::attach(raced, JOB);
    let error = decider.start_life(0xbbbb, Some(base)).unwrap_err();
    assert_eq!(error, StoreError::NotCommitted { generation: base });
    // That decision had no effect, so the generation that replaced its base counts.
    let newest = decider.newest_restorable(Depth::Everything).unwrap().manifest;
    assert_eq!(newest.map(|manifest| manifest.generation), Some(next));
}

#[test]
fn an_image_is_written_once_and_committed_as_reported() {
    let (mut directory, life) = job();
    let id = generation(life, 1);
    directory.begin_generation(id).unwrap();
    let mut claims = write_images(&mut directory, id).unwrap();
    let again = directory.write_image(id, Rank(1), &[]).unwrap_err();
    assert_eq!(refusal(again), CommitError::AlreadyWritten { rank: Rank(1) });

    let mut fewer = request(id, claims.clone());
    fewer.images.pop();
    assert_eq!(
        refusal(directory.commit(&fewer).unwrap_err()),
        CommitError::ImagesDiffer { ranks: 2, found: 1 }
    );
    let mut twice = request(id, claims.clone());
    twice.images[1] = twice.images[0];
    let differ = CommitError::RanksDiffer { ranks: 2, place: 1, found: Rank(0) };
    assert_eq!(refusal(directory.commit(&twice).unwrap_err()), differ);
    let mut elsewhere = request(id, claims.clone());
    elsewhere.images[1].node = 1;
    let no_node = CommitError::NoSuchNode { rank: Rank(1), node: 1, nodes: 1 };
    assert_eq!(refusal(directory.commit(&elsewhere).unwrap_err()), no_node);

    claims[0].digest.0 ^= 1;
    let error = directory.commit(&request(id, claims)).unwrap_err();
    assert!(matches!(error, StoreError::Image { error: ImageError::WrongDigest { .. }, .. }), "{error}");
    assert_eq!(directory.newest_committed().unwrap(), None);
}

#[test]
fn a_rank_that_ended_has_an_image() {
    let (mut directory, life) = job();
    let id = generation(life, 1);
    directory.begin_generation(id).unwrap();
    let mut claims = Vec::new();
    // It ended when it had begun an image.
    core::mem::forget(directory.begin_image(id, Rank(1)).unwrap());
    let error = directory.write_exited(id, Rank(1), Exited { status: -9 }).unwrap_err();
    assert!(error.to_string().contains("rank-00000001.image.tmp"), "{error}");
    for (rank, status) in [(Rank(0), 0), (Rank(1), -9)] {
        directory.discard_begun(id, rank).unwrap();
        let summary = directory.write_exited(id, rank, Exited { status }).unwrap();
        claims.push(store::ImageClaim { rank, node: 0, digest: summary.digest, bytes: summary.bytes });
    }
    directory.commit(&request(id, claims)).unwrap();
    let reader = directory.open_committed_image(id, Rank(1)).unwrap();
    assert_eq!(reader.exited(directory.storage()).unwrap(), Some(Exited { status: -9 }));
}

/// A job with two committed generations, both kept.
fn two_generations() -> (Job, GenerationId, GenerationId) {
    let (mut directory, life) = job();
    let (first, second) = (generation(life, 1), generation(life, 2));
    checkpoint(&mut directory, first).unwrap();
    checkpoint(&mut directory, second).unwrap();
    (directory, first, second)
}

fn restorable(directory: &mut Job, depth: Depth) -> (Option<GenerationId>, Vec<(GenerationId, Vec<Damage>)>) {
    let found = directory.newest_restorable(depth).unwrap();
    (found.manifest.map(|manifest| manifest.generation), found.refused)
}

#[test]
fn the_generation_before_is_restored_if_the_newest_is_damaged() {
    let (directory, first, second) = two_generations();
    let image = directory.image_path(second, Rank(1));
    type Change = fn(&mut Memory, &str);
    type Named = fn(&StoreError) -> bool;
    let cases: [(Change, Named); 5] = [
        (
            |disk, image| disk.remove_file(image).unwrap(),
            |error| matches!(error, StoreError::Storage(StorageError::NotFound { .. })),
        ),
        (
            |disk, image| assert!(disk.truncate(image, 100)),
            |error| matches!(error, StoreError::Image { error: ImageError::LengthDiffers { .. }, .. }),
        ),
        (
            |disk, image| disk.rename(image, &format!("{image}.tmp")).unwrap(),
            |error| matches!(error, StoreError::Storage(StorageError::NotFound { .. })),
        ),
        (
            |disk, image| assert!(disk.damage(image, 20, 1)),
            |error| matches!(error, StoreError::Image { error: ImageError::HeaderDamaged { .. }, .. }),
        ),
        (
            |disk, image| {
                let bytes = disk.length(image).unwrap();
                assert!(disk.damage(image, bytes - 30, 1));
            },
            |error| matches!(error, StoreError::Image { error: ImageError::TableDamaged { .. }, .. }),
        ),
    ];
    for (number, (change, is_named)) in cases.iter().enumerate() {
        let mut directory = directory.clone();
        change(directory.storage(), &image);
        let (found, refused) = restorable(&mut directory, Depth::Tables);
        assert_eq!(found, Some(first), "{number}");
        assert_eq!(
            (refused.len(), refused[0].0, refused[0].1[0].rank),
            (1, second, Some(Rank(1))),
            "{number}"
        );
        assert!(is_named(&refused[0].1[0].error), "{number}: {}", refused[0].1[0].error);
        restore(&mut directory, first).unwrap();
        assert!(restore(&mut directory, second).is_err(), "{number}");
        // Nor is the whole one removed in favour of the damaged one.
        let report = directory.collect(second.life, 1, &[]).unwrap();
        assert_eq!(report.kept, [first, second], "{number}");
    }
}

#[test]
fn rot_inside_a_section_is_found_by_the_full_scrub() {
    let (mut directory, first, second) = two_generations();
    let image = directory.image_path(second, Rank(0));
    assert!(directory.storage().damage(&image, 120, 0x10));
    assert_eq!(restorable(&mut directory, Depth::Tables).0, Some(second));
    let (found, refused) = restorable(&mut directory, Depth::Everything);
    assert_eq!((found, refused.len()), (Some(first), 1));
    let mut progress = Vec::new();
    let manifest = directory.manifest(second).unwrap();
    let damages =
        directory.verify_images(&manifest, Depth::Everything, |images, bytes| progress.push((images, bytes)));
    assert_eq!(damages.unwrap().len(), 1);
    assert_eq!(progress.last(), Some(&(2, manifest.image_bytes())));
    assert!(progress.len() > 2, "also in the middle of an image");
    assert!(progress.is_sorted(), "{progress:?}");
}

#[test]
fn damaged_or_exchanged_records_are_refused() {
    let (directory, first, second) = two_generations();
    let of = |id: GenerationId, name: &str| {
        format!("life-{:08}-{:016x}/epoch-{:08}/{name}", id.life.counter, id.life.nonce, id.epoch.0)
    };
    let copy = |disk: &mut Memory, from: &str, to: &str| {
        let bytes = disk.read(from, 1 << 20).unwrap();
        disk.remove_file(to).unwrap();
        let mut file = disk.create(to).unwrap();
        disk.append(&mut file, &bytes).unwrap();
    };
    type Case<'a> = (Box<dyn Fn(&mut Memory) + 'a>, fn(&StoreError) -> bool);
    let cases: [Case<'_>; 6] = [
        (Box::new(|disk| assert!(disk.damage(&of(second, "commit"), 40, 1))), |error| {
            matches!(error, StoreError::Record { error: RecordError::Damaged { .. }, .. })
        }),
        (Box::new(|disk| assert!(disk.truncate(&of(second, "commit"), 40))), |error| {
            matches!(error, StoreError::Record { error: RecordError::CutOff { .. }, .. })
        }),
        (Box::new(|disk| assert!(disk.damage(&of(second, "manifest"), 40, 1))), |error| {
            matches!(error, StoreError::Record { error: RecordError::Damaged { .. }, .. })
        }),
        (Box::new(|disk| disk.remove_file(&of(second, "manifest")).unwrap()), |error| {
            matches!(error, StoreError::Storage(StorageError::NotFound { .. }))
        }),
        (Box::new(|disk| copy(disk, &of(first, "commit"), &of(second, "commit"))), |error| {
            matches!(error, StoreError::Record { error: RecordError::WrongGeneration { .. }, .. })
        }),
        (Box::new(|disk| copy(disk, &of(first, "manifest"), &of(second, "manifest"))), |error| {
            matches!(error, StoreError::Record { error: RecordError::WrongGeneration { .. }, .. })
        }),
    ];
    for (number, (change, is_named)) in cases.iter().enumerate() {
        let mut directory = directory.clone();
        change(directory.storage());
        let (found, refused) = restorable(&mut directory, Depth::Records);
        assert_eq!((found, refused.len()), (Some(first), 1), "{number}");
        assert!(is_named(&refused[0].1[0].error), "{number}: {}", refused[0].1[0].error);
        assert_eq!(directory.newest_committed().unwrap().unwrap().generation, first, "{number}");
    }
}

#[test]
fn files_that_are_whole_but_not_the_committed_ones_are_refused() {
    let (directory, first, second) = two_generations();
    // The same rank, the same cut, another content.
    let mut other = directory.clone();
    let image = other.image_path(second, Rank(1));
    other.storage().remove_file(&image).unwrap();
    other.write_image(second, Rank(1), &[Section::new(1, 1, b"another")]).unwrap();
    assert!(other.open_image(second, Rank(1)).is_ok());
    let error = other.open_committed_image(second, Rank(1)).unwrap_err();
    assert!(matches!(error, StoreError::Image { error: ImageError::WrongDigest { .. }, .. }), "{error}");
    assert_eq!(restorable(&mut other, Depth::Tables).0, Some(first));

    // The same generation, the same images, another manifest.
    let mut other = directory.clone();
    let manifest = store::Manifest { taken_unix_ms: 5, ..other.manifest(second).unwrap() };
    let path = image.replace("rank-00000001.image", "manifest");
    other.storage().remove_file(&path).unwrap();
    let mut file = other.storage().create(&path).unwrap();
    other.storage().append(&mut file, &manifest.emit()).unwrap();
    let error = other.manifest(second).unwrap_err();
    assert!(matches!(error, StoreError::Record { error: RecordError::WrongManifest { .. }, .. }), "{error}");
}

#[test]
fn the_files_of_another_job_are_refused() {
    let (mut directory, _, second) = two_generations();
    let mut stranger = JobDirectory::attach(directory.storage().clone(), JobId(5));
    let error = stranger.open_image(second, Rank(0)).unwrap_err();
    assert!(matches!(error, StoreError::Image { error: ImageError::WrongJob { .. }, .. }), "{error}");
    let error = stranger.manifest(second).unwrap_err();
    assert!(matches!(error, StoreError::Record { error: RecordError::WrongJob { .. }, .. }), "{error}");
    let error = stranger.newest_decision().unwrap_err();
    assert!(error.to_string().contains("copied into the wrong directory"), "{error}");
    assert_eq!(restorable(&mut stranger, Depth::Records).0, None);
}

#[test]
fn what_is_in_use_and_what_is_not_ours_stays() {
    let (mut directory, first, second) = two_generations();
    let life = first.life;
    let note = "life-00000001-000000000000aaaa/epoch-00000001/notes.txt";
    directory.storage().create(note).unwrap();
    directory.storage().create("README").unwrap();
    let third = generation(life, 3);
    checkpoint(&mut directory, third).unwrap();

    let report = directory.collect(life, 1, &[second]).unwrap();
    assert_eq!((report.kept, report.removed), (vec![second, third], vec![first]));
    assert!(report.freed_bytes > 500);
    assert!(directory.storage().length(note).is_ok() && directory.storage().length("README").is_ok());
    restore(&mut directory, second).unwrap();
    let report = directory.collect(life, 0, &[]).unwrap();
    assert_eq!(report.kept, [third], "the newest stays whatever is asked");
}

#[test]
fn what_dead_lives_left_is_removed() {
    let (mut directory, first_life) = job();
    checkpoint(&mut directory, generation(first_life, 1)).unwrap();
    let half = generation(first_life, 2);
    directory.begin_generation(half).unwrap();
    write_images(&mut directory, half).unwrap();
    // A writer that is killed leaves its temporary file.
    let begun = generation(first_life, 3);
    directory.begin_generation(begun).unwrap();
    let mut writer = directory.begin_image(begun, Rank(0)).unwrap();
    writer.section(directory.storage(), Section::new(1, 1, &memory(begun, Rank(0)))).unwrap();
    drop(writer);

    let second_life = directory.start_life(6, Some(generation(first_life, 1))).unwrap().life;
    let id = generation(second_life, 2);
    checkpoint(&mut directory, id).unwrap();
    let report = directory.collect(second_life, 1, &[]).unwrap();
    assert_eq!((report.kept, report.removed.len()), (vec![id], 3));
    let names: Vec<String> =
        directory.storage().list("").unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["decision-00000002", "job", "life-00000002-0000000000000006"]);
    // As long as a generation of an older life is kept, so is every decision about it.
    let third_life = directory.start_life(7, Some(id)).unwrap().life;
    checkpoint(&mut directory, generation(third_life, 3)).unwrap();
    directory.collect(third_life, 2, &[]).unwrap();
    assert!(directory.storage().length("decision-00000002").is_ok());
}

#[test]
fn a_writer_whose_generation_was_removed_fails_and_leaves_nothing() {
    let (mut directory, life) = job();
    let id = generation(life, 1);
    directory.begin_generation(id).unwrap();
    let mut writer = directory.begin_image(id, Rank(0)).unwrap();
    directory.abandon(id).unwrap();
    let written = writer.section(directory.storage(), Section::new(1, 1, &[1; 100]));
    let finished = written.and_then(|()| writer.finish(directory.storage()));
    assert!(finished.is_err());
    assert_eq!(directory.generations().unwrap()[0].images, 0);
}

#[test]
fn a_second_job_does_not_get_into_a_job_s_directory() {
    let (mut directory, _) = job();
    let error = JobDirectory::create(directory.storage(), &job_file()).unwrap_err();
    assert!(matches!(error, StoreError::Storage(StorageError::AlreadyExists { .. })), "{error}");
    let (opened, file) = JobDirectory::open(directory.storage()).unwrap();
    assert_eq!((opened.job(), file), (JOB, job_file()));
    let error = JobDirectory::open(Memory::new()).unwrap_err();
    assert!(matches!(error, StoreError::Storage(StorageError::NotFound { .. })), "{error}");
}

#[test]
fn reports_are_plain_data() {
    let (mut directory, _, second) = two_generations();
    let image = directory.image_path(second, Rank(0));
    assert!(directory.storage().truncate(&image, 100));
    let report = directory.describe(&job_file(), Depth::Tables).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["job"], "000102030405060708090a0b0c0d0e0f");
    assert_eq!(json["generations"][0]["state"], "committed");
    assert_eq!(json["generations"][0]["damages"], serde_json::json!([]));
    assert_eq!(json["generations"][1]["generation"], "1.000000000000aaaa/2");
    assert_eq!(json["generations"][1]["damages"][0]["rank"], 0);
    let problem = json["generations"][1]["damages"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("the file has 100; it is cut off"), "{problem}");

    let image = directory.image_path(second, Rank(1));
    let json =
        serde_json::to_value(store::describe::describe_image(directory.storage(), &image).unwrap()).unwrap();
    assert_eq!(json["sections"][1]["kind"], "session-region");
    assert_eq!(json["sections"][1]["id"], 7);
    let manifest = serde_json::to_value(directory.manifest(second).unwrap().describe()).unwrap();
    assert_eq!(manifest["images"][1]["holds"][0]["kind"], "session-region");
    assert_eq!(manifest["images"][1]["node"], "node one");
}

#[test]
fn a_generation_s_name_is_read_back() {
    let id = generation(life(2, 0xdead_beef), 3);
    assert_eq!(id.to_string(), "2.00000000deadbeef/3");
    assert_eq!(id.to_string().parse(), Ok(id));
    for text in ["", "2/3", "2.x/3", "2.1/x", "2.1"] {
        assert!(text.parse::<GenerationId>().is_err(), "{text}");
    }
}

#[test]
fn a_coordinator_that_counts_lives_itself_is_held_to_the_same_rules() {
    let (mut directory, first) = job();
    assert_eq!(directory.counter_last(), Ok(1));
    let decision = |counter| store::Decision { job: JOB, life: life(counter, 5), from: None };
    assert_eq!(directory.write_decision(&decision(1)).unwrap_err(), StoreError::LifeTaken { counter: 1 });
    directory.write_decision(&decision(5)).unwrap();
    assert_eq!(directory.counter_last(), Ok(5));
    assert_eq!(directory.write_decision(&decision(3)).unwrap_err(), StoreError::LifeTaken { counter: 3 });
    assert!(directory.expect_current(first).is_err());
}

#[test]
fn a_job_has_finished_until_a_later_life_is_decided() {
    let (mut directory, first) = job();
    assert_eq!(directory.end(), Ok(None));
    let other = life(9, 9);
    assert!(directory.write_end(other, 5).is_err(), "only the newest life can finish the job");
    directory.write_end(first, 5).unwrap();
    directory.write_end(first, 6).unwrap();
    assert_eq!(directory.end(), Ok(Some(store::End { job: JOB, life: first, ended_unix_ms: 5 })));
    let file = job_file();
    assert_eq!(directory.describe(&file, Depth::Tables).unwrap().finished_unix_ms, Some(5));
    // The note is durable, and a later life takes the job up again.
    directory.storage().crash(&mut |_| 0);
    assert!(directory.end().unwrap().is_some());
    let second = directory.start_life(3, None).unwrap().life;
    assert_eq!(directory.end(), Ok(None));
    assert_eq!(directory.describe(&file, Depth::Tables).unwrap().finished_unix_ms, None);
    assert!(directory.write_end(first, 7).is_err());
    directory.write_end(second, 8).unwrap();
    assert_eq!(directory.end().unwrap().map(|end| end.ended_unix_ms), Some(8));
}

#[test]
fn the_end_that_a_node_is_told_counts_until_a_later_life_is_decided() {
    let (mut directory, first) = job();
    assert_eq!(directory.job_end(), Ok(None));
    let stopped = JobEnd { life: first, has_finished: false };
    assert!(directory.write_job_end(JobEnd { life: life(9, 9), ..stopped }).is_err(), "not the newest");
    directory.write_job_end(stopped).unwrap();
    directory.storage().crash(&mut |_| 0);
    assert_eq!(directory.job_end(), Ok(Some(stopped)));
    // A person restarts it.
    let second = directory.start_life(3, None).unwrap().life;
    assert_eq!(directory.job_end(), Ok(None));
    assert!(directory.write_job_end(stopped).is_err(), "another launcher has the job");
    let finished = JobEnd { life: second, has_finished: true };
    directory.write_job_end(finished).unwrap();
    assert_eq!(directory.job_end(), Ok(Some(finished)));
}

#[test]
fn a_record_that_can_neither_be_kept_nor_taken_back_is_unsettled() {
    let (mut directory, life) = job();
    let id = generation(life, 1);
    directory.begin_generation(id).unwrap();
    let claims = write_images(&mut directory, id).unwrap();
    // Power fails while the commit record gets its name.
    let before = directory.storage().changes_done();
    let mut counted = directory.clone();
    counted.commit(&request(id, claims.clone())).unwrap();
    let operations = counted.storage().changes_done() - before;
    directory.storage().fault_after(operations - 1, store::storage::Fault::Crash);
    let error = directory.commit(&request(id, claims)).unwrap_err();
    assert!(matches!(error, StoreError::Unsettled { error: StorageError::Crashed, .. }), "{error}");
    let mut lost = directory.clone();
    lost.storage().crash(&mut |_| 0);
    assert_eq!(lost.newest_committed().unwrap(), None);
    directory.storage().crash(&mut |_| 1);
    assert_eq!(directory.newest_committed().unwrap().map(|manifest| manifest.generation), Some(id));
}
