//! Bringing a copy back into a job's directory.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};

use store::job::TakenFile;
use store::packets::parallel;
use store::record::{Copied, CopiedRank};
use store::{ImageReader, JobDirectory, Storage, StoreError};
use transport::Rank;

use crate::copies::Copies;
use crate::error::{CopyError, is_loss};
use crate::layers::of_rank;
use crate::progress_target::ProgressTarget;
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
        let manifest = self.manifest(copied)?;
        let ranks: Vec<Rank> = manifest.images.iter().map(|image| image.rank).collect();
        let listed = self.list()?;
        let needs: Vec<Copied> = listed.needs(copied)?.into_iter().cloned().collect();
        let files = self.fetch_images(&needs, &ranks, images, threads, report)?;
        self.take_over(copied, records)?;
        Ok(files)
    }

    /// The generation is committed in the job's directory `records` then, wherever its images are.
    pub fn take_over<S: Storage>(
        &self,
        copied: &Copied,
        records: &mut JobDirectory<S>,
    ) -> Result<(), CopyError> {
        records.begin_taking(copied.generation)?;
        Ok(records.take_over(&self.manifest(copied)?)?)
    }

    /// Brings the images of these ranks. Those that are there and whole stay. Returns how many files were brought. `needs`: the copy, and all that it needs
    /// ([`Copies::with_needs`]).
    pub fn fetch_images<T: Source>(
        &self,
        needs: &[Copied],
        ranks: &[Rank],
        images: &T,
        threads: NonZeroUsize,
        report: &Report,
    ) -> Result<u32, CopyError> {
        let watched = ProgressTarget::new(self.target, report);
        let copies = self.at(&watched);
        let copied = &needs[0];
        self.check_key(copied)?;
        let needs: Vec<&Copied> = needs.iter().collect();
        let files = AtomicU32::new(0);
        let work = |(): &mut (), number: u64| {
            let rank = ranks[usize::try_from(number).expect("it counts what is in memory")];
            let of = of_rank(copied, rank)?;
            let mut own = images.directory(rank)?;
            own.begin_taking(copied.generation)?;
            if is_whole(&mut own, copied, rank, of, report)? {
                return report.add(of.bytes());
            }
            files.fetch_add(copies.fetch_rank(&mut own, &needs, rank, report)?, Ordering::Relaxed);
            Ok(())
        };
        parallel::each(ranks.len() as u64, threads, || (), work)?;
        Ok(files.into_inner())
    }

    /// Puts the images of a rank together. Returns how many they are.
    fn fetch_rank<S: Storage>(
        &self,
        directory: &mut JobDirectory<S>,
        needs: &[&Copied],
        rank: Rank,
        report: &Report,
    ) -> Result<u32, CopyError> {
        let content = self.places(needs[0], rank)?;
        let chain = self.chain(needs, rank)?;
        // The base first: the image means nothing without it.
        for (file, which) in content.files.iter().zip([TakenFile::Image, TakenFile::Base]).rev() {
            directory.take_file(needs[0].generation, rank, which, |storage, to| {
                self.read_file(needs, rank, &chain, file, |piece| {
                    storage.append(to, piece).map_err(StoreError::from)?;
                    report.add(piece.len() as u64)
                })
            })?;
        }
        Ok(u32::try_from(content.files.len()).unwrap_or(u32::MAX))
    }
}

/// Whether a rank's image is there already, every byte of it and of its base.
fn is_whole<S: Storage>(
    directory: &mut JobDirectory<S>,
    copied: &Copied,
    rank: Rank,
    of: &CopiedRank,
    report: &Report,
) -> Result<bool, CopyError> {
    let mut look = || -> Result<(), CopyError> {
        let reader = directory.open_image(copied.generation, rank)?;
        reader.expect_digest(of.image.digest)?;
        let base = directory.open_base(copied.generation, rank, &reader)?;
        let mut verify = |reader: &ImageReader| reader.read_through(directory.storage(), |_| report.add(0));
        [Some(reader), base].iter().flatten().try_for_each(&mut verify)
    };
    match look() {
        Ok(()) => Ok(true),
        Err(CopyError::Stopped) => Err(CopyError::Stopped),
        // Files that the disk fails to read do not count as lost: a person should know, and nothing is overwritten.
        Err(CopyError::Store(StoreError::Storage(error))) if !is_loss(&error) => Err(error.into()),
        Err(_) => Ok(false),
    }
}
