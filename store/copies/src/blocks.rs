//! The images of a rank as blocks: pages at places that they keep from one copy to the next. Pages of zeros are no blocks.

use std::collections::BTreeMap;

use store::ImageReader;
use store::delta::{BlockHash, hash};
use store::limits::PAGE_BYTES;
use store::protect::{Extent, Piece};
use store::record::ContentFile;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u32 = 4096;
const _: () = assert!(BLOCK_BYTES as usize == PAGE_BYTES);

const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Cuts a file, as it is read from its begin to its end, into blocks.
pub(crate) struct Cutter<'a> {
    /// The rest of the extents of the file.
    extents: core::slice::Iter<'a, Extent>,
    /// The one that the file has come to, and how many of its bytes are behind.
    at: Option<(&'a Extent, u64)>,
    offset: u64,
    /// A block that has begun.
    begun: Vec<u8>,
}

impl<'a> Cutter<'a> {
    pub(crate) fn new(file: &'a ContentFile) -> Cutter<'a> {
        let mut extents = file.extents.iter();
        let at = extents.next().map(|extent| (extent, 0));
        Cutter { extents, at, offset: 0, begun: Vec::new() }
    }

    /// The next bytes of the file: `take` gets each block that is whole now, with its place. The last block of an extent is filled up with zeros.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut take: impl FnMut(u64, &[u8])) {
        while let Some((extent, done)) = self.at {
            let Piece { offset, bytes: length, .. } = extent.piece;
            let gap = (offset + done).saturating_sub(self.offset);
            let skipped = usize::try_from(gap).map_or(bytes.len(), |gap| gap.min(bytes.len()));
            bytes = &bytes[skipped..];
            self.offset += skipped as u64;
            if bytes.is_empty() {
                return;
            }
            let wanted = usize::try_from(length - done).unwrap_or(usize::MAX);
            let wanted = wanted.min(PAGE_BYTES - self.begun.len());
            let place = extent.place + done / PAGE_BYTES as u64;
            let (head, rest) = bytes.split_at(wanted.min(bytes.len()));
            let (is_all, is_page) = (head.len() == wanted, head.len() == PAGE_BYTES);
            let done = done + head.len() as u64;
            (bytes, self.offset) = (rest, self.offset + head.len() as u64);
            if is_page {
                take(place, head);
            } else {
                self.begun.extend_from_slice(head);
                if is_all {
                    self.begun.resize(PAGE_BYTES, 0);
                    take(place, &self.begun);
                    self.begun.clear();
                }
            }
            self.at =
                if done == length { self.extents.next().map(|next| (next, 0)) } else { Some((extent, done)) };
        }
    }
}

/// The hash of a block, if it is not zero.
pub(crate) fn hash_of(seed: u64, block: &[u8]) -> Option<BlockHash> {
    (block != ZEROS).then(|| hash(seed, block))
}

/// Where the blocks of several files lie in them.
pub(crate) struct Map {
    /// By first place: number of the file, and the extent.
    extents: BTreeMap<u64, (usize, Piece)>,
}

/// Blocks that follow each other in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Map {
    pub(crate) fn new(files: &[ContentFile]) -> Map {
        let of = |(number, file): (usize, &ContentFile)| -> Vec<(u64, (usize, Piece))> {
            file.extents.iter().map(|extent| (extent.place, (number, extent.piece))).collect()
        };
        Map { extents: files.iter().enumerate().flat_map(of).collect() }
    }

    /// Up to so many blocks from `place` on, as far as they follow each other in one file; none if there is no such block.
    pub(crate) fn stretch(&self, place: u64, blocks: u64) -> Option<Stretch> {
        let (first, (file, piece)) = self.extents.range(..=place).next_back()?;
        let from = (place - first).checked_mul(PAGE_BYTES as u64)?;
        let left = piece.bytes.checked_sub(from).filter(|left| *left > 0)?;
        let bytes = left.min(blocks.saturating_mul(PAGE_BYTES as u64));
        Some(Stretch { file: *file, offset: piece.offset + from, bytes })
    }
}

/// The pieces of an image.
pub(crate) fn pieces(image: &ImageReader, runs: impl Fn(u32) -> Vec<(u64, u64)>) -> Vec<Piece> {
    // A base was the image before it, so both have the same pages.
    Piece::of_image(if image.header().is_delta { "changes" } else { "whole" }, image, runs)
}
