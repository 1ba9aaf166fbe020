//! Packets: any content comes back, any block alone, and every bit that flips is found.

#![expect(clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::num::NonZeroUsize;
use std::sync::Mutex;

use crate::common::Random;
use proptest::prelude::*;
use store::checksum::checksum;
use store::packets::layout::{ENTRY_BYTES, FOOTER_BYTES, FRONT_BYTES};
use store::packets::{
    Codec, Compression, Cut, Key, KeyUse, PacketReader, PacketWriter, PacketsError, PacketsSummary, Sealing,
    Unpacker, parallel,
};

const KEY: Key = Key([7; 32]);

fn pack_with(
    content: &[u8],
    cut: Cut,
    compression: Compression,
    sealing: Option<Sealing>,
) -> (Vec<u8>, PacketsSummary) {
    let mut stream = Vec::new();
    let mut writer = PacketWriter::begin(&mut stream, cut, compression, sealing).unwrap();
    writer.write(&mut stream, content).unwrap();
    let summary = writer.finish(&mut stream).unwrap();
    assert_eq!((summary.stored_bytes, summary.content_bytes), (stream.len() as u64, content.len() as u64));
    (stream, summary)
}

fn pack(content: &[u8], cut: Cut, compression: Compression) -> Vec<u8> {
    pack_with(content, cut, compression, None).0
}

fn unpack(stream: &[u8], key: Option<&Key>) -> Result<Vec<u8>, PacketsError> {
    let reader = PacketReader::open(stream, key)?;
    reader.verify(stream)?;
    let mut content = Vec::new();
    reader.read_all(stream, |packet| {
        content.extend_from_slice(packet);
        Ok(())
    })?;
    Ok(content)
}

/// Stretches of zeros, of one repeated text, of numbers that rise, and of noise.
fn mixed(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut content = Vec::new();
    while content.len() < bytes {
        let length = 1 + random.below(20_000) as usize;
        match random.below(4) {
            0 => content.resize(content.len() + length, 0),
            1 => content.extend(b"the quick brown fox ".iter().cycle().take(length)),
            2 => content.extend((0..length as u32 / 4).flat_map(|n| (n / 7).to_le_bytes())),
            _ => content.extend((0..length).map(|_| random.below(256) as u8)),
        }
    }
    content.truncate(bytes);
    content
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(5);
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

fn compressions() -> impl Strategy<Value = Compression> {
    prop::sample::select(Compression::ALL.map(|(_, compression)| compression).to_vec())
}

fn usages() -> impl Strategy<Value = Option<KeyUse>> {
    prop::sample::select(vec![None, Some(KeyUse::Encrypt), Some(KeyUse::Sign)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 60 }))]

    #[test]
    fn any_content_comes_back_and_any_block_alone(
        seed in any::<u64>(), bytes in 0usize..200_000, block in 9u32..16, packet in 1u32..20,
        compression in compressions(), usage in usages(), threads in 1usize..4,
    ) {
        let content = mixed(seed, bytes);
        let cut = Cut::new(1 << block, packet).unwrap();
        let sealing = usage.map(|usage| Sealing::with(KEY, usage, [seed.to_le_bytes()[0]; 24]));
        let key = usage.map(|_| &KEY);
        let (stream, summary) = pack_with(&content, cut, compression, sealing.clone());
        prop_assert_eq!(unpack(&stream, key).unwrap(), &content[..]);

        let reader = PacketReader::open(&stream[..], key).unwrap();
        let mut unpacker = Unpacker::new();
        let blocks: Vec<&[u8]> = content.chunks(cut.block_bytes() as usize).collect();
        prop_assert_eq!(reader.blocks(), blocks.len() as u64);
        for (number, block) in (0..).zip(&blocks) {
            prop_assert_eq!(&reader.read_block(&stream[..], &mut unpacker, number).unwrap()[..], *block);
        }
        let beyond = reader.read_block(&stream[..], &mut unpacker, reader.blocks());
        prop_assert_eq!(beyond, Err(PacketsError::NoSuchBlock { block: reader.blocks(), blocks: reader.blocks() }));

        let restored = Mutex::new(vec![0; content.len()]);
        parallel::restore(&reader, &stream[..], NonZeroUsize::new(threads).unwrap(), |offset, packet| {
            restored.lock().unwrap()[offset as usize..][..packet.len()].copy_from_slice(packet);
            Ok(())
        }).unwrap();
        prop_assert_eq!(&restored.into_inner().unwrap(), &content);

        // Pieces give the same bytes as the whole, and no packet is longer than its content.
        let mut pieces = Vec::new();
        let mut writer = PacketWriter::begin(&mut pieces, cut, compression, sealing).unwrap();
        for piece in content.chunks(777) {
            writer.write(&mut pieces, piece).unwrap();
        }
        prop_assert_eq!(writer.finish(&mut pieces).unwrap(), summary);
        prop_assert!(pieces == stream);
        let tag = if usage.is_some() { 16 } else { 0 };
        let most = content.len() as u64 + reader.footer().packets * (ENTRY_BYTES as u64 + tag);
        prop_assert!(summary.stored_bytes <= most + (FRONT_BYTES + FOOTER_BYTES) as u64);
    }

    #[test]
    fn every_flipped_bit_is_found(seed in any::<u64>(), compression in compressions(), usage in usages(), place in any::<prop::sample::Index>()) {
        let content = mixed(seed, 9_000);
        let sealing = usage.map(|usage| Sealing::with(KEY, usage, [1; 24]));
        let (mut stream, _) = pack_with(&content, Cut::new(1024, 2).unwrap(), compression, sealing);
        let bit = place.index(stream.len() * 8);
        stream[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(unpack(&stream, usage.map(|_| &KEY)).is_err());
    }
}

#[test]
fn every_flipped_bit_of_a_small_stream_is_found_and_no_block_is_ever_wrong() {
    let content = mixed(3, 3_000);
    let stream = pack(&content, Cut::new(512, 2).unwrap(), Compression::Auto);
    for bit in 0..stream.len() * 8 {
        let mut damaged = stream.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(unpack(&damaged, None).is_err(), "bit {bit}");
        let Ok(reader) = PacketReader::open(&damaged[..], None) else { continue };
        for (number, block) in (0..).zip(content.chunks(512)) {
            let read = reader.read_block(&damaged[..], &mut Unpacker::new(), number);
            assert!(read.is_err() || read.is_ok_and(|read| read == block), "bit {bit}, block {number}");
        }
    }
    for length in 0..stream.len() {
        assert!(unpack(&stream[..length], None).is_err(), "{length} bytes of {}", stream.len());
    }
}

#[test]
fn what_does_not_compress_is_hardly_looked_at_and_stored_as_it_is() {
    let content = noise(8 << 20);
    for (_, compression) in Compression::ALL {
        let (stream, summary) = pack_with(&content, Cut::of_blocks(4096).unwrap(), compression, None);
        assert_eq!(summary.by_codec, [128, 0, 0, 0]);
        assert!(stream.len() < content.len() + 128 * ENTRY_BYTES + 200);
    }
}

#[test]
fn packets_that_compress_are_found_again_after_many_that_do_not() {
    let mut content = noise(4 << 20);
    content.resize(8 << 20, 0);
    let (_, summary) = pack_with(&content, Cut::of_blocks(4096).unwrap(), Compression::Lz4, None);
    // At most 3 packets go by without a look.
    assert!((61..=64).contains(&summary.by_codec[Codec::Lz4 as usize]), "{summary:?}");
}

#[test]
fn auto_takes_zstd_only_where_it_gains_clearly_more() {
    let cut = Cut::of_blocks(4096).unwrap();
    let of = |content: &[u8]| pack_with(content, cut, Compression::Auto, None).1.by_codec;
    // Five of eight bits are noise: no string repeats, and still half could go.
    let mut random = Random::new(1);
    let skewed: Vec<u8> = (0..1 << 20).map(|_| b"aaaabbcd"[random.below(8) as usize]).collect();
    assert_eq!(of(&skewed), [0, 0, 16, 0]);
    assert_eq!(of(&[0; 1 << 20]), [0, 16, 0, 0]);
}

#[test]
fn a_wrong_key_is_known_before_anything_is_read() {
    let content = mixed(1, 50_000);
    let sealing = Sealing::new(KEY, [9; 24]);
    let (stream, _) = pack_with(&content, Cut::new(4096, 2).unwrap(), Compression::Auto, Some(sealing));
    let open = |key| PacketReader::open(&stream[..], key).map(drop);
    assert_eq!(open(Some(&KEY)), Ok(()));
    assert_eq!(open(Some(&Key([8; 32]))), Err(PacketsError::WrongKey));
    assert_eq!(open(None), Err(PacketsError::KeyMissing));
    let plain = pack(&content, Cut::new(4096, 2).unwrap(), Compression::Auto);
    assert_eq!(PacketReader::open(&plain[..], Some(&KEY)).map(drop), Err(PacketsError::NotEncrypted));
    assert!(!stream.windows(16).any(|piece| piece == b"quick brown fox "), "nothing of the content shows");
}

/// Puts the checksums of packet 0 and 1, of the table and of the footer right, as a forger would.
fn forge(stream: &mut [u8], change: impl FnOnce(&mut [u8])) {
    change(stream);
    let footer = stream.len() - FOOTER_BYTES;
    let packets = u64::from_le_bytes(stream[footer + 16..footer + 24].try_into().unwrap()) as usize;
    let table = footer - packets * ENTRY_BYTES;
    for packet in 0..packets {
        let entry = table + packet * ENTRY_BYTES;
        let offset = u64::from_le_bytes(stream[entry..entry + 8].try_into().unwrap()) as usize;
        let bytes = u32::from_le_bytes(stream[entry + 8..entry + 12].try_into().unwrap()) as usize;
        let mut summed = [0; 24];
        summed[..8].copy_from_slice(&(packet as u64).to_le_bytes());
        summed[8] = stream[entry + 12];
        summed[16..].copy_from_slice(&(bytes as u64).to_le_bytes());
        let sum = checksum(&[&summed, &stream[offset..offset + bytes]].concat());
        stream[entry + 16..entry + 24].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = checksum(&stream[table..footer]);
    stream[footer + 32..footer + 40].copy_from_slice(&sum.to_le_bytes());
    let end = stream.len();
    let sum = checksum(&stream[footer..end - 8]);
    stream[end - 8..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn packets_with_a_key_cannot_be_exchanged_or_left_out() {
    for usage in [KeyUse::Encrypt, KeyUse::Sign] {
        cannot_be_exchanged_or_left_out(usage);
    }
}

fn cannot_be_exchanged_or_left_out(usage: KeyUse) {
    let content = noise(3 * 4096);
    let sealed = |salt| Some(Sealing::with(KEY, usage, [salt; 24]));
    let (stream, _) = pack_with(&content, Cut::new(4096, 1).unwrap(), Compression::None, sealed(1));
    let (other, _) = pack_with(&content, Cut::new(4096, 1).unwrap(), Compression::None, sealed(2));
    let stored = 4096 + 16;
    let mut same = stream.clone();
    forge(&mut same, |_| {});
    assert!(
        same == stream || matches!(unpack(&same, Some(&KEY)), Err(PacketsError::Forged { packet: None }))
    );

    let mut swapped = stream.clone();
    // The footer's tag covers the table's checksum, so the table must stay: checksums of packets depend on their
    // numbers.
    forge(&mut swapped, |bytes| {
        let (first, second) = bytes[FRONT_BYTES..].split_at_mut(stored);
        first.swap_with_slice(&mut second[..stored]);
    });
    assert_eq!(unpack(&swapped, Some(&KEY)), Err(PacketsError::Forged { packet: None }));
    // Even if the footer were not covered: read the packet with the reader of the true footer.
    let reader = PacketReader::open(&stream[..], Some(&KEY)).unwrap();
    let read = reader.read_block(&swapped[..], &mut Unpacker::new(), 0);
    assert_eq!(read, Err(PacketsError::Forged { packet: Some(0) }));
    let mut exchanged = stream.clone();
    forge(&mut exchanged, |bytes| {
        bytes[FRONT_BYTES..FRONT_BYTES + stored].copy_from_slice(&other[FRONT_BYTES..FRONT_BYTES + stored])
    });
    let read = reader.read_block(&exchanged[..], &mut Unpacker::new(), 0);
    assert_eq!(read, Err(PacketsError::Forged { packet: Some(0) }));
}

#[test]
fn signed_packets_are_read_by_all_and_vouched_for_by_the_key() {
    let content = mixed(1, 50_000);
    let sealing = Sealing::with(KEY, KeyUse::Sign, [9; 24]);
    let (stream, _) = pack_with(&content, Cut::new(4096, 2).unwrap(), Compression::None, Some(sealing));
    assert_eq!(unpack(&stream, None).unwrap(), content);
    assert_eq!(unpack(&stream, Some(&KEY)).unwrap(), content);
    assert_eq!(unpack(&stream, Some(&Key([8; 32]))), Err(PacketsError::WrongKey));
    // Without the key, a forger's packet looks right; with it, it is named.
    let mut forged = stream.clone();
    forge(&mut forged, |bytes| bytes[FRONT_BYTES + 100] ^= 1);
    assert!(unpack(&forged, None).is_ok_and(|forged| forged != content));
    assert_eq!(unpack(&forged, Some(&KEY)), Err(PacketsError::Forged { packet: None }));
    let reader = PacketReader::open(&stream[..], Some(&KEY)).unwrap();
    let read = reader.read_block(&forged[..], &mut Unpacker::new(), 0);
    assert_eq!(read, Err(PacketsError::Forged { packet: Some(0) }));
    // Nobody can take the signature away, and keep the key's word.
    let mut unsigned = stream.clone();
    forge(&mut unsigned, |bytes| {
        let footer = bytes.len() - FOOTER_BYTES;
        bytes[footer + 6] = 0;
    });
    assert!(unpack(&unsigned, Some(&KEY)).is_err());
    // One use of the key is not taken for the other.
    let mut encrypted = stream.clone();
    forge(&mut encrypted, |bytes| {
        let footer = bytes.len() - FOOTER_BYTES;
        bytes[footer + 6] = 1;
    });
    assert_eq!(unpack(&encrypted, Some(&KEY)), Err(PacketsError::Forged { packet: None }));
}

#[test]
fn a_packet_that_would_unpack_to_more_than_it_says_is_refused() {
    // A megabyte of zeros is some thousand bytes; footer and table say that they are a packet of 32 KiB.
    for codec in [Codec::Lz4, Codec::Zstd, Codec::Gzip] {
        let bomb = match codec {
            Codec::Lz4 => pack(&[0; 1 << 20], Cut::new(1 << 20, 1).unwrap(), Compression::Lz4),
            Codec::Zstd => pack(&[0; 1 << 20], Cut::new(1 << 20, 1).unwrap(), Compression::Zstd),
            _ => pack(&[0; 1 << 20], Cut::new(1 << 20, 1).unwrap(), Compression::Gzip),
        };
        let mut forged = bomb.clone();
        forge(&mut forged, |bytes| {
            let footer = bytes.len() - FOOTER_BYTES;
            bytes[footer + 8..footer + 12].copy_from_slice(&4096u32.to_le_bytes());
            bytes[footer + 12..footer + 16].copy_from_slice(&8u32.to_le_bytes());
            bytes[footer + 24..footer + 32].copy_from_slice(&32768u64.to_le_bytes());
        });
        let stored = bomb.len() - FRONT_BYTES - ENTRY_BYTES - FOOTER_BYTES;
        assert!(stored <= 32768, "{codec}: {stored}");
        assert_eq!(
            unpack(&forged, None),
            Err(PacketsError::Undecodable { packet: 0, codec, expected_bytes: 32768 })
        );
    }
}

#[test]
fn counts_are_compared_with_the_file_before_anything_is_allocated() {
    let stream = pack(&[1; 5000], Cut::new(512, 2).unwrap(), Compression::None);
    let footer = stream.len() - FOOTER_BYTES;
    for (at, bytes) in [(16, u64::MAX), (16, 1 << 27), (24, u64::MAX), (24, 1 << 45), (24, 5121), (24, 4096)]
    {
        let mut forged = stream.clone();
        forged[footer + at..footer + at + 8].copy_from_slice(&bytes.to_le_bytes());
        let end = forged.len();
        let sum = checksum(&forged[footer..end - 8]);
        forged[end - 8..].copy_from_slice(&sum.to_le_bytes());
        let opened = PacketReader::open(&forged[..], None);
        assert!(matches!(opened, Err(PacketsError::CountsDiffer { .. })), "{at} {bytes}: {opened:?}");
    }
    for (block, packet) in [(0, 1), (100, 1), (1 << 21, 1), (512, 0), (1 << 20, 5), (512, u32::MAX)] {
        assert_eq!(Cut::new(block, packet), None);
    }
}
