//! A folder of checkpoints: the choice of bases, kept checkpoints, and the state after a crash.

#![expect(clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::num::NonZeroUsize;
use std::sync::Mutex;

use crate::common::Random;
use proptest::prelude::*;
use store::delta::{DeltaSummary, Making, Rules, Series, Strategy as Bases};
use store::packets::{Compression, Key};
use store::storage::Fault;
use store::{Directory, Memory, Storage, StorageError, StoreError};

const BLOCK: usize = 512;
const MAKING: Making =
    Making { block_bytes: BLOCK as u32, seed: 3, compression: Compression::Auto, salt: [1; 24] };

fn series<S: Storage>(storage: S, strategy: Bases, files_max: u32) -> Series<S> {
    Series::open(storage, "", Rules { strategy, files_max }, None).unwrap()
}

fn add<S: Storage>(series: &mut Series<S>, content: &[u8]) -> Result<DeltaSummary, StoreError> {
    let mut adding = series.begin(&MAKING)?;
    for (place, block) in (0..).zip(content.chunks(BLOCK)) {
        adding.push(place, block)?;
    }
    adding.finish()
}

/// Restored by way of the files alone.
fn restore<S: Storage>(
    series: &Series<S>,
    disk: &mut impl Storage,
    number: u64,
) -> Result<Vec<u8>, StoreError> {
    let chain = series.chain(number, |path| disk.read(path, 1 << 30))?;
    let content = Mutex::new(vec![0; chain.newest().content_bytes() as usize]);
    let restored = chain.restore(NonZeroUsize::MIN, |place, blocks| {
        content.lock().unwrap()[place as usize * BLOCK..][..blocks.len()].copy_from_slice(blocks);
        Ok(())
    });
    restored.map_err(|error| StoreError::Delta { path: number.to_string(), error })?;
    Ok(content.into_inner().unwrap())
}

/// An airbag, in coarse: a membrane of 1000 cells lies folded, and a tenth of it unfolds in each step, the part before going on to stand as it is; from step 10 on
/// it is full, and every cell moves in every step.
fn airbag(step: u64) -> Vec<u8> {
    let cells = 1000u64;
    let cell = |cell: u64| {
        let unfolds = 1 + cell / 100;
        let moved_last = if step >= 11 { step } else { unfolds.min(step) };
        let state = if step < unfolds { 0 } else { moved_last };
        Random::new(cell << 8 | state).below(u64::MAX).to_le_bytes().repeat(BLOCK / 8)
    };
    (0..cells).flat_map(cell).collect()
}

#[test]
fn adca_changes_its_base_once_where_an_airbag_is_half_full() {
    const STEPS: u64 = 25;
    let run = |strategy| {
        let mut series = series(Memory::new(), strategy, u32::MAX);
        let added: Vec<DeltaSummary> =
            (0..STEPS).map(|step| add(&mut series, &airbag(step)).unwrap()).collect();
        let longest = (0..STEPS).map(|number| series.needs(number).unwrap().len()).max().unwrap();
        (added, longest)
    };
    let (adaptive, adaptive_files) = run(Bases::Adaptive { threshold: 6.0 });
    let bases: Vec<u64> = adaptive
        .iter()
        .map(|summary| summary.facts.number)
        .filter(|number| adaptive[*number as usize].facts.becomes_base)
        .collect();
    assert_eq!(bases, [7], "the base changes at t = 7 of 25, and never again");
    for (number, summary) in (0..).zip(&adaptive).skip(1) {
        assert_eq!(summary.facts.base_number, if number <= 7 { 0 } else { 7 }, "{number}");
    }
    let (differential, differential_files) = run(Bases::Differential);
    let (incremental, incremental_files) = run(Bases::Incremental);
    let bytes =
        |added: &[DeltaSummary]| added[1..=10].iter().map(|summary| summary.changed_bytes).sum::<u64>();
    // Size near the incremental one's, chain near the differential one's. In tenths of the membrane: 1 to 10 together, 10 times 1, and 1 to 7 and 1 to 3.
    let tenth = 100 * BLOCK as u64;
    assert_eq!(bytes(&differential), 55 * tenth);
    assert_eq!(bytes(&incremental), 10 * tenth);
    assert_eq!(bytes(&adaptive), 34 * tenth);
    assert_eq!((differential_files, adaptive_files, incremental_files), (2, 3, 25));
}

fn strategies() -> impl Strategy<Value = Bases> {
    prop::sample::select(vec![
        Bases::Full,
        Bases::Incremental,
        Bases::Differential,
        Bases::Adaptive { threshold: 1.0 },
        Bases::Adaptive { threshold: 2.0 },
    ])
}

fn content(random: &mut Random, before: &[u8]) -> Vec<u8> {
    let mut content = before.to_vec();
    for _ in 0..random.below(5) {
        let at = random.below(content.len() as u64 + 1) as usize;
        let bytes: Vec<u8> = (0..random.below(900)).map(|_| random.below(256) as u8).collect();
        let end = (at + bytes.len()).min(content.len());
        content.splice(at..end, bytes);
    }
    content
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 50 }))]

    #[test]
    fn any_number_comes_back_and_no_chain_is_too_long(
        seed in any::<u64>(), strategy in strategies(), files_max in 1u32..5, keep in 1usize..4, sealed in any::<bool>(),
    ) {
        let mut random = Random::new(seed);
        let mut disk = Memory::new();
        let rules = Rules { strategy, files_max };
        let key = sealed.then_some(Key([9; 32]));
        let mut contents = vec![Vec::new()];
        for number in 0..12u64 {
            let next = content(&mut random, &contents[contents.len() - 1]);
            // A disk in memory is copied where a real one is opened a second time.
            let mut series = Series::open(&mut disk, "", rules, key.clone()).unwrap();
            let mut making = MAKING;
            making.salt = [number as u8; 24];
            let mut adding = series.begin(&making).unwrap();
            for (place, block) in (0..).zip(next.chunks(BLOCK)) {
                adding.push(place, block).unwrap();
            }
            prop_assert_eq!(adding.finish().unwrap().facts.number, number);
            contents.push(next);
            if random.below(3) == 0 {
                series.collect(keep).unwrap();
            }
        }
        let mut files = disk.clone();
        let series = Series::open(&mut disk, "", rules, key).unwrap();
        prop_assert_eq!(series.damaged().count(), 0);
        let numbers: Vec<u64> = series.members().map(|member| member.facts.number).collect();
        prop_assert!(numbers.len() >= keep && numbers.ends_with(&[11]));
        for number in numbers {
            prop_assert!(series.needs(number).unwrap().len() <= files_max as usize);
            prop_assert_eq!(&restore(&series, &mut files, number).unwrap(), &contents[number as usize + 1]);
        }
    }
}

#[test]
fn signatures_that_are_lost_or_damaged_are_made_anew() {
    let disk = Memory::new();
    let mut random = Random::new(1);
    let first = content(&mut random, &[1; 9000]);
    let second = content(&mut random, &first);
    for damage in [false, true] {
        let mut made = Vec::new();
        for lose in [false, true] {
            let mut disk = disk.clone();
            add(&mut series(&mut disk, Bases::Incremental, 9), &first).unwrap();
            if lose && damage {
                assert!(disk.damage("00000000.signature", 100, 4));
            } else if lose {
                disk.remove_file("00000000.signature").unwrap();
            }
            made.push(add(&mut series(&mut disk, Bases::Incremental, 9), &second).unwrap());
        }
        assert_eq!(made[0].facts, made[1].facts);
        assert!(made[0].facts.base.is_some());
    }
}

#[test]
fn a_damaged_base_is_not_built_on() {
    let mut disk = Memory::new();
    add(&mut series(&mut disk, Bases::Incremental, 9), &[1; 5000]).unwrap();
    let bytes = disk.length("00000000.delta").unwrap();
    assert!(disk.damage("00000000.delta", bytes - 5, 1));
    let mut series = series(&mut disk, Bases::Incremental, 9);
    assert_eq!(series.damaged().map(|(number, _)| number).collect::<Vec<_>>(), [0]);
    let summary = add(&mut series, &[1; 5000]).unwrap();
    assert_eq!((summary.facts.number, summary.facts.base), (1, None), "its number is not used again");
}

#[test]
fn any_checkpoint_can_be_restored_while_the_next_one_is_written() {
    let scratch = tempfile::tempdir().unwrap();
    let open = || Directory::open(scratch.path()).unwrap();
    let mut writing = series(open(), Bases::Adaptive { threshold: 2.0 }, 4);
    let contents: Vec<Vec<u8>> =
        (0..6).map(|n| [vec![7; 4000], vec![n; 3000 + usize::from(n)]].concat()).collect();
    for content in &contents[..5] {
        add(&mut writing, content).unwrap();
    }
    let mut adding = writing.begin(&MAKING).unwrap();
    for (place, block) in (0..).zip(contents[5].chunks(BLOCK)) {
        adding.push(place, block).unwrap();
        let reading = series(open(), Bases::Full, 1);
        assert_eq!(reading.newest(), Some(4));
        let number = place % 5;
        assert_eq!(restore(&reading, &mut open(), number).unwrap(), contents[number as usize]);
    }
    adding.finish().unwrap();
    assert_eq!(restore(&writing, &mut open(), 5).unwrap(), contents[5]);
}

/// Six checkpoints, old ones removed on the way; the acknowledged ones are counted.
fn work(disk: &mut Memory, reported: &mut Option<u64>) -> Result<(), StoreError> {
    let rules = Rules { strategy: Bases::Adaptive { threshold: 1.5 }, files_max: 3 };
    let mut series = Series::open(disk, "", rules, None)?;
    for _ in 0..6 {
        let number = series.newest().map_or(0, |newest| newest + 1);
        add(&mut series, &crash_content(number))?;
        *reported = Some(number);
        series.collect(2)?;
    }
    Ok(())
}

fn crash_content(number: u64) -> Vec<u8> {
    (0..8u64).flat_map(|block| vec![if block <= number % 8 { number as u8 } else { 0 }; BLOCK]).collect()
}

#[test]
fn a_crash_or_a_full_disk_after_any_operation_leaves_what_was_reported() {
    for fault in [Fault::Crash, Fault::NoSpace] {
        for operations in 0.. {
            let mut disk = Memory::new();
            disk.fault_after(operations, fault);
            let mut reported = None;
            let result = work(&mut disk, &mut reported);
            if disk.clear_fault() {
                assert_eq!(result, Ok(()));
                assert!(operations > 50, "{operations}");
                break;
            }
            let crashed = disk.is_crashed();
            for seed in 0..6 {
                let mut disk = disk.clone();
                let mut random = Random::new(seed);
                match seed {
                    _ if !crashed => {}
                    0 => disk.crash_losing_all(),
                    _ => disk.crash(&mut |below| random.below(below)),
                }
                let mut files = disk.clone();
                let series = series(&mut disk, Bases::Full, 1);
                assert_eq!(series.damaged().count(), 0, "after {operations}");
                assert!(
                    reported <= series.newest(),
                    "after {operations}: told {reported:?}, found {:?}",
                    series.newest()
                );
                for number in series.members().map(|member| member.facts.number) {
                    let restored = restore(&series, &mut files, number);
                    assert_eq!(restored.unwrap(), crash_content(number), "after {operations}");
                }
                drop(series);
                // And it goes on.
                let mut more = None;
                work(&mut disk, &mut more).unwrap();
            }
        }
    }
}

#[test]
fn a_wrong_key_is_no_damage_and_nothing_is_added_with_it() {
    let mut disk = Memory::new();
    let open = |disk: &mut Memory, key: Option<u8>| {
        Series::open(disk, "", Rules::default(), key.map(|byte| Key([byte; 32]))).map(drop)
    };
    add(&mut Series::open(&mut disk, "", Rules::default(), Some(Key([1; 32]))).unwrap(), b"secret").unwrap();
    let said = |disk: &mut Memory, key| open(disk, key).unwrap_err().to_string();
    assert_eq!(open(&mut disk, Some(1)), Ok(()));
    assert!(said(&mut disk, Some(2)).contains("wrong key"), "{}", said(&mut disk, Some(2)));
    assert!(said(&mut disk, None).contains("no key was given"));
}

#[test]
fn a_folder_that_is_not_there_and_numbers_that_are_not_are_named() {
    let missing = Series::open(Memory::new(), "nowhere", Rules::default(), None).map(drop);
    assert!(matches!(missing, Err(StoreError::Storage(StorageError::NotFound { .. }))));
    let mut empty = series(Memory::new(), Bases::Full, 1);
    let said = |series: &Series<Memory>| series.needs(5).unwrap_err().to_string();
    assert_eq!(said(&empty), "checkpoint 5 is not there; there is none");
    add(&mut empty, b"x").unwrap();
    assert_eq!(said(&empty), "checkpoint 5 is not there; the newest is 0");
}
