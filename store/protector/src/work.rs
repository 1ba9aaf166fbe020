//! The work of a thread, and its end from outside.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The number of work that is not ended: it takes no time.
pub(crate) const UNENDING: u64 = u64::MAX;

/// The work of one thread, by rising numbers. A thread with ended work does not wait for a limit any more, and neither
/// reads nor writes.
#[derive(Default)]
pub(crate) struct Work {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// The work of the thread.
    number: u64,
    /// Everything up to this is ended.
    ended: u64,
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread begins something.
    pub(crate) fn begin(&self, number: u64) {
        self.lock().number = number;
    }

    /// Ends everything up to a number.
    pub(crate) fn end(&self, number: u64) {
        let mut state = self.lock();
        state.ended = state.ended.max(number.min(UNENDING - 1));
        drop(state);
        self.ended.notify_all();
    }

    /// Whether the thread's work is ended.
    pub(crate) fn is_ended(&self) -> bool {
        let state = self.lock();
        state.number <= state.ended
    }

    /// Sleeps so long, unless the thread's work is ended.
    pub(crate) fn rest(&self, duration: Duration) {
        let until = Instant::now() + duration;
        let mut state = self.lock();
        while state.number > state.ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_rests_for_what_is_ended_is_woken() {
        let work = Work::default();
        work.begin(7);
        work.end(6);
        assert!(!work.is_ended());
        std::thread::scope(|threads| {
            // For so long that a test that waited for it would never end.
            threads.spawn(|| work.rest(Duration::from_secs(1 << 30)));
            work.end(7);
        });
        assert!(work.is_ended());
        work.begin(8);
        assert!(!work.is_ended(), "what comes after it is not ended");
        work.begin(UNENDING);
        work.end(UNENDING);
        assert!(!work.is_ended());
    }
}
