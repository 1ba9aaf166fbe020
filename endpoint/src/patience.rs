//! How long a look waits for what it looks for.
//!
//! MPI libraries give the processor away between two looks that found nothing, and a message that comes meanwhile waits for half of that
//! time. So a look goes on for a while. Where that does not help, because the peer is not running or has nothing to say, it is unlearned at once.

/// What a look may cost at most: one of a few loads costs 1, some 15 ns with the pause behind it.
const MOST: u32 = 64;

/// What a round costs that asks a socket.
const ROUND: u32 = 16;

/// Completions that were there at once, after which waiting for them is tried again.
const TRIED_AGAIN_AFTER: u32 = 16;

/// What has been learned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    most: u32,
    there_at_once: u32,
}

/// One look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spell {
    rest: u32,
    waited: bool,
}

impl Patience {
    pub(crate) fn begin(&self) -> Spell {
        Spell { rest: self.most, waited: false }
    }

    /// Something has come.
    pub(crate) fn rewarded(&mut self, spell: Spell) {
        self.there_at_once = if spell.waited { 0 } else { self.there_at_once + 1 };
        if spell.waited || self.there_at_once >= TRIED_AGAIN_AFTER {
            *self = Patience { most: MOST, there_at_once: 0 };
        }
    }

    /// Nothing has come.
    pub(crate) fn disappointed(&mut self) {
        self.most /= 2;
    }
}

impl Spell {
    /// Whether to look once more after a look that was `cheap`, or was not.
    pub(crate) fn goes_on(&mut self, cheap: bool) -> bool {
        let cost = if cheap { 1 } else { ROUND };
        self.waited = self.rest >= cost;
        self.rest = self.rest.saturating_sub(cost);
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cheap looks until it is given up.
    fn looks(patience: &mut Patience) -> u32 {
        let mut spell = patience.begin();
        let mut looks = 1;
        while spell.goes_on(true) {
            looks += 1;
        }
        patience.disappointed();
        looks
    }

    #[test]
    fn waiting_that_is_not_worth_it_is_unlearned_and_now_and_then_tried_again() {
        let mut patience = Patience::default();
        assert_eq!(looks(&mut patience), 1);
        for _ in 0..TRIED_AGAIN_AFTER {
            assert_eq!(patience.most, 0);
            patience.rewarded(patience.begin());
        }
        let wasted: u32 = (0..7).map(|_| looks(&mut patience) - 1).sum();
        assert_eq!((wasted, looks(&mut patience)), (2 * MOST - 1, 1));
        for _ in 0..TRIED_AGAIN_AFTER {
            patience.rewarded(patience.begin());
        }
        assert_eq!(looks(&mut patience), MOST + 1);
        let mut spell = patience.begin();
        assert!(spell.goes_on(true));
        patience.rewarded(spell);
        assert_eq!(looks(&mut patience), MOST + 1, "it was worth it");
        let mut spell = Patience { most: MOST, there_at_once: 0 }.begin();
        assert_eq!((0..MOST).filter(|_| spell.goes_on(false)).count(), (MOST / ROUND) as usize);
    }
}
