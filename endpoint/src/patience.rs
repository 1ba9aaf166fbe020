//! How long a look waits for what it looks for, and when it gives the processor away.
//!
//! MPI libraries give the processor away between two looks that found nothing, and a message that comes meanwhile waits for half of that
//! time. So a look goes on for a while. Where that does not help, because the peer is not running or has nothing to say, it is unlearned at once.

/// What a look may cost at most: one of a few loads costs 1, some 15 ns with the pause behind it.
const MOST: u32 = 64;

/// What a round costs that asks a socket.
const ROUND: u32 = 16;

/// Completions that were there at once, after which waiting for them is tried again.
const TRIED_AGAIN_AFTER: u32 = 16;

/// What is spent on looks in vain, in the same measure, before the processor is given away: some microseconds, in which a peer that runs has answered.
/// Programs wait by looking, and not all of them give it away by themselves: an MPICH that waits for a counter, or for a lock, keeps it until the
/// scheduler takes it, which is milliseconds. Where ranks outnumber processors, it may be the one that the answering peer waits for.
const VAIN_MOST: u32 = 256;

/// What has been learned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    most: u32,
    there_at_once: u32,
    spent_in_vain: u32,
}

/// One look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spell {
    rest: u32,
    spent: u32,
    waited: bool,
}

impl Patience {
    pub(crate) fn begin(&self) -> Spell {
        Spell { rest: self.most, spent: 0, waited: false }
    }

    /// Something has come.
    pub(crate) fn rewarded(&mut self, spell: Spell) {
        self.there_at_once = if spell.waited { 0 } else { self.there_at_once + 1 };
        self.spent_in_vain = 0;
        if spell.waited || self.there_at_once >= TRIED_AGAIN_AFTER {
            *self = Patience { most: MOST, ..Patience::default() };
        }
    }

    /// Nothing has come. True: the processor should be given away.
    #[must_use]
    pub(crate) fn disappointed(&mut self, spell: Spell) -> bool {
        self.most /= 2;
        self.spent_in_vain += spell.spent;
        let over = self.spent_in_vain >= VAIN_MOST;
        if over {
            self.spent_in_vain = 0;
        }
        over
    }
}

impl Spell {
    /// Whether to look once more after a look that was `cheap`, or was not.
    pub(crate) fn goes_on(&mut self, cheap: bool) -> bool {
        let cost = if cheap { 1 } else { ROUND };
        self.spent += cost;
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
        let _ = patience.disappointed(spell);
        looks
    }

    #[test]
    fn the_processor_is_given_away_after_looks_in_vain() {
        for (cheap, most) in [(true, VAIN_MOST), (false, VAIN_MOST / ROUND)] {
            let mut patience = Patience::default();
            let in_vain = |patience: &mut Patience| {
                let mut spell = patience.begin();
                assert!(!spell.goes_on(cheap));
                patience.disappointed(spell)
            };
            for _ in 0..3 {
                assert!((1..most).all(|_| !in_vain(&mut patience)));
                assert!(in_vain(&mut patience));
            }
            assert!(!in_vain(&mut patience));
            patience.rewarded(patience.begin());
            assert!((1..most).all(|_| !in_vain(&mut patience)), "it counts anew");
        }
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
        let mut spell = Patience { most: MOST, ..Patience::default() }.begin();
        assert_eq!((0..MOST).filter(|_| spell.goes_on(false)).count(), (MOST / ROUND) as usize);
    }
}
