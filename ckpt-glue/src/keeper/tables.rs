//! How full a keeper's tables are: for judges, which compare them with their bounds.

use super::gather::{Images, Points};
use super::waits::Waits;
use super::{Keeper, State};
use crate::limits::{ENTRIES_MAX, PORTS_PER_RANK_MAX, WAIT_REPORTS_MAX};

/// A table, its entries and its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    /// Its contents.
    pub name: &'static str,
    /// Entries now.
    pub entries: usize,
    /// Entries at most.
    pub entries_max: usize,
}

impl Keeper {
    /// The tables of the life that is held or being ended; nothing without one.
    #[must_use]
    pub fn tables(&self) -> Option<[Table; 5]> {
        let (State::Holding(held) | State::Ending { held, .. }) = &self.state else { return None };
        let below = usize::try_from(held.ranks_below).unwrap_or(usize::MAX);
        let table = |name, entries, entries_max| Table { name, entries, entries_max };
        Some([
            table("ranks", held.ranks.len(), held.layout.ranks_of(self.node).len()),
            table(
                "ports that have come up",
                held.registrations.waiting_len(),
                below.saturating_mul(PORTS_PER_RANK_MAX).min(ENTRIES_MAX),
            ),
            table("reports of images", held.images.as_ref().map_or(0, Images::reported_len), below),
            table("answers to a question", held.points.as_ref().map_or(0, Points::answered_len), below),
            table("reports of waits", held.waits.as_ref().map_or(0, Waits::waiting_len), WAIT_REPORTS_MAX),
        ])
    }
}
