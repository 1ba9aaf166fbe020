//! The time limit of a job: a last checkpoint is durable before it, then the job ends.

use core::time::Duration;

use transport::Instant;

use super::Unsaved;
use crate::limits::{TIME_LIMIT_LEAD_MIN, TIME_LIMIT_MARGIN, TIME_LIMIT_TRIES};

/// ```text
///   Waiting --due, and all ranks run--> Saving --committed--> Saved: the job ends
///      ^                                   |
///      +--- was abandoned, life over ----+            (anywhere) --time over--> the job ends
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The last checkpoint is not asked for before this instant.
    Waiting(Instant),
    Saving,
    Saved,
}

/// When the last checkpoint begins, and its outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimit {
    ends: Instant,
    limit: Duration,
    /// Time that a checkpoint may take.
    timeout: Duration,
    /// The duration of the longest checkpoint since the job was started: deltas are quick, and the last one may be of
    /// all pages again.
    longest: Duration,
    state: State,
    failed: Option<Unsaved>,
}

impl TimeLimit {
    pub(super) fn new(limit: Duration, timeout: Duration, now: Instant) -> TimeLimit {
        let state = State::Waiting(now);
        TimeLimit { ends: now + limit, limit, timeout, longest: Duration::ZERO, state, failed: None }
    }

    /// How long before the end the last checkpoint begins: one that is under way then is ended first, and both have their time. Before any has
    /// been measured: as long as one may take. A short limit leaves half of itself to the program.
    fn lead(&self) -> Duration {
        let half = self.limit / 2;
        match self.longest {
            Duration::ZERO => self.timeout.max(TIME_LIMIT_LEAD_MIN).min(half),
            longest => (longest * TIME_LIMIT_MARGIN).max(TIME_LIMIT_LEAD_MIN.min(half)),
        }
    }

    /// When it has something to do. `runs`: a checkpoint can be taken.
    pub(super) fn due(&self, runs: bool) -> Instant {
        match self.state {
            State::Waiting(from) if runs => {
                let begin = self.ends.since(Instant::ZERO).saturating_sub(self.lead());
                (Instant::ZERO + begin).max(from).min(self.ends)
            }
            State::Waiting(_) | State::Saving | State::Saved => self.ends,
        }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.ends
    }

    /// Whether to ask for the last checkpoint now.
    pub(super) fn asks(&mut self, now: Instant, runs: bool) -> bool {
        let asks = runs && matches!(self.state, State::Waiting(_)) && now >= self.due(runs);
        if asks {
            self.state = State::Saving;
        }
        asks
    }

    /// A checkpoint is durable. `last`: the one that was asked for here.
    pub(super) fn committed(&mut self, took: Duration, last: bool) {
        self.longest = self.longest.max(took);
        if last {
            self.state = State::Saved;
        }
    }

    /// The last checkpoint failed; there may be time for another one.
    pub(super) fn attempt_failed(&mut self, now: Instant, why: Unsaved) {
        self.failed = Some(why);
        self.state = State::Waiting(now + self.lead() / TIME_LIMIT_TRIES);
    }

    /// A new life runs: a request to the one before is not answered any more.
    pub(super) fn begin_life(&mut self, now: Instant) {
        if self.state == State::Saving {
            self.state = State::Waiting(now);
        }
    }

    /// Whether a last checkpoint is on its way: its generation may become durable while the ranks are being ended.
    pub(super) fn is_saving(&self) -> bool {
        self.state == State::Saving
    }

    /// Why the job ends without a last checkpoint. One that is still under way has the reason of a failed one before
    /// it, if there is one: it was begun because there was time left, and gives no reason itself.
    pub(super) fn unsaved(&self, runs: bool) -> Option<Unsaved> {
        match (self.state, self.failed) {
            (State::Saved, _) => None,
            (State::Saving | State::Waiting(_), Some(failed)) => Some(failed),
            (State::Saving, None) => Some(Unsaved::TooLate),
            (State::Waiting(_), None) if runs => Some(Unsaved::TooLate),
            (State::Waiting(_), None) => Some(Unsaved::NotRunning),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::RefuseReason;

    const MINUTE: Duration = Duration::from_secs(60);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn at(time: Duration) -> Instant {
        Instant::ZERO + time
    }

    #[test]
    fn the_last_checkpoint_begins_so_that_it_is_durable_in_time() {
        let mut limit = TimeLimit::new(60 * MINUTE, MINUTE, Instant::ZERO);
        assert_eq!(limit.due(true), at(59 * MINUTE), "nothing is measured: as long as one may take");
        limit.committed(seconds(9), false);
        assert_eq!(limit.due(true), at(60 * MINUTE - seconds(9) * TIME_LIMIT_MARGIN));
        limit.committed(seconds(3), false);
        assert_eq!(limit.due(true), at(60 * MINUTE - seconds(9) * TIME_LIMIT_MARGIN), "the longest");
        let mut quick = TimeLimit::new(60 * MINUTE, MINUTE, Instant::ZERO);
        quick.committed(Duration::from_millis(1), false);
        assert_eq!(quick.due(true), at(60 * MINUTE - TIME_LIMIT_LEAD_MIN));
        assert_eq!(limit.due(false), at(60 * MINUTE), "nothing runs that could be saved");
    }

    #[test]
    fn a_short_limit_leaves_half_of_itself_to_the_program() {
        let limit = TimeLimit::new(seconds(1), MINUTE, Instant::ZERO);
        assert_eq!(limit.due(true), at(Duration::from_millis(500)));
        // A limit that is shorter than a checkpoint: it begins at once.
        let mut limit = TimeLimit::new(seconds(10), MINUTE, Instant::ZERO);
        limit.committed(seconds(30), false);
        assert_eq!(limit.due(true), Instant::ZERO);
    }

    #[test]
    fn what_came_to_nothing_is_tried_again_while_there_is_time() {
        let mut limit = TimeLimit::new(60 * MINUTE, MINUTE, Instant::ZERO);
        let (begin, refused) = (at(59 * MINUTE), Unsaved::Refused(RefuseReason::NoAnswer));
        assert!(!limit.asks(at(58 * MINUTE), true) && limit.asks(begin, true) && !limit.asks(begin, true));
        assert_eq!(limit.unsaved(true), Some(Unsaved::TooLate));
        limit.attempt_failed(begin, refused);
        assert!(!limit.asks(begin, true));
        assert_eq!(limit.unsaved(true), Some(refused));
        let again = limit.due(true);
        assert!(again > begin && !limit.is_over(again) && limit.asks(again, true));
        assert_eq!((limit.is_saving(), limit.unsaved(true)), (true, Some(refused)), "what is known counts");
        limit.begin_life(again);
        assert!(limit.asks(again, true));
        limit.committed(MINUTE, true);
        assert_eq!(limit.unsaved(true), None);
    }

    #[test]
    fn a_limit_that_comes_before_the_ranks_saves_nothing() {
        let mut limit = TimeLimit::new(seconds(2), MINUTE, Instant::ZERO);
        assert!(!limit.asks(at(seconds(1)), false) && !limit.is_over(at(seconds(1))));
        assert!(limit.is_over(at(seconds(2))));
        assert_eq!(limit.unsaved(false), Some(Unsaved::NotRunning));
    }
}
