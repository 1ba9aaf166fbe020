//! The bases below deltas.
//!
//! A generation whose images are deltas has their bases in its own directory, as further names (hard links) of files
//! that other generations have, too. So each generation is independent: its bases stay until it is removed itself,
//! regardless of which others are removed, and in which order.

use transport::Rank;

use super::{Depth, GenerationId, JobDirectory, names};
use crate::error::StoreError;
use crate::image::{Base, ImageReader};
use crate::storage::{Directory, Storage, StorageError};

impl<S: Storage> JobDirectory<S> {
    /// Opens the base of an image, if that is a delta: checked to be the one that the image names, and whole.
    pub fn open_base(
        &mut self,
        generation: GenerationId,
        rank: Rank,
        image: &ImageReader,
    ) -> Result<Option<ImageReader>, StoreError> {
        let Some(mut base) = self.open_locked_base(generation, rank, image)? else { return Ok(None) };
        self.unlock(&mut base)?;
        Ok(Some(base))
    }

    /// The same for one whose header and table are all that is read.
    fn open_locked_base(
        &mut self,
        generation: GenerationId,
        rank: Rank,
        image: &ImageReader,
    ) -> Result<Option<ImageReader>, StoreError> {
        let Some(base) = image.base(&mut self.storage)? else { return Ok(None) };
        let path = names::in_generation(generation, &names::base(rank));
        let reader = ImageReader::open(&mut self.storage, &path)?;
        reader.expect(&self.identity(base.generation, rank))?;
        reader.expect_digest(base.digest)?;
        reader.expect_whole()?;
        self.expect_encrypted(&reader)?;
        Ok(Some(reader))
    }

    /// Checks the base of an image, if it has one.
    pub(super) fn check_base(
        &mut self,
        generation: GenerationId,
        rank: Rank,
        image: &ImageReader,
        depth: Depth,
        piece_read: &mut dyn FnMut(usize),
    ) -> Result<(), StoreError> {
        match self.open_locked_base(generation, rank, image)? {
            Some(mut base) if depth == Depth::Everything => {
                self.unlock(&mut base)?;
                base.read_through(&mut self.storage, |piece| {
                    piece_read(piece.len());
                    Ok(())
                })
            }
            _ => Ok(()),
        }
    }
}

impl JobDirectory<Directory> {
    /// Links the base of the next delta beside it: the rank's image of `base`, or the base that the generation `last`
    /// has beside its delta, whichever still exists. The link becomes durable with the image. An error: neither exists
    /// any more, or the file system has no hard links; then a whole image has to be written.
    pub fn link_base(
        &mut self,
        generation: GenerationId,
        rank: Rank,
        base: &Base,
        last: Option<GenerationId>,
    ) -> Result<(), StorageError> {
        let to = names::in_generation(generation, &names::base(rank));
        let of_last = last.map(|last| names::in_generation(last, &names::base(rank)));
        let first = names::in_generation(base.generation, &names::image(rank));
        let mut linked = Err(StorageError::NotFound {
            operation: crate::storage::Operation::Publish,
            path: first.clone(),
        });
        for from in of_last.into_iter().chain([first]) {
            linked = linked.or_else(|_| self.storage.link(&from, &to));
        }
        linked
    }

    /// Takes it away again: the image became a whole one after all.
    pub fn unlink_base(&mut self, generation: GenerationId, rank: Rank) -> Result<(), StorageError> {
        self.storage.remove_file(&names::in_generation(generation, &names::base(rank)))
    }
}
