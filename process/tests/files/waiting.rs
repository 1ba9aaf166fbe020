//! Signals that wait, and timers, as the look in the stop sees them.

use std::path::Path;
use std::sync::atomic::Ordering;

use process::signals::{Seen, prepare};
use process::state::signals::{IntervalTimer, Pending};

use super::act::{in_child, ok};
use super::{FORBIDDEN, Scenario};

pub(crate) const ALL: &[Scenario] = &[
    ("interval timers tell what is left", interval_timers),
    ("timers of timer_create tell all they are", timers),
    ("signals that wait are seen, and still wait", pending),
];

const HOUR_NS: u64 = 3_600_000_000_000;

fn look() -> Seen {
    let mut prepared = prepare().unwrap();
    FORBIDDEN.store(true, Ordering::Relaxed);
    let first = prepared.look();
    let second = prepared.look();
    FORBIDDEN.store(false, Ordering::Relaxed);
    assert_eq!((first, second), (Ok(()), Ok(())));
    prepared.finish().unwrap()
}

fn is_about(time: IntervalTimer, left_ns: u64, interval_ns: u64) -> bool {
    // The kernel rounds processor time up to its own steps.
    time.interval_ns == interval_ns && time.left_ns.abs_diff(left_ns) < left_ns / 4
}

fn interval_timers(_directory: &Path) {
    in_child(|| {
        let time = libc::itimerval {
            it_interval: libc::timeval { tv_sec: 0, tv_usec: 250 },
            it_value: libc::timeval { tv_sec: 7200, tv_usec: 0 },
        };
        // SAFETY: the kernel reads the time.
        ok(unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const time, std::ptr::null_mut()) });
        let [real, virtual_time, profiling] = look().interval_timers;
        assert_eq!((real, virtual_time), (IntervalTimer::default(), IntervalTimer::default()));
        assert!(is_about(profiling, 2 * HOUR_NS, 250_000), "{profiling:?}");
    });
}

fn new_timer(clock: i32, notify: i32, signal: i32, value: usize, left_ns: i64, interval_s: i64) -> u32 {
    // SAFETY: structures of this frame.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = notify;
        event.sigev_signo = signal;
        event.sigev_value.sival_ptr = value as *mut libc::c_void;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        ok(libc::timer_create(clock, &raw mut event, &raw mut timer));
        let time = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: interval_s, tv_nsec: 0 },
            it_value: libc::timespec { tv_sec: left_ns / 1_000_000_000, tv_nsec: left_ns % 1_000_000_000 },
        };
        ok(libc::timer_settime(timer, 0, &raw const time, std::ptr::null_mut()));
        u32::try_from(timer as usize).unwrap()
    }
}

fn timers(_directory: &Path) {
    in_child(|| {
        let hour = HOUR_NS.cast_signed();
        let first = new_timer(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, 40, 0xabcd, hour, 60);
        let second = new_timer(libc::CLOCK_REALTIME, libc::SIGEV_THREAD_ID, 41, 7, 2 * hour, 0);
        let third = new_timer(libc::CLOCK_PROCESS_CPUTIME_ID, libc::SIGEV_NONE, 0, 0, 0, 0);
        let timers = look().timers;
        assert_eq!(timers.iter().map(|timer| timer.id).collect::<Vec<_>>(), [first, second, third]);
        let me = std::process::id();
        assert_eq!((timers[0].notify, timers[0].signal, timers[0].value), (libc::SIGEV_SIGNAL, 40, 0xabcd));
        assert!(is_about(timers[0].time, HOUR_NS, 60_000_000_000), "{:?}", timers[0]);
        assert_eq!((timers[1].notify, timers[1].signal, timers[1].tid), (libc::SIGEV_THREAD_ID, 41, me));
        assert!(is_about(timers[1].time, 2 * HOUR_NS, 0), "{:?}", timers[1]);
        assert_eq!(timers[2].notify, libc::SIGEV_NONE);
        assert_eq!(timers.iter().map(|timer| timer.time.left_ns).next_back(), Some(0));
    });
}

fn pending(_directory: &Path) {
    in_child(|| {
        // SAFETY: a set of this frame, and signals to this process.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut set);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            ok(libc::kill(libc::getpid(), libc::SIGUSR1));
            for value in [7, 8] {
                ok(libc::sigqueue(libc::getpid(), 50, libc::sigval { sival_ptr: value as *mut _ }));
            }
        }
        new_timer(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, 45, 9, 1, 0);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let seen = look();
        // Number, and value: the fourth word of a siginfo_t.
        let reported = |seen: &Seen| -> Vec<(Option<u32>, u8, u64)> {
            let value = |one: &Pending| one.info.map_or(0, |info| info[3]);
            seen.pending.iter().map(|one| (one.tid, one.signal, value(one))).collect()
        };
        let expected = [(None, 10, 0), (None, 50, 7), (None, 50, 8)];
        assert_eq!(reported(&seen), expected);
        assert_eq!(seen.timers[0].time.left_ns, 1, "the timer sends its signal again");
        assert_eq!(reported(&look()), expected, "they still wait");
    });
}
