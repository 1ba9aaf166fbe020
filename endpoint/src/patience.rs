//! How long a look waits for what it looks for, and when it gives the processor away.
//!
//! MPI libraries give the processor away between two looks that found nothing, and a message that comes meanwhile waits for half of that
//! time. So a look goes on for a while, if something is expected: the program has sent or posted something and nothing has come since. Libraries
//! also look when they wait for nothing. Where waiting does not help, because the peer is not running or has nothing to say, it is unlearned at once.

/// What a look may cost at most: one of a few loads costs 1, some 15 ns with the pause behind it. As long as an answer over shared memory
/// takes: a round trip and what two MPI libraries do in between.
const MOST: u32 = 256;

/// What a round costs that asks a socket.
const ROUND: u32 = 16;

/// By how much it falls with each look that was in vain.
const FALL: u32 = 4;

/// Completions that were there at once, after which waiting for them is tried again: what is in vain then costs each of them 80 ns.
const TRIED_AGAIN_AFTER: u32 = 64;

/// What is spent on looks in vain, in the same measure, before the processor is given away: some microseconds, in which a peer that runs has answered.
/// Programs wait by looking, and not all of them give it away by themselves: an MPICH that waits for a counter, or for a lock, keeps it until the
/// scheduler takes it, which is milliseconds. Where ranks outnumber processors, it may be the one that the answering peer waits for.
const VAIN_MOST: u32 = 256;

/// What one look counts for at most of that: the first one that waits in vain is followed by others, or by a program that gives the processor away.
const VAIN_LOOK_MOST: u32 = 64;

/// What has been learned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    most: u32,
    there_at_once: u32,
    /// Completions that may come, as far as is known: what was posted and has come to nothing is forgotten with the first look in vain.
    expected: u32,
    spent_in_vain: u32,
}

/// One look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spell {
    rest: u32,
    spent: u32,
    /// Whether it may go on at all.
    patient: bool,
    waited: bool,
}

impl Patience {
    pub(crate) fn begin(&self) -> Spell {
        let rest = if self.expected > 0 { self.most } else { 0 };
        Spell { rest, spent: 0, patient: rest > 0, waited: false }
    }

    /// A message has been sent: there may be an answer.
    pub(crate) fn sent(&mut self) {
        self.expected = self.expected.max(1);
    }

    /// A receive has been posted.
    pub(crate) fn posted(&mut self) {
        self.expected = self.expected.saturating_add(1);
    }

    /// So many completions have come.
    pub(crate) fn rewarded(&mut self, spell: Spell, completions: usize) {
        self.expected = self.expected.saturating_sub(u32::try_from(completions).unwrap_or(u32::MAX));
        self.spent_in_vain = 0;
        self.there_at_once = if spell.waited { 0 } else { self.there_at_once + 1 };
        if spell.waited || self.there_at_once >= TRIED_AGAIN_AFTER {
            (self.most, self.there_at_once) = (MOST, 0);
        }
    }

    /// Nothing has come. True: the processor should be given away.
    #[must_use]
    pub(crate) fn disappointed(&mut self, spell: Spell) -> bool {
        if spell.patient {
            self.most /= FALL;
            self.expected = 0;
        }
        self.spent_in_vain += spell.spent.min(VAIN_LOOK_MOST);
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

    /// Cheap looks after something was sent, until it is given up.
    fn looks(patience: &mut Patience) -> u32 {
        patience.sent();
        let mut spell = patience.begin();
        let mut looks = 1;
        while spell.goes_on(true) {
            looks += 1;
        }
        let _ = patience.disappointed(spell);
        looks
    }

    fn learned() -> Patience {
        Patience { most: MOST, ..Patience::default() }
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
            patience.rewarded(patience.begin(), 1);
            assert!((1..most).all(|_| !in_vain(&mut patience)), "it counts anew");
        }
    }

    #[test]
    fn waiting_that_is_not_worth_it_is_unlearned_and_now_and_then_tried_again() {
        let mut patience = Patience::default();
        assert_eq!(looks(&mut patience), 1);
        for _ in 0..TRIED_AGAIN_AFTER {
            assert_eq!(patience.most, 0);
            patience.rewarded(patience.begin(), 1);
        }
        let wasted: u32 = (0..5).map(|_| looks(&mut patience) - 1).sum();
        assert_eq!((wasted, looks(&mut patience)), (MOST + MOST / 4 + MOST / 16 + MOST / 64 + MOST / 256, 1));
        for _ in 0..TRIED_AGAIN_AFTER {
            patience.rewarded(patience.begin(), 1);
        }
        assert_eq!(looks(&mut patience), MOST + 1);
        patience.sent();
        let mut spell = patience.begin();
        assert!(spell.goes_on(true));
        patience.rewarded(spell, 1);
        assert_eq!(looks(&mut patience), MOST + 1, "it was worth it");
        let mut patience = learned();
        patience.sent();
        let mut spell = patience.begin();
        assert_eq!((0..MOST).filter(|_| spell.goes_on(false)).count(), (MOST / ROUND) as usize);
    }

    #[test]
    fn who_expects_nothing_does_not_wait() {
        let mut patience = learned();
        let waits = |patience: &Patience| patience.begin().goes_on(true);
        assert!(!waits(&patience));
        patience.sent();
        assert!(waits(&patience));
        patience.posted();
        patience.sent();
        patience.rewarded(patience.begin(), 1);
        assert!(waits(&patience), "two may come, and one has");
        patience.rewarded(patience.begin(), 3);
        assert!(!waits(&patience));
        assert!(!patience.disappointed(patience.begin()));
        patience.posted();
        assert_eq!(patience.begin().rest, MOST, "nothing was expected, and nothing is learned from that");
        patience.posted();
        assert!(!patience.disappointed(patience.begin()));
        assert!(!waits(&patience), "what was posted for later does not count for ever");
    }
}
