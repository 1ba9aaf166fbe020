//! By how much a checkpoint delays the program's thread, the one that passes points.

use std::time::{Duration, Instant};

use client::delay::{DelayMeter, Progress};
use nix::libc;
use nix::time::{ClockId, clock_gettime};

/// The processor clock of a thread, which other threads can read. A native program is not forked, so all of this time is its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    fn of_this_thread() -> ThreadClock {
        // Linux's ABI (include/linux/posix-timers_types.h): the thread's complement, 4 for a thread's clock, 2 for its scheduled time.
        ThreadClock((!nix::unistd::gettid().as_raw() << 3) | 4 | 2)
    }

    /// `None`: the thread has ended.
    fn read(self) -> Option<Progress> {
        let time = clock_gettime(ClockId::from_raw(self.0)).ok()?;
        Some(Progress { at: Instant::now(), computed: Duration::from(time) })
    }
}

/// The delay of the thread that stood at the last cut.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgramDelay {
    measured: Option<(ThreadClock, DelayMeter)>,
}

impl ProgramDelay {
    /// A checkpoint begins, on the program's thread, which has stood since `entered`.
    pub(crate) fn begin(&mut self, entered: Instant) {
        let clock = ThreadClock::of_this_thread();
        let Some(Progress { computed, .. }) = clock.read() else { return };
        let stands = Progress { at: entered, computed };
        match &mut self.measured {
            Some((known, meter)) if *known == clock => meter.begin(stands),
            // The first, or another thread than before: its speed is measured from here.
            measured => {
                let mut meter = DelayMeter::new(stands);
                meter.begin(stands);
                *measured = Some((clock, meter));
            }
        }
    }

    /// Its image is taken, and the program's thread goes on.
    pub(crate) fn stood(&mut self) {
        self.at_present(DelayMeter::stood);
    }

    /// It is committed.
    pub(crate) fn end(&mut self) {
        self.at_present(DelayMeter::end);
    }

    /// It is given up.
    pub(crate) fn give_up(&mut self) {
        self.at_present(DelayMeter::give_up);
    }

    fn at_present(&mut self, step: fn(&mut DelayMeter, Progress)) {
        if let Some((clock, meter)) = &mut self.measured
            && let Some(now) = clock.read()
        {
            step(meter, now);
        }
    }

    pub(crate) fn delay_ns(&self) -> Option<i64> {
        self.measured.and_then(|(_, meter)| meter.delay_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_reads_a_threads_clock_until_it_ends() {
        let (at_work, clocks) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::spawn(move || {
            let clock = ThreadClock::of_this_thread();
            let began = clock.read().unwrap().computed;
            while clock.read().unwrap().computed < began + Duration::from_millis(20) {}
            at_work.send(clock).unwrap();
            ended.recv().unwrap();
        });
        let clock = clocks.recv().unwrap();
        assert!(clock.read().unwrap().computed >= Duration::from_millis(20));
        assert_ne!(clock, ThreadClock::of_this_thread());
        end.send(()).unwrap();
        worker.join().unwrap();
        // `join` waits for the thread to leave the address space (CLONE_CHILD_CLEARTID); the kernel takes it out of its tables a little later.
        let deadline = Instant::now() + Duration::from_secs(10);
        while clock.read().is_some() {
            assert!(Instant::now() < deadline, "the clock of a thread that ended 10 s ago can still be read");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
