//! A copy whose ranks are packed by several hosts, each with the images that lie on its own disk. One of them, the
//! writer, begins it, names the base of its parts, and writes the record when all parts are there.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use store::record::{BaseCopy, Copied};
use store::{GenerationId, Manifest, StorageError};
use transport::Rank;

use crate::chain::Ground;
use crate::copies::Copies;
use crate::error::CopyError;
use crate::names;
use crate::pack::Packed;
use crate::progress_target::ProgressTarget;
use crate::write::{Report, Source, Work, Written, random_seed};

/// Bytes of a sign, and then some.
const SIGN_BYTES_MAX: u64 = 64;

/// The instructions for a host that packs a part of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackRequest {
    /// Shows that its place is the writer's.
    pub sign: u64,
    /// The newest copy, and all that it needs, by their records; none: the copy is whole.
    pub chain: Vec<BaseCopy>,
    /// The base of the copy among these.
    pub base: usize,
}

impl Copies<'_> {
    /// Leaves a sign at the place, by which others see that theirs is the same.
    pub fn leave_sign(&self) -> Result<u64, CopyError> {
        let sign = random_seed()?;
        self.target.write(&names::sign(self.job, sign), &sign.to_le_bytes())?;
        Ok(sign)
    }

    /// Removes it. The next copy removes one that is forgotten.
    pub fn remove_sign(&self, sign: u64) -> Result<(), CopyError> {
        Ok(self.target.remove(&names::sign(self.job, sign))?)
    }

    /// Looks for a sign that another host has left.
    pub fn see_sign(&self, sign: u64) -> Result<(), CopyError> {
        let path = names::sign(self.job, sign);
        match self.target.read(&path, SIGN_BYTES_MAX) {
            Ok(bytes) if bytes == sign.to_le_bytes() => Ok(()),
            Ok(_) | Err(StorageError::NotFound { .. }) => {
                Err(CopyError::NotShared { path: self.target.shown(&path) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Copies::write`], by others: `ask` has them write all parts, and returns a [`Packed`] of each image of the manifest.
    pub fn write_by_others(
        &self,
        work: &Work<'_>,
        report: &Report,
        ask: impl FnOnce(PackRequest) -> Result<Vec<Packed>, CopyError>,
    ) -> Result<Written, CopyError> {
        let watched = ProgressTarget::new(self.target, report);
        let copies = self.at(&watched);
        copies.write_by(work, report, |ground| {
            let sign = copies.leave_sign()?;
            let upon = |copy: &&store::record::Copied| BaseCopy {
                generation: copy.generation,
                record: copy.checksum(),
            };
            let chain = ground.iter().flat_map(|ground| &ground.chain).map(upon).collect();
            let packed = ask(PackRequest { sign, chain, base: ground.map_or(0, |ground| ground.base) });
            // A sign that cannot be removed is removed with the next copy.
            let _ = copies.remove_sign(sign);
            packed
        })
    }

    /// Writes these ranks' parts of a copy, in the order of the manifest.
    pub fn write_part<T: Source>(
        &self,
        order: &PackRequest,
        manifest: &Manifest,
        ranks: &[Rank],
        source: &T,
        threads: NonZeroUsize,
        report: &Report,
    ) -> Result<Vec<Packed>, CopyError> {
        let watched = ProgressTarget::new(self.target, report);
        let copies = self.at(&watched);
        copies.see_sign(order.sign)?;
        let chain = copies.of_records(manifest.generation, &order.chain)?;
        let ground = Ground::of_order(&chain, order.base);
        let images: Vec<usize> = (0..)
            .zip(&manifest.images)
            .filter(|(_, image)| ranks.contains(&image.rank))
            .map(|(at, _)| at)
            .collect();
        copies.pack_ranks(manifest, &images, threads, source, report, ground.as_ref())
    }

    /// The copies of these records, by their names: a host that did not write a directory may see an old listing of it
    /// (NFS), but a name that it never looked up is looked up anew.
    fn of_records(&self, generation: GenerationId, records: &[BaseCopy]) -> Result<Vec<Copied>, CopyError> {
        let find = |upon: &BaseCopy| {
            let no_base = || CopyError::NoBase { generation, base: upon.generation };
            let (copied, record) = self.record(upon.generation)?.ok_or_else(no_base)?;
            self.check_key(&copied)?;
            if record == upon.record { Ok(copied) } else { Err(no_base()) }
        };
        records.iter().map(find).collect()
    }
}
