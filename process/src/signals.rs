//! Signals that wait, and timers that send them: read in the stop. Dispositions are read with the threads' state, and all of
//! it is put back by the restored process itself.

use std::fmt::Write as _;

use crate::state::signals::{IntervalTimer, Pending, Timer};
use crate::sys::{self, Answer, Errno};

/// Where the kernel lists the timers of a process. Only with `CONFIG_CHECKPOINT_RESTORE`.
const LIST: &std::ffi::CStr = c"/proc/thread-self/../../timers";

/// Timers of `timer_create(2)` that a process may have.
pub const TIMERS_MAX: usize = 4096;

/// Room for one of them in the kernel's list: four lines.
const TIMER_BYTES: usize = 160;

/// Why timers cannot be saved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TimerError {
    /// There are some, and the kernel does not list them.
    #[error(
        "timer {id} of timer_create(2): this kernel does not report its state (/proc/self/timers, CONFIG_CHECKPOINT_RESTORE); \
         use setitimer(2) or timerfd_create(2)"
    )]
    Untold {
        /// The first one.
        id: u32,
    },
    /// Too many.
    #[error("more than {TIMERS_MAX} timers of timer_create(2); delete those that are not needed")]
    TooMany,
    /// The list is not as it is documented.
    #[error("/proc/self/timers: {0:?} is not understood; use a kernel that this build knows")]
    Unreadable(String),
    /// It could not be read.
    #[error("/proc/self/timers: {0}")]
    Call(Errno),
}

/// Room for data read in the stop.
#[derive(Debug)]
pub struct Prepared {
    list: Vec<u8>,
    filled: usize,
    /// Whether the kernel has the list.
    is_listed: bool,
    left: Vec<(u32, IntervalTimer)>,
    interval: [IntervalTimer; 3],
    /// Signals that wait for the process as a whole, or for the thread that looks.
    waiting: u64,
    /// Signals that timers send.
    of_timers: u64,
    /// The information of those signals that could be read.
    queued: Vec<Info>,
}

/// `siginfo_t`.
type Info = [u64; 16];

/// Signals that may wait for a process at once.
const QUEUED_MAX: usize = 4096;
/// How often a signal is given back before it is given up: its user's other processes may have used up the limit meanwhile.
const TRIES_MAX: u32 = 10_000;
/// Signals that wait more than once, each with its information: 34 to 64, those of real time but for the C library's
/// own two. Of the others, as a rule, nothing but that they wait is of use, and some cannot be given back as they were:
/// only the first thread of a process may claim that a signal came from the kernel or another process.
const READ: u64 = u64::MAX << 33;

/// The observations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Signals that wait for the process as a whole.
    pub pending: Vec<Pending>,
    /// Real, virtual and profiling time.
    pub interval_timers: [IntervalTimer; 3],
    /// `timer_create(2)`.
    pub timers: Vec<Timer>,
}

/// Looks for timers that cannot be saved, and makes room for the others.
pub fn prepare() -> Result<Prepared, TimerError> {
    let mut prepared = Prepared {
        list: vec![0; TIMERS_MAX * TIMER_BYTES],
        filled: 0,
        is_listed: true,
        left: Vec::with_capacity(TIMERS_MAX),
        interval: [IntervalTimer::default(); 3],
        waiting: 0,
        of_timers: 0,
        queued: Vec::with_capacity(QUEUED_MAX),
    };
    match sys::read_whole(LIST, &mut prepared.list) {
        Ok(filled) => prepared.filled = filled,
        Err(Errno(libc::ENOENT)) => {
            prepared.is_listed = false;
            if let Some(id) = first_timer() {
                return Err(TimerError::Untold { id });
            }
        }
        Err(Errno(libc::ENOBUFS)) => return Err(TimerError::TooMany),
        Err(error) => return Err(TimerError::Call(error)),
    }
    let timers = parse(&prepared.list[..prepared.filled])?;
    let bit = |signal: i32| 1u64.checked_shl((signal - 1).cast_unsigned()).unwrap_or(0);
    let signals = timers.iter().map(|timer| timer.signal);
    prepared.of_timers = signals.fold(0, |set, signal| set | bit(signal));
    Ok(prepared)
}

/// The lowest timer that there is, found without a list. The kernel gives ids in turn: one that a program has kept
/// through so many others is not found.
fn first_timer() -> Option<u32> {
    (0..TIMERS_MAX as u32).find(|id| left_of(*id).is_ok())
}

fn left_of(id: u32) -> Answer<IntervalTimer> {
    // Interval and value, each seconds and nanoseconds.
    let mut time = [0u64; 4];
    // SAFETY: room for the kernel's structure.
    unsafe { sys::call(libc::SYS_timer_gettime, [id as usize, time.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    let [interval_s, interval_ns, left_s, left_ns] = time;
    let ns = |seconds: u64, ns: u64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
    Ok(IntervalTimer { left_ns: ns(left_s, left_ns), interval_ns: ns(interval_s, interval_ns) })
}

impl Prepared {
    /// Looks at timers and signals, in the stop, from a thread that blocks all signals: takes no lock, allocates nothing,
    /// changes nothing.
    pub fn look(&mut self) -> Answer<()> {
        for (which, timer) in self.interval.iter_mut().enumerate() {
            // Interval and value, each seconds and microseconds.
            let mut time = [0u64; 4];
            // SAFETY: room for the kernel's structure.
            unsafe { sys::call(libc::SYS_getitimer, [which, time.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
            let [interval_s, interval_us, left_s, left_us] = time;
            let ns =
                |s: u64, us: u64| s.saturating_mul(1_000_000_000).saturating_add(us.saturating_mul(1000));
            *timer = IntervalTimer { left_ns: ns(left_s, left_us), interval_ns: ns(interval_s, interval_us) };
        }
        let set = &raw mut self.waiting;
        // SAFETY: eight bytes, as the kernel's set has.
        unsafe { sys::call(libc::SYS_rt_sigpending, [set as usize, 8, 0, 0, 0, 0]) }?;
        self.read_queue()?;
        self.left.clear();
        if !self.is_listed {
            return Ok(());
        }
        self.filled = sys::read_whole(LIST, &mut self.list)?;
        for line in self.list[..self.filled].split(|byte| *byte == b'\n') {
            let Some(id) = line.strip_prefix(b"ID: ").and_then(decimal) else { continue };
            let Ok(id) = u32::try_from(id) else { continue };
            if self.left.len() == self.left.capacity() {
                return Err(Errno(libc::ENOBUFS));
            }
            self.left.push((id, left_of(id)?));
        }
        Ok(())
    }

    /// Takes the signals that wait, to read their information, and puts them back: no other thread can take one
    /// meanwhile.
    fn read_queue(&mut self) -> Answer<()> {
        self.queued.clear();
        let set = self.waiting & READ & !self.of_timers;
        if set == 0 {
            return Ok(());
        }
        let at_once = sys::timespec(0);
        let mut is_full = Ok(());
        loop {
            let mut info: Info = [0; 16];
            // SAFETY: the kernel reads set and time, and writes the 128 bytes of a siginfo_t.
            let taken = unsafe {
                let (set, info, time) =
                    (&raw const set as usize, &raw mut info as usize, &raw const at_once as usize);
                sys::call(libc::SYS_rt_sigtimedwait, [set, info, time, 8, 0, 0])
            };
            if taken.is_err() {
                break;
            }
            if self.queued.len() == self.queued.capacity() {
                is_full = give_back(&info).and(Err(Errno(libc::ENOBUFS)));
                break;
            }
            self.queued.push(info);
        }
        let mut given = is_full;
        for info in &self.queued {
            given = given.and(give_back(info));
        }
        given
    }

    /// The findings of [`Prepared::look`].
    pub fn finish(&self) -> Result<Seen, TimerError> {
        let mut timers = parse(&self.list[..self.filled])?;
        for timer in &mut timers {
            let left = self.left.iter().find(|(id, _)| *id == timer.id);
            timer.time = left.map(|(_, left)| *left).unwrap_or_default();
        }
        // Kernels differ in the order of their list.
        timers.sort_unstable_by_key(|timer| timer.id);
        let mut waiting = self.waiting;
        fire_at_once(&mut timers, &mut waiting);
        let reported =
            self.queued.iter().map(|info| Pending { tid: None, signal: signal_of(info), info: Some(*info) });
        let mut pending = pending(None, waiting);
        pending.retain(|one| !self.queued.iter().any(|info| signal_of(info) == one.signal));
        pending.extend(reported);
        Ok(Seen { pending, interval_timers: self.interval, timers })
    }
}

fn signal_of(info: &Info) -> u8 {
    (info[0] & 0x7f) as u8
}

/// Sends this process a signal as it was.
fn give_back(info: &Info) -> Answer<()> {
    let arguments = [sys::process_id() as usize, signal_of(info).into(), info.as_ptr() as usize, 0, 0, 0];
    let mut tries = 0;
    loop {
        // SAFETY: the kernel reads 128 bytes.
        match unsafe { sys::call(libc::SYS_rt_sigqueueinfo, arguments) } {
            Err(Errno(libc::EAGAIN)) if tries < TRIES_MAX => tries += 1,
            // It came from another process, or from the kernel.
            Err(Errno(libc::EPERM)) => {
                // SAFETY: no memory is touched.
                return unsafe { sys::call(libc::SYS_kill, [arguments[0], arguments[1], 0, 0, 0, 0]) }
                    .map(drop);
            }
            answer => return answer.map(drop),
        }
        // SAFETY: gives the processor away.
        let _ = unsafe { sys::call(libc::SYS_sched_yield, [0; 6]) };
    }
}

/// The signals of a set, for a thread or for the process as a whole.
#[must_use]
pub fn pending(tid: Option<u32>, set: u64) -> Vec<Pending> {
    (1..=64u8)
        .filter(|signal| set >> (signal - 1) & 1 != 0)
        .map(|signal| Pending { tid, signal, info: None })
        .collect()
}

/// A signal that waits because a timer sent it carries the timer's value, which cannot be read: the timer sends it
/// again, as soon as it is there again. Where several timers send one signal, it cannot be known which one did.
fn fire_at_once(timers: &mut [Timer], waiting: &mut u64) {
    for signal in 1..=64u8 {
        let bit = 1u64 << (signal - 1);
        let sends = |timer: &&mut Timer| {
            timer.notify == libc::SIGEV_SIGNAL
                && timer.signal == i32::from(signal)
                && (timer.time.left_ns == 0 || timer.time.interval_ns > 0)
        };
        if *waiting & bit == 0 {
            continue;
        }
        let mut senders = timers.iter_mut().filter(sends);
        if let (Some(timer), None) = (senders.next(), senders.next()) {
            timer.time.left_ns = 1;
            *waiting &= !bit;
        }
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Reads the kernel's list; times are not in it.
fn parse(text: &[u8]) -> Result<Vec<Timer>, TimerError> {
    let text = String::from_utf8_lossy(text);
    let mut timers = Vec::new();
    let mut lines = text.lines();
    while let Some(first) = lines.next() {
        let mut entry = first.to_owned();
        for line in lines.by_ref().take(3) {
            let _ = write!(entry, "\n{line}");
        }
        timers.push(timer(&entry).ok_or(TimerError::Unreadable(entry))?);
    }
    Ok(timers)
}

fn timer(entry: &str) -> Option<Timer> {
    let mut lines = entry.lines();
    let id = lines.next()?.strip_prefix("ID: ")?.parse().ok()?;
    let (signal, value) = lines.next()?.strip_prefix("signal: ")?.split_once('/')?;
    let (how, whom) = lines.next()?.strip_prefix("notify: ")?.split_once('/')?;
    let clock = lines.next()?.strip_prefix("ClockID: ")?.parse().ok()?;
    let notify = match how {
        "signal" => libc::SIGEV_SIGNAL,
        "none" => libc::SIGEV_NONE,
        "thread" => libc::SIGEV_THREAD,
        _ => return None,
    };
    let (notify, tid) = match whom.split_once('.')? {
        ("tid", tid) => (notify | libc::SIGEV_THREAD_ID, tid),
        ("pid", pid) => (notify, pid),
        _ => return None,
    };
    Some(Timer {
        id,
        clock,
        notify,
        signal: signal.parse().ok()?,
        value: u64::from_str_radix(value.trim_start_matches("0x"), 16).ok()?,
        tid: tid.parse().ok()?,
        time: IntervalTimer::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "ID: 0\nsignal: 34/0000000000001234\nnotify: signal/pid.8792\nClockID: 1\n\
                          ID: 7\nsignal: 32/00007fff00000000\nnotify: signal/tid.8793\nClockID: -6\n";

    #[test]
    fn the_kernels_list_is_read() {
        let timers = parse(LISTED.as_bytes()).unwrap();
        assert_eq!(timers.len(), 2);
        let Timer { id, clock, notify, signal, value, tid, .. } = timers[0];
        assert_eq!((id, clock, notify, signal, value, tid), (0, 1, libc::SIGEV_SIGNAL, 34, 0x1234, 8792));
        let Timer { id, clock, notify, signal, value, tid, .. } = timers[1];
        assert_eq!(
            (id, clock, notify, signal, value, tid),
            (7, -6, libc::SIGEV_THREAD_ID, 32, 0x7fff_0000_0000, 8793)
        );
        assert_eq!(parse(b""), Ok(Vec::new()));
        assert!(matches!(parse(b"ID: 1\nsignal: 3\n"), Err(TimerError::Unreadable(_))));
    }

    #[test]
    fn a_timer_whose_signal_waits_fires_at_once_if_no_other_can_have_sent_it() {
        let mut timers = parse(LISTED.as_bytes()).unwrap();
        let mut waiting = 1 << 33 | 1 << 9 | 1 << 31;
        fire_at_once(&mut timers, &mut waiting);
        assert_eq!(
            (timers[0].time.left_ns, waiting),
            (1, 1 << 9 | 1 << 31),
            "one for a thread is none of the process's"
        );
        let mut two = [timers[0], timers[0]];
        let mut waiting = 1 << 33;
        two.iter_mut().for_each(|timer| timer.time.left_ns = 0);
        fire_at_once(&mut two, &mut waiting);
        assert_eq!((two[0].time.left_ns, two[1].time.left_ns, waiting), (0, 0, 1 << 33));
        assert_eq!(pending(Some(3), 1 | 1 << 63).iter().map(|one| one.signal).collect::<Vec<_>>(), [1, 64]);
    }

    #[test]
    fn timers_are_found_without_a_list() {
        // SAFETY: a timer that sends nothing.
        let timer = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_NONE;
            let mut timer: libc::timer_t = std::ptr::null_mut();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
            timer
        };
        let id = u32::try_from(timer as usize).unwrap();
        assert!(first_timer().is_some_and(|first| first <= id));
        // SAFETY: made above.
        unsafe { libc::timer_delete(timer) };
    }
}
