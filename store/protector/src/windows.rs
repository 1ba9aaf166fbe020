//! How an encoding is divided into windows, so that empty cycles cost nothing.
//!
//! Every member has reported for each cycle how many of its pages may have changed ([`Share`]). From that all compute
//! the same windows: the largest share is about equal in all windows, wherever the pages lie, so that few changes make
//! few windows. And every member knows which members have nothing in a window, and does not wait for those.

use std::ops::Range;

use crate::limits::WINDOWS_MAX;

/// How many pages of a member may have changed, of the cycles from 0 on, run by run: cycles, and pages of each of them. Behind the last run nothing has.
pub(crate) type Share = Vec<(u64, u64)>;

/// All pages of a share.
pub(crate) fn pages_of(share: &Share) -> u64 {
    share.iter().map(|(cycles, pages)| cycles * pages).sum()
}

/// The windows of an encoding.
pub(crate) struct Windows {
    members: usize,
    /// Behind the last cycle of each; it begins where the one before it ends.
    ends: Vec<u64>,
    /// By window, then by member: it has something there.
    busy: Vec<bool>,
}

impl Windows {
    /// The windows of members with these shares; `pages_max`: limit of a member's pages in one of them, no less than in a cycle. `None`: more than
    /// [`WINDOWS_MAX`].
    pub(crate) fn new(shares: &[impl AsRef<[(u64, u64)]>], pages_max: u64) -> Option<Windows> {
        let mut windows = Windows { members: shares.len(), ends: Vec::new(), busy: Vec::new() };
        let mut runs: Vec<_> = shares.iter().map(|share| share.as_ref().iter().copied()).collect();
        let mut now: Vec<(u64, u64)> = vec![(0, 0); shares.len()];
        let (mut at, mut gathered) = (0, vec![0; shares.len()]);
        loop {
            for (now, runs) in now.iter_mut().zip(&mut runs).filter(|(now, _)| now.0 == 0) {
                *now = runs.find(|(cycles, _)| *cycles > 0).unwrap_or_default();
            }
            let Some(alike) = now.iter().map(|(cycles, _)| *cycles).filter(|cycles| *cycles > 0).min() else {
                break;
            };
            let room =
                |(gathered, (_, pages)): (&u64, &(u64, u64))| (pages_max - gathered).checked_div(*pages);
            let fits = gathered.iter().zip(&now).filter_map(room).min().unwrap_or(alike);
            if fits == 0 {
                if windows.ends.len() == WINDOWS_MAX {
                    return None;
                }
                windows.close(at, &mut gathered);
                continue;
            }
            let count = alike.min(fits);
            for (gathered, (cycles, pages)) in gathered.iter_mut().zip(&mut now) {
                *gathered += count * *pages;
                *cycles = cycles.saturating_sub(count);
                // A run that is over has no more pages.
                *pages = if *cycles == 0 { 0 } else { *pages };
            }
            at += count;
        }
        if gathered.iter().any(|pages| *pages > 0) {
            windows.close(at, &mut gathered);
        }
        (windows.ends.len() <= WINDOWS_MAX).then_some(windows)
    }

    fn close(&mut self, at: u64, gathered: &mut [u64]) {
        self.ends.push(at);
        self.busy.extend(gathered.iter().map(|pages| *pages > 0));
        gathered.fill(0);
    }

    pub(crate) fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    /// The cycles of a window, if there is one of that number.
    pub(crate) fn cycles_of(&self, window: u64) -> Option<Range<u64>> {
        let at = usize::try_from(window).ok()?;
        let end = *self.ends.get(at)?;
        Some(at.checked_sub(1).map_or(0, |before| self.ends[before])..end)
    }

    /// Whether a member has something in a window.
    pub(crate) fn is_busy(&self, window: u64, member: usize) -> bool {
        let at = usize::try_from(window).expect("windows are in memory");
        self.busy[at * self.members + member]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(shares: &[Share]) -> Vec<(Range<u64>, Vec<bool>)> {
        let windows = Windows::new(shares, 12).expect("few windows");
        let busy = |window| (0..shares.len()).map(|member| windows.is_busy(window, member)).collect();
        (0..windows.count())
            .map(|window| (windows.cycles_of(window).expect("a window"), busy(window)))
            .collect()
    }

    #[test]
    fn what_is_whole_makes_windows_of_as_many_cycles() {
        let expected = [(0..3, vec![true, true]), (3..6, vec![true, true]), (6..8, vec![true, false])];
        assert_eq!(all(&[vec![(8, 4)], vec![(6, 4)]]), expected);
    }

    #[test]
    fn what_makes_too_many_is_refused_before_it_takes_memory() {
        let fits: Vec<Share> = vec![vec![(WINDOWS_MAX as u64, 12)]];
        assert_eq!(Windows::new(&fits, 12).expect("as many as may be").count(), WINDOWS_MAX as u64);
        let claims: [Share; 2] = [vec![(1 << 34, 12)], vec![]];
        assert!(Windows::new(&claims, 12).is_none());
    }

    #[test]
    fn what_is_empty_makes_none() {
        assert_eq!(all(&[vec![], vec![(1 << 40, 0)]]), []);
        // Far behind: one window, in which one has something.
        assert_eq!(all(&[vec![(1 << 40, 0), (2, 4)], vec![]]), [(0..(1 << 40) + 2, vec![true, false])]);
    }

    #[test]
    fn few_pages_in_many_cycles_make_few_windows() {
        // One page in each of 24 cycles of the one, twelve in the last cycle of the other.
        let found = all(&[vec![(24, 1)], vec![(23, 0), (1, 12)]]);
        assert_eq!(found, [(0..12, vec![true, false]), (12..24, vec![true, true])]);
        // Data that does not fit any more begins the next one.
        let found = all(&[vec![(2, 4), (1, 12), (1, 4)]]);
        assert_eq!(found, [(0..2, vec![true]), (2..3, vec![true]), (3..4, vec![true])]);
    }
}
