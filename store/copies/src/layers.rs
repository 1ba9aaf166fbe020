//! The blocks of one rank, from as many copies as it takes.

use store::delta::{Chain, Cursor, DeltaReader, Layer};
use store::packets::Source;
use store::record::{Content, ContentFile, Copied, CopiedRank};
use transport::Rank;

use crate::blocks::BLOCK_BYTES;
use crate::copies::Copies;
use crate::error::CopyError;
use crate::names;
use crate::windows::Windows;

/// An opened file of blocks.
pub(crate) type Opened<'a> = Windows<Box<dyn Source + 'a>>;

/// Longest list of places: that of the most extents that two images can have.
const PLACES_BYTES_MAX: u64 = 1 << 30;

/// A rank's part of a copy.
pub(crate) fn of_rank(copied: &Copied, rank: Rank) -> Result<&CopiedRank, CopyError> {
    let (expected, found) = (rank.0 as usize + 1, copied.ranks.len());
    let missing = CopyError::Images { generation: copied.generation, expected, found };
    copied.ranks.get(rank.0 as usize).ok_or(missing)
}

impl<'a> Copies<'a> {
    fn blocks_path(&self, copied: &Copied, rank: Rank) -> String {
        names::of_rank(self.job, copied.generation, rank, names::BLOCKS)
    }

    fn blocks_failed(
        &self,
        needs: &[&Copied],
        layer: usize,
        rank: Rank,
        error: store::delta::DeltaError,
    ) -> CopyError {
        let at = needs[layer.min(needs.len() - 1)];
        let path = self.target.shown(&self.blocks_path(at, rank));
        CopyError::Blocks { path, error }.in_base(needs[0].generation, at.generation)
    }

    /// Opens the file of blocks that one copy has of a rank: the one that the record names, and one of so many that are read in turns.
    pub(crate) fn open_blocks(
        &self,
        copied: &Copied,
        rank: Rank,
        files: usize,
    ) -> Result<(DeltaReader, Opened<'a>), CopyError> {
        let path = self.blocks_path(copied, rank);
        let exchanged = |what| CopyError::Exchanged { path: self.target.shown(&path), what };
        let of = of_rank(copied, rank)?;
        let target: &'a dyn crate::target::Target = self.target;
        let source = Windows::among(target.open(&path)?, files);
        if source.bytes() != of.blocks_bytes {
            return Err(exchanged("its length is another one than was written"));
        }
        let delta = DeltaReader::open(&source, self.read_key())
            .map_err(|error| CopyError::Blocks { path: self.target.shown(&path), error })?;
        if delta.facts().name != of.content || delta.block_bytes() != BLOCK_BYTES {
            return Err(exchanged("it holds other blocks than were packed"));
        }
        Ok((delta, source))
    }

    /// The blocks of a rank in the first of these copies, each of which builds upon the next, as far as they are
    /// needed.
    pub(crate) fn layers(&self, needs: &[&Copied], rank: Rank) -> Result<Vec<Layer<Opened<'a>>>, CopyError> {
        let mut layers = Vec::new();
        for copied in needs {
            let opened = self.open_blocks(copied, rank, needs.len());
            let (delta, source) =
                opened.map_err(|error| error.in_base(needs[0].generation, copied.generation))?;
            let is_full = delta.facts().base.is_none();
            layers.push(Layer { delta, source });
            if is_full {
                break;
            }
        }
        Ok(layers)
    }

    /// All blocks of a rank in the first of these copies. Every hash is compared with the record; no block is read yet.
    pub(crate) fn chain(&self, needs: &[&Copied], rank: Rank) -> Result<Chain<Opened<'a>>, CopyError> {
        let layers = self.layers(needs, rank)?;
        Chain::new(layers, None).map_err(|error| self.blocks_failed(needs, 0, rank, error))
    }

    /// Which block is which part of which image of a rank.
    pub(crate) fn places(&self, copied: &Copied, rank: Rank) -> Result<Content, CopyError> {
        let of = of_rank(copied, rank)?;
        let path = names::of_rank(self.job, copied.generation, rank, names::PLACES);
        let bytes = self.read_small(&path, &of.places, PLACES_BYTES_MAX)?;
        let content = Content::parse(&bytes)
            .map_err(|error| CopyError::Record { path: self.target.shown(&path), error })?;
        let named = [Some(of.image), of.base].into_iter().flatten();
        let is_same = (content.job, content.generation, content.node)
            == (self.job, copied.generation, rank.0)
            && content.files.len() == named.clone().count()
            && content
                .files
                .iter()
                .zip(named)
                .all(|(file, of)| (file.digest, file.bytes) == (of.digest, of.bytes));
        if is_same {
            return Ok(content);
        }
        let what = "it is about other images than the record";
        Err(CopyError::Exchanged { path: self.target.shown(&path), what })
    }

    /// Puts a file of a rank together, from its begin to its end: `take` gets it piece by piece.
    pub(crate) fn read_file(
        &self,
        needs: &[&Copied],
        rank: Rank,
        chain: &Chain<Opened<'a>>,
        file: &ContentFile,
        mut take: impl FnMut(&[u8]) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        let mut cursor = Cursor::new(chain);
        let mut buffer = Vec::with_capacity(PIECE_BYTES + BLOCK_BYTES as usize);
        let mut put = |bytes: Option<&[u8]>, length: u64| -> Result<(), CopyError> {
            let mut left = length;
            while left > 0 {
                let now = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
                match bytes {
                    Some(bytes) => buffer.extend_from_slice(&bytes[..now]),
                    None => buffer.resize(buffer.len() + now, 0),
                }
                left -= now as u64;
                if buffer.len() >= PIECE_BYTES {
                    take(&buffer)?;
                    buffer.clear();
                }
            }
            Ok(())
        };
        let mut end = 0;
        for extent in &file.extents {
            put(None, extent.piece.offset - end)?;
            for (place, from) in (extent.place..).zip((0..extent.piece.bytes).step_by(BLOCK_BYTES as usize)) {
                let bytes = (extent.piece.bytes - from).min(u64::from(BLOCK_BYTES));
                let block = cursor.read(place);
                let failed =
                    |error| self.blocks_failed(needs, chain.layer_of(place).unwrap_or(0), rank, error);
                put(block.map_err(failed)?, bytes)?;
            }
            end = extent.piece.offset + extent.piece.bytes;
        }
        put(None, file.bytes - end)?;
        if buffer.is_empty() { Ok(()) } else { take(&buffer) }
    }

    /// Reads every byte that a copy has of a rank, and checks it.
    pub(crate) fn verify_blocks(&self, copied: &Copied, rank: Rank) -> Result<(), CopyError> {
        let (delta, source) = self.open_blocks(copied, rank, 1)?;
        let path = self.target.shown(&self.blocks_path(copied, rank));
        delta.verify(&source, self.read_key()).map_err(|error| CopyError::Blocks { path, error })
    }
}

/// Bytes that are handed on at once.
const PIECE_BYTES: usize = 256 << 10;
