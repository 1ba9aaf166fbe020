//! Deltas of contents in memory: after any changes, every checkpoint of a chain is restored.

#![expect(clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use crate::common::Random;
use proptest::prelude::*;
use store::delta::{
    Chain, DeltaError, DeltaOptions, DeltaReader, DeltaSummary, DeltaWriter, Layer, Places, Run, Signature,
};
use store::packets::{Compression, Key, PacketsError, Sealing, Unpacker};

const BLOCK: usize = 512;
const THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

fn sign(content: &[u8]) -> Arc<Signature> {
    let mut signature = Signature::new(BLOCK as u32, 7);
    for (place, block) in (0..).zip(content.chunks(BLOCK)) {
        signature.push(place, block).unwrap();
    }
    Arc::new(signature)
}

fn make(content: &[u8], options: DeltaOptions) -> (Vec<u8>, DeltaSummary) {
    let mut file = Vec::new();
    let mut writer = DeltaWriter::begin(&mut file, BLOCK as u32, 7, options).unwrap();
    for (place, block) in (0..).zip(content.chunks(BLOCK)) {
        writer.push(&mut file, place, block).unwrap();
    }
    let summary = writer.finish(&mut file, 0, 0, false).unwrap();
    assert_eq!(summary.stored_bytes, file.len() as u64);
    assert_eq!(*summary.signature, *sign(content));
    (file, summary)
}

fn against(base: &Arc<Signature>) -> DeltaOptions {
    DeltaOptions { base: Some(Arc::clone(base)), ..DeltaOptions::default() }
}

fn layer(file: &[u8]) -> Layer<&[u8]> {
    Layer::open(file, None).unwrap()
}

fn restore(chain: &Chain<&[u8]>) -> Result<Vec<u8>, DeltaError> {
    let content = Mutex::new(vec![0; chain.newest().content_bytes() as usize]);
    chain.restore(THREADS, |place, blocks| {
        content.lock().unwrap()[place as usize * BLOCK..][..blocks.len()].copy_from_slice(blocks);
        Ok(())
    })?;
    Ok(content.into_inner().unwrap())
}

/// Possible changes by a program to a file between two checkpoints.
fn change(content: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.below(4) {
        match random.below(4) {
            0 => {
                let bytes = random.below(4_000) as usize;
                content.truncate(content.len().saturating_sub(bytes));
            }
            1 => content.extend(noise(random.below(1 << 40), random.below(4_000) as usize)),
            _ if content.is_empty() => {}
            _ => {
                let at = random.below(content.len() as u64) as usize;
                let bytes = (random.below(2_000) as usize).min(content.len() - at);
                content[at..at + bytes].copy_from_slice(&noise(random.below(1 << 40), bytes));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 80 }))]

    #[test]
    fn every_checkpoint_of_a_chain_comes_back(seed in any::<u64>(), steps in 1usize..6, bytes in 0usize..20_000) {
        let mut random = Random::new(seed);
        let mut content = noise(seed, bytes);
        let (full, summary) = make(&content, DeltaOptions::default());
        let (mut files, mut signature) = (vec![full], summary.signature);
        let first = content.clone();
        for _ in 0..steps {
            change(&mut content, &mut random);
            let (file, summary) = make(&content, against(&signature));
            signature = summary.signature;
            files.push(file);
            let chain = Chain::new(files.iter().rev().map(|file| layer(file)).collect(), None).unwrap();
            prop_assert_eq!(&restore(&chain).unwrap(), &content);
            prop_assert_eq!(chain.signature().unwrap().expect("no file below"), (*signature).clone());
            let mut unpacker = Unpacker::new();
            for (place, block) in (0..).zip(content.chunks(BLOCK)) {
                prop_assert_eq!(chain.read_block(&mut unpacker, place).unwrap(), block);
            }
            let beyond = content.len().div_ceil(BLOCK) as u64;
            let read = chain.read_block(&mut unpacker, beyond);
            prop_assert_eq!(read, Err(DeltaError::NoSuchBlock { place: beyond }));
            // The same deltas over the first content as a file.
            let layers = files[1..].iter().rev().map(|file| layer(file)).collect();
            let chain = Chain::new(layers, Some(&first[..])).unwrap();
            prop_assert_eq!(&restore(&chain).unwrap(), &content);
        }
    }

    /// The kernel reports the written pages; extra pages in its report change nothing, and only reported pages are read.
    #[test]
    fn fed_by_what_was_written_a_delta_is_the_same(seed in any::<u64>(), too_many in 0u64..8) {
        let mut random = Random::new(seed);
        let base = noise(seed, 64 * BLOCK);
        let mut content = base.clone();
        let mut written = [false; 64];
        for _ in 0..random.below(10) {
            let place = random.below(64) as usize;
            content[place * BLOCK + random.below(BLOCK as u64) as usize] ^= 1 + random.below(255) as u8;
            written[place] = true;
        }
        for _ in 0..too_many {
            written[random.below(64) as usize] = true;
        }
        let signature = sign(&base);
        let (by_content, of_content) = make(&content, against(&signature));
        let mut file = Vec::new();
        let mut writer = DeltaWriter::begin(&mut file, BLOCK as u32, 7, against(&signature)).unwrap();
        for (place, block) in content.chunks(BLOCK).enumerate() {
            if written[place] || !writer.unwritten(place as u64, &signature).unwrap() {
                prop_assert!(written[place], "an unwritten block was asked for");
                writer.push(&mut file, place as u64, block).unwrap();
            }
        }
        let summary = writer.finish(&mut file, 0, 0, false).unwrap();
        prop_assert!(file == by_content);
        prop_assert_eq!(summary.signature, of_content.signature);
    }

    #[test]
    fn every_flipped_bit_of_a_delta_is_found(seed in any::<u64>(), place in any::<prop::sample::Index>(), full in any::<bool>()) {
        let mut random = Random::new(seed);
        let base = noise(seed, 6_000);
        let mut content = base.clone();
        change(&mut content, &mut random);
        let options = if full { DeltaOptions::default() } else { against(&sign(&base)) };
        let (mut file, _) = make(&content, options);
        let bit = place.index(file.len() * 8);
        file[bit / 8] ^= 1 << (bit % 8);
        let restored = Layer::open(&file[..], None).and_then(|layer| {
            layer.delta.packets().verify(&layer.delta.blocks(&file[..]))?;
            let base = (!full).then_some(&base[..]);
            restore(&Chain::new(vec![layer], base)?)
        });
        prop_assert!(restored.is_err());
    }
}

/// The checkpoint since which the kernel looks does not matter: blocks that differ from the base are requested.
#[test]
fn a_block_that_only_the_base_has_otherwise_is_asked_for() {
    let (base, previous) = (noise(1, 4 * BLOCK), noise(2, 4 * BLOCK));
    let signature = sign(&previous);
    let mut file = Vec::new();
    let mut writer = DeltaWriter::begin(&mut file, BLOCK as u32, 7, against(&sign(&base))).unwrap();
    assert_eq!(writer.unwritten(0, &signature), Ok(false));
    assert_eq!(writer.unwritten(99, &signature), Ok(false), "it is nowhere");
}

#[test]
fn memory_that_grows_in_the_middle_moves_nothing() {
    // Pages by their address: heap from 0x1000 on, stack from 0x7000_0000 on. The heap grows by four pages and one is written.
    let page = |address: u64| noise(address, 4096);
    let sign_pages = |pages: &[(u64, Vec<u8>)]| {
        let mut signature = Signature::new(4096, 0);
        for (address, page) in pages {
            signature.push(address / 4096, page).unwrap();
        }
        Arc::new(signature)
    };
    let mut pages: Vec<(u64, Vec<u8>)> =
        (1..9).chain(0x7_0000..0x7_0040).map(|n| (n * 4096, page(n))).collect();
    let before = sign_pages(&pages);
    for n in 9..13 {
        pages.insert(n as usize - 1, (n * 4096, page(n)));
    }
    pages[3].1[17] ^= 1;
    let mut file = Vec::new();
    let mut writer = DeltaWriter::begin(&mut file, 4096, 0, against(&before)).unwrap();
    for (address, page) in &pages {
        writer.push(&mut file, address / 4096, page).unwrap();
    }
    let summary = writer.finish(&mut file, 0, 0, false).unwrap();
    assert_eq!(summary.differences.since_base, 5);
    let changed = DeltaReader::open(&file[..], None).unwrap().changed().clone();
    let mut expected = Places::new();
    expected.push(Run { first: 4, blocks: 1 });
    expected.push(Run { first: 9, blocks: 4 });
    assert_eq!(changed, expected);
}

#[test]
fn a_base_that_is_another_file_is_refused() {
    let base = noise(1, 10_000);
    let mut content = base.clone();
    content[5_000] ^= 1;
    let (file, _) = make(&content, against(&sign(&base)));
    let apply = |base: &[u8]| restore(&Chain::new(vec![layer(&file)], Some(base)).unwrap());
    assert_eq!(apply(&base).as_deref(), Ok(&content[..]));
    let mut other = base.clone();
    other[9_999] ^= 1;
    assert!(matches!(apply(&other), Err(DeltaError::ContentDiffers { .. })));
    assert_eq!(apply(&base[..9_000]), Err(DeltaError::BaseTooShort { place: 17 }));
    // Where only the delta's own blocks differ, the result is right all the same.
    let mut same = base.clone();
    same[5_000] ^= 7;
    assert_eq!(apply(&same).as_deref(), Ok(&content[..]));

    let chain = |layers: Vec<Layer<_>>, base| Chain::<&[u8]>::new(layers, base).map(drop);
    assert!(matches!(chain(vec![layer(&file)], None), Err(DeltaError::BaseMissing { .. })));
    let (full, _) = make(&base, DeltaOptions::default());
    assert_eq!(chain(vec![layer(&full)], Some(&base)), Err(DeltaError::NoBaseWanted));
    assert_eq!(chain(vec![layer(&full), layer(&full)], None), Err(DeltaError::NoBaseWanted));
    let (wrong, _) = make(&noise(9, 10_000), DeltaOptions::default());
    assert!(matches!(chain(vec![layer(&file), layer(&wrong)], None), Err(DeltaError::WrongBase { .. })));
}

#[test]
fn signatures_of_other_blocks_or_seeds_are_not_compared() {
    let other = |block, seed| {
        let base = Arc::new(Signature::new(block, seed));
        DeltaWriter::begin(&mut Vec::new(), 512, 7, against(&base)).map(drop)
    };
    assert_eq!(other(512, 7), Ok(()));
    assert_eq!(other(1024, 7), Err(DeltaError::BlocksDiffer { expected: 512, found: 1024 }));
    assert_eq!(other(512, 8), Err(DeltaError::SeedsDiffer));
}

#[test]
fn a_signature_is_read_back_and_no_other_is() {
    let signature = sign(&noise(4, 5_001));
    let mut file = Vec::new();
    signature.write(&mut file, None).unwrap();
    assert_eq!(Signature::read(&file[..], None).as_ref(), Ok(&*signature));
    let content = signature.emit();
    for length in 0..content.len() {
        assert!(Signature::parse(&content[..length]).is_err(), "{length}");
    }
    for bit in 0..40 * 8 {
        let mut damaged = content.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        // Seed and length of the last block have no wrong values, and are named with the content.
        let parsed = Signature::parse(&damaged);
        assert!(parsed.is_err() || parsed.is_ok_and(|parsed| parsed.name() != signature.name()), "bit {bit}");
    }
}

#[test]
fn an_encrypted_delta_shows_nothing_and_wants_its_key() {
    let key = Key([3; 32]);
    let base = vec![b'a'; 20_000];
    let mut content = base.clone();
    content[600..700].fill(b'b');
    let sealing = Some(Sealing::new(key.clone(), [5; 24]));
    let options = DeltaOptions { sealing, compression: Compression::None, ..against(&sign(&base)) };
    let (file, summary) = make(&content, options);
    assert!(!file.windows(8).any(|bytes| bytes == b"bbbbbbbb"));
    let hash = summary.signature.hash_at(1).unwrap().0.to_le_bytes();
    assert!(
        !file.windows(16).any(|bytes| bytes == hash),
        "a hash tells what a block is to those who can guess it"
    );
    assert_eq!(
        DeltaReader::open(&file[..], None).map(drop),
        Err(DeltaError::Packets(PacketsError::KeyMissing))
    );
    let wrong = DeltaReader::open(&file[..], Some(&Key([4; 32]))).map(drop);
    assert_eq!(wrong, Err(DeltaError::Packets(PacketsError::WrongKey)));
    let layer = Layer::open(&file[..], Some(&key)).unwrap();
    assert_eq!(restore(&Chain::new(vec![layer], Some(&base[..])).unwrap()).unwrap(), content);
}
