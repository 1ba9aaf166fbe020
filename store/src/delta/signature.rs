//! A hash for each block, for the comparison of contents.

use super::error::DeltaError;
use super::hash::{BlockHash, ContentName, Naming, hash};
use super::places::{Places, RUN_BYTES, Run};
use crate::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCKS_MAX};
use crate::packets::{
    Compression, Cut, Key, PacketReader, PacketWriter, PacketsError, Sealing, Sink, Source,
};

/// The first bytes of a signature, within its packets.
pub const MAGIC: [u8; 4] = *b"SWSG";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 40;
pub(super) const HASH_BYTES: usize = 16;

/// Signatures are packed so: they are read as a whole.
pub(super) const CUT_BLOCK_BYTES: u32 = 64 << 10;

/// The hashes of a content's blocks, by their places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    block_bytes: u32,
    seed: u64,
    /// Of the block at the last place; 0 if there is none.
    last_bytes: u32,
    places: Places,
    hashes: Vec<BlockHash>,
}

impl Signature {
    /// Of a content without any block. Only signatures with equal block lengths and seeds can be compared.
    ///
    /// # Panics
    /// If `block_bytes` is not a power of two from [`BLOCK_BYTES_MIN`] to [`BLOCK_BYTES_MAX`].
    #[must_use]
    pub fn new(block_bytes: u32, seed: u64) -> Signature {
        assert!(is_block(block_bytes), "blocks of {block_bytes} bytes");
        Signature { block_bytes, seed, last_bytes: 0, places: Places::new(), hashes: Vec::new() }
    }

    /// Of whole blocks, by rising place.
    ///
    /// # Panics
    /// As [`Signature::new`], and if places do not rise.
    pub fn of_hashes(
        block_bytes: u32,
        seed: u64,
        blocks: impl IntoIterator<Item = (u64, BlockHash)>,
    ) -> Result<Signature, DeltaError> {
        let mut signature = Signature::new(block_bytes, seed);
        blocks.into_iter().try_for_each(|(place, hash)| signature.push_hash(place, hash, block_bytes))?;
        Ok(signature)
    }

    /// Adds the block at `place`, above all others.
    ///
    /// # Panics
    /// If it is not above them, if it is longer than a block, or if the one before it was shorter.
    pub fn push(&mut self, place: u64, block: &[u8]) -> Result<BlockHash, DeltaError> {
        let hash = hash(self.seed, block);
        self.push_hash(place, hash, u32::try_from(block.len()).unwrap_or(u32::MAX))?;
        Ok(hash)
    }

    pub(super) fn push_hash(&mut self, place: u64, hash: BlockHash, bytes: u32) -> Result<(), DeltaError> {
        assert!((1..=self.block_bytes).contains(&bytes), "a block of {bytes} bytes");
        assert!([0, self.block_bytes].contains(&self.last_bytes), "only the last block is shorter");
        if self.places.blocks() >= BLOCKS_MAX {
            return Err(DeltaError::TooManyBlocks { blocks_max: BLOCKS_MAX });
        }
        self.places.push(Run { first: place, blocks: 1 });
        self.hashes.push(hash);
        self.last_bytes = bytes;
        Ok(())
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// The seed of the hashes.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Bytes of the block at the last place.
    #[must_use]
    pub fn last_bytes(&self) -> u32 {
        self.last_bytes
    }

    /// Where there are blocks.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// By rising place.
    #[must_use]
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// Bytes of all blocks.
    #[must_use]
    pub fn content_bytes(&self) -> u64 {
        content_bytes(&self.places, self.block_bytes, self.last_bytes)
    }

    /// The hash of the block at `place`.
    #[must_use]
    pub fn hash_at(&self, place: u64) -> Option<BlockHash> {
        let index = usize::try_from(self.places.index_of(place)?).ok()?;
        self.hashes.get(index).copied()
    }

    /// Names the content.
    #[must_use]
    pub fn name(&self) -> ContentName {
        let mut naming = Naming::default();
        naming.add(&self.head());
        self.places.emit().for_each(|run| naming.add(&run));
        self.hashes.iter().for_each(|hash| naming.add(&hash.0.to_le_bytes()));
        naming.name()
    }

    /// `Ok` if hashes of `other` can be compared with those of this one.
    pub fn comparable(&self, other: &Signature) -> Result<(), DeltaError> {
        if self.block_bytes != other.block_bytes {
            return Err(DeltaError::BlocksDiffer { expected: self.block_bytes, found: other.block_bytes });
        }
        if self.seed != other.seed { Err(DeltaError::SeedsDiffer) } else { Ok(()) }
    }

    fn head(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&MAGIC);
        head[4..6].copy_from_slice(&VERSION.to_le_bytes());
        head[8..12].copy_from_slice(&self.block_bytes.to_le_bytes());
        head[12..16].copy_from_slice(&self.last_bytes.to_le_bytes());
        head[16..24].copy_from_slice(&self.seed.to_le_bytes());
        head[24..32].copy_from_slice(&(self.places.runs().len() as u64).to_le_bytes());
        head[32..].copy_from_slice(&self.places.blocks().to_le_bytes());
        head
    }

    /// The signature's content, for packing.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = self.head().to_vec();
        bytes.extend(self.places.emit().flatten());
        bytes.extend(self.hashes.iter().flat_map(|hash| hash.0.to_le_bytes()));
        bytes
    }

    /// Reads a signature's content.
    pub fn parse(bytes: &[u8]) -> Result<Signature, DeltaError> {
        let damaged = || DeltaError::Unreadable { what: "signature" };
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Err(damaged()) };
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|n| head[at + n]));
        let half = |at: usize| u32::from_le_bytes(core::array::from_fn(|n| head[at + n]));
        if head[..4] != MAGIC {
            return Err(DeltaError::NotThis {
                what: "signature",
                expected: MAGIC,
                found: core::array::from_fn(|n| head[n]),
            });
        }
        let version = u16::from_le_bytes([head[4], head[5]]);
        if version != VERSION {
            return Err(DeltaError::UnsupportedVersion { what: "signature", found: version, known: VERSION });
        }
        let (block_bytes, last_bytes, seed) = (half(8), half(12), word(16));
        let runs_bytes = usize::try_from(word(24)).ok().and_then(|runs| runs.checked_mul(RUN_BYTES));
        let Some((runs, hashes)) = runs_bytes.and_then(|at| rest.split_at_checked(at)) else {
            return Err(damaged());
        };
        let places = Places::parse(runs, BLOCKS_MAX).ok_or_else(damaged)?;
        let hashes = parse_hashes(hashes).ok_or_else(damaged)?;
        let counted = places.blocks() == word(32) && hashes.len() as u64 == places.blocks();
        if head[6..8] != [0; 2] || !counted || !is_last(&places, block_bytes, last_bytes) {
            return Err(damaged());
        }
        Ok(Signature { block_bytes, seed, last_bytes, places, hashes })
    }

    /// Writes it as a file, or a part of one.
    pub fn write(&self, sink: &mut impl Sink, sealing: Option<Sealing>) -> Result<u64, PacketsError> {
        write_whole(sink, &self.emit(), sealing)
    }

    /// Reads a file that [`Signature::write`] has written.
    pub fn read(source: &(impl Source + ?Sized), key: Option<&Key>) -> Result<Signature, DeltaError> {
        Signature::parse(&read_whole(source, key)?)
    }

    pub(super) fn of_parts(
        block_bytes: u32,
        seed: u64,
        last_bytes: u32,
        places: Places,
        hashes: Vec<BlockHash>,
    ) -> Signature {
        Signature { block_bytes, seed, last_bytes, places, hashes }
    }
}

pub(super) fn is_block(bytes: u32) -> bool {
    bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes)
}

/// Whether so long a last block can be that of these places.
pub(super) fn is_last(places: &Places, block_bytes: u32, last_bytes: u32) -> bool {
    is_block(block_bytes)
        && if places.blocks() == 0 { last_bytes == 0 } else { (1..=block_bytes).contains(&last_bytes) }
}

pub(super) fn content_bytes(places: &Places, block_bytes: u32, last_bytes: u32) -> u64 {
    places.blocks().saturating_sub(1) * u64::from(block_bytes) + u64::from(last_bytes)
}

pub(super) fn parse_hashes(bytes: &[u8]) -> Option<Vec<BlockHash>> {
    let (hashes, rest) = bytes.as_chunks::<HASH_BYTES>();
    rest.is_empty().then(|| hashes.iter().map(|hash| BlockHash(u128::from_le_bytes(*hash))).collect())
}

/// Hashes do not compress, and a buffer that is read as a whole must not exceed its file.
pub(super) fn write_whole(
    sink: &mut impl Sink,
    bytes: &[u8],
    sealing: Option<Sealing>,
) -> Result<u64, PacketsError> {
    let cut = Cut::new(CUT_BLOCK_BYTES, 1).expect("within the limits");
    let mut writer = PacketWriter::begin(sink, cut, Compression::None, sealing)?;
    writer.write(sink, bytes)?;
    Ok(writer.finish(sink)?.stored_bytes)
}

pub(super) fn read_whole(source: &(impl Source + ?Sized), key: Option<&Key>) -> Result<Vec<u8>, DeltaError> {
    let reader = PacketReader::open(source, key)?;
    let content_bytes = reader.footer().content_bytes;
    // Uncompressed content is not longer than its file, which bounds the allocation.
    let bytes = usize::try_from(content_bytes).ok().filter(|_| content_bytes <= source.bytes());
    let mut content = Vec::with_capacity(bytes.ok_or(DeltaError::Unreadable { what: "signature or index" })?);
    reader.read_all(source, |packet| {
        content.extend_from_slice(packet);
        Ok(())
    })?;
    Ok(content)
}
