//! Bringing a copy back into a job's directory.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};

use store::job::TakenFile;
use store::packets::parallel;
use store::record::{Copied, CopiedFile};
use store::{ImageReader, JobDirectory, Storage, StoreError};
use transport::Rank;

use crate::copies::Copies;
use crate::error::CopyError;
use crate::names;
use crate::write::{Report, Source};

impl Copies<'_> {
    /// Brings a copy into the job's directory `records`, where the generation is committed then, and its images to where `images` says: there as well, or on their nodes.
    /// Images that are there and whole stay. Returns how many files were brought.
    pub fn fetch<T: Source>(
        &self,
        copied: &Copied,
        records: &mut JobDirectory<T::Storage>,
        images: &T,
        threads: NonZeroUsize,
        report: &Report,
    ) -> Result<u32, CopyError> {
        self.check_key(copied)?;
        let manifest = self.manifest(copied)?;
        let files = AtomicU32::new(0);
        let work = |(): &mut (), number: u64| {
            let at = usize::try_from(number).expect("it counts what is in memory");
            let (image, base) = &copied.images[at];
            let rank = manifest.images[at].rank;
            let mut own = images.directory(rank)?;
            own.begin_taking(copied.generation)?;
            if is_whole(&mut own, copied, rank, image)? {
                return report.add(image.bytes.saturating_add(base.map_or(0, |base| base.bytes)));
            }
            let wanted = base.as_ref().map(|base| (TakenFile::Base, base));
            for (which, file) in wanted.into_iter().chain([(TakenFile::Image, image)]) {
                self.fetch_file(&mut own, copied, rank, which, file, report)?;
                files.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        parallel::each(copied.images.len() as u64, threads, || (), work)?;
        records.begin_taking(copied.generation)?;
        records.take_over(&manifest)?;
        Ok(files.into_inner())
    }

    fn fetch_file<S: Storage>(
        &self,
        directory: &mut JobDirectory<S>,
        copied: &Copied,
        rank: Rank,
        which: TakenFile,
        file: &CopiedFile,
        report: &Report,
    ) -> Result<(), CopyError> {
        let path = names::image(self.job, rank, file.digest, copied.key);
        directory.take_file(copied.generation, rank, which, |storage, to| {
            self.read_packed(&path, file, |packet| {
                storage.append(to, packet).map_err(StoreError::from)?;
                report.add(packet.len() as u64)
            })
        })
    }
}

/// Whether a rank's image is there already, every byte of it and of its base.
fn is_whole<S: Storage>(
    directory: &mut JobDirectory<S>,
    copied: &Copied,
    rank: Rank,
    image: &CopiedFile,
) -> Result<bool, CopyError> {
    let mut look = || -> Result<(), StoreError> {
        let reader = directory.open_image(copied.generation, rank)?;
        reader.expect_digest(image.digest)?;
        let base = directory.open_base(copied.generation, rank, &reader)?;
        let verify = |reader: &ImageReader| reader.verify(directory.storage());
        [Some(reader), base].iter().flatten().try_for_each(verify)
    };
    match look() {
        Ok(()) => Ok(true),
        Err(error @ StoreError::Storage(store::StorageError::Crashed)) => Err(error.into()),
        Err(_) => Ok(false),
    }
}
