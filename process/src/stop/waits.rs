//! Calls that wait for a time from their beginning on, over stops.
//!
//! A stop ends such a call, and it is made again. With its old argument it would wait for the whole time
//! anew, after every stop: a program that is stopped more often than that would wait for ever. Only the
//! kernel knows when a call began. So the first stop notes when the call, made again now, would end, and
//! gives it an argument by which a later stop knows it: an address of ours, or a mark above the 32 bits that
//! are looked at. From then on it gets the rest of its time. The time that a call waited before its first
//! stop is lost once.
//!
//! Written and read by the thread that stops the others, while they stand still; their handlers only read.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::table::THREADS_MAX;
use crate::arch::{Call, Frame, Limit, TIMED, Timed};
use crate::sys;

/// Upper bits of milliseconds that were given here; the number of the wait, and the milliseconds, are below.
const MARK: u64 = 0x5357 << MARK_SHIFT;
const MARK_SHIFT: u32 = 48;
const INDEX_SHIFT: u32 = 32;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Clocks that go on while a thread sleeps; CPU clocks do not.
const CLOCKS: [i32; 6] = [
    libc::CLOCK_REALTIME,
    libc::CLOCK_MONOTONIC,
    libc::CLOCK_BOOTTIME,
    libc::CLOCK_REALTIME_ALARM,
    libc::CLOCK_BOOTTIME_ALARM,
    libc::CLOCK_TAI,
];

struct Wait {
    /// `timespec` for the kernel. First: its address names the wait.
    time: [AtomicI64; 2],
    number: AtomicI64,
    sp: AtomicU64,
    pc: AtomicU64,
    /// When it ends, by the clock of [`sys::now_ns`].
    end_ns: AtomicU64,
    /// The program's own argument.
    original: AtomicU64,
    /// The last stop in which a thread had it.
    stop: AtomicU32,
}

static WAITS: [Wait; THREADS_MAX] = [const {
    Wait {
        time: [const { AtomicI64::new(0) }; 2],
        number: AtomicI64::new(0),
        sp: AtomicU64::new(0),
        pc: AtomicU64::new(0),
        end_ns: AtomicU64::new(0),
        original: AtomicU64::new(0),
        stop: AtomicU32::new(0),
    }
}; THREADS_MAX];

impl Wait {
    fn is_of(&self, call: Call) -> bool {
        (self.number.load(Relaxed), self.sp.load(Relaxed), self.pc.load(Relaxed))
            == (call.number, call.sp, call.pc)
    }
}

/// The wait that an argument names, if it does.
fn named(argument: u64) -> Option<(u64, &'static Wait)> {
    let index = if argument >> MARK_SHIFT == MARK >> MARK_SHIFT {
        argument >> INDEX_SHIFT & 0xffff
    } else {
        let offset = argument.checked_sub(WAITS.as_ptr() as u64)?;
        let bytes = size_of::<Wait>() as u64;
        offset.is_multiple_of(bytes).then_some(offset / bytes)?
    };
    Some((index, WAITS.get(index as usize)?))
}

/// Keeps the waits that a stopped thread may be in for the stop `number`.
pub(super) fn keep(frame: Frame, number: u32) {
    for timed in TIMED {
        if let Some((_, wait)) = named(frame.argument(timed.argument)) {
            wait.stop.store(number, Relaxed);
        }
    }
}

/// Gives a call that is made again the time that is left for it. To be called when [`keep`] has seen all threads.
pub(super) fn shorten(frame: Frame, call: Call, number: u32, now_ns: u64) {
    let Some(timed) = TIMED.into_iter().find(|timed| timed.number == call.number && waits(frame, *timed))
    else {
        return;
    };
    let argument = frame.argument(timed.argument);
    let known = named(argument).filter(|(_, wait)| wait.is_of(call));
    let Some((index, wait)) = known.or_else(|| begin(frame, call, timed, number, now_ns)) else { return };
    let left_ns = wait.end_ns.load(Relaxed).saturating_sub(now_ns);
    match timed.limit {
        Limit::Milliseconds => {
            let left_ms = left_ns.div_ceil(NS_PER_MS).min(i32::MAX as u64);
            frame.set_argument(timed.argument, MARK | index << INDEX_SHIFT | left_ms);
        }
        Limit::Time => {
            wait.time[0].store((left_ns / NS_PER_S).cast_signed(), Relaxed);
            wait.time[1].store((left_ns % NS_PER_S).cast_signed(), Relaxed);
            frame.set_argument(timed.argument, std::ptr::from_ref(wait) as u64);
        }
    }
}

/// Puts the program's own argument back, for a call that is not made again after all.
pub(super) fn give_back(frame: Frame, call: Call) {
    for timed in TIMED.into_iter().filter(|timed| timed.number == call.number) {
        if let Some((_, wait)) = named(frame.argument(timed.argument)).filter(|(_, wait)| wait.is_of(call)) {
            frame.set_argument(timed.argument, wait.original.load(Relaxed));
        }
    }
}

/// In a restored process: the time since the stop does not count. Clocks of two machines have nothing to do with each other.
pub(super) fn delay(stopped_ns: u64, now_ns: u64) {
    for wait in &WAITS {
        let end_ns = wait.end_ns.load(Relaxed);
        wait.end_ns.store(end_ns.wrapping_sub(stopped_ns).wrapping_add(now_ns), Relaxed);
    }
}

fn begin(frame: Frame, call: Call, timed: Timed, number: u32, now_ns: u64) -> Option<(u64, &'static Wait)> {
    let left_ns = left(frame, timed)?;
    let is_free = |wait: &Wait| wait.stop.load(Relaxed) != number;
    let (index, wait) = (0u64..).zip(&WAITS).find(|(_, wait)| is_free(wait))?;
    wait.stop.store(number, Relaxed);
    wait.number.store(call.number, Relaxed);
    wait.sp.store(call.sp, Relaxed);
    wait.pc.store(call.pc, Relaxed);
    wait.end_ns.store(now_ns.saturating_add(left_ns), Relaxed);
    wait.original.store(frame.argument(timed.argument), Relaxed);
    Some((index, wait))
}

/// Whether the call, as it is made, waits for a time from its beginning on.
fn waits(frame: Frame, timed: Timed) -> bool {
    match timed.number {
        libc::SYS_clock_nanosleep => {
            let (clock, flags) = (frame.argument(0) as i32, frame.argument(1) as i32);
            flags & libc::TIMER_ABSTIME == 0 && CLOCKS.contains(&clock)
        }
        libc::SYS_futex => {
            let operation = frame.argument(1) as i32;
            operation & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) == libc::FUTEX_WAIT
        }
        _ => true,
    }
}

/// How long a call that is seen for the first time may still wait, ns; `None`: for ever, or it is not known.
fn left(frame: Frame, timed: Timed) -> Option<u64> {
    let argument = frame.argument(timed.argument);
    let address = match (timed.limit, timed.number) {
        (Limit::Milliseconds, _) => {
            let left_ms = u64::try_from(argument as i32).ok()?;
            return Some(left_ms.saturating_mul(NS_PER_MS));
        }
        // A sleep that was ended has written its remaining time, if it got an address for it.
        (Limit::Time, libc::SYS_nanosleep) if frame.argument(1) != 0 => frame.argument(1),
        (Limit::Time, libc::SYS_clock_nanosleep) if frame.argument(3) != 0 => frame.argument(3),
        (Limit::Time, _) => argument,
    };
    if address == 0 {
        return None;
    }
    let [seconds, ns] = sys::peek::<[i64; 2]>(address).ok()?;
    let ns_left = u64::try_from(seconds).ok()?.saturating_mul(NS_PER_S);
    Some(ns_left.saturating_add(u64::try_from(ns).ok()?))
}
