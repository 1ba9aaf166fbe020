//! By how much a checkpoint delays the program, measured at the program.
//!
//! The pause is only a part of it. While the image is written, the program copies a page at its first write to it, and shares
//! processors with the processes that write. So it computes less in the same time. The delay is the time of the checkpoint, less
//! the time in which it would have computed as much at its speed of before.
//!
//! Not seen are waits for memory, which count as time of the program, and waits of a program that polls for a rank which is
//! delayed itself: that one reports it.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// A speed is measured over no less: the kernel counts a program's time in ticks of up to 10 ms.
const SPEED_MEASURED_MIN: Duration = Duration::from_millis(50);

/// Processors that a program uses at least if it is to be delayed: else it waits for something else.
const SPEED_MIN: f64 = 0.05;

/// How much a program has computed until an instant.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The instant.
    pub at: Instant,
    /// Processor time of its own code since it began.
    pub computed: Duration,
}

impl Progress {
    /// Of this process, without the calling thread. Time in the kernel is no progress: copies of pages are made there.
    #[must_use]
    pub fn of_process_without_this_thread() -> Progress {
        let user = |who| getrusage(who).map_or(Duration::ZERO, |usage| duration(usage.user_time()));
        let computed = user(UsageWho::RUSAGE_SELF).saturating_sub(user(UsageWho::RUSAGE_THREAD));
        Progress { at: Instant::now(), computed }
    }

    fn since(self, earlier: Progress) -> (Duration, Duration) {
        (self.at.saturating_duration_since(earlier.at), self.computed.saturating_sub(earlier.computed))
    }
}

fn duration(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
}

/// Measures one checkpoint after the other.
#[derive(Clone, Copy, Debug)]
pub struct DelayMeter {
    /// The end of the last checkpoint, or when the measurement began.
    from: Progress,
    /// Processors in use between checkpoints.
    speed: Option<f64>,
    /// The checkpoint that is under way.
    cut: Option<Progress>,
    /// In seconds; negative, if the program has computed more than usual.
    delay: Option<f64>,
}

impl DelayMeter {
    /// Begins to measure the program's speed.
    #[must_use]
    pub fn new(now: Progress) -> DelayMeter {
        DelayMeter { from: now, speed: None, cut: None, delay: None }
    }

    /// A checkpoint begins. One that is under way is replaced.
    pub fn begin(&mut self, now: Progress) {
        if self.cut.is_none() {
            let (time, computed) = now.since(self.from);
            if time >= SPEED_MEASURED_MIN {
                self.speed = Some(computed.as_secs_f64() / time.as_secs_f64());
            }
        }
        self.cut = Some(now);
    }

    /// The program has stood until now: what its thread has computed since the beginning was work for the image.
    pub fn stood(&mut self, now: Progress) {
        if let Some(cut) = &mut self.cut {
            cut.computed = now.computed;
        }
    }

    /// It is committed.
    pub fn end(&mut self, now: Progress) {
        let Some(cut) = self.cut.take() else { return };
        let (time, computed) = now.since(cut);
        let speed = self.speed.filter(|speed| *speed >= SPEED_MIN);
        self.delay = speed.map(|speed| time.as_secs_f64() - computed.as_secs_f64() / speed);
        self.from = now;
    }

    /// It is given up: its delay is not that of a checkpoint.
    pub fn give_up(&mut self, now: Progress) {
        if self.cut.take().is_some() {
            self.from = now;
        }
    }

    /// The delay by the last checkpoint that was committed, in nanoseconds; `None`: none was, or the speed before it is not known.
    #[must_use]
    pub fn delay_ns(&self) -> Option<i64> {
        #[expect(clippy::cast_possible_truncation, reason = "no checkpoint takes 292 years")]
        self.delay.map(|delay| (delay * 1e9).round() as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// After so many milliseconds, with so many computed.
    fn progress(origin: Instant, at: u32, computed: u32) -> Progress {
        Progress { at: origin + MS * at, computed: MS * computed }
    }

    #[test]
    fn a_program_that_computes_less_while_it_is_saved_is_delayed() {
        let origin = Instant::now();
        let mut meter = DelayMeter::new(progress(origin, 0, 0));
        meter.begin(progress(origin, 1000, 1000));
        assert_eq!(meter.delay_ns(), None);
        // 40 of 100 ms.
        meter.end(progress(origin, 1100, 1040));
        assert_eq!(meter.delay_ns(), Some(60_000_000));
        // Four threads, at half their speed for 100 ms.
        meter.begin(progress(origin, 2100, 5040));
        meter.end(progress(origin, 2200, 5240));
        assert_eq!(meter.delay_ns(), Some(50_000_000));
        // It computes more than before.
        meter.begin(progress(origin, 3200, 9240));
        meter.end(progress(origin, 3300, 9840));
        assert_eq!(meter.delay_ns(), Some(-50_000_000));
    }

    #[test]
    fn work_of_the_programs_thread_for_the_image_is_no_progress() {
        let origin = Instant::now();
        let mut meter = DelayMeter::new(progress(origin, 0, 0));
        meter.begin(progress(origin, 1000, 1000));
        meter.stood(progress(origin, 1030, 1030));
        meter.end(progress(origin, 1100, 1100));
        assert_eq!(meter.delay_ns(), Some(30_000_000));
    }

    #[test]
    fn a_checkpoint_that_is_given_up_is_not_measured() {
        let origin = Instant::now();
        let mut meter = DelayMeter::new(progress(origin, 0, 0));
        meter.begin(progress(origin, 1000, 1000));
        meter.end(progress(origin, 1100, 1040));
        meter.begin(progress(origin, 2100, 2040));
        meter.give_up(progress(origin, 2110, 2040));
        assert_eq!(meter.delay_ns(), Some(60_000_000));
    }

    #[test]
    fn the_delay_of_a_program_that_waits_is_not_known() {
        let origin = Instant::now();
        let mut meter = DelayMeter::new(progress(origin, 0, 0));
        meter.begin(progress(origin, 1000, 20));
        meter.end(progress(origin, 1100, 20));
        assert_eq!(meter.delay_ns(), None);
    }

    #[test]
    fn a_speed_is_not_measured_over_a_few_ticks() {
        let origin = Instant::now();
        let mut meter = DelayMeter::new(progress(origin, 0, 0));
        meter.begin(progress(origin, 10, 10));
        meter.end(progress(origin, 110, 20));
        assert_eq!(meter.delay_ns(), None);
        meter.begin(progress(origin, 210, 120));
        meter.end(progress(origin, 310, 170));
        assert_eq!(meter.delay_ns(), Some(50_000_000));
        // The next one follows at once: the speed of before holds.
        meter.begin(progress(origin, 320, 175));
        meter.end(progress(origin, 420, 200));
        assert_eq!(meter.delay_ns(), Some(75_000_000));
    }

    #[test]
    fn the_process_is_measured_without_the_thread_that_asks() {
        let spin = |time: Duration| {
            let until = Instant::now() + time;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        };
        // Other tests may run in this process at the same time.
        let is_left_out = || {
            let before = Progress::of_process_without_this_thread();
            spin(MS * 60);
            Progress::of_process_without_this_thread().since(before).1 < MS * 30
        };
        assert!((0..100).any(|_| is_left_out()), "the thread's own time counts");
        let before = Progress::of_process_without_this_thread();
        std::thread::spawn(move || spin(MS * 300)).join().unwrap();
        let after = Progress::of_process_without_this_thread();
        assert!(after.since(before).1 > MS * 10, "{after:?}, {before:?}");
    }
}
