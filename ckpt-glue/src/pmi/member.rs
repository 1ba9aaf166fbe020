//! The speakers of PMI.

use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};
use transport::Rank;

use crate::limits::PMI_NAMED_MAX;

/// A process that speaks PMI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Member {
    /// 0 for a rank of the job, else which spawn of the job it comes from.
    pub world: u32,
    /// Its rank in there.
    pub rank: Rank,
}

impl Member {
    /// A rank of the job.
    #[must_use]
    pub fn of_job(rank: Rank) -> Member {
        Member { world: 0, rank }
    }

    /// The rank of the job that it is, if it was not spawned.
    #[must_use]
    pub fn job_rank(self) -> Option<Rank> {
        (self.world == 0).then_some(self.rank)
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.world {
            0 => write!(f, "rank {}", self.rank),
            world => write!(f, "rank {} of spawned world {world}", self.rank),
        }
    }
}

/// Some ranks of a world; a report names the first of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranks(pub Vec<Rank>);

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank" } else { "ranks" })?;
        for (at, rank) in self.0.iter().take(PMI_NAMED_MAX).enumerate() {
            write!(f, "{} {rank}", if at == 0 { "" } else { "," })?;
        }
        match self.0.len().saturating_sub(PMI_NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
