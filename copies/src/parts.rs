//! A copy whose ranks are packed by several hosts, each with the images that lie on its own disk. One of them, the writer, begins it, says what its parts are to hang on, and
//! writes the record when all parts are there.

use std::num::NonZeroUsize;

use store::record::Upon;
use store::{GenerationId, Manifest, StorageError};
use transport::Rank;

use crate::chain::Ground;
use crate::copies::{Copies, Listed};
use crate::error::CopyError;
use crate::names;
use crate::pack::Packed;
use crate::write::{Report, Source, Work, Written, random_seed};

/// Bytes of a sign, and then some.
const SIGN_BYTES_MAX: u64 = 64;

/// What whoever packs a part of a copy is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Shows that its place is the writer's.
    pub sign: u64,
    /// The newest copy, and all that it needs, by their records; none: the copy is whole.
    pub chain: Vec<Upon>,
    /// Which of these the copy hangs on.
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

    /// As [`Copies::write`], by others: `ask` has them write all parts, and says for each image of the manifest what was written of its rank.
    pub fn write_by_others(
        &self,
        work: &Work<'_>,
        report: &Report,
        ask: impl FnOnce(Order) -> Result<Vec<Packed>, CopyError>,
    ) -> Result<Written, CopyError> {
        self.write_by(work, report, |ground| {
            let sign = self.leave_sign()?;
            let upon =
                |copy: &&store::record::Copied| Upon { generation: copy.generation, record: copy.checksum() };
            let chain = ground.iter().flat_map(|ground| &ground.chain).map(upon).collect();
            let packed = ask(Order { sign, chain, base: ground.map_or(0, |ground| ground.base) });
            // What stays of it is removed with the next copy.
            let _ = self.remove_sign(sign);
            packed
        })
    }

    /// Writes what a copy gets of these ranks, in the order of the manifest.
    pub fn write_part<T: Source>(
        &self,
        order: &Order,
        manifest: &Manifest,
        ranks: &[Rank],
        source: &T,
        threads: NonZeroUsize,
        report: &Report,
    ) -> Result<Vec<Packed>, CopyError> {
        self.see_sign(order.sign)?;
        let listed = self.list()?;
        let ground = listed.ground_of(manifest.generation, order)?;
        let images: Vec<usize> = (0..)
            .zip(&manifest.images)
            .filter(|(_, image)| ranks.contains(&image.rank))
            .map(|(at, _)| at)
            .collect();
        self.pack_ranks(manifest, &images, threads, source, report, ground.as_ref())
    }
}

impl Listed {
    /// The copies that an order names.
    fn ground_of(&self, generation: GenerationId, order: &Order) -> Result<Option<Ground<'_>>, CopyError> {
        let find = |upon: &Upon| {
            let found = self.copies.iter().find(|copy| copy.generation == upon.generation);
            let found = found.filter(|_| self.records.get(&upon.generation) == Some(&upon.record));
            found.ok_or(CopyError::NoBase { generation, base: upon.generation })
        };
        let chain = order.chain.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let is_whole = chain.len() <= order.base;
        Ok((!is_whole).then_some(Ground { chain, base: order.base }))
    }
}
