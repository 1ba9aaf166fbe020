//! How long a poll spins for completions, and when it yields the processor.
//!
//! MPI libraries give the processor away between two looks that found nothing, and a message that comes
//! meanwhile waits for half of that time. So a look goes on for a while, if something is expected: the
//! program has sent or posted something and nothing has come since. Libraries also look when they wait for
//! nothing. Where waiting does not help, because the peer is not running or has nothing to send, it is
//! unlearned at once.

/// The most that a look may cost: one of a few loads costs 1, some 15 ns with the pause behind it. As long as
/// an answer over shared memory takes: a round trip and the work of two MPI libraries in between.
const MOST: u32 = 256;

/// The cost of a round that asks a socket.
const ROUND: u32 = 16;

/// By how much it falls with each look that was in vain.
const FALL: u32 = 4;

/// Completions that were there at once, after which waiting for them is tried again: a wait in vain then
/// costs each of them 80 ns.
const TRIED_AGAIN_AFTER: u32 = 64;

/// The cost of vain looks, in the same measure, before the processor is given away: some microseconds, in
/// which a running peer has answered. Programs wait by looking, and not all of them give the processor away.
/// An MPICH that waits for a counter or a lock keeps it for milliseconds, until the scheduler takes it. Where
/// ranks outnumber processors, the answering peer may wait for that very processor.
const VAIN_MOST: u32 = 256;

/// The most of it that one look counts for: the first vain look is followed by others, or by a program that
/// gives the processor away.
const VAIN_LOOK_MOST: u32 = 64;

/// The learned statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpinPolicy {
    most: u32,
    there_at_once: u32,
    /// Completions that may come, as far as is known: operations that ended without a completion are forgotten with the
    /// first look in vain.
    expected: u32,
    spent_in_vain: u32,
}

/// One look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinAttempt {
    rest: u32,
    spent: u32,
    /// Whether it may go on at all.
    may_wait: bool,
    waited: bool,
}

impl SpinPolicy {
    pub(crate) fn begin(&self) -> SpinAttempt {
        let rest = if self.expected > 0 { self.most } else { 0 };
        SpinAttempt { rest, spent: 0, may_wait: rest > 0, waited: false }
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
    pub(crate) fn record_hit(&mut self, attempt: SpinAttempt, completions: usize) {
        self.expected = self.expected.saturating_sub(u32::try_from(completions).unwrap_or(u32::MAX));
        self.spent_in_vain = 0;
        self.there_at_once = if attempt.waited { 0 } else { self.there_at_once + 1 };
        if attempt.waited || self.there_at_once >= TRIED_AGAIN_AFTER {
            (self.most, self.there_at_once) = (MOST, 0);
        }
    }

    /// Nothing has come. True: the processor should be given away.
    #[must_use]
    pub(crate) fn record_miss(&mut self, attempt: SpinAttempt) -> bool {
        if attempt.may_wait {
            self.most /= FALL;
            self.expected = 0;
        }
        self.spent_in_vain += attempt.spent.min(VAIN_LOOK_MOST);
        let over = self.spent_in_vain >= VAIN_MOST;
        if over {
            self.spent_in_vain = 0;
        }
        over
    }
}

impl SpinAttempt {
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
    fn looks(spin_policy: &mut SpinPolicy) -> u32 {
        spin_policy.sent();
        let mut attempt = spin_policy.begin();
        let mut looks = 1;
        while attempt.goes_on(true) {
            looks += 1;
        }
        let _ = spin_policy.record_miss(attempt);
        looks
    }

    fn learned() -> SpinPolicy {
        SpinPolicy { most: MOST, ..SpinPolicy::default() }
    }

    #[test]
    fn the_processor_is_given_away_after_looks_in_vain() {
        for (cheap, most) in [(true, VAIN_MOST), (false, VAIN_MOST / ROUND)] {
            let mut spin_policy = SpinPolicy::default();
            let in_vain = |spin_policy: &mut SpinPolicy| {
                let mut attempt = spin_policy.begin();
                assert!(!attempt.goes_on(cheap));
                spin_policy.record_miss(attempt)
            };
            for _ in 0..3 {
                assert!((1..most).all(|_| !in_vain(&mut spin_policy)));
                assert!(in_vain(&mut spin_policy));
            }
            assert!(!in_vain(&mut spin_policy));
            spin_policy.record_hit(spin_policy.begin(), 1);
            assert!((1..most).all(|_| !in_vain(&mut spin_policy)), "it counts anew");
        }
    }

    #[test]
    fn waiting_that_is_not_worth_it_is_unlearned_and_now_and_then_tried_again() {
        let mut spin_policy = SpinPolicy::default();
        assert_eq!(looks(&mut spin_policy), 1);
        for _ in 0..TRIED_AGAIN_AFTER {
            assert_eq!(spin_policy.most, 0);
            spin_policy.record_hit(spin_policy.begin(), 1);
        }
        let wasted: u32 = (0..5).map(|_| looks(&mut spin_policy) - 1).sum();
        assert_eq!(
            (wasted, looks(&mut spin_policy)),
            (MOST + MOST / 4 + MOST / 16 + MOST / 64 + MOST / 256, 1)
        );
        for _ in 0..TRIED_AGAIN_AFTER {
            spin_policy.record_hit(spin_policy.begin(), 1);
        }
        assert_eq!(looks(&mut spin_policy), MOST + 1);
        spin_policy.sent();
        let mut attempt = spin_policy.begin();
        assert!(attempt.goes_on(true));
        spin_policy.record_hit(attempt, 1);
        assert_eq!(looks(&mut spin_policy), MOST + 1, "it was worth it");
        let mut spin_policy = learned();
        spin_policy.sent();
        let mut attempt = spin_policy.begin();
        assert_eq!((0..MOST).filter(|_| attempt.goes_on(false)).count(), (MOST / ROUND) as usize);
    }

    #[test]
    fn who_expects_nothing_does_not_wait() {
        let mut spin_policy = learned();
        let waits = |spin_policy: &SpinPolicy| spin_policy.begin().goes_on(true);
        assert!(!waits(&spin_policy));
        spin_policy.sent();
        assert!(waits(&spin_policy));
        spin_policy.posted();
        spin_policy.sent();
        spin_policy.record_hit(spin_policy.begin(), 1);
        assert!(waits(&spin_policy), "two may come, and one has");
        spin_policy.record_hit(spin_policy.begin(), 3);
        assert!(!waits(&spin_policy));
        assert!(!spin_policy.record_miss(spin_policy.begin()));
        spin_policy.posted();
        assert_eq!(spin_policy.begin().rest, MOST, "nothing was expected, and nothing is learned from that");
        spin_policy.posted();
        assert!(!spin_policy.record_miss(spin_policy.begin()));
        assert!(!waits(&spin_policy), "what was posted for later does not count for ever");
    }
}
