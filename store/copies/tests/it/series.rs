//! Series of copies: each builds upon another one as the rules say, and each kept one is restored bit for bit, under
//! all faults of the ranks' memory, the place, and its writers.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use crate::common::{Disk, JOB, Random, job_file};
use copies::{Copies, CopyError, CopyKey, Report, Source, Target as _, Work, Written};
use proptest::prelude::*;
use store::delta::{Rules, Strategy as Bases};
use store::image::Base;
use store::job::CommitRequest;
use store::packets::Key;
use store::record::Copied;
use store::storage::Fault;
use store::{GenerationId, ImageClaim, ImageReader, JobDirectory, Section, Storage as _, StoreError, kinds};
use transport::{Epoch, Life, Rank};

const PAGE: usize = 4096;
/// Where a test notes which runs a section of pages consists of, as a process's state does.
const RUNS: u32 = kinds::FIRST_PRIVATE;

/// Pages of a rank by address; a number stands for a page's content.
type Memory = BTreeMap<u64, u64>;

fn page(number: u64) -> Vec<u8> {
    if number == 0 {
        return vec![0; PAGE];
    }
    Random(number << 20 | 1)
        .below(u64::MAX)
        .to_le_bytes()
        .iter()
        .copied()
        .cycle()
        .take(PAGE - 8)
        .chain(number.to_le_bytes())
        .collect()
}

/// Pages of a section, run after run, and the runs.
fn pages(memory: &Memory) -> (Vec<u8>, Vec<u8>) {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut bytes = Vec::new();
    for (address, number) in memory {
        match runs.last_mut().filter(|(first, pages)| first + pages == *address) {
            Some((_, pages)) => *pages += 1,
            None => runs.push((*address, 1)),
        }
        bytes.extend(page(*number));
    }
    let runs =
        runs.iter().flat_map(|(first, pages)| [first.to_le_bytes(), pages.to_le_bytes()].concat()).collect();
    (bytes, runs)
}

/// One rank, saved whole or by deltas.
struct Job {
    directory: JobDirectory<Disk>,
    life: Life,
    memory: Memory,
    /// The contents of the last whole image.
    base: Option<(Base, Memory)>,
    /// The files of each generation, as they were written.
    written: BTreeMap<GenerationId, Vec<Vec<u8>>>,
    whole_every: u32,
}

impl Job {
    fn new() -> Job {
        let mut directory = JobDirectory::create(Disk::default(), &job_file()).unwrap();
        let life = directory.start_life(0xaaaa, None).unwrap().life;
        Job {
            directory,
            life,
            memory: Memory::new(),
            base: None,
            written: BTreeMap::new(),
            whole_every: u32::MAX,
        }
    }

    fn checkpoint(&mut self, epoch: u32, is_whole: bool) -> GenerationId {
        let id = GenerationId { life: self.life, epoch: Epoch(epoch) };
        self.directory.begin_generation(id).unwrap();
        let base = self.base.take().filter(|_| !is_whole);
        let changed: Memory = match &base {
            None => self.memory.clone(),
            Some((_, below)) => {
                let is_new = |(address, number): &(&u64, &u64)| below.get(address) != Some(number);
                self.memory.iter().filter(is_new).map(|(address, number)| (*address, *number)).collect()
            }
        };
        let (bytes, runs) = pages(&changed);
        let state = format!("state of {epoch}").repeat(epoch as usize);
        let named = base.as_ref().map(|(base, _)| base.emit());
        let mut sections = vec![
            Section::new(kinds::PROCESS_FILES, 1, state.as_bytes()),
            Section::new(RUNS, 1, &runs),
            Section::new(kinds::PROCESS_MEMORY, 1, &bytes),
        ];
        sections.extend(named.as_ref().map(Base::section));
        let rank = Rank(0);
        let mut files = Vec::new();
        if let Some((base, _)) = &base {
            let from = self.directory.image_path(base.generation, rank);
            let below = self.directory.storage().read(&from, u64::MAX).unwrap();
            let to = format!("{}/rank-00000000.base", store::job::folder(id));
            let mut file = self.directory.storage().create(&to).unwrap();
            self.directory.storage().append(&mut file, &below).unwrap();
            files.push(below);
        }
        let summary = self.directory.write_image(id, rank, &sections).unwrap();
        let path = self.directory.image_path(id, rank);
        files.insert(0, self.directory.storage().read(&path, u64::MAX).unwrap());
        let own = Base { generation: id, digest: summary.digest };
        self.base = Some(base.unwrap_or((own, self.memory.clone())));
        let claim = ImageClaim { rank, node: 0, digest: summary.digest, bytes: summary.bytes };
        let (nodes, images) = (vec!["one".to_owned()], vec![claim]);
        let request = CommitRequest { generation: id, ranks: 1, taken_unix_ms: 1, nodes, images };
        self.directory.commit(&request).unwrap();
        self.written.insert(id, files);
        id
    }

    fn copy(&self, to: &Disk, id: GenerationId, keep: u32, rules: Rules) -> Result<Written, CopyError> {
        self.copy_with(to, id, keep, rules, None)
    }

    fn copy_with(
        &self,
        to: &Disk,
        id: GenerationId,
        keep: u32,
        rules: Rules,
        key: Option<CopyKey>,
    ) -> Result<Written, CopyError> {
        let manifest = self.directory.clone().manifest(id)?;
        let mut job_file = job_file();
        job_file.ranks = 1;
        let work = Work {
            job_file: &job_file,
            manifest: &manifest,
            copied_unix_ms: 2,
            keep,
            rules,
            whole_every: self.whole_every,
            threads: NonZeroUsize::MIN,
        };
        Copies::new(&to.target(), JOB, key).write(&work, self, &Report::default())
    }

    /// Brings a copy into an empty directory, and compares it byte for byte.
    fn expect_back(&self, copies: &Copies<'_>, copied: &Copied) -> Result<(), CopyError> {
        let mut directory = JobDirectory::attach(Disk::default(), JOB);
        let images = crate::common::One(directory.clone());
        copies.fetch(copied, &mut directory.clone(), &images, NonZeroUsize::MIN, &Report::default())?;
        let id = copied.generation;
        let mut paths = vec![directory.image_path(id, Rank(0))];
        paths.push(format!("{}/rank-00000000.base", store::job::folder(id)));
        let expected = &self.written[&id];
        for (path, expected) in paths.iter().zip(expected) {
            let found = directory.storage().read(path, u64::MAX)?;
            assert!(found == *expected, "{path}");
        }
        Ok(())
    }

    /// Every copy that is there can be brought back, and verifies.
    fn expect_all(&self, disk: &Disk) -> Vec<Copied> {
        let target = disk.target();
        let copies = Copies::new(&target, JOB, None);
        let listed = copies.list().unwrap();
        assert_eq!(copies.verify(&listed.copies, NonZeroUsize::MIN, &|_| ()).unwrap(), []);
        for copied in &listed.copies {
            self.expect_back(&copies, copied).unwrap();
        }
        listed.copies
    }
}

impl Source for Job {
    type Storage = Disk;

    fn directory(&self, _: Rank) -> Result<JobDirectory<Disk>, StoreError> {
        Ok(self.directory.clone())
    }

    fn runs(&self, _: Rank, image: &ImageReader, section: u32) -> Vec<(u64, u64)> {
        if image.entries()[section as usize].kind != kinds::PROCESS_MEMORY {
            return Vec::new();
        }
        let runs = image.find(RUNS).unwrap();
        let bytes = image.read_section(self.directory.clone().storage(), runs).unwrap();
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        bytes.chunks(16).map(|run| (word(&run[..8]), word(&run[8..]))).collect()
    }
}

/// Changes of memory between two copies.
#[derive(Clone, Debug)]
enum Change {
    /// So many pages from an address on are written.
    Write(u64, u64),
    /// They are zero.
    Zero(u64, u64),
    /// They are given back.
    Drop(u64, u64),
    /// They lie elsewhere.
    Move(u64, u64, u64),
    /// All is as it was so many checkpoints ago.
    Revert(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let run = || (0..60u64, 1..20u64);
    prop_oneof![
        4 => run().prop_map(|(first, pages)| Change::Write(first, pages)),
        1 => run().prop_map(|(first, pages)| Change::Zero(first, pages)),
        1 => run().prop_map(|(first, pages)| Change::Drop(first, pages)),
        1 => (run(), 0..60u64).prop_map(|((first, pages), to)| Change::Move(first, pages, to)),
        1 => (0..6usize).prop_map(Change::Revert),
    ]
}

fn apply(memory: &mut Memory, past: &[Memory], change: &Change, next: &mut u64) {
    match *change {
        Change::Write(first, pages) => {
            for address in first..first + pages {
                *next += 1;
                memory.insert(address, *next);
            }
        }
        Change::Zero(first, pages) => memory.extend((first..first + pages).map(|address| (address, 0))),
        Change::Drop(first, pages) => memory.retain(|address, _| !(first..first + pages).contains(address)),
        Change::Move(first, pages, to) => {
            let moved: Vec<_> = memory
                .range(first..first + pages)
                .map(|(address, number)| (address - first + to, *number))
                .collect();
            memory.retain(|address, _| !(first..first + pages).contains(address));
            memory.extend(moved);
        }
        Change::Revert(ago) => {
            if let Some(then) = past.iter().rev().nth(ago) {
                memory.clone_from(then);
            }
        }
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let bases = prop_oneof![
        Just(Bases::Full),
        Just(Bases::Incremental),
        Just(Bases::Differential),
        (1.0..4.0f64).prop_map(|threshold| Bases::Adaptive { threshold }),
    ];
    (bases, 1..6u32).prop_map(|(strategy, files_max)| Rules { strategy, files_max })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_copy_that_is_kept_comes_back_bit_for_bit(
        rules in rules(),
        keep in 1..4u32,
        whole_every in 1..8u32,
        steps in prop::collection::vec((prop::collection::vec(change(), 0..4), any::<bool>(), 0..8u8), 1..14),
    ) {
        let (mut job, disk) = (Job { whole_every, ..Job::new() }, Disk::default());
        let (mut next, mut past) = (0, Vec::new());
        // Bytes of the last whole copy, and of all that were written since.
        let (mut whole, mut since) = (0, Vec::new());
        apply(&mut job.memory, &[], &Change::Write(10, 40), &mut next);
        for (epoch, (changes, is_whole, special)) in (1..).zip(&steps) {
            for change in changes {
                apply(&mut job.memory, &past, change, &mut next);
            }
            past.push(job.memory.clone());
            if *special == 0 {
                // The job continued from its directory.
                job.life = job.directory.start_life(0xbbbb, None).unwrap().life;
            }
            let id = job.checkpoint(epoch, *is_whole);
            if *special == 1 {
                continue;
            }
            let written = job.copy(&disk, id, keep, rules).unwrap();
            prop_assert_eq!(&written.unremoved, &None);
            let copies = job.expect_all(&disk);
            prop_assert_eq!(copies.last(), Some(&written.copied));
            // Nothing builds upon a whole copy that is too old, or smaller than the copies since.
            if written.copied.upon.is_none() {
                (whole, since) = (written.new_bytes, Vec::new());
            } else {
                prop_assert!(since.iter().sum::<u64>() <= whole, "{} of {:?}", whole, since);
                since.push(written.new_bytes);
            }
            prop_assert!(since.len() <= whole_every as usize);
            // As many as `keep` says, and their bases; no chain is longer than the rules say.
            let target = disk.target();
            let listed = Copies::new(&target, JOB, None).list().unwrap();
            let longest = listed.copies.iter().map(|copy| listed.needs(copy).unwrap().len()).max();
            prop_assert!(longest.unwrap() <= rules.files_max as usize);
            prop_assert!(copies.len() <= (keep * rules.files_max) as usize);
            prop_assert_eq!(listed.bytes_and_leftovers().1, 0);
        }
    }
}

const ADAPTIVE: Rules = Rules { strategy: Bases::Adaptive { threshold: 2.0 }, files_max: 4 };

/// A job of which so many generations are there, each with other pages written.
fn job_of(generations: u32) -> (Job, Vec<GenerationId>) {
    let mut job = Job::new();
    let mut next = 0;
    apply(&mut job.memory, &[], &Change::Write(100, 400), &mut next);
    let ids = (1..=generations)
        .map(|epoch| {
            apply(&mut job.memory, &[], &Change::Write(100 + u64::from(epoch) * 30, 20), &mut next);
            job.checkpoint(epoch, false)
        })
        .collect();
    (job, ids)
}

#[test]
fn a_whole_copy_comes_after_so_many_and_after_so_much() {
    let (mut job, ids) = job_of(12);
    let whole = |job: &Job, disk: &Disk, ids: &[GenerationId]| -> Vec<u32> {
        // Copies that are removed meanwhile count as well.
        let copies =
            ids.iter().map(|id| job.copy(disk, *id, 1, Rules { files_max: 8, ..ADAPTIVE }).unwrap().copied);
        copies.filter(|copy| copy.upon.is_none()).map(|copy| copy.generation.epoch.0).collect()
    };
    job.whole_every = 4;
    assert_eq!(whole(&job, &Disk::default(), &ids), [1, 6, 11]);
    // Records of before do not have it: then the copies that are there count.
    let disk = Disk::default();
    for id in &ids[..5] {
        job.copy(&disk, *id, 9, ADAPTIVE).unwrap();
    }
    let path = format!("{JOB}/{}/copied", store::job::folder(ids[4]));
    let record = disk.hold().read(&path, u64::MAX).unwrap();
    let silent = Copied { since_whole: None, ..Copied::parse(&record).unwrap() }.emit();
    disk.hold().remove_file(&path).unwrap();
    let mut file = disk.hold().create(&path).unwrap();
    disk.hold().append(&mut file, &silent).unwrap();
    let found = job.copy(&disk, ids[5], 9, ADAPTIVE).unwrap().copied;
    // Of the five that are there the newest needs three: two deltas and the whole one.
    assert_eq!(found.since_whole.map(|since| since.copies), Some(3), "{found:?}");
    // 100 pages anew each time, at other places each time: five of them are more than the 400 that are there.
    job.whole_every = u32::MAX;
    let (mut next, mut ids) = (1 << 40, Vec::new());
    for epoch in 20..30 {
        apply(&mut job.memory, &[], &Change::Write(100 + u64::from(epoch) % 4 * 100, 100), &mut next);
        ids.push(job.checkpoint(epoch, true));
    }
    let rules = Rules { strategy: Bases::Incremental, files_max: 99 };
    let disk = Disk::default();
    let copies = ids.iter().map(|id| job.copy(&disk, *id, 1, rules).unwrap().copied);
    let whole: Vec<u32> =
        copies.filter(|copy| copy.upon.is_none()).map(|copy| copy.generation.epoch.0).collect();
    assert!(whole.len() == 2 && whole[0] == 20 && (24..28).contains(&whole[1]), "{whole:?}");
    job.expect_all(&disk);
}

#[test]
fn a_copy_costs_what_has_changed() {
    let (mut job, ids) = job_of(6);
    let disk = Disk::default();
    let pages = |copied: &Copied| copied.ranks[0].blocks_bytes / PAGE as u64;
    let mut bases = Vec::new();
    for id in &ids {
        let copied = job.copy(&disk, *id, 2, Rules { files_max: 8, ..ADAPTIVE }).unwrap().copied;
        bases.push(copied.upon.map(|upon| upon.generation.epoch.0));
    }
    // 20 pages more each time: the third delta has thrice the new pages, so it is the next base.
    assert_eq!(bases, [None, Some(1), Some(1), Some(1), Some(4), Some(4)]);
    // Nothing has changed: no page at all, although the image is a whole one now.
    let same = job.checkpoint(7, true);
    let whole = job.checkpoint(8, true);
    job.copy(&disk, same, 9, Rules { files_max: 1, ..ADAPTIVE }).unwrap();
    let copied = job.copy(&disk, whole, 9, ADAPTIVE).unwrap().copied;
    assert!(copied.upon.is_some() && pages(&copied) <= 3, "{copied:?}");
    // Zeros cost nothing.
    job.memory.values_mut().for_each(|number| *number = 0);
    let zeros = job.checkpoint(9, true);
    let copied = job.copy(&disk, zeros, 9, ADAPTIVE).unwrap().copied;
    assert!(copied.ranks[0].image.bytes > 400 * PAGE as u64 && pages(&copied) <= 3, "{copied:?}");
    job.expect_all(&disk);
}

#[test]
fn what_the_newest_copy_has_is_not_read_again() {
    let (mut job, ids) = job_of(3);
    let disk = Disk::default();
    for id in &ids[..2] {
        job.copy(&disk, *id, 9, ADAPTIVE).unwrap();
    }
    // The base of the third generation cannot be read any more, and it is the one of the second.
    let path = format!("{}/rank-00000000.base", store::job::folder(ids[2]));
    assert!(job.directory.storage().hold().damage(&path, 300_000, 1));
    job.copy(&disk, ids[2], 9, ADAPTIVE).unwrap();
    job.expect_all(&disk);
}

#[test]
fn pages_that_move_in_the_file_keep_their_places() {
    let (mut job, ids) = job_of(1);
    let disk = Disk::default();
    job.copy(&disk, ids[0], 9, ADAPTIVE).unwrap();
    // A page below all others moves everything behind it in the file.
    let mut next = 1 << 30;
    apply(&mut job.memory, &[], &Change::Write(5, 1), &mut next);
    let id = job.checkpoint(2, true);
    let copied = job.copy(&disk, id, 9, ADAPTIVE).unwrap().copied;
    assert!(copied.ranks[0].blocks_bytes < 8 * PAGE as u64, "{copied:?}");
    job.expect_all(&disk);
}

#[test]
fn damage_in_a_base_is_reported_of_every_copy_above_it_and_the_next_copy_is_whole_if_its_index_is_gone() {
    let (mut job, ids) = job_of(3);
    let disk = Disk::default();
    for id in &ids {
        job.copy(&disk, *id, 9, ADAPTIVE).unwrap();
    }
    let blocks = |id: &GenerationId| format!("{JOB}/{}/rank-00000000.blocks", store::job::folder(*id));
    let bytes = disk.hold().length(&blocks(&ids[0])).unwrap();
    // In a block; then in the index, without which there is nothing to compare with.
    for (offset, is_whole) in [(bytes / 2, false), (bytes - 200, true)] {
        let disk = disk.twin();
        assert!(disk.hold().damage(&blocks(&ids[0]), offset, 1));
        let target = disk.target();
        let copies = Copies::new(&target, JOB, None);
        let listed = copies.list().unwrap();
        let found = copies.verify(&listed.copies, NonZeroUsize::MIN, &|_| ()).unwrap();
        let reported: Vec<_> = found.iter().map(|found| found.generation).collect();
        assert_eq!(reported, ids, "{found:?}");
        for (found, id) in found.iter().zip(&ids) {
            let words = found.error.to_string();
            assert!(words.contains(&blocks(&ids[0])) && found.error.is_damage(), "{words}");
            let hangs = format!("it builds upon the copy of generation {}", ids[0]);
            assert_eq!(words.contains(&hangs), *id != ids[0], "{words}");
        }
        for copied in &listed.copies {
            let error = job.expect_back(&copies, copied).unwrap_err();
            assert!(error.is_damage(), "{error}");
        }
        let id = job.checkpoint(if is_whole { 6 } else { 4 }, false);
        let copied = job.copy(&disk, id, 9, ADAPTIVE).unwrap().copied;
        assert_eq!(copied.upon.is_none(), is_whole);
        let back = job.expect_back(&copies, &copied);
        assert_eq!(back.is_ok(), is_whole, "{back:?}");
        // A person removes the damaged copy: then nothing builds upon it any more, and the copies that did are removed.
        let folder = format!("{JOB}/{}/", store::job::folder(ids[0]));
        for entry in target.list("").unwrap().iter().filter(|entry| entry.path.starts_with(&folder)) {
            target.remove(&entry.path).unwrap();
        }
        let id = job.checkpoint(if is_whole { 7 } else { 5 }, false);
        let written = job.copy(&disk, id, 9, ADAPTIVE).unwrap();
        let upon = written.copied.upon.map(|upon| upon.generation);
        assert_eq!(upon, is_whole.then_some(copied.generation));
        let left: Vec<_> = job.expect_all(&disk).into_iter().map(|copy| copy.generation).collect();
        assert_eq!(left, upon.into_iter().chain([id]).collect::<Vec<_>>());
    }
}

#[test]
fn a_copy_whose_base_was_removed_by_others_is_not_used_and_goes_with_the_next_one() {
    let (mut job, ids) = job_of(2);
    let disk = Disk::default();
    for id in &ids {
        job.copy(&disk, *id, 9, ADAPTIVE).unwrap();
    }
    disk.hold().remove_file(&format!("{JOB}/{}/copied", store::job::folder(ids[0]))).unwrap();
    let target = disk.target();
    let copies = Copies::new(&target, JOB, None);
    let listed = copies.list().unwrap();
    assert_eq!(listed.copies.len(), 1);
    assert!(listed.needs(&listed.copies[0]).is_err());
    let error = job.expect_back(&copies, &listed.copies[0]).unwrap_err();
    assert_eq!(error, CopyError::NoBase { generation: ids[1], base: ids[0] });
    // The same generation, copied again, is another copy than the base.
    let written = job.copy(&disk, ids[0], 9, ADAPTIVE).unwrap();
    assert_eq!((written.removed, written.unremoved), (vec![ids[1]], None));
    let id = job.checkpoint(3, false);
    let written = job.copy(&disk, id, 1, ADAPTIVE).unwrap();
    assert_eq!(written.copied.upon.map(|upon| upon.generation), Some(ids[0]));
    job.expect_all(&disk);
}

#[test]
fn with_another_key_a_chain_begins_anew_and_the_old_one_stays_readable_with_its_own() {
    let (job, ids) = job_of(4);
    let disk = Disk::default();
    let key = |byte| Some(CopyKey::encrypting(Key([byte; 32])));
    let keys = [key(1), key(1), key(2), key(2)];
    for (id, key) in ids.iter().zip(&keys) {
        job.copy_with(&disk, *id, 9, ADAPTIVE, key.clone()).unwrap();
    }
    // A base keeps its key, even if it is copied again.
    assert_eq!(job.copy_with(&disk, ids[0], 9, ADAPTIVE, key(2)).unwrap().new_bytes, 0);
    let target = disk.target();
    let all = Copies::new(&target, JOB, None).list().unwrap().copies;
    let bases: Vec<_> = all.iter().map(|copy| copy.upon.map(|upon| upon.generation)).collect();
    assert_eq!(bases, [None, Some(ids[0]), None, Some(ids[2])]);
    for (copied, key) in all.iter().zip(&keys) {
        let copies = Copies::new(&target, JOB, key.clone());
        assert_eq!(copies.verify(core::slice::from_ref(copied), NonZeroUsize::MIN, &|_| ()).unwrap(), []);
        job.expect_back(&copies, copied).unwrap();
    }
}

#[test]
fn a_crash_after_any_operation_leaves_every_earlier_copy_with_all_that_it_needs() {
    let (job, ids) = job_of(5);
    // With `keep` 2 copies are removed as well: those between the newest ones and their bases.
    let before = |disk: &Disk| ids[..4].iter().for_each(|id| drop(job.copy(disk, *id, 2, ADAPTIVE).unwrap()));
    for operations in 0.. {
        let disk = Disk::default();
        before(&disk);
        let kept: Vec<_> = job.expect_all(&disk).into_iter().map(|copy| copy.generation).collect();
        assert_eq!(kept, [ids[0], ids[2], ids[3]]);
        disk.hold().fault_after(operations, Fault::Crash);
        let copied = job.copy(&disk, ids[4], 2, ADAPTIVE);
        if disk.hold().clear_fault() {
            copied.unwrap();
            assert!(operations > 20, "{operations}");
            return;
        }
        for seed in 0..6 {
            let disk = disk.twin();
            let mut random = Random(operations << 8 | seed | 1 << 40);
            disk.hold().crash(&mut |bound| match seed {
                0 => 0,
                1 => 1,
                _ => random.below(bound),
            });
            let found: Vec<_> = job.expect_all(&disk).into_iter().map(|copy| copy.generation).collect();
            let newest = [ids[3], ids[4]];
            assert!(found.contains(&ids[0]) && found.contains(&newest[0]), "{found:?}");
            assert!(found.contains(&ids[2]) || found.contains(&newest[1]), "{found:?}");
            job.copy(&disk, ids[4], 2, ADAPTIVE).unwrap();
            let after: Vec<_> = job.expect_all(&disk).into_iter().map(|copy| copy.generation).collect();
            assert_eq!(after, [ids[0], ids[3], ids[4]]);
            let listed = Copies::new(&disk.target(), JOB, None).list().unwrap();
            assert_eq!(listed.bytes_and_leftovers().1, 0);
        }
    }
}
