//! Making a delta, in one pass over the content.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::DeltaError;
use super::file::{Facts, Index, write_end};
use super::hash::BlockHash;
use super::places::{Places, Run};
use super::signature::Signature;
use crate::packets::{Compression, Cut, PacketWriter, Sealing, Sink};

/// How a delta is made.
#[derive(Clone, Debug, Default)]
pub struct DeltaOptions {
    /// The base that it holds the difference to; `None`: it holds everything.
    pub base: Option<Arc<Signature>>,
    /// The checkpoint before, which is compared as well, without being stored.
    pub previous: Option<Arc<Signature>>,
    /// How its blocks are compressed.
    pub compression: Compression,
    /// How it is encrypted.
    pub sealing: Option<Sealing>,
}

/// How many blocks differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Differences {
    /// Of the content.
    pub blocks: u64,
    /// That are not as in the base, or not there: the delta holds these.
    pub since_base: u64,
    /// That are not as in the previous one.
    pub since_previous: u64,
}

/// Takes the blocks of a content by rising place, and gives the bytes of a delta to a sink.
pub struct DeltaWriter {
    base: Option<Walk>,
    previous: Option<Walk>,
    signature: Signature,
    changed: Places,
    hashes: Vec<BlockHash>,
    packets: PacketWriter,
    sealing: Option<Sealing>,
    since_previous: u64,
}

/// The result.
#[derive(Clone, Debug)]
pub struct DeltaSummary {
    /// Of the content.
    pub signature: Arc<Signature>,
    /// The facts of the delta.
    pub facts: Facts,
    /// How much differs.
    pub differences: Differences,
    /// Bytes of the blocks that the delta holds, before they were compressed.
    pub changed_bytes: u64,
    /// Bytes of the delta.
    pub stored_bytes: u64,
}

/// A signature that is looked into by rising place.
struct Walk {
    signature: Arc<Signature>,
    run: usize,
    before: u64,
}

impl Walk {
    fn new(signature: Arc<Signature>) -> Walk {
        Walk { signature, run: 0, before: 0 }
    }

    fn hash_at(&mut self, place: u64) -> Option<BlockHash> {
        let runs = self.signature.places().runs();
        while let Some(run) = runs.get(self.run).filter(|run| run.first + run.blocks <= place) {
            self.before += run.blocks;
            self.run += 1;
        }
        let run = runs.get(self.run).filter(|run| run.first <= place)?;
        let index = usize::try_from(self.before + (place - run.first)).ok()?;
        self.signature.hashes().get(index).copied()
    }
}

impl DeltaWriter {
    /// Begins. Blocks of so many bytes, hashed with that seed: those of the base, if there is one.
    ///
    /// # Panics
    /// If `block_bytes` is not a power of two within the limits.
    pub fn begin(
        sink: &mut impl Sink,
        block_bytes: u32,
        seed: u64,
        options: DeltaOptions,
    ) -> Result<DeltaWriter, DeltaError> {
        let signature = Signature::new(block_bytes, seed);
        for other in options.base.iter().chain(&options.previous) {
            signature.comparable(other)?;
        }
        let cut = Cut::of_blocks(block_bytes).expect("a block of a signature");
        let packets = PacketWriter::begin(sink, cut, options.compression, options.sealing.clone())?;
        Ok(DeltaWriter {
            base: options.base.map(Walk::new),
            previous: options.previous.map(Walk::new),
            signature,
            changed: Places::new(),
            hashes: Vec::new(),
            packets,
            sealing: options.sealing,
            since_previous: 0,
        })
    }

    /// The block at `place`, above all others. Only the last one of a content may be shorter.
    ///
    /// # Panics
    /// As [`Signature::push`].
    pub fn push(&mut self, sink: &mut impl Sink, place: u64, block: &[u8]) -> Result<(), DeltaError> {
        let hash = self.signature.push(place, block)?;
        self.compare(sink, place, hash, block)
    }

    /// The block at `place` has not been written since `since` was taken, so its hash is the one there. True: that is all. False: there is none, or the delta needs the
    /// block's bytes all the same, because the base has others: then it has to be pushed.
    ///
    /// # Panics
    /// As [`Signature::push`].
    pub fn unwritten(&mut self, place: u64, since: &Signature) -> Result<bool, DeltaError> {
        self.signature.comparable(since)?;
        let Some(hash) = since.hash_at(place) else { return Ok(false) };
        let is_last = place + 1 == since.places().end();
        let bytes = if is_last { since.last_bytes() } else { since.block_bytes() };
        if self.base.as_mut().and_then(|base| base.hash_at(place)) != Some(hash) {
            return Ok(false);
        }
        self.signature.push_hash(place, hash, bytes)?;
        self.note_previous(place, hash);
        Ok(true)
    }

    fn compare(
        &mut self,
        sink: &mut impl Sink,
        place: u64,
        hash: BlockHash,
        block: &[u8],
    ) -> Result<(), DeltaError> {
        self.note_previous(place, hash);
        if self.base.as_mut().and_then(|base| base.hash_at(place)) == Some(hash) {
            return Ok(());
        }
        self.changed.push(Run { first: place, blocks: 1 });
        self.hashes.push(hash);
        Ok(self.packets.write(sink, block)?)
    }

    fn note_previous(&mut self, place: u64, hash: BlockHash) {
        if let Some(previous) = &mut self.previous {
            self.since_previous += u64::from(previous.hash_at(place) != Some(hash));
        }
    }

    /// How much differs so far.
    #[must_use]
    pub fn differences(&self) -> Differences {
        let (blocks, since_base) = (self.signature.places().blocks(), self.changed.blocks());
        // Without another one to compare with, the base is the previous one.
        let since_previous = if self.previous.is_some() { self.since_previous } else { since_base };
        Differences { blocks, since_base, since_previous }
    }

    /// Writes the rest of the content. Where the caller names the files the numbers are 0, and nothing becomes a base.
    pub fn finish(
        self,
        sink: &mut impl Sink,
        number: u64,
        base_number: u64,
        becomes_base: bool,
    ) -> Result<DeltaSummary, DeltaError> {
        let differences = self.differences();
        let base = self.base.as_ref().map(|base| base.signature.name());
        let base_number = if base.is_some() { base_number } else { 0 };
        let facts = Facts { number, base_number, name: self.signature.name(), base, becomes_base };
        let packed = self.packets.finish(sink)?;
        let index = Index {
            facts,
            block_bytes: self.signature.block_bytes(),
            seed: self.signature.seed(),
            last_bytes: self.signature.last_bytes(),
            places: self.signature.places().clone(),
            changed: self.changed,
            hashes: self.hashes,
        };
        let sealing = self.sealing.map(|sealing| sealing.part(1));
        let stored_bytes = write_end(sink, packed.stored_bytes, &index, sealing)?;
        Ok(DeltaSummary {
            signature: Arc::new(self.signature),
            facts,
            differences,
            changed_bytes: packed.content_bytes,
            stored_bytes,
        })
    }
}
