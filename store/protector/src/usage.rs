//! Processor time that the threads of one protector use, and the bound on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::bucket::Bucket;
use crate::work::Work;

/// Processor time that all threads together have used, and may use.
pub(crate) struct Usage {
    nanoseconds: AtomicU64,
    bucket: Option<Bucket>,
}

/// One thread's part of it.
pub(crate) struct Meter<'a> {
    usage: &'a Usage,
    counted: u64,
}

impl Usage {
    pub(crate) fn new(cores: Option<f64>) -> Usage {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "cores are few, and more than none"
        )]
        let bucket = cores.map(|cores| Bucket::new((cores.max(0.001) * 1e9) as u64));
        Usage { nanoseconds: AtomicU64::new(0), bucket }
    }

    pub(crate) fn seconds(&self) -> f64 {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// For the thread that calls.
    pub(crate) fn meter(&self) -> Meter<'_> {
        Meter { usage: self, counted: thread_nanoseconds() }
    }
}

impl Meter<'_> {
    /// Counts this thread's processor time since the last call, and returns how long it should rest for it.
    pub(crate) fn count(&mut self) -> Duration {
        let now = thread_nanoseconds();
        let used = now - core::mem::replace(&mut self.counted, now);
        self.usage.nanoseconds.fetch_add(used, Ordering::Relaxed);
        self.usage.bucket.as_ref().map_or(Duration::ZERO, |bucket| bucket.take(used))
    }

    /// Counts, and rests.
    pub(crate) fn rest(&mut self, work: &Work) {
        work.rest(self.count());
    }
}

/// Processor time of the thread that calls; 0 where the system does not report it.
fn thread_nanoseconds() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
