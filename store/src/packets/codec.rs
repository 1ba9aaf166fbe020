//! The codec of a packet, and the decision whether compression is worth it.

use core::fmt;
use std::io::{Read as _, Write as _};

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

/// How a packet is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Codec {
    /// As it is.
    Plain = 0,
    /// LZ4, one block without a frame.
    Lz4 = 1,
    /// Zstandard, one frame.
    Zstd = 2,
    /// gzip, one member.
    Gzip = 3,
}

impl Codec {
    /// All, in the order of their numbers.
    pub const ALL: [Codec; 4] = [Codec::Plain, Codec::Lz4, Codec::Zstd, Codec::Gzip];

    pub(super) fn of(number: u8) -> Option<Codec> {
        Codec::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Codec::Plain => "none",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
            Codec::Gzip => "gzip",
        })
    }
}

/// The requested compression of packets. Packets that gain too little are stored plain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Nothing.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard, level 1.
    Zstd,
    /// gzip, level 1: for readers that have nothing else.
    Gzip,
    /// LZ4, or Zstandard where that gains clearly more.
    #[default]
    Auto,
}

impl Compression {
    /// All, with the names that people use.
    pub const ALL: [(&'static str, Compression); 5] = [
        ("none", Compression::None),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd),
        ("gzip", Compression::Gzip),
        ("auto", Compression::Auto),
    ];
}

/// Levels above these compress memory of programs little better, and take several times as long.
const ZSTD_LEVEL: i32 = 1;
const GZIP_LEVEL: u32 = 1;

/// A packet is sampled at so many places, so many bytes each.
const SAMPLE_PIECES: usize = 4;
const SAMPLE_PIECE_BYTES: usize = 1024;
const SAMPLE_BYTES: usize = SAMPLE_PIECES * SAMPLE_PIECE_BYTES;

/// A sample that does not lose this part of its length speaks against compressing its packet.
const SAMPLE_GAIN_MIN: f64 = 1.0 / 8.0;

/// A packet that does not lose this part is stored as it is: reading it costs more than the room is worth.
const GAIN_MIN: f64 = 1.0 / 16.0;

/// Zstandard takes longer to unpack than LZ4: it has to leave at least this part less.
const ZSTD_GAIN_MIN: f64 = 1.0 / 5.0;

/// After packets that were not worth it, so many more go by without a look: one, then three each time. Samples then cost a tenth of writing; with more, memory whose content
/// changes its kind from MiB to MiB is stored as it is where it need not be.
const PASSED_OVER_MAX: u32 = 3;

/// Decides, and compresses. The decision about a packet depends on those before it, so the same content gives the same bytes.
pub(super) struct Packer {
    compression: Compression,
    lz4: CompressTable,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    sample: Vec<u8>,
    packed: Vec<u8>,
    /// Packets that will go by without a look, and how many it was the last time.
    passing: u32,
    passed: u32,
}

impl Packer {
    pub(super) fn new(compression: Compression) -> Packer {
        Packer {
            compression,
            lz4: CompressTable::large(),
            zstd: None,
            sample: Vec::new(),
            packed: Vec::new(),
            passing: 0,
            passed: 0,
        }
    }

    /// The packet's stored form.
    pub(super) fn pack<'a>(&'a mut self, content: &'a [u8]) -> (Codec, &'a [u8]) {
        if self.compression == Compression::None {
            return (Codec::Plain, content);
        }
        if self.passing > 0 {
            self.passing -= 1;
            return (Codec::Plain, content);
        }
        let codec = self.choose(content);
        let room = part_of(content.len(), 1.0 - GAIN_MIN);
        match codec.and_then(|codec| Some((codec, self.compress(codec, content, room)?))) {
            Some((codec, bytes)) => {
                self.passed = 0;
                (codec, &self.packed[..bytes])
            }
            None => {
                self.passed = (self.passed * 2 + 1).min(PASSED_OVER_MAX);
                self.passing = self.passed;
                (Codec::Plain, content)
            }
        }
    }

    /// By a sample; a packet that is hardly longer than a sample is its own.
    fn choose(&mut self, content: &[u8]) -> Option<Codec> {
        let wished = match self.compression {
            Compression::None => return None,
            Compression::Lz4 => Some(Codec::Lz4),
            Compression::Zstd => Some(Codec::Zstd),
            Compression::Gzip => Some(Codec::Gzip),
            Compression::Auto => None,
        };
        if let (true, Some(codec)) = (content.len() < 2 * SAMPLE_BYTES, wished) {
            return Some(codec);
        }
        let mut sample = core::mem::take(&mut self.sample);
        sample.clear();
        if content.len() < 2 * SAMPLE_BYTES {
            sample.extend_from_slice(content);
        } else {
            let step = content.len() / SAMPLE_PIECES;
            for piece in content.chunks_exact(step).take(SAMPLE_PIECES) {
                sample.extend_from_slice(&piece[..SAMPLE_PIECE_BYTES]);
            }
        }
        let room = part_of(sample.len(), 1.0 - SAMPLE_GAIN_MIN);
        let chosen = match wished {
            Some(codec) => self.compress(codec, &sample, room).map(|_| codec),
            None => {
                let lz4 = self.compress(Codec::Lz4, &sample, room);
                let room = part_of(lz4.unwrap_or(room), 1.0 - ZSTD_GAIN_MIN).max(1);
                let zstd = self.compress(Codec::Zstd, &sample, room);
                zstd.map(|_| Codec::Zstd).or(lz4.map(|_| Codec::Lz4))
            }
        };
        self.sample = sample;
        chosen
    }

    /// Compresses into `packed`; `None` if it would take more than `room`.
    fn compress(&mut self, codec: Codec, content: &[u8], room: usize) -> Option<usize> {
        // LZ4 begins only where the worst case has room.
        let most = if codec == Codec::Lz4 { get_maximum_output_size(content.len()) } else { room };
        self.packed.resize(self.packed.len().max(most), 0);
        let into = &mut self.packed[..most];
        match codec {
            Codec::Plain => None,
            Codec::Lz4 => {
                let bytes = compress_into_with_table(content, into, &mut self.lz4).ok();
                bytes.filter(|bytes| *bytes <= room)
            }
            Codec::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
                }
                self.zstd.as_mut()?.compress_to_buffer(content, into).ok()
            }
            Codec::Gzip => {
                // A slice takes the bytes that fit, and then no more.
                let mut left = &mut into[..];
                let mut encoder =
                    flate2::write::GzEncoder::new(&mut left, flate2::Compression::new(GZIP_LEVEL));
                let written = encoder.write_all(content).and_then(|()| encoder.try_finish());
                drop(encoder);
                let left = left.len();
                written.ok().map(|()| room - left)
            }
        }
    }
}

/// That part of `bytes`.
fn part_of(bytes: usize, part: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a part of a packet's length"
    )]
    let part = (bytes as f64 * part) as usize;
    part
}

/// Unpacks. Keeps the codecs' state for reuse; one for each thread.
#[derive(Default)]
pub struct Unpacker {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    pub(super) stored: Vec<u8>,
}

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unpacker")
    }
}

impl Unpacker {
    /// One that has not unpacked anything yet.
    #[must_use]
    pub fn new() -> Unpacker {
        Unpacker::default()
    }

    /// Fills `into`, exactly. False: the stored bytes are not those of so long a content. Nothing beyond `into` is
    /// allocated or written.
    pub(super) fn unpack(&mut self, codec: Codec, stored: &[u8], into: &mut [u8]) -> bool {
        match codec {
            Codec::Plain => {
                let fits = stored.len() == into.len();
                if fits {
                    into.copy_from_slice(stored);
                }
                fits
            }
            Codec::Lz4 => {
                lz4_flex::block::decompress_into(stored, into).is_ok_and(|bytes| bytes == into.len())
            }
            Codec::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Decompressor::new().ok();
                }
                let Some(zstd) = &mut self.zstd else { return false };
                zstd.decompress_to_buffer(stored, into).is_ok_and(|bytes| bytes == into.len())
            }
            Codec::Gzip => {
                let mut decoder = flate2::bufread::GzDecoder::new(stored);
                let filled = decoder.read_exact(into).is_ok();
                // The end, with the checksum before it, is found only by reading on.
                filled && matches!(decoder.read(&mut [0]), Ok(0)) && decoder.into_inner().is_empty()
            }
        }
    }
}
