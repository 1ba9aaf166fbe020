//! Where the time of an encoding goes while it is under way: so that an encoding that times out can name the member
//! that it waited for.

use std::time::{Duration, Instant};

use ckpt_glue::names::NodeIndex;
use ckpt_glue::protection::Account;

/// The facts at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity {
    pub(crate) own: bool,
    pub(crate) limited: bool,
    /// By member.
    pub(crate) from: Vec<bool>,
}

/// Adds up the time of each activity.
pub(crate) struct Watch {
    begun: Instant,
    looked: Instant,
    seen: Activity,
    own: Duration,
    limited: Duration,
    from: Vec<Duration>,
}

impl Watch {
    pub(crate) fn new(now: Instant, members: usize) -> Watch {
        Watch {
            begun: now,
            looked: now,
            seen: Activity::default(),
            own: Duration::ZERO,
            limited: Duration::ZERO,
            from: vec![Duration::ZERO; members],
        }
    }

    /// Counts the time until now for the activities seen last; from now on `sight` counts.
    pub(crate) fn look(&mut self, now: Instant, sight: Activity) {
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        let seen = core::mem::replace(&mut self.seen, sight);
        let add = |so_far: &mut Duration, was_so: bool| {
            if was_so {
                *so_far += passed;
            }
        };
        add(&mut self.own, seen.own);
        add(&mut self.limited, seen.limited);
        for (so_far, was_so) in self.from.iter_mut().zip(seen.from) {
            add(so_far, was_so);
        }
    }

    /// The sums so far. `nodes`: the members' numbers.
    pub(crate) fn account(&mut self, now: Instant, nodes: &[u32], windows: Option<(u64, u64)>) -> Account {
        self.look(now, self.seen.clone());
        Account {
            elapsed: now.saturating_duration_since(self.begun),
            own: self.own,
            limited: self.limited,
            from: nodes
                .iter()
                .copied()
                .map(NodeIndex)
                .zip(self.from.iter().copied())
                .filter(|(_, time)| !time.is_zero())
                .collect(),
            windows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_so_counts_until_it_is_seen_to_be_over() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let sight = |own, from: [bool; 2]| Activity { own, limited: !own, from: from.to_vec() };
        let mut watch = Watch::new(start, 2);
        watch.look(at(1), sight(true, [false, true]));
        watch.look(at(3), sight(false, [false, true]));
        watch.look(at(4), sight(true, [false, false]));
        let seconds = Duration::from_secs;
        let account = watch.account(at(9), &[5, 8], Some((2, 7)));
        let expected = Account {
            elapsed: seconds(9),
            own: seconds(2 + 5),
            limited: seconds(1),
            from: vec![(NodeIndex(8), seconds(3))],
            windows: Some((2, 7)),
        };
        assert_eq!(account, expected);
    }
}
