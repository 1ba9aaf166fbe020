//! How copies build upon each other.
//!
//! A copy is *whole*, or it has only the blocks in which it differs from another copy, its base, which may have a base
//! itself. Its record names that copy's record by its checksum, and so the whole chain. [`Rules`] choose the base of
//! the next copy.

use std::collections::BTreeSet;

use store::GenerationId;
use store::delta::{Choice, Rules, SeriesState};
use store::record::{BaseCopy, Copied, KeyName, SinceWhole};

use crate::copies::Listed;
use crate::error::CopyError;
use crate::names;

impl Listed {
    /// The copies that `copy` needs, itself first, each with all its files. An error names the one that is not there, has lost something, or is not signed.
    pub fn needs<'a>(&'a self, copy: &'a Copied) -> Result<Vec<&'a Copied>, CopyError> {
        let mut needs = vec![copy];
        loop {
            let last = needs[needs.len() - 1];
            if let Some(path) = self.unsigned.get(&last.generation) {
                let error = CopyError::Unsigned { path: path.clone() };
                return Err(error.in_base(copy.generation, last.generation));
            }
            if let Some(path) = self.lacks(last) {
                let error = CopyError::Lacks { generation: last.generation, path };
                return Err(error.in_base(copy.generation, last.generation));
            }
            let Some(BaseCopy { generation, record }) = last.upon else { return Ok(needs) };
            let found = self.copies.iter().find(|found| found.generation == generation);
            let found = found.filter(|_| self.records.get(&generation) == Some(&record));
            let Some(found) =
                found.filter(|found| !needs.iter().any(|known| known.generation == found.generation))
            else {
                let error = CopyError::NoBase { generation: last.generation, base: generation };
                return Err(error.in_base(copy.generation, last.generation));
            };
            if found.key != copy.key || found.ranks.len() != copy.ranks.len() {
                let error = CopyError::OtherBase { generation: last.generation, base: generation };
                return Err(error.in_base(copy.generation, last.generation));
            }
            needs.push(found);
        }
    }

    /// The first of its own files that is not there, or has another length.
    fn lacks(&self, copy: &Copied) -> Option<String> {
        let own = |name| names::in_copy(copy.job, copy.generation, name);
        let of_rank = |(rank, of): (transport::Rank, &store::record::CopiedRank)| {
            let blocks = names::of_rank(copy.job, copy.generation, rank, names::BLOCKS);
            let places = names::of_rank(copy.job, copy.generation, rank, names::PLACES);
            [(blocks, Some(of.blocks_bytes)), (places, Some(of.places.stored_bytes))]
        };
        let job_file = (own(names::JOB_FILE), Some(copy.job_file.stored_bytes));
        let files = [(own(names::MANIFEST), None), job_file].into_iter();
        files.chain(copy.by_rank().flat_map(of_rank)).find_map(|(path, bytes)| {
            let found = self.entries.get(&path);
            let is_there = found.is_some_and(|found| bytes.is_none_or(|bytes| bytes == *found));
            (!is_there).then_some(path)
        })
    }

    /// Whether another copy builds upon this one.
    pub(crate) fn is_needed(&self, generation: GenerationId) -> bool {
        self.copies.iter().any(|copy| copy.upon.is_some_and(|upon| upon.generation == generation))
    }

    /// The chain below the next copy: the newest copy and all its bases, and which of these the rules choose; none if
    /// the next copy is to be whole. At most `whole_every` copies in a row are not, and their files take no more room
    /// together than the whole one, but for the last.
    pub(crate) fn ground(&self, rules: &Rules, whole_every: u32, key: Option<KeyName>) -> Option<Ground<'_>> {
        let with_key = self.copies.iter().rev().filter(|copy| copy.key == key);
        let chain = with_key.map(|copy| self.needs(copy)).find_map(Result::ok)?;
        let since_whole = since_whole(&chain);
        let whole_bytes = chain[chain.len() - 1].stored_bytes();
        if since_whole.copies >= whole_every || since_whole.bytes > whole_bytes {
            return None;
        }
        let count = |at: usize| (at as u64, u32::try_from(chain.len() - at).unwrap_or(u32::MAX));
        // Numbers are places in the chain here.
        let is_base = chain[0].becomes_base || chain[0].upon.is_none();
        let full = chain.len() as u64 - 1;
        let state = SeriesState { base: count(usize::from(!is_base)), full, newest: count(0) };
        match rules.choose(Some(&state)) {
            Choice::Full => None,
            Choice::Delta { base } => Some(Ground { base: usize::try_from(base).ok()?, chain, since_whole }),
        }
    }

    /// The newest `keep` copies that can be used, and their bases.
    pub(crate) fn kept(&self, keep: u32) -> BTreeSet<GenerationId> {
        let newest = self.copies.iter().rev().filter_map(|copy| self.needs(copy).ok());
        newest.take(keep.max(1) as usize).flatten().map(|copy| copy.generation).collect()
    }
}

/// The copies under a new copy.
pub(crate) struct Ground<'a> {
    /// The newest copy, and all that it needs.
    pub(crate) chain: Vec<&'a Copied>,
    /// The base of the new copy among them.
    pub(crate) base: usize,
    /// Copies and bytes written since the last of them, which is whole.
    pub(crate) since_whole: SinceWhole,
}

impl<'a> Ground<'a> {
    /// Of a copy that another host begins.
    pub(crate) fn of_order(chain: &'a [Copied], base: usize) -> Option<Ground<'a>> {
        let chain: Vec<&Copied> = chain.iter().collect();
        let since_whole = if chain.is_empty() { SinceWhole::default() } else { since_whole(&chain) };
        (base < chain.len()).then_some(Ground { chain, base, since_whole })
    }

    /// The same with a copy more.
    pub(crate) fn since_whole_with(&self, bytes: u64) -> SinceWhole {
        let SinceWhole { copies, bytes: before } = self.since_whole;
        SinceWhole { copies: copies.saturating_add(1), bytes: before.saturating_add(bytes) }
    }
}

/// Copies and bytes written since the whole copy at the end of a chain: from the newest one's record, or else counted from the chain.
fn since_whole(chain: &[&Copied]) -> SinceWhole {
    let seen = || SinceWhole {
        copies: u32::try_from(chain.len() - 1).unwrap_or(u32::MAX),
        bytes: chain[..chain.len() - 1].iter().fold(0, |sum, copy| sum.saturating_add(copy.stored_bytes())),
    };
    chain[0].since_whole.unwrap_or_else(seen)
}
