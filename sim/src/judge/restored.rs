//! Restored state equals committed state, and recovery goes back to the newest commit.

use super::{Generation, Violation};

/// The judge: it knows the digest of every image as it was captured, and every commit record that became durable.
#[derive(Debug)]
pub struct RestoredJudge {
    ranks: u32,
    images: Vec<(u32, Generation, u64)>,
    committed: Vec<Generation>,
    /// The power went out while this commit record was being written: it is there or not, for good.
    perhaps: Option<Generation>,
    /// Generation that the current life runs from, per rank that has been restored in it.
    current: Vec<Option<(u32, Option<Generation>)>>,
}

impl RestoredJudge {
    /// Empty books for a job of `ranks` ranks.
    #[must_use]
    pub fn new(ranks: u32) -> RestoredJudge {
        let current = vec![None; usize::try_from(ranks).unwrap_or(0)];
        RestoredJudge { ranks, images: Vec::new(), committed: Vec::new(), perhaps: None, current }
    }

    /// `rank` captured an image of this content.
    pub fn captured(&mut self, rank: u32, generation: Generation, digest: u64) {
        self.images.push((rank, generation, digest));
    }

    /// The commit record of `generation` is durable.
    ///
    /// # Errors
    /// If a rank never captured an image of it, or it was committed before.
    pub fn committed(&mut self, generation: Generation) -> Result<(), Violation> {
        if self.committed.contains(&generation) {
            return Err(Violation::CommittedTwice { generation });
        }
        self.committed.push(generation);
        let missing =
            (0..self.ranks).find(|rank| !self.images.iter().any(|(r, g, _)| r == rank && *g == generation));
        match missing {
            Some(rank) => Err(Violation::CommittedWithoutImage { generation, rank }),
            None => Ok(()),
        }
    }

    /// The power went out while the commit record of `generation` was being written.
    pub fn perhaps_committed(&mut self, generation: Generation) {
        self.perhaps = Some(generation);
    }

    /// A life is about to begin from `restore`: this settles whether a commit record in doubt was written. True if it was.
    pub fn decided(&mut self, restore: Option<Generation>) -> bool {
        let perhaps = self.perhaps.take();
        perhaps.is_some() && perhaps == restore
    }

    /// Generations committed so far.
    #[must_use]
    pub fn commits(&self) -> &[Generation] {
        &self.committed
    }

    /// The commit that a recovery has to go back to.
    #[must_use]
    pub fn newest(&self) -> Option<Generation> {
        self.committed.last().copied()
    }

    /// `rank` runs in life number `life` from an image of `generation` with content `digest`; `None`: from its start.
    ///
    /// # Errors
    /// If that is not the content of its capture, not committed, older than the newest commit, or not the generation of the life's other ranks.
    pub fn restored(
        &mut self,
        rank: u32,
        life: u32,
        generation: Option<(Generation, u64)>,
    ) -> Result<(), Violation> {
        let from = generation.map(|(generation, _)| generation);
        if let Some((generation, digest)) = generation {
            if !self.committed.contains(&generation) {
                return Err(Violation::RestoredUncommitted { rank, generation });
            }
            let image = self.images.iter().rfind(|(r, g, _)| *r == rank && *g == generation);
            if image.is_none_or(|(_, _, captured)| *captured != digest) {
                return Err(Violation::RestoredOther { rank, generation });
            }
        }
        if from != self.newest() {
            return Err(Violation::CommitForgotten { rank, restored: from, newest: self.newest() });
        }
        let at = usize::try_from(rank).unwrap_or(usize::MAX);
        if let Some(current) = self.current.get_mut(at) {
            *current = Some((life, from));
        }
        let other = self.current.iter().flatten().find(|(l, g)| *l == life && *g != from);
        match other {
            Some((_, other)) => Err(Violation::RestoredMixed { life, one: from, other: *other }),
            None => Ok(()),
        }
    }
}
