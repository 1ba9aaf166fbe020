//! A delta with all that it needs.

use core::num::NonZeroUsize;
use std::sync::Mutex;

use super::error::DeltaError;
use super::file::DeltaReader;
use super::hash::{BlockHash, ContentName, hash};
use super::signature::Signature;
use crate::packets::{Key, Source, Unpacker, parallel};

/// Bytes that are read at once of a base that is no delta.
const BASE_READ_BYTES: u64 = 1 << 20;

/// One delta of a chain.
#[derive(Debug)]
pub struct Layer<R> {
    /// It.
    pub delta: DeltaReader,
    /// The file that it was opened with.
    pub source: R,
}

impl<R: Source> Layer<R> {
    /// Opens the delta that is all of `source`.
    pub fn open(source: R, key: Option<&Key>) -> Result<Layer<R>, DeltaError> {
        Ok(Layer { delta: DeltaReader::open(&source, key)?, source })
    }
}

/// A delta, the delta that is its base, and so on, down to a full one or to a file that is the base itself.
#[derive(Debug)]
pub struct Chain<R> {
    /// The newest first.
    pub(super) layers: Vec<Layer<R>>,
    base: Option<R>,
}

/// The owner of a block.
pub(super) enum Owner {
    /// Layer, and number of the block in its packets.
    Layer(usize, u64),
    Base,
}

impl<R> Chain<R> {
    /// `layers`, the newest first, each the base of the one before; below them a file, if the last one is not full. Whether that is the right file
    /// is known when it has been read.
    ///
    /// # Panics
    /// If there is no layer.
    pub fn new(layers: Vec<Layer<R>>, base: Option<R>) -> Result<Chain<R>, DeltaError> {
        for pair in layers.windows(2) {
            let (upper, lower) = (&pair[0].delta.index, &pair[1].delta.index);
            let Some(expected) = upper.facts.base else { return Err(DeltaError::NoBaseWanted) };
            if expected != lower.facts.name {
                return Err(DeltaError::WrongBase { expected, found: lower.facts.name });
            }
            if upper.block_bytes != lower.block_bytes {
                return Err(DeltaError::BlocksDiffer {
                    expected: upper.block_bytes,
                    found: lower.block_bytes,
                });
            }
        }
        let last = layers.last().expect("a chain has a layer");
        match (last.delta.facts().base, &base) {
            (Some(base), None) => return Err(DeltaError::BaseMissing { base }),
            (None, Some(_)) => return Err(DeltaError::NoBaseWanted),
            _ => {}
        }
        let chain = Chain { layers, base };
        if chain.base.is_none() {
            chain.signature()?;
        }
        Ok(chain)
    }

    /// The newest delta.
    #[must_use]
    pub fn newest(&self) -> &DeltaReader {
        &self.layers[0].delta
    }

    /// How many files it takes.
    #[must_use]
    pub fn files(&self) -> usize {
        self.layers.len() + usize::from(self.base.is_some())
    }

    /// Of the content. Put together from the indexes, no block is read; `None` above a file that is no delta.
    pub fn signature(&self) -> Result<Option<Signature>, DeltaError> {
        if self.base.is_some() {
            return Ok(None);
        }
        let index = &self.newest().index;
        let mut hashes = Vec::new();
        for place in index.places.iter() {
            let Owner::Layer(layer, block) = self.owner(place) else {
                return Err(DeltaError::NoSuchBlock { place });
            };
            hashes.push(self.hash_of(layer, block));
        }
        self.named(hashes).map(Some)
    }

    /// The signature with these hashes, if it has the name that the newest delta says.
    fn named(&self, hashes: Vec<BlockHash>) -> Result<Signature, DeltaError> {
        let index = &self.newest().index;
        let (block_bytes, seed, last_bytes) = (index.block_bytes, index.seed, index.last_bytes);
        let signature = Signature::of_parts(block_bytes, seed, last_bytes, index.places.clone(), hashes);
        let (expected, found) = (index.facts.name, signature.name());
        if expected == found { Ok(signature) } else { Err(DeltaError::ContentDiffers { expected, found }) }
    }

    /// Which of the files, counted from the newest, has the block at `place`; `None`: no delta has.
    #[must_use]
    pub fn layer_of(&self, place: u64) -> Option<usize> {
        match self.owner(place) {
            Owner::Layer(layer, _) => Some(layer),
            Owner::Base => None,
        }
    }

    pub(super) fn owner(&self, place: u64) -> Owner {
        let holds =
            |(number, layer): (usize, &Layer<R>)| Some((number, layer.delta.index.changed.index_of(place)?));
        match self.layers.iter().enumerate().find_map(holds) {
            Some((layer, block)) => Owner::Layer(layer, block),
            None => Owner::Base,
        }
    }

    pub(super) fn hash_of(&self, layer: usize, block: u64) -> BlockHash {
        let block = usize::try_from(block).expect("a block of an index in memory");
        self.layers[layer].delta.index.hashes[block]
    }
}

impl<R: Source> Chain<R> {
    /// The block at `place`. One packet of one file is read; how long the chain is does not matter.
    pub fn read_block(&self, unpacker: &mut Unpacker, place: u64) -> Result<Vec<u8>, DeltaError> {
        let newest = self.newest();
        if newest.index.places.index_of(place).is_none() {
            return Err(DeltaError::NoSuchBlock { place });
        }
        match (self.owner(place), &self.base) {
            (Owner::Layer(layer, block), _) => {
                let Layer { delta, source } = &self.layers[layer];
                let content = delta.packets().read_block(&delta.blocks(source), unpacker, block)?;
                if hash(delta.index.seed, &content) != self.hash_of(layer, block)
                    || content.len() != newest.bytes_at(place)
                {
                    return Err(DeltaError::BlockDiffers { place });
                }
                Ok(content)
            }
            (Owner::Base, Some(base)) => {
                let mut content = vec![0; newest.bytes_at(place)];
                self.read_base(base, place, &mut content)?;
                Ok(content)
            }
            (Owner::Base, None) => Err(DeltaError::NoSuchBlock { place }),
        }
    }

    fn read_base(&self, base: &R, place: u64, into: &mut [u8]) -> Result<(), DeltaError> {
        let offset = place * u64::from(self.newest().index.block_bytes);
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > base.bytes()) {
            let place = base.bytes() / u64::from(self.newest().index.block_bytes);
            return Err(DeltaError::BaseTooShort { place });
        }
        Ok(base.read_at(offset, into)?)
    }
}

impl<R: Source + Sync> Chain<R> {
    /// The whole content, by so many threads: `write` gets blocks that follow each other, with the place of the first
    /// one. Use nothing of it before this returns: whether the base is the right one is known at the end.
    pub fn restore(
        &self,
        threads: NonZeroUsize,
        write: impl Fn(u64, &[u8]) -> Result<(), DeltaError> + Sync,
    ) -> Result<ContentName, DeltaError> {
        let packets: Vec<u64> =
            self.layers.iter().map(|layer| layer.delta.packets().footer().packets).collect();
        let in_layers: u64 = packets.iter().sum();
        let taken = self.taken_from_base();
        let found = Mutex::new(Vec::new());
        let jobs = in_layers + taken.len() as u64;
        let state = || (Unpacker::new(), Vec::new());
        parallel::each(jobs, threads, state, |(unpacker, content), job| {
            let mut packet = job;
            for (layer, packets) in packets.iter().enumerate() {
                if packet < *packets {
                    return self.restore_packet(layer, packet, unpacker, content, &write);
                }
                packet -= packets;
            }
            let (place, blocks) = taken[usize::try_from(packet).expect("a place of a list in memory")];
            self.restore_base(place, blocks, content, &write, &found)
        })?;
        if self.base.is_some() {
            self.check_base(found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))?;
        }
        Ok(self.newest().facts().name)
    }

    /// Writes the blocks of a packet that no newer layer has.
    fn restore_packet(
        &self,
        layer: usize,
        packet: u64,
        unpacker: &mut Unpacker,
        content: &mut Vec<u8>,
        write: &impl Fn(u64, &[u8]) -> Result<(), DeltaError>,
    ) -> Result<(), DeltaError> {
        let Layer { delta, source } = &self.layers[layer];
        let newest = &self.newest().index;
        let cut = delta.packets().footer().cut;
        let first = packet * u64::from(cut.blocks_per_packet());
        let end = (first + u64::from(cut.blocks_per_packet())).min(delta.index.changed.blocks());
        // Blocks of the packet, and their places, that are wanted.
        let wanted: Vec<(u64, u64)> = (first..end)
            .filter_map(|block| {
                let place = delta.index.changed.nth(block)?;
                let is_newest = matches!(self.owner(place), Owner::Layer(owner, _) if owner == layer);
                (is_newest && newest.places.index_of(place).is_some()).then_some((block, place))
            })
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        delta.packets().read_packet(&delta.blocks(source), unpacker, packet, content)?;
        let block_bytes = cut.block_bytes() as usize;
        let mut blocks = content.chunks(block_bytes).zip(first..);
        let mut gathered: Option<(u64, usize, usize)> = None;
        for (block, place) in wanted {
            let (bytes, _) = blocks.find(|(_, number)| *number == block).expect("a packet has its blocks");
            if hash(delta.index.seed, bytes) != self.hash_of(layer, block)
                || bytes.len() != self.newest().bytes_at(place)
            {
                return Err(DeltaError::BlockDiffers { place });
            }
            let start = usize::try_from(block - first).expect("below blocks_per_packet") * block_bytes;
            gathered = match gathered {
                Some((from, at, length))
                    if from + (length / block_bytes) as u64 == place && at + length == start =>
                {
                    Some((from, at, length + bytes.len()))
                }
                before => {
                    if let Some((from, at, length)) = before {
                        write(from, &content[at..at + length])?;
                    }
                    Some((place, start, bytes.len()))
                }
            };
        }
        gathered.map_or(Ok(()), |(from, at, length)| write(from, &content[at..at + length]))
    }

    /// Runs of places that only the base has, none longer than one read.
    fn taken_from_base(&self) -> Vec<(u64, u64)> {
        let mut taken: Vec<(u64, u64)> = Vec::new();
        if self.base.is_none() {
            return taken;
        }
        let blocks_max = (BASE_READ_BYTES / u64::from(self.newest().index.block_bytes)).max(1);
        for place in self.newest().index.places.iter() {
            if matches!(self.owner(place), Owner::Layer(..)) {
                continue;
            }
            match taken.last_mut().filter(|(first, blocks)| first + *blocks == place && *blocks < blocks_max)
            {
                Some((_, blocks)) => *blocks += 1,
                None => taken.push((place, 1)),
            }
        }
        taken
    }

    fn restore_base(
        &self,
        place: u64,
        blocks: u64,
        content: &mut Vec<u8>,
        write: &impl Fn(u64, &[u8]) -> Result<(), DeltaError>,
        found: &Mutex<Vec<(u64, Vec<BlockHash>)>>,
    ) -> Result<(), DeltaError> {
        let Some(base) = &self.base else { return Err(DeltaError::NoSuchBlock { place }) };
        let index = &self.newest().index;
        let block_bytes = index.block_bytes as usize;
        let before = usize::try_from(blocks - 1).expect("at most BASE_READ_BYTES") * block_bytes;
        content.resize(before + self.newest().bytes_at(place + blocks - 1), 0);
        self.read_base(base, place, content)?;
        let hashes = content.chunks(block_bytes).map(|block| hash(index.seed, block)).collect();
        found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((place, hashes));
        write(place, content)
    }

    /// Whether the blocks that the base gave are those that the delta was made of.
    fn check_base(&self, mut found: Vec<(u64, Vec<BlockHash>)>) -> Result<(), DeltaError> {
        found.sort_unstable_by_key(|(place, _)| *place);
        let mut of_base = found.into_iter().flat_map(|(_, hashes)| hashes);
        let places = &self.newest().index.places;
        let hashes = places.iter().map(|place| match self.owner(place) {
            Owner::Layer(layer, block) => Ok(self.hash_of(layer, block)),
            Owner::Base => of_base.next().ok_or(DeltaError::NoSuchBlock { place }),
        });
        self.named(hashes.collect::<Result<_, _>>()?).map(drop)
    }
}
