//! The settings of exec and later calls, as system calls.

use super::*;
use crate::state::files::{LockKind, What};
use crate::state::signals::IntervalTimer;

/// Signals whose disposition cannot be changed.
const FIXED: [usize; 2] = [libc::SIGKILL as usize, libc::SIGSTOP as usize];

/// Seconds and `1 / parts_per_second` seconds of the interval and of the remaining time: `struct itimerval` or
/// `itimerspec`.
pub(super) fn seconds(time: IntervalTimer, parts_per_second: u64, part_ns: u64) -> [u64; 4] {
    let split = |ns: u64| {
        let parts = ns.div_ceil(part_ns);
        [parts / parts_per_second, parts % parts_per_second]
    };
    let ([interval, interval_part], [left, left_part]) = (split(time.interval_ns), split(time.left_ns));
    [interval, interval_part, left, left_part]
}

/// A timer of real time that goes on again and again, and has nothing left, has fired: the kernel starts it anew when its signal, which
/// waits, is taken. Set to nothing it would never fire again.
fn running(which: u64, timer: IntervalTimer) -> IntervalTimer {
    let has_fired = which == libc::ITIMER_REAL as u64 && timer.interval_ns > 0;
    IntervalTimer { left_ns: if has_fired { timer.left_ns.max(1) } else { timer.left_ns }, ..timer }
}

pub(super) fn settings(calls: &mut Calls, state: &ProcessState) -> Result<(), RestoreError> {
    let program = &state.program;
    for (signal, action) in (1..).zip(&state.signals.actions).filter(|(signal, _)| !FIXED.contains(signal)) {
        let action = calls.put_words(&[action.handler, action.flags, action.restorer, action.mask]);
        let what = format!("set what signal {signal} does");
        calls.call(libc::SYS_rt_sigaction, &[signal as u64, action, 0, 8], 0, what);
    }
    for (option, value, what) in [
        (libc::PR_SET_THP_DISABLE, u64::from(program.huge_pages_disabled), "say whether huge pages are used"),
        (libc::PR_SET_CHILD_SUBREAPER, u64::from(program.is_subreaper), "say whether it reaps orphans"),
    ] {
        calls.call(libc::SYS_prctl, &[option as u64, value, 0, 0, 0], 0, what);
    }
    // 2 is the kernel's own, for programs that have changed their user; a process cannot set it.
    if program.dumpable < 2 {
        let arguments = [libc::PR_SET_DUMPABLE as u64, program.dumpable.into(), 0, 0, 0];
        calls.call(libc::SYS_prctl, &arguments, 0, "say whether it may be dumped");
    }
    const ASK: libc::c_ulong = 0xffff_ffff;
    // SAFETY: asks for a number.
    let personality = unsafe { libc::personality(ASK) };
    calls.call(
        libc::SYS_personality,
        &[program.personality.into()],
        u64::from(personality.cast_unsigned()),
        "set the personality",
    );
    for (resource, (soft, hard)) in (0u64..).zip(&program.limits) {
        let mut here = [0u64; 2];
        // SAFETY: the kernel writes two words.
        let answer = unsafe {
            arch::syscall(libc::SYS_prlimit64, [0, resource as usize, 0, here.as_mut_ptr() as usize, 0, 0])
        };
        if answer != 0 {
            return Err(RestoreError::Inconsistent { what: format!("a limit of resource {resource}") });
        }
        // The launcher's own limit cannot be raised.
        let hard = (*hard).min(here[1]);
        let limit = calls.put_words(&[(*soft).min(hard), hard]);
        calls.call(
            libc::SYS_prlimit64,
            &[0, resource, limit, 0],
            0,
            format!("set the limit of resource {resource}"),
        );
    }
    Ok(())
}

/// A timer that has time left does not fire before the threads are where they were: one of them may be on its way into `pause(2)`, and nothing
/// would end that again. A signal that was on its way at the cut comes at once.
const LEFT_NS_MIN: u64 = 10_000_000;

pub(super) fn delayed(time: IntervalTimer) -> IntervalTimer {
    let left_ns = if time.left_ns > 1 { time.left_ns.max(LEFT_NS_MIN) } else { time.left_ns };
    IntervalTimer { left_ns, ..time }
}

/// As `setitimer(2)` takes them.
pub(super) fn interval_timers(state: &ProcessState) -> [[u64; 4]; 3] {
    let mut which = 0;
    state.signals.interval_timers.map(|timer| {
        let time = delayed(running(which, timer));
        which += 1;
        seconds(time, 1_000_000, 1000)
    })
}

/// Locks that belong to the process as a whole (fcntl(2)). They go with any descriptor of their file that is closed, those of mapped
/// files too; so they are set again when all of these are.
pub(super) fn locks(calls: &mut Calls, files: &Files) {
    for (open, file) in (0u32..).zip(&files.open) {
        let What::Regular(regular) = &file.what else { continue };
        let Some(number) = files.descriptors.iter().find(|descriptor| descriptor.open == open) else {
            continue;
        };
        for lock in regular.locks.iter().filter(|lock| lock.kind == LockKind::Process) {
            let kind = if lock.is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
            let bytes = lock.last.map_or(0, |last| last.saturating_sub(lock.start).saturating_add(1));
            // `struct flock`: kind and whence (from the start) in the first word, the owner's id in the last.
            let flock = calls.put_words(&[u64::from(kind.cast_unsigned()), lock.start, bytes, 0]);
            let what = format!("lock {}", String::from_utf8_lossy(&regular.path));
            calls.call(libc::SYS_fcntl, &[number.number.into(), libc::F_SETLK as u64, flock], 0, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_timer_is_never_rounded_to_never() {
        let time = IntervalTimer { left_ns: 1, interval_ns: 2_500_000_001 };
        assert_eq!(seconds(time, 1_000_000, 1000), [2, 500_001, 0, 1]);
        assert_eq!(seconds(time, 1_000_000_000, 1), [2, 500_000_001, 0, 1]);
        assert_eq!(seconds(IntervalTimer::default(), 1_000_000, 1000), [0; 4]);
    }

    #[test]
    fn a_timer_whose_signal_waits_goes_on() {
        let fired = IntervalTimer { left_ns: 0, interval_ns: 1_000_000 };
        assert_eq!(running(0, fired), IntervalTimer { left_ns: 1, ..fired });
        assert_eq!(
            running(1, fired),
            fired,
            "a timer of processor time keeps its interval when it is stopped"
        );
        assert_eq!(running(0, IntervalTimer::default()), IntervalTimer::default());
    }

    #[test]
    fn a_timer_fires_at_once_or_when_threads_are_where_they_were() {
        let of = |left_ns| IntervalTimer { left_ns, interval_ns: 5 };
        let delayed = [0, 1, 2, LEFT_NS_MIN + 1].map(|left_ns| delayed(of(left_ns)));
        assert_eq!(delayed, [0, 1, LEFT_NS_MIN, LEFT_NS_MIN + 1].map(of));
    }
}
