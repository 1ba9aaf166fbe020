//! Small streams of packets, deltas and signatures.

use std::sync::Arc;

use store::delta::{DeltaOptions, DeltaWriter, Signature};
use store::packets::{Compression, Cut, PacketWriter};

use crate::corpora::seeds::Seed;

const BLOCK_BYTES: u32 = 512;

/// So many bytes, half of which repeat.
fn content(bytes: u16) -> Vec<u8> {
    (0..bytes).map(|at| if at % 512 < 256 { 7 } else { at.wrapping_mul(40_503).to_be_bytes()[0] }).collect()
}

pub(crate) fn packets() -> Vec<Seed> {
    let packed = |name: &str, content: &[u8], compression| {
        let cut = Cut::new(BLOCK_BYTES, 2).expect("a small cut");
        let mut stream = Vec::new();
        let mut writer = PacketWriter::begin(&mut stream, cut, compression, None).expect("memory");
        writer.write(&mut stream, content).expect("memory");
        writer.finish(&mut stream).expect("memory");
        (name.to_owned(), stream)
    };
    vec![
        packed("empty", &[], Compression::None),
        packed("plain", &content(1100), Compression::None),
        packed("lz4", &content(2100), Compression::Lz4),
        packed("zstd", &content(2100), Compression::Zstd),
        packed("gzip", &content(1024), Compression::Gzip),
    ]
}

pub(crate) fn deltas() -> Vec<Seed> {
    let made = |content: &[u8], base: Option<&Arc<Signature>>| {
        let mut file = Vec::new();
        let options =
            DeltaOptions { base: base.cloned(), compression: Compression::Lz4, ..DeltaOptions::default() };
        let mut writer = DeltaWriter::begin(&mut file, BLOCK_BYTES, 5, options).expect("memory");
        for (place, block) in (3..).zip(content.chunks(512)) {
            writer.push(&mut file, place, block).expect("memory");
        }
        let summary = writer.finish(&mut file, 2, 1, true).expect("memory");
        (file, summary.signature)
    };
    let before = content(1400);
    let mut after = before.clone();
    after[600] ^= 1;
    let (full, signature) = made(&before, None);
    let (delta, _) = made(&after, Some(&signature));
    let (empty, _) = made(&[], None);
    vec![
        ("full".to_owned(), full),
        ("delta".to_owned(), delta),
        ("empty".to_owned(), empty),
        ("signature".to_owned(), signature.emit()),
    ]
}
