//! Sets of pages, as ranges of addresses.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges without overlap; neighbours are one range.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageSet {
    /// First address, and the first one after it.
    ranges: BTreeMap<u64, u64>,
}

impl PageSet {
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((first, last)) =
            self.ranges.range(..=start).next_back().map(|(first, last)| (*first, *last))
            && last >= start
        {
            if last >= end {
                return;
            }
            start = first;
        }
        while let Some((first, last)) =
            self.ranges.range(start..=end).next().map(|(first, last)| (*first, *last))
        {
            end = end.max(last);
            self.ranges.remove(&first);
        }
        self.ranges.insert(start, end);
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        loop {
            let next = self.overlapping(range.start, range.end).next();
            let Some(Range { start: first, end: last }) = next else { break };
            self.ranges.remove(&first);
            if first < range.start {
                self.ranges.insert(first, range.start);
            }
            if last > range.end {
                self.ranges.insert(range.end, last);
            }
        }
    }

    /// The ranges of the set that have a part of `from..to`, whole, rising.
    fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = Range<u64>> {
        let before = self.ranges.range(..from).next_back().filter(|(_, end)| **end > from);
        let first = before.map_or(from, |(first, _)| *first);
        self.ranges.range(first..to.max(first)).map(|(start, end)| *start..*end)
    }

    /// The parts of `range` that are in the set, rising.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let parts = self.overlapping(range.start, range.end);
        parts.map(move |part| part.start.max(range.start)..part.end.min(range.end))
    }

    /// The parts of `range` that are not in the set, rising.
    pub(crate) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        for part in self.within(range.clone()) {
            if at < part.start {
                missing.push(at..part.start);
            }
            at = part.end;
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// All ranges, rising.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.ranges().map(|range| range.end - range.start).sum()
    }
}

/// Quick for many ranges that rise.
impl FromIterator<Range<u64>> for PageSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> PageSet {
        let mut ranges: Vec<(u64, u64)> = ranges
            .into_iter()
            .filter(|range| range.start < range.end)
            .map(|range| (range.start, range.end))
            .collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let is_joined = next.0 <= last.1;
            if is_joined {
                last.1 = last.1.max(next.1);
            }
            is_joined
        });
        PageSet { ranges: ranges.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_has_what_was_inserted_and_not_removed(
            changes in proptest::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 0..60),
            asked in (0u64..40, 0u64..20),
        ) {
            let mut set = PageSet::default();
            let mut plain = [false; 64];
            for (is_in, start, length) in changes {
                let range = start..start + length;
                plain[start as usize..(start + length) as usize].fill(is_in);
                if is_in { set.insert(range) } else { set.remove(range) }
            }
            let count = plain.iter().filter(|is_in| **is_in).count() as u64;
            prop_assert_eq!(set.bytes(), count);
            let ranges: Vec<Range<u64>> = set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
            let turned = ranges.iter().rev().flat_map(|range| [range.clone(), range.start..range.start + 1]);
            prop_assert_eq!(turned.collect::<PageSet>().ranges().collect::<Vec<_>>(), ranges);
            let asked = asked.0..asked.0 + asked.1;
            let mut found = [false; 64];
            for part in set.within(asked.clone()) {
                found[part.start as usize..part.end as usize].fill(true);
            }
            for part in set.missing(asked.clone()) {
                for at in part {
                    prop_assert!(!found[at as usize] && !plain[at as usize]);
                    found[at as usize] = true;
                }
            }
            for at in 0..64u64 {
                prop_assert_eq!(found[at as usize], asked.contains(&at), "{}", at);
            }
        }
    }
}
