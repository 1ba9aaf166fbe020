//! Whether a generation can be restored, and if not, why.

use transport::Rank;

use super::names;
use super::{GenerationId, GenerationState, JobDirectory};
use crate::error::StoreError;
use crate::image::ImageReader;
use crate::record::Manifest;
use crate::storage::{Storage, StorageError};

/// How much of a generation is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Commit record and manifest.
    Records,
    /// Also header, table, length and digest of every image and its base: finds missing, cut off and exchanged images.
    Tables,
    /// Every byte: finds rot too, and, if the key of encrypted images is known, changes made without it.
    Everything,
}

/// Something in a generation that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Whose image; `None` for the generation's records.
    pub rank: Option<Rank>,
    /// The fault and its remedy.
    pub error: StoreError,
}

/// A generation that a recovery can start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restorable {
    /// The newest generation that is whole; `None` if there is none.
    pub manifest: Option<Manifest>,
    /// Newer ones that are not, newest first, and why.
    pub refused: Vec<(GenerationId, Vec<Damage>)>,
}

impl<S: Storage> JobDirectory<S> {
    /// The faults of a committed generation, at this depth; empty: none. `Err` only if the storage as a whole does not
    /// answer.
    pub fn verify(&mut self, generation: GenerationId, depth: Depth) -> Result<Vec<Damage>, StoreError> {
        let manifest = match self.manifest(generation) {
            Ok(manifest) => manifest,
            Err(error) => return damaged(None, error).map(|damage| vec![damage]),
        };
        self.verify_images(&manifest, depth, |_, _| ())
    }

    /// [`JobDirectory::verify`] of the images of a manifest that lie here. `progress` gets the images and bytes that are done, often in a large image.
    pub fn verify_images(
        &mut self,
        manifest: &Manifest,
        depth: Depth,
        mut progress: impl FnMut(u32, u64),
    ) -> Result<Vec<Damage>, StoreError> {
        let (mut damages, node) = (Vec::new(), self.node);
        if depth == Depth::Records {
            return Ok(damages);
        }
        let mut bytes_done = 0;
        for (done, image) in
            (1..).zip(manifest.images.iter().filter(|image| node.is_none_or(|node| node == image.node)))
        {
            let path = names::in_generation(manifest.generation, &image.file);
            let identity = self.identity(manifest.generation, image.rank);
            let mut read = 0;
            let mut piece_read = |bytes: usize| {
                read += bytes as u64;
                progress(done - 1, bytes_done + image.summary.bytes.min(read));
            };
            let mut check = || {
                let mut reader = ImageReader::open(&mut self.storage, &path)?;
                reader.expect(&identity)?;
                reader.expect_digest(image.summary.digest)?;
                self.expect_encrypted(&reader)?;
                if depth == Depth::Everything {
                    self.unlock(&mut reader)?;
                    reader.read_through(&mut self.storage, |piece| {
                        piece_read(piece.len());
                        Ok::<(), StoreError>(())
                    })?;
                }
                self.check_base(manifest.generation, image.rank, &reader, depth, &mut piece_read)
            };
            if let Err(error) = check() {
                damages.push(damaged(Some(image.rank), error)?);
            }
            bytes_done += image.summary.bytes;
            progress(done, bytes_done);
        }
        Ok(damages)
    }

    /// The newest committed generation that is whole at this depth, and which newer ones are not.
    pub fn newest_restorable(&mut self, depth: Depth) -> Result<Restorable, StoreError> {
        self.newest_restorable_at(|_| depth, |_, _, _| ())
    }

    /// [`JobDirectory::newest_restorable`] with a depth for each generation. `progress` gets the generation, and its images and bytes that are done.
    pub fn newest_restorable_at(
        &mut self,
        depth: impl Fn(GenerationId) -> Depth,
        mut progress: impl FnMut(GenerationId, u32, u64),
    ) -> Result<Restorable, StoreError> {
        let generations = self.generations()?;
        let mut refused = Vec::new();
        for found in generations.iter().rev().filter(|found| found.state == GenerationState::Committed) {
            let damages = match self.manifest(found.id) {
                Ok(manifest) => {
                    let looked_at = |images, bytes| progress(found.id, images, bytes);
                    let damages = self.verify_images(&manifest, depth(found.id), looked_at)?;
                    if damages.is_empty() {
                        return Ok(Restorable { manifest: Some(manifest), refused });
                    }
                    damages
                }
                Err(error) => vec![damaged(None, error)?],
            };
            refused.push((found.id, damages));
        }
        Ok(Restorable { manifest: None, refused })
    }
}

/// A damage to report, unless the whole storage is gone.
fn damaged(rank: Option<Rank>, error: StoreError) -> Result<Damage, StoreError> {
    match error {
        StoreError::Storage(StorageError::Crashed) => Err(error),
        error => Ok(Damage { rank, error }),
    }
}
