//! Packets: their cost, and the savings of partial reads.
//!
//! Packing and unpacking by codec; lengths of packets; and one chain of checkpoints stored in three ways: plain, each file compressed as a whole, and in packets: time to
//! restore it, and to read one block.

mod report;

use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use store::Directory;
use store::delta::{Chain, Making, Rules, Series, Strategy};
use store::packets::{Compression, Cut, PacketReader, PacketWriter, Unpacker, parallel};
use store::storage::{Operation, StorageError};

use crate::delta::Scratch;
use crate::error::BenchError;
use crate::machine::{Busy, Machine};
use crate::progress::Steps;
use crate::statistics::Summary;
pub use report::{CodecRow, LengthRow, SetRow, StoreReport};

/// Settings of the packet store benchmark.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Runs of each figure.
    pub runs: usize,
    /// Lengths of the content, bytes.
    pub bytes: Vec<usize>,
    /// Where sets are written.
    pub folder: PathBuf,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { runs: 5, bytes: vec![16 << 20, 64 << 20, 128 << 20], folder: std::env::temp_dir() }
    }
}

const BLOCK: u32 = 4096;
const BLOCK_BYTES: usize = BLOCK as usize;
/// Deltas above the full one, and the part of the blocks that each one changes: one in so many.
const DELTAS: u64 = 7;
const CHANGED_ONE_IN: u64 = 20;
/// Blocks that are read alone.
const BLOCKS_READ: u64 = 200;
const ZSTD_LEVEL: i32 = 1;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The contents of memory.
#[derive(Clone, Copy)]
enum Kind {
    Zeros,
    /// Indexes, counters: words whose upper bytes are equal.
    Integers,
    /// Smooth doubles.
    Doubles,
    Noise,
}

fn fill(kind: Kind, random: &mut Random, block: &mut [u8]) {
    let start = random.next() % 100_000;
    for (word, n) in block.chunks_exact_mut(8).zip(start..) {
        #[expect(clippy::cast_precision_loss, reason = "content")]
        let value = match kind {
            Kind::Zeros => 0,
            Kind::Integers => n * 3 + random.next() % 4,
            Kind::Doubles => (n as f64 * 1e-3).sin().to_bits(),
            Kind::Noise => random.next(),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

fn content(kind: Kind, bytes: usize) -> Vec<u8> {
    let mut random = Random(1);
    let mut content = vec![0; bytes];
    content.chunks_mut(BLOCK_BYTES * 16).for_each(|blocks| fill(kind, &mut random, blocks));
    content
}

/// A quarter of each kind, in stretches of a MiB.
fn memory(bytes: usize) -> Vec<u8> {
    let kinds = [Kind::Zeros, Kind::Integers, Kind::Doubles, Kind::Noise];
    let mut random = Random(2);
    let mut content = vec![0; bytes];
    for (stretch, kind) in content.chunks_mut(1 << 20).zip(kinds.iter().cycle()) {
        stretch.chunks_mut(BLOCK_BYTES * 16).for_each(|blocks| fill(*kind, &mut random, blocks));
    }
    content
}

fn threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Measures.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: &StoreOptions) -> Result<StoreReport, BenchError> {
    let machine = Machine::here();
    let steps = Steps::new("store", options.bytes.len() + 2);
    steps.step(format_args!("codecs"));
    let bytes = options.bytes.iter().copied().min().unwrap_or(1 << 20).max(1 << 20);
    let mut codecs = Vec::new();
    let kinds = [
        ("zeros", Kind::Zeros),
        ("integers", Kind::Integers),
        ("doubles", Kind::Doubles),
        ("noise", Kind::Noise),
    ];
    for (name, kind) in kinds {
        let content = content(kind, bytes);
        for (codec, compression) in Compression::ALL {
            codecs.push(codec_row(name, codec, compression, &content, options.runs)?);
        }
    }
    steps.step(format_args!("lengths of packets"));
    let lengths = lengths(&memory(bytes), options.runs)?;
    let mut sets = Vec::new();
    for bytes in &options.bytes {
        steps.step(format_args!("a chain of {} MiB", bytes >> 20));
        sets.extend(self::sets(*bytes, options)?);
    }
    Ok(StoreReport::new(machine, codecs, lengths, sets))
}

fn pack(content: &[u8], cut: Cut, compression: Compression) -> Result<Vec<u8>, BenchError> {
    let mut stream = Vec::with_capacity(content.len() + content.len() / 8);
    let mut writer = PacketWriter::begin(&mut stream, cut, compression, None)?;
    writer.write(&mut stream, content)?;
    writer.finish(&mut stream)?;
    Ok(stream)
}

fn rate(bytes: usize, began: Instant) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a length")]
    let bytes = bytes as f64;
    bytes / began.elapsed().as_secs_f64() / 1e9
}

fn ratio(content: usize, stored: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "lengths")]
    let ratio = content as f64 / stored as f64;
    ratio
}

fn codec_row(
    name: &'static str,
    codec: &'static str,
    compression: Compression,
    content: &[u8],
    runs: usize,
) -> Result<CodecRow, BenchError> {
    let busy = Busy::begin();
    let cut = Cut::of_blocks(BLOCK).expect("within the limits");
    let (mut packing, mut unpacking, mut unpacking_all) = (Vec::new(), Vec::new(), Vec::new());
    let mut stream = Vec::new();
    let taken = AtomicU64::new(0);
    for _ in 0..runs {
        let began = Instant::now();
        stream = pack(content, cut, compression)?;
        packing.push(rate(content.len(), began));
        for (threads, rates) in [(NonZeroUsize::MIN, &mut unpacking), (threads(), &mut unpacking_all)] {
            let began = Instant::now();
            let reader = PacketReader::open(&stream[..], None)?;
            parallel::restore(&reader, &stream[..], threads, |_, packet| {
                taken.fetch_add(packet.len() as u64, Ordering::Relaxed);
                Ok(())
            })?;
            rates.push(rate(content.len(), began));
        }
    }
    Ok(CodecRow {
        content: name,
        codec,
        ratio: ratio(content.len(), stream.len()),
        pack_gbytes_per_s: Summary::of(&packing).median,
        unpack_gbytes_per_s: Summary::of(&unpacking).median,
        unpack_all_threads_gbytes_per_s: Summary::of(&unpacking_all).median,
        processor: busy.end(),
    })
}

fn lengths(content: &[u8], runs: usize) -> Result<Vec<LengthRow>, BenchError> {
    let whole = zstd(content)?;
    let mut rows = Vec::new();
    for blocks in [1, 4, 16, 64, 256] {
        let cut = Cut::new(BLOCK, blocks).expect("within the limits");
        let stream = pack(content, cut, Compression::Zstd)?;
        let reader = PacketReader::open(&stream[..], None)?;
        let busy = Busy::begin();
        let mut times = Vec::new();
        for _ in 0..runs {
            times.push(per_block(reader.blocks(), |unpacker, block| {
                Ok(reader.read_block(&stream[..], unpacker, block)?)
            })?);
        }
        rows.push(LengthRow {
            packet_bytes: cut.packet_bytes(),
            ratio: ratio(content.len(), stream.len()),
            ratio_whole: ratio(content.len(), whole.len()),
            block_us: Summary::of(&times).median,
            processor: busy.end(),
        });
    }
    Ok(rows)
}

/// Mean time to read one block somewhere, us.
fn per_block(
    blocks: u64,
    mut read: impl FnMut(&mut Unpacker, u64) -> Result<Vec<u8>, BenchError>,
) -> Result<f64, BenchError> {
    let mut random = Random(3);
    let mut unpacker = Unpacker::new();
    let began = Instant::now();
    for _ in 0..BLOCKS_READ {
        std::hint::black_box(read(&mut unpacker, random.next() % blocks)?);
    }
    #[expect(clippy::cast_precision_loss, reason = "few")]
    let each = began.elapsed().as_secs_f64() * 1e6 / BLOCKS_READ as f64;
    Ok(each)
}

fn zstd(content: &[u8]) -> Result<Vec<u8>, BenchError> {
    Ok(zstd::stream::encode_all(content, ZSTD_LEVEL)?)
}

/// The checkpoints of one content in three ways.
fn sets(bytes: usize, options: &StoreOptions) -> Result<Vec<SetRow>, BenchError> {
    let scratch = Scratch::new(&options.folder)?;
    let mut content = memory(bytes);
    let mut random = Random(4);
    let plain = scratch.path.join("plain");
    let packed = scratch.path.join("packed");
    for checkpoint in 0..=DELTAS {
        if checkpoint > 0 {
            let noise = random.next();
            for block in content.chunks_mut(BLOCK_BYTES) {
                if random.next().is_multiple_of(CHANGED_ONE_IN) {
                    block
                        .iter_mut()
                        .step_by(64)
                        .for_each(|byte| *byte = byte.wrapping_add(noise.to_le_bytes()[0] | 1));
                }
            }
        }
        add(&plain, &content, Compression::None)?;
        add(&packed, &content, Compression::Zstd)?;
    }
    // Each file of the plain set compressed as a whole.
    let whole = scratch.path.join("whole");
    std::fs::create_dir_all(&whole)?;
    for number in 0..=DELTAS {
        let name = format!("{number:08}.delta");
        std::fs::write(whole.join(&name), zstd(&std::fs::read(plain.join(&name))?)?)?;
    }
    let plain_row = files_row("plain", bytes, &plain, &content, options.runs)?;
    let packed_row = files_row("packets", bytes, &packed, &content, options.runs)?;
    let whole_row = whole_row(bytes, &whole, &content, options.runs)?;
    Ok(vec![plain_row, whole_row, packed_row])
}

fn series(folder: &std::path::Path) -> Result<Series<Directory>, BenchError> {
    let directory = Directory::create(folder).map_err(store::StoreError::from)?;
    Ok(Series::open(directory, "", Rules { strategy: Strategy::Incremental, files_max: 64 }, None)?)
}

fn add(folder: &std::path::Path, content: &[u8], compression: Compression) -> Result<(), BenchError> {
    let mut series = series(folder)?;
    let making = Making { block_bytes: BLOCK, seed: 1, compression, salt: [0; 24] };
    let mut adding = series.begin(&making)?;
    for (place, block) in (0..).zip(content.chunks(BLOCK_BYTES)) {
        adding.push(place, block)?;
    }
    adding.finish()?;
    Ok(())
}

/// Restores into a file, as the command does; the comparison afterwards does not count.
fn restored<R: store::packets::Source + Sync>(
    chain: &Chain<R>,
    threads: NonZeroUsize,
    content: &[u8],
    into: &std::path::Path,
) -> Result<(f64, bool), BenchError> {
    let _ = std::fs::remove_file(into);
    let began = Instant::now();
    let file = std::fs::File::create(into)?;
    file.set_len(content.len() as u64)?;
    chain.restore(threads, |place, blocks| {
        file.write_all_at(blocks, place * BLOCK_BYTES as u64).map_err(|error| StorageError::Io {
            operation: Operation::Append,
            path: into.display().to_string(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Ok(())
    })?;
    let ms = began.elapsed().as_secs_f64() * 1e3;
    Ok((ms, std::fs::read(into)? == content))
}

fn stored_bytes(folder: &std::path::Path) -> Result<u64, BenchError> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(".delta") {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

fn files_row(
    way: &'static str,
    bytes: usize,
    folder: &std::path::Path,
    content: &[u8],
    runs: usize,
) -> Result<SetRow, BenchError> {
    let busy = Busy::begin();
    let (series, directory) = (series(folder)?, Directory::open(folder).map_err(store::StoreError::from)?);
    let open = || series.chain(DELTAS, |path| directory.open_file(path));
    let (mut one, mut all, mut blocks, mut opening) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut is_right = true;
    for _ in 0..runs {
        let began = Instant::now();
        let chain = open()?;
        let opened = began.elapsed().as_secs_f64() * 1e3;
        opening.push(opened);
        for (threads, times) in [(NonZeroUsize::MIN, &mut one), (threads(), &mut all)] {
            let (ms, right) = restored(&chain, threads, content, &folder.join("restored"))?;
            times.push(ms + opened);
            is_right &= right;
        }
        let total = (bytes / BLOCK_BYTES) as u64;
        blocks.push(per_block(total, |unpacker, block| Ok(chain.read_block(unpacker, block)?))?);
    }
    Ok(SetRow {
        way,
        content_bytes: bytes as u64,
        stored_bytes: stored_bytes(folder)?,
        restore_ms: Summary::of(&one).median,
        restore_all_threads_ms: Summary::of(&all).median,
        open_ms: Summary::of(&opening).median,
        block_us: Summary::of(&blocks).median,
        is_right,
        processor: busy.end(),
    })
}

/// Every file is unpacked as a whole before anything of it can be read.
fn whole_row(
    bytes: usize,
    folder: &std::path::Path,
    content: &[u8],
    runs: usize,
) -> Result<SetRow, BenchError> {
    let busy = Busy::begin();
    let (mut one, mut blocks) = (Vec::new(), Vec::new());
    let mut is_right = true;
    let unpacked = |number: u64| -> Result<Vec<u8>, BenchError> {
        let file = std::fs::read(folder.join(format!("{number:08}.delta")))?;
        Ok(zstd::stream::decode_all(&file[..])?)
    };
    for _ in 0..runs {
        let began = Instant::now();
        let mut layers = Vec::new();
        for number in (0..=DELTAS).rev() {
            layers.push(store::delta::Layer::open(unpacked(number)?, None)?);
        }
        let chain = Chain::new(layers, None)?;
        let opened = began.elapsed().as_secs_f64() * 1e3;
        let (ms, right) = restored(&chain, NonZeroUsize::MIN, content, &folder.join("restored"))?;
        one.push(opened + ms);
        is_right &= right;
        // One block: the files from the newest down to the one that has it.
        let mut random = Random(3);
        for _ in 0..3 {
            let place = random.next() % (bytes / BLOCK_BYTES) as u64;
            let began = Instant::now();
            for number in (0..=DELTAS).rev() {
                let file = unpacked(number)?;
                let layer = store::delta::Layer::open(&file[..], None)?;
                if let Some(index) = layer.delta.changed().index_of(place) {
                    let source = layer.delta.blocks(&file[..]);
                    std::hint::black_box(layer.delta.packets().read_block(
                        &source,
                        &mut Unpacker::new(),
                        index,
                    )?);
                    break;
                }
            }
            blocks.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(SetRow {
        way: "whole files",
        content_bytes: bytes as u64,
        stored_bytes: stored_bytes(folder)?,
        restore_ms: Summary::of(&one).median,
        restore_all_threads_ms: Summary::of(&one).median,
        open_ms: 0.0,
        block_us: Summary::of(&blocks).median,
        is_right,
        processor: busy.end(),
    })
}
