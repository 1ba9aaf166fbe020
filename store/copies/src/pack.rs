//! A rank's part of a copy: the blocks that its base has not, and where all of them belong.
//!
//! The images are read once to be checked and hashed, and differing blocks are read again to be packed: blocks are
//! packed by rising place, and files have another order. Files that the newest copy is known to have are neither read
//! nor hashed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use store::checksum::checksum;
use store::delta::{BlockHash, Chain, DeltaOptions, DeltaReader, DeltaWriter, Differences, Layer, Signature};
use store::protect::{Extent, Piece, place};
use store::record::{Content, ContentFile, CopiedImage, CopiedRank};
use store::{GenerationId, ImageDigest, ImageReader, JobDirectory, Manifest, Storage, StoreError};
use transport::Rank;

use crate::blocks::{BLOCK_BYTES, Cutter, Map, hash_of, pieces};
use crate::chain::Ground;
use crate::copies::Copies;
use crate::error::CopyError;
use crate::key::CopyKey;
use crate::layers::Opened;
use crate::names;
use crate::write::{Report, Source, random_seed};

/// A rank that differs in more than this part of its blocks gets all of them: there is nothing to gain, and a copy
/// without a base is safer.
const CHANGED_MAX: f64 = 0.75;

/// Blocks that are read at once.
const STRETCH_BLOCKS: u64 = 256;

/// The written data of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// As the copy's record has it.
    pub of: CopiedRank,
    /// All its blocks are there.
    pub is_full: bool,
    /// How much has changed.
    pub differences: Differences,
}

/// A rank's content in the copies below.
struct BaseContent {
    /// The newest one.
    places: Content,
    newest: Arc<Signature>,
    /// The base of the new copy.
    base: Arc<Signature>,
}

/// The images of a rank, the one of the generation first.
struct Images<S> {
    directory: JobDirectory<S>,
    readers: Vec<ImageReader>,
}

impl Copies<'_> {
    /// Reads a rank's content in the copies below. None: they cannot be read, and the rank gets all its blocks.
    fn base_content(&self, ground: &Ground<'_>, rank: Rank) -> Result<Option<BaseContent>, CopyError> {
        let found = || -> Result<BaseContent, CopyError> {
            let readers = |from: usize| -> Result<Vec<DeltaReader>, CopyError> {
                let layers: Vec<Layer<Opened<'_>>> = self.layers(&ground.chain[from..], rank)?;
                Ok(layers.into_iter().map(|layer| layer.delta).collect())
            };
            let of_newest = readers(0)?;
            // The newest one may have all blocks of this rank, and yet not be the base of the others.
            let of_base = match of_newest.get(ground.base..).filter(|rest| !rest.is_empty()) {
                Some(rest) => rest.to_vec(),
                None => readers(ground.base)?,
            };
            let newest = self.signature(ground, 0, rank, of_newest)?;
            let base = if ground.base == 0 {
                Arc::clone(&newest)
            } else {
                self.signature(ground, ground.base, rank, of_base)?
            };
            Ok(BaseContent { places: self.places(ground.chain[0], rank)?, newest, base })
        };
        match found() {
            Ok(base_content) => Ok(Some(base_content)),
            Err(error) if error.is_damage() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn signature(
        &self,
        ground: &Ground<'_>,
        at: usize,
        rank: Rank,
        readers: Vec<DeltaReader>,
    ) -> Result<Arc<Signature>, CopyError> {
        let layers = readers.into_iter().map(|delta| Layer { delta, source: () }).collect();
        let signature = Chain::new(layers, None).and_then(|chain| chain.signature());
        let path = names::of_rank(self.job, ground.chain[at].generation, rank, names::BLOCKS);
        let failed = |error| CopyError::Blocks { path: self.target.shown(&path), error };
        Ok(Arc::new(signature.map_err(failed)?.expect("no file lies below")))
    }

    /// Writes a rank's part of a copy.
    pub(crate) fn write_rank<T: Source>(
        &self,
        manifest: &Manifest,
        at: usize,
        source: &T,
        report: &Report,
        ground: Option<&Ground<'_>>,
    ) -> Result<Packed, CopyError> {
        let (generation, named) = (manifest.generation, &manifest.images[at]);
        let rank = named.rank;
        let mut directory = source.directory(rank)?;
        let image = directory.open_image(generation, rank)?;
        image.expect_digest(named.summary.digest)?;
        let base = directory.open_base(generation, rank, &image)?;
        let readers: Vec<ImageReader> = [Some(image), base].into_iter().flatten().collect();
        let mut base_content = ground.map(|ground| self.base_content(ground, rank)).transpose()?.flatten();

        let pieces: Vec<Vec<Piece>> = readers
            .iter()
            .map(|reader| pieces(reader, |section| source.runs(rank, reader, section)))
            .collect();
        let mut images = Images { directory, readers };
        let seed = match &base_content {
            Some(base_content) => base_content.base.seed(),
            None => random_seed()?,
        };
        let mut content = self.content(generation, rank, &images.readers, &pieces, base_content.as_ref());
        let mut signature =
            images.signature(&content, seed, base_content.as_ref(), &|bytes| report.add(bytes))?;
        if let Some(BaseContent { base, .. }) = &base_content
            && is_mostly_new(&signature, base)
        {
            base_content = None;
            // Places begin anew: in the order of the files they are as few runs as can be.
            content = self.content(generation, rank, &images.readers, &pieces, None);
            // Bytes count once.
            signature = images.signature(&content, seed, None, &|_| report.add(0))?;
        }
        let path = |what| names::of_rank(self.job, generation, rank, what);
        let (blocks_bytes, differences) = self.write_blocks(
            &path(names::BLOCKS),
            &mut images,
            rank,
            &content,
            &signature,
            base_content.as_ref(),
            report,
        )?;
        let bytes = content.emit();
        let places = self.pack(&path(names::PLACES), ImageDigest(checksum(&bytes)), &bytes)?;
        let of = |reader: &ImageReader| CopiedImage {
            digest: reader.digest(),
            bytes: reader.header().total_bytes,
        };
        let of = CopiedRank {
            image: of(&images.readers[0]),
            base: images.readers.get(1).map(of),
            content: signature.name(),
            blocks_bytes,
            places,
        };
        Ok(Packed { of, is_full: base_content.is_none(), differences })
    }

    /// Gives each page its place: the one that it has in the newest copy.
    fn content(
        &self,
        generation: GenerationId,
        rank: Rank,
        readers: &[ImageReader],
        pieces: &[Vec<Piece>],
        base_content: Option<&BaseContent>,
    ) -> Content {
        let old: Vec<Extent> = base_content
            .iter()
            .flat_map(|base_content| &base_content.places.files)
            .flat_map(|file| &file.extents)
            .copied()
            .collect();
        let file = |((reader, extents), name): ((&ImageReader, Vec<Extent>), &&str)| ContentFile {
            name: (*name).to_owned(),
            bytes: reader.header().total_bytes,
            digest: reader.digest(),
            extents,
        };
        let files = readers.iter().zip(place(&old, pieces)).zip(&["image", "base"]).map(file).collect();
        Content { job: self.job, generation, node: rank.0, files }
    }

    /// Writes the blocks that the base has not; all of them if there is none.
    #[expect(clippy::too_many_arguments, reason = "what one file is made of")]
    fn write_blocks<S: Storage>(
        &self,
        path: &str,
        images: &mut Images<S>,
        rank: Rank,
        content: &Content,
        signature: &Signature,
        base_content: Option<&BaseContent>,
        report: &Report,
    ) -> Result<(u64, Differences), CopyError> {
        let failed = |error| CopyError::Blocks { path: self.target.shown(path), error };
        let base = base_content.map(|base_content| Arc::clone(&base_content.base));
        let previous = base_content.map(|base_content| Arc::clone(&base_content.newest));
        let options = DeltaOptions {
            previous: previous.filter(|previous| previous.comparable(signature).is_ok()),
            base: base.clone(),
            sealing: self.key.as_ref().map(CopyKey::sealing).transpose()?,
            ..DeltaOptions::default()
        };
        let is_changed =
            |place: u64, hash: BlockHash| base.as_ref().is_none_or(|base| base.hash_at(place) != Some(hash));
        let all = || signature.places().iter().zip(signature.hashes());
        let changed = all().filter(|(place, hash)| is_changed(*place, **hash)).count() as u64;
        let index_bytes = changed * 16 + (signature.places().runs().len() as u64 + changed) * 16;
        let bytes = changed * u64::from(BLOCK_BYTES) + index_bytes;
        let mut writing = self.target.create(path, bytes + bytes / 512 + (64 << 10))?;
        let mut sink = &mut *writing;
        let mut writer =
            DeltaWriter::begin(&mut sink, BLOCK_BYTES, signature.seed(), options).map_err(failed)?;
        let map = Map::new(&content.files);
        let mut buffer = Vec::new();
        // Blocks that follow each other, and differ.
        let (mut first, mut blocks) = (0, 0);
        for (at, hash) in all().map(|(place, hash)| (place, Some(*hash))).chain([(u64::MAX, None)]) {
            let differs = hash.is_some_and(|hash| is_changed(at, hash));
            if differs && blocks > 0 && blocks < STRETCH_BLOCKS && first + blocks == at {
                blocks += 1;
                continue;
            }
            while blocks > 0 {
                let read = images.read(&map, rank, first, blocks, &mut buffer)?;
                for (block, place) in buffer.chunks(BLOCK_BYTES as usize).zip(first..) {
                    writer.push(&mut sink, place, block).map_err(failed)?;
                }
                (first, blocks) = (first + read, blocks - read);
                report.add(0)?;
            }
            if differs {
                (first, blocks) = (at, 1);
            } else if hash.is_some() {
                // Its hash is known, and the base has it.
                let is_known = writer.unwritten(at, signature).map_err(failed)?;
                assert!(is_known, "the base has the block at place {at}");
            }
        }
        let summary = writer.finish(&mut sink, 0, 0, false).map_err(failed)?;
        if summary.signature.name() != signature.name() {
            return Err(CopyError::Changed { rank });
        }
        writing.finish()?;
        Ok((summary.stored_bytes, summary.differences))
    }
}

fn is_mostly_new(signature: &Signature, base: &Signature) -> bool {
    let all = signature.places().iter().zip(signature.hashes());
    let new = all.filter(|(place, hash)| base.hash_at(*place) != Some(**hash)).count();
    #[expect(clippy::cast_precision_loss, reason = "a part of a number")]
    let is_most = new as f64 > CHANGED_MAX * signature.places().blocks() as f64;
    is_most
}

impl<S: Storage> Images<S> {
    /// The hashes of all blocks. Every byte that is read is checked.
    fn signature(
        &mut self,
        content: &Content,
        seed: u64,
        base_content: Option<&BaseContent>,
        progress: &dyn Fn(u64) -> Result<(), CopyError>,
    ) -> Result<Signature, CopyError> {
        let mut hashes: Vec<(u64, BlockHash)> = Vec::new();
        for (reader, file) in self.readers.iter().zip(&content.files) {
            let known = base_content.filter(|base_content| {
                let same = |other: &ContentFile| {
                    (other.digest, other.bytes, &other.extents) == (file.digest, file.bytes, &file.extents)
                };
                base_content.newest.seed() == seed && base_content.places.files.iter().any(same)
            });
            if let Some(BaseContent { newest, .. }) = known {
                let places = file.extents.iter().flat_map(|at| at.place..at.place + at.piece.pages());
                hashes.extend(places.filter_map(|place| Some((place, newest.hash_at(place)?))));
                progress(file.bytes)?;
                continue;
            }
            let mut cutter = Cutter::new(file);
            reader.read_through(self.directory.storage(), |piece| {
                cutter.feed(piece, |place, block| {
                    hashes.extend(hash_of(seed, block).map(|hash| (place, hash)));
                });
                progress(piece.len() as u64)
            })?;
        }
        hashes.sort_unstable_by_key(|(place, _)| *place);
        let rank = Rank(content.node);
        let path = || self.readers[0].path().to_owned();
        Signature::of_hashes(BLOCK_BYTES, seed, hashes)
            .map_err(|error| CopyError::Blocks { path: format!("{rank}: {}", path()), error })
    }

    /// Reads up to so many blocks from `place` on, which are in one file; returns how many it were.
    fn read(
        &mut self,
        map: &Map,
        rank: Rank,
        place: u64,
        blocks: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<u64, CopyError> {
        let stretch = map.stretch(place, blocks).ok_or(CopyError::Changed { rank })?;
        let bytes = usize::try_from(stretch.bytes).expect("STRETCH_BLOCKS at most");
        buffer.resize(bytes, 0);
        let path = self.readers[stretch.file].path();
        let read = self.directory.storage().read_range(path, stretch.offset, buffer);
        read.map_err(StoreError::from)?;
        buffer.resize(bytes.next_multiple_of(BLOCK_BYTES as usize), 0);
        Ok((buffer.len() / BLOCK_BYTES as usize) as u64)
    }
}
