//! Reading block after block of a chain.

use super::chain::{Chain, Layer, Owner};
use super::error::DeltaError;
use super::hash::hash;
use crate::packets::{Source, Unpacker};

/// Reads blocks of a chain without a file below. It keeps the packet that it has read last of each layer, so blocks that are asked for by rising place cost each packet
/// once.
pub struct Cursor<'a, R> {
    chain: &'a Chain<R>,
    unpacker: Unpacker,
    /// By layer.
    held: Vec<Held>,
}

#[derive(Clone, Default)]
struct Held {
    packet: Option<u64>,
    content: Vec<u8>,
}

impl<'a, R: Source> Cursor<'a, R> {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(chain: &'a Chain<R>) -> Cursor<'a, R> {
        Cursor { chain, unpacker: Unpacker::new(), held: vec![Held::default(); chain.layers.len()] }
    }

    /// The block at `place`, compared with its hash; `None`: the content has none there.
    pub fn read(&mut self, place: u64) -> Result<Option<&[u8]>, DeltaError> {
        let newest = self.chain.newest();
        if newest.index.places.index_of(place).is_none() {
            return Ok(None);
        }
        let Owner::Layer(number, block) = self.chain.owner(place) else {
            return Err(DeltaError::NoSuchBlock { place });
        };
        let Layer { delta, source } = &self.chain.layers[number];
        let cut = delta.packets().footer().cut;
        let packet = block / u64::from(cut.blocks_per_packet());
        let held = &mut self.held[number];
        if held.packet != Some(packet) {
            held.packet = None;
            delta.packets().read_packet(
                &delta.blocks(source),
                &mut self.unpacker,
                packet,
                &mut held.content,
            )?;
            held.packet = Some(packet);
        }
        let within = usize::try_from(block % u64::from(cut.blocks_per_packet())).expect("below u32::MAX");
        let start = within * cut.block_bytes() as usize;
        let found = held.content.get(start..start + newest.bytes_at(place));
        let expected = self.chain.hash_of(number, block);
        match found.filter(|found| hash(delta.index.seed, found) == expected) {
            Some(found) => Ok(Some(found)),
            None => Err(DeltaError::BlockDiffers { place }),
        }
    }
}
