//! The file of a delta: blocks, index, trailer. Byte tables: `docs/reference/image-format.md`.

use super::error::DeltaError;
use super::hash::{BlockHash, ContentName};
use super::places::{Places, RUN_BYTES};
use super::signature::{HASH_BYTES, content_bytes, is_last, parse_hashes, read_whole, write_whole};
use crate::checksum::checksum;
use crate::limits::BLOCKS_MAX;
use crate::packets::{Key, PacketReader, PacketsError, Part, Sealing, Sink, Source, Unpacker};

/// The first bytes of the trailer.
pub const MAGIC: [u8; 4] = *b"SWDL";
const VERSION: u16 = 1;
/// Bytes of the trailer, which ends the file.
pub const TRAILER_BYTES: usize = 32;
const HEAD_BYTES: usize = 104;

const HAS_BASE: u32 = 1;
const BECOMES_BASE: u32 = 2;

/// The facts of a delta besides its blocks. Numbers count the checkpoints of a [`super::Series`]; where the caller
/// names the files they are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Its own number.
    pub number: u64,
    /// That of its base.
    pub base_number: u64,
    /// The content that it was made of.
    pub name: ContentName,
    /// The content below it; `None`: it is full.
    pub base: Option<ContentName>,
    /// Later ones have it as their base.
    pub becomes_base: bool,
}

/// The data beside the blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Index {
    pub(super) facts: Facts,
    pub(super) block_bytes: u32,
    pub(super) seed: u64,
    pub(super) last_bytes: u32,
    /// Where the content has blocks.
    pub(super) places: Places,
    /// Where the delta has them.
    pub(super) changed: Places,
    /// Of those.
    pub(super) hashes: Vec<BlockHash>,
}

impl Index {
    fn emit(&self) -> Vec<u8> {
        let Facts { number, base_number, name, base, becomes_base } = self.facts;
        let flags = if base.is_some() { HAS_BASE } else { 0 } | if becomes_base { BECOMES_BASE } else { 0 };
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.hashes.len() * HASH_BYTES);
        for half in [self.block_bytes, self.last_bytes, flags, 0] {
            bytes.extend_from_slice(&half.to_le_bytes());
        }
        for word in [self.seed, number, base_number] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for name in [name.0, base.map_or(0, |base| base.0)] {
            bytes.extend_from_slice(&name.to_le_bytes());
        }
        for count in [self.places.runs().len(), self.changed.runs().len(), self.hashes.len(), 0] {
            bytes.extend_from_slice(&(count as u64).to_le_bytes());
        }
        debug_assert_eq!(bytes.len(), HEAD_BYTES);
        bytes.extend(self.places.emit().flatten());
        bytes.extend(self.changed.emit().flatten());
        bytes.extend(self.hashes.iter().flat_map(|hash| hash.0.to_le_bytes()));
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Index> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let facts = parse_facts(head)?;
        let count = |at: usize, each: usize| usize::try_from(word(head, at)).ok()?.checked_mul(each);
        let (places, rest) = rest.split_at_checked(count(72, RUN_BYTES)?)?;
        let (changed, hashes) = rest.split_at_checked(count(80, RUN_BYTES)?)?;
        let (places, changed) = (Places::parse(places, BLOCKS_MAX)?, Places::parse(changed, BLOCKS_MAX)?);
        let hashes = parse_hashes(hashes)?;
        let (block_bytes, last_bytes) = (half(head, 0), half(head, 4));
        let counted = word(head, 88) == hashes.len() as u64
            && changed.blocks() == hashes.len() as u64
            && word(head, 96) == 0;
        let inside = changed.iter().all(|place| places.index_of(place).is_some());
        let whole = facts.base.is_some() || changed == places;
        let fits = counted && inside && whole && is_last(&places, block_bytes, last_bytes);
        fits.then_some(Index {
            facts,
            block_bytes,
            seed: word(head, 16),
            last_bytes,
            places,
            changed,
            hashes,
        })
    }

    /// Bytes of the blocks that the delta holds.
    fn changed_bytes(&self) -> u64 {
        let has_last = self.changed.end() == self.places.end();
        let last_bytes = if has_last { self.last_bytes } else { self.block_bytes };
        if self.changed.blocks() == 0 {
            0
        } else {
            content_bytes(&self.changed, self.block_bytes, last_bytes)
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|n| bytes[at + n]))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|n| bytes[at + n]))
}

fn parse_facts(head: &[u8; HEAD_BYTES]) -> Option<Facts> {
    let wide = |at: usize| u128::from_le_bytes(core::array::from_fn(|n| head[at + n]));
    let (flags, base) = (half(head, 8), ContentName(wide(56)));
    let has_base = flags & HAS_BASE != 0;
    let fits = flags & !(HAS_BASE | BECOMES_BASE) == 0
        && half(head, 12) == 0
        && (has_base || (base.0, word(head, 32)) == (0, 0));
    fits.then_some(Facts {
        number: word(head, 24),
        base_number: word(head, 32),
        name: ContentName(wide(40)),
        base: has_base.then_some(base),
        becomes_base: flags & BECOMES_BASE != 0,
    })
}

/// Writes index and trailer behind `blocks_bytes` of blocks; returns the length of the file.
pub(super) fn write_end(
    sink: &mut impl Sink,
    blocks_bytes: u64,
    index: &Index,
    sealing: Option<Sealing>,
) -> Result<u64, PacketsError> {
    let index_bytes = write_whole(sink, &index.emit(), sealing)?;
    let mut trailer = [0; TRAILER_BYTES];
    trailer[..4].copy_from_slice(&MAGIC);
    trailer[4..6].copy_from_slice(&VERSION.to_le_bytes());
    trailer[8..16].copy_from_slice(&blocks_bytes.to_le_bytes());
    trailer[16..24].copy_from_slice(&index_bytes.to_le_bytes());
    let sum = checksum(&trailer[..24]);
    trailer[24..].copy_from_slice(&sum.to_le_bytes());
    sink.put(&trailer)?;
    Ok(blocks_bytes + index_bytes + TRAILER_BYTES as u64)
}

/// Where the two streams of packets lie.
fn parts<R: Source + Copy>(source: R) -> Result<(Part<R>, Part<R>), DeltaError> {
    let found_bytes = source.bytes();
    let Some(end) = found_bytes.checked_sub(TRAILER_BYTES as u64) else {
        return Err(DeltaError::TooShort { expected_bytes: TRAILER_BYTES as u64, found_bytes });
    };
    let mut trailer = [0; TRAILER_BYTES];
    source.read_at(end, &mut trailer)?;
    let found = core::array::from_fn(|at| trailer[at]);
    if found != MAGIC {
        return Err(DeltaError::NotThis { what: "delta", expected: MAGIC, found });
    }
    let version = u16::from_le_bytes([trailer[4], trailer[5]]);
    if checksum(&trailer[..24]) != word(&trailer, 24) || trailer[6..8] != [0; 2] {
        return Err(DeltaError::TrailerDamaged);
    }
    if version != VERSION {
        return Err(DeltaError::UnsupportedVersion { what: "delta", found: version, known: VERSION });
    }
    let (blocks_bytes, index_bytes) = (word(&trailer, 8), word(&trailer, 16));
    if blocks_bytes.checked_add(index_bytes) != Some(end) {
        return Err(DeltaError::TrailerDamaged);
    }
    Ok((Part::new(source, 0, blocks_bytes), Part::new(source, blocks_bytes, index_bytes)))
}

/// A delta whose index is read. It does not hold the source; every call must get the one that it was opened with.
#[derive(Clone, Debug)]
pub struct DeltaReader {
    pub(super) index: Index,
    packets: PacketReader,
    blocks_bytes: u64,
}

impl DeltaReader {
    /// Reads trailer and index of a delta that takes all of `source`.
    pub fn open(source: &(impl Source + ?Sized), key: Option<&Key>) -> Result<DeltaReader, DeltaError> {
        let (blocks, index) = parts(source)?;
        let index =
            Index::parse(&read_whole(&index, key)?).ok_or(DeltaError::Unreadable { what: "index" })?;
        let packets = PacketReader::open(&blocks, key)?;
        let footer = packets.footer();
        if footer.cut.block_bytes() != index.block_bytes || footer.content_bytes != index.changed_bytes() {
            return Err(DeltaError::Unreadable { what: "index" });
        }
        Ok(DeltaReader { index, packets, blocks_bytes: blocks.bytes() })
    }

    /// The facts of a delta: of its index only the first packet is read.
    pub fn facts_of(source: &(impl Source + ?Sized), key: Option<&Key>) -> Result<Facts, DeltaError> {
        let (_, index) = parts(source)?;
        let reader = PacketReader::open(&index, key)?;
        let head = reader.read_block(&index, &mut Unpacker::new(), 0)?;
        let head = head.first_chunk::<HEAD_BYTES>().and_then(parse_facts);
        head.ok_or(DeltaError::Unreadable { what: "index" })
    }

    /// Reads every byte of `source` and checks it; packets are unpacked as well. Whether blocks have the hashes of the index is not looked at.
    pub fn verify(&self, source: &(impl Source + ?Sized), key: Option<&Key>) -> Result<(), DeltaError> {
        let (blocks, index) = parts(source)?;
        PacketReader::open(&index, key)?.verify(&index)?;
        Ok(self.packets.verify(&blocks)?)
    }

    /// Its facts.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.index.facts
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.index.block_bytes
    }

    /// Where the content has blocks.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.index.places
    }

    /// Where the delta has blocks.
    #[must_use]
    pub fn changed(&self) -> &Places {
        &self.index.changed
    }

    /// Bytes of the whole content.
    #[must_use]
    pub fn content_bytes(&self) -> u64 {
        content_bytes(&self.index.places, self.index.block_bytes, self.index.last_bytes)
    }

    /// Its packets, to be read from [`DeltaReader::blocks`].
    #[must_use]
    pub fn packets(&self) -> &PacketReader {
        &self.packets
    }

    /// The part of the file where they lie.
    pub fn blocks<R: Source>(&self, source: R) -> Part<R> {
        Part::new(source, 0, self.blocks_bytes)
    }

    /// Bytes of the block at `place`, which must be one of the content.
    pub(super) fn bytes_at(&self, place: u64) -> usize {
        let is_last = place + 1 == self.index.places.end();
        (if is_last { self.index.last_bytes } else { self.index.block_bytes }) as usize
    }
}
