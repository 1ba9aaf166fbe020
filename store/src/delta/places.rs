//! Places of blocks.

/// Places that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first one.
    pub first: u64,
    /// How many.
    pub blocks: u64,
}

/// Bytes of a run in a file.
pub(super) const RUN_BYTES: usize = 16;

/// Above every place: blocks of the least length fill 2^61 bytes below it.
pub(super) const PLACE_MAX: u64 = 1 << 52;

/// A set of places, as runs: rising, none beside another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Places {
    runs: Vec<Run>,
    /// Of each run, how many places come before it.
    before: Vec<u64>,
    blocks: u64,
}

impl Places {
    /// None.
    #[must_use]
    pub fn new() -> Places {
        Places::default()
    }

    /// The places `0..blocks`.
    #[must_use]
    pub fn first(blocks: u64) -> Places {
        let mut places = Places::new();
        places.push(Run { first: 0, blocks });
        places
    }

    /// Adds a run above all others.
    ///
    /// # Panics
    /// If it is not above them, or beyond the last place.
    pub fn push(&mut self, run: Run) {
        if run.blocks == 0 {
            return;
        }
        assert!(run.first >= self.end(), "places rise");
        assert!(run.first.checked_add(run.blocks).is_some_and(|end| end <= PLACE_MAX), "places are bounded");
        match self.runs.last_mut().filter(|last| last.first + last.blocks == run.first) {
            Some(last) => last.blocks += run.blocks,
            None => {
                self.runs.push(run);
                self.before.push(self.blocks);
            }
        }
        self.blocks += run.blocks;
    }

    /// The first place above all.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(0, |last| last.first + last.blocks)
    }

    /// How many.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// How many places come before `place`, if it is one of them.
    #[must_use]
    pub fn index_of(&self, place: u64) -> Option<u64> {
        let run = self.runs.partition_point(|run| run.first <= place).checked_sub(1)?;
        let offset = place - self.runs[run].first;
        (offset < self.runs[run].blocks).then(|| self.before[run] + offset)
    }

    /// The place before which there are `index` others.
    #[must_use]
    pub fn nth(&self, index: u64) -> Option<u64> {
        let run = self.before.partition_point(|before| *before <= index).checked_sub(1)?;
        let offset = index - self.before[run];
        (offset < self.runs[run].blocks).then(|| self.runs[run].first + offset)
    }

    /// All, rising.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(|run| run.first..run.first + run.blocks)
    }

    pub(super) fn emit(&self) -> impl Iterator<Item = [u8; RUN_BYTES]> {
        self.runs.iter().map(|run| {
            let mut bytes = [0; RUN_BYTES];
            bytes[..8].copy_from_slice(&run.first.to_le_bytes());
            bytes[8..].copy_from_slice(&run.blocks.to_le_bytes());
            bytes
        })
    }

    /// Runs as a file has them; `None` if they do not rise, or there are more than `blocks_max` places.
    pub(super) fn parse(bytes: &[u8], blocks_max: u64) -> Option<Places> {
        let mut places = Places::new();
        let (runs, rest) = bytes.as_chunks::<RUN_BYTES>();
        for run in runs {
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|n| run[at + n]));
            let run = Run { first: word(0), blocks: word(8) };
            let end = run.first.checked_add(run.blocks).filter(|end| *end <= PLACE_MAX);
            let rises = places.runs.is_empty() || run.first > places.end();
            if end.is_none() || run.blocks == 0 || !rises || run.blocks > blocks_max - places.blocks {
                return None;
            }
            places.push(run);
        }
        rest.is_empty().then_some(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_by_number_and_by_place() {
        let mut places = Places::new();
        for (first, blocks) in [(3, 2), (5, 1), (9, 0), (10, 4)] {
            places.push(Run { first, blocks });
        }
        assert_eq!(places.runs().len(), 2, "neighbours are one run");
        let all: Vec<u64> = places.iter().collect();
        assert_eq!(all, [3, 4, 5, 10, 11, 12, 13]);
        for place in 0..20 {
            let index = all.iter().position(|found| *found == place).map(|index| index as u64);
            assert_eq!(places.index_of(place), index);
        }
        for index in 0..10u64 {
            assert_eq!(places.nth(index), all.get(usize::try_from(index).unwrap()).copied());
        }
        let bytes: Vec<u8> = places.emit().flatten().collect();
        assert_eq!(Places::parse(&bytes, 7), Some(places));
        assert_eq!(Places::parse(&bytes, 6), None);
    }

    #[test]
    fn runs_that_do_not_rise_are_refused() {
        let bytes = |runs: &[(u64, u64)]| -> Vec<u8> {
            runs.iter()
                .flat_map(|(first, blocks)| [first.to_le_bytes(), blocks.to_le_bytes()].concat())
                .collect()
        };
        for runs in [
            &[(5, 1), (4, 1)][..],
            &[(5, 1), (5, 1)],
            &[(5, 1), (6, 1)],
            &[(5, 0)],
            &[(PLACE_MAX, 1)],
            &[(u64::MAX, 2)],
        ] {
            assert_eq!(Places::parse(&bytes(runs), 100), None, "{runs:?}");
        }
        assert_eq!(Places::parse(&[0; 17], 100), None);
    }
}
