//! All threads but the calling one stand still, each in a signal handler that notes the kernel's facts about
//! its thread.
//!
//! The signal is the one with which the GNU C library informs all threads about a new user id: its own functions never
//! block it. Requests of ours carry a value by which the handler knows them; all others pass to the handler that was
//! there before.
//!
//! No thread stands still for ever. Its stopper shows by a heartbeat that it lives; if that stops, or if its thread is
//! gone, a waiting thread ends the stop for all.

mod handler;
mod table;
mod waits;

use std::fmt;
use std::sync::atomic::Ordering;

use crate::arch::{self, Call};
use crate::maps::number;
use crate::sys::{self, Answer, Errno, Text};

pub(crate) use handler::{KernelAction, RSEQ_SIGNATURE, action, install};
use table::{CANCELLED, ENTERED, GONE, PASSED, STOPPED, Slot, TABLE, WANTED, let_go, staged};
pub(crate) use table::{Noted, PROCESSOR_WORDS, RseqAnswer, THREADS_MAX};

/// Time between two looks at threads that have not come; one that ended meanwhile is found then.
const LOOK_AGAIN_NS: u64 = 20_000_000;

/// Time in which a thread leaves a place where it cannot be stopped.
const PASSING_NS: u64 = 20_000;

/// Looks before the first sleep: a thread that runs on another processor needs a few microseconds.
const SPINS: u32 = 2_000;

/// Why threads could not be stopped. All go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopFault {
    /// A thread did not come to its handler in time.
    Late {
        /// Its id.
        tid: u32,
        /// How long it was waited for, ns.
        waited_ns: u64,
    },
    /// The kernel did not take the signal for a thread.
    Signal {
        /// Its id.
        tid: u32,
        /// Why.
        errno: Errno,
    },
    /// The list of threads could not be read.
    List {
        /// Why.
        errno: Errno,
    },
    /// There are more threads than can be stopped.
    TooMany,
    /// The threads went on by themselves, because the one that had stopped them gave no sign of life.
    Lost,
}

impl fmt::Display for StopFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopFault::Late { tid, waited_ns } => {
                let ms = waited_ns / 1_000_000;
                write!(
                    f,
                    "thread {tid} did not stop within {ms} ms: it keeps signal {} from itself by system calls ",
                    handler::SIGNAL
                )?;
                f.write_str("of its own, or waits in the kernel where no signal reaches it")
            }
            StopFault::Signal { tid, errno } => {
                write!(
                    f,
                    "thread {tid} could not be sent a signal: {errno}; look at the limit of pending signals (ulimit -i)"
                )
            }
            StopFault::List { errno } => {
                write!(f, "the list of threads, /proc/self/task, cannot be read: {errno}")
            }
            StopFault::TooMany => write!(f, "the process has more than {THREADS_MAX} threads"),
            StopFault::Lost => {
                f.write_str("the threads went on by themselves: the one that had stopped them was held up")
            }
        }
    }
}

impl std::error::Error for StopFault {}

/// Whether a capture is under way and all other threads stand still, or are about to. True also in the child that
/// writes an image. For allocators that check that no thread allocates then.
#[must_use]
pub fn threads_are_stopped() -> bool {
    TABLE.held.load(Ordering::Acquire) & 1 == 1
}

/// Threads that stand still until this is dropped.
pub(crate) struct Stopped {
    number: u32,
    slots: usize,
}

/// Stops all threads but the calling one. `patience_s`: after how many seconds without [`Stopped::beat`] they go on.
pub(crate) fn stop(timeout_ns: u64, patience_s: u32) -> Result<Stopped, StopFault> {
    let number = TABLE.held.load(Ordering::Acquire).wrapping_add(1) | 1;
    // The number stands above the stage in a slot's word, and above the slot in a signal's value.
    let number = if number > u32::MAX >> 4 { 1 } else { number };
    TABLE.agent.store(sys::thread_id(), Ordering::Relaxed);
    TABLE.patience_s.store(patience_s, Ordering::Relaxed);
    TABLE.arrived.store(0, Ordering::Relaxed);
    TABLE.held.store(number, Ordering::Release);
    let mut stopped = Stopped { number, slots: 0 };
    let deadline = sys::now_ns().saturating_add(timeout_ns);
    // A thread that was not yet seen may have made another one: repeat until no new thread is found.
    loop {
        let before = stopped.slots;
        stopped.signal_new()?;
        if stopped.slots == before {
            return Ok(stopped);
        }
        stopped.wait_for(before, deadline, timeout_ns)?;
    }
}

impl Stopped {
    /// Shows that the stopping thread lives.
    pub(crate) fn beat(&self) {
        TABLE.heartbeat.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether threads still stand still: `false` if they went on by themselves.
    pub(crate) fn is_held(&self) -> bool {
        TABLE.held.load(Ordering::Acquire) == self.number
    }

    /// Lets all threads go on. An error if they already did.
    pub(crate) fn release(self) -> Result<(), StopFault> {
        self.shorten_waits();
        let were_held = self.end();
        std::mem::forget(self);
        if were_held { Ok(()) } else { Err(StopFault::Lost) }
    }

    fn end(&self) -> bool {
        // A thread that has not arrived does not stop any more.
        for slot in self.used() {
            let _ = slot.stage.compare_exchange(
                staged(self.number, WANTED),
                staged(self.number, CANCELLED),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
        }
        let_go(self.number)
    }

    /// The notes of each stopped thread, with its id.
    pub(crate) fn threads(&self) -> impl Iterator<Item = (u32, Noted)> {
        self.used()
            .iter()
            .filter(|slot| slot.stage.load(Ordering::Acquire) == staged(self.number, STOPPED))
            .map(|slot| (slot.tid.load(Ordering::Relaxed), slot.noted()))
    }

    /// Lets every thread that was interrupted in a system call, and would see `EINTR` from it, make that call again,
    /// for the rest of its time. Returns how many.
    pub(crate) fn rewind(&self) -> u32 {
        for (slot, _) in self.frames() {
            waits::keep(slot.frame(), self.number);
        }
        let now_ns = sys::now_ns();
        TABLE.stopped_ns.store(now_ns, Ordering::Relaxed);
        let mut rewound = 0;
        let mut handles = None;
        for (slot, call) in self.frames() {
            let frame = slot.frame();
            let mut seen = call.filter(|call| frame.is_interrupted(*call));
            if seen.is_none() && !*handles.get_or_insert_with(handles_signals) {
                // It began to wait between the look at it and the signal. Only we can have interrupted it.
                seen = frame.interrupted_call();
                if seen.is_some() {
                    slot.set_call(seen);
                }
            }
            let Some(call) = seen else { continue };
            let is_rewound = frame.rewind(call);
            slot.is_rewound.store(is_rewound, Ordering::Relaxed);
            if is_rewound {
                rewound += 1;
                waits::shorten(frame, call, self.number, now_ns);
            }
        }
        rewound
    }

    /// Subtracts the time of the stop from waits that are made again.
    fn shorten_waits(&self) {
        let now_ns = sys::now_ns();
        for (slot, call) in self.frames() {
            if let Some(call) = call.filter(|_| slot.is_rewound.load(Ordering::Relaxed)) {
                waits::shorten(slot.frame(), call, self.number, now_ns);
            }
        }
    }

    /// The slots of threads that have stopped, and the calls that they were seen in.
    fn frames(&self) -> impl Iterator<Item = (&'static Slot, Option<Call>)> {
        let has_stopped = |slot: &&Slot| slot.stage.load(Ordering::Acquire) == staged(self.number, STOPPED);
        self.used().iter().filter(has_stopped).map(|slot| (slot, slot.call()))
    }

    fn used(&self) -> &'static [Slot] {
        TABLE.slots.get(..self.slots).unwrap_or(&[])
    }

    /// Signals all threads that have no slot yet.
    fn signal_new(&mut self) -> Result<(), StopFault> {
        let own = sys::thread_id();
        let list = |errno| StopFault::List { errno };
        let directory = sys::open_at(libc::AT_FDCWD, c"/proc/self/task", libc::O_DIRECTORY).map_err(list)?;
        let mut buffer = [0u64; 512];
        let outcome = loop {
            // SAFETY: the kernel fills the buffer, within its length.
            let filled = unsafe {
                sys::call(
                    libc::SYS_getdents64,
                    [directory as usize, buffer.as_mut_ptr() as usize, size_of_val(&buffer), 0, 0, 0],
                )
            };
            match filled {
                Ok(0) => break Ok(()),
                Err(errno) => break Err(list(errno)),
                Ok(filled) => {
                    // SAFETY: as many bytes of it were written.
                    let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), filled) };
                    let mut signalled = Ok(());
                    each_number(bytes, |tid| {
                        if signalled.is_ok() && tid != own && !self.knows(tid) {
                            signalled = self.signal(tid);
                        }
                    });
                    if signalled.is_err() {
                        break signalled;
                    }
                }
            }
        };
        sys::close(directory);
        outcome
    }

    fn knows(&self, tid: u32) -> bool {
        // The kernel may give the id of a thread that ended to a new one.
        self.used().iter().any(|slot| {
            slot.tid.load(Ordering::Relaxed) == tid
                && slot.stage.load(Ordering::Acquire) != staged(self.number, GONE)
        })
    }

    fn signal(&mut self, tid: u32) -> Result<(), StopFault> {
        // A slot that a thread of an earlier, abandoned stop still writes to is left to it.
        let free = |slot: &Slot| slot.stage.load(Ordering::Acquire) & 7 != ENTERED;
        let index = loop {
            let slot = TABLE.slots.get(self.slots).ok_or(StopFault::TooMany)?;
            self.slots += 1;
            if free(slot) {
                break self.slots - 1;
            }
        };
        let Some(slot) = TABLE.slots.get(index) else { return Err(StopFault::TooMany) };
        slot.tid.store(tid, Ordering::Relaxed);
        slot.passes.store(0, Ordering::Relaxed);
        self.request_stop(slot, index)
    }

    /// Orders the thread of a slot to stop.
    fn request_stop(&self, slot: &Slot, index: usize) -> Result<(), StopFault> {
        let tid = slot.tid.load(Ordering::Relaxed);
        slot.stage.store(staged(self.number, WANTED), Ordering::Release);
        slot.is_rewound.store(false, Ordering::Relaxed);
        // Right before the signal: the call in which the thread waits now is the one that is interrupted.
        slot.set_call(call_of(tid));
        match send(tid, u64::from(self.number) << 32 | index as u64) {
            Ok(()) => Ok(()),
            Err(Errno(libc::ESRCH)) => {
                slot.stage.store(staged(self.number, GONE), Ordering::Release);
                Ok(())
            }
            Err(errno) => Err(StopFault::Signal { tid, errno }),
        }
    }

    /// Waits for the slots from `first` on.
    fn wait_for(&self, first: usize, deadline: u64, timeout_ns: u64) -> Result<(), StopFault> {
        let mut spins = SPINS;
        loop {
            let arrived = TABLE.arrived.load(Ordering::Acquire);
            self.request_stop_again(first)?;
            let missing = self.used().iter().skip(first).find(|slot| {
                let stage = slot.stage.load(Ordering::Acquire);
                [WANTED, ENTERED, PASSED].into_iter().any(|coming| stage == staged(self.number, coming))
            });
            let Some(missing) = missing else { return Ok(()) };
            if spins > 0 {
                spins -= 1;
                std::hint::spin_loop();
                continue;
            }
            self.beat();
            let now = sys::now_ns();
            if now >= deadline {
                let tid = missing.tid.load(Ordering::Relaxed);
                return Err(StopFault::Late { tid, waited_ns: timeout_ns });
            }
            if sys::futex_wait(&TABLE.arrived, arrived, LOOK_AGAIN_NS) == Err(Errno(libc::ETIMEDOUT)) {
                self.bury(first);
            }
        }
    }

    /// Repeats the order for threads that were at a place where they cannot stop.
    fn request_stop_again(&self, first: usize) -> Result<(), StopFault> {
        let has_passed = |slot: &Slot| slot.stage.load(Ordering::Acquire) == staged(self.number, PASSED);
        if self.used().iter().skip(first).any(has_passed) {
            // A signal that came before they went on would find them at the same place.
            let arrived = TABLE.arrived.load(Ordering::Acquire);
            let _ = sys::futex_wait(&TABLE.arrived, arrived, PASSING_NS);
        }
        for (index, slot) in self.used().iter().enumerate().skip(first).filter(|(_, slot)| has_passed(slot)) {
            self.request_stop(slot, index)?;
        }
        Ok(())
    }

    /// Finds threads that ended before they came.
    fn bury(&self, first: usize) {
        let pid = sys::process_id() as usize;
        for slot in self.used().iter().skip(first) {
            let tid = slot.tid.load(Ordering::Relaxed) as usize;
            // SAFETY: signal 0 only asks.
            let answer = unsafe { sys::call(libc::SYS_tgkill, [pid, tid, 0, 0, 0, 0]) };
            if answer == Err(Errno(libc::ESRCH)) {
                let _ = slot.stage.compare_exchange(
                    staged(self.number, WANTED),
                    staged(self.number, GONE),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
            }
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.end();
    }
}

/// In a restored process: the stop in which it was saved is over, its threads went on by other ways.
pub(crate) fn forget() {
    let number = TABLE.held.load(Ordering::Acquire);
    waits::delay(TABLE.stopped_ns.load(Ordering::Relaxed), sys::now_ns());
    TABLE.held.store(number.wrapping_add(number & 1), Ordering::Release);
}

/// Bytes below a signal's context in which [`note_call`] writes: of a handler that is over.
pub(crate) const NOTE_BYTES: u64 = size_of::<Note>() as u64;

/// The call that a restored thread is about to make again.
#[repr(C, align(16))]
struct Note {
    number: i64,
    sp: u64,
    pc: u64,
    was_interrupted: u64,
}

/// No call.
const NO_CALL: i64 = -1;

/// In a restored process, before its threads go on: notes below the frame of a thread which call it is about to make again. The slots are
/// needed for the next stop as soon as the first thread goes on.
///
/// # Safety
/// `frame` is the address of a signal's context, on a stack that is unused below it.
pub(crate) unsafe fn note_call(frame: u64) {
    let number = TABLE.held.load(Ordering::Acquire);
    let is_it = |slot: &&Slot| {
        slot.stage.load(Ordering::Acquire) == staged(number, STOPPED) && slot.noted().frame == frame
    };
    let slot = TABLE.slots.iter().find(is_it);
    let call = slot.and_then(|slot| slot.call()).unwrap_or(Call { number: NO_CALL, sp: 0, pc: 0 });
    let was_interrupted = slot.is_some_and(|slot| slot.is_rewound.load(Ordering::Relaxed)).into();
    let Call { number, sp, pc } = call;
    // SAFETY: the caller's.
    unsafe { ((frame - NOTE_BYTES) as *mut Note).write(Note { number, sp, pc, was_interrupted }) };
}

/// In a restored process, as the last before a thread goes on: a signal that has come meanwhile ends the call that it would have ended.
///
/// # Safety
/// [`note_call`] has been called for the frame.
pub(crate) unsafe extern "C" fn settle_restored(frame: u64) {
    // SAFETY: the caller's.
    let (note, frame) =
        unsafe { (&*((frame - NOTE_BYTES) as *const Note), arch::Frame::of(frame as *mut std::ffi::c_void)) };
    if note.number != NO_CALL {
        let call = Call { number: note.number, sp: note.sp, pc: note.pc };
        handler::settle(frame, call, note.was_interrupted != 0);
    }
}

/// The kernel's facts about the calling thread, as the others note it.
pub(crate) fn note_self() -> Noted {
    handler::note(0)
}

/// Whether the program handles signals: then it has to expect that one of these interrupts a call.
fn handles_signals() -> bool {
    /// The C library's own two.
    const INTERNAL: [i32; 2] = [32, handler::SIGNAL];
    // SAFETY: nothing is changed.
    let is_handled = |signal| unsafe { action(signal, None) }.is_ok_and(|set| set.handler > libc::SIG_IGN);
    (1..=64).filter(|signal| !INTERNAL.contains(signal)).any(is_handled)
}

fn send(tid: u32, value: u64) -> Answer<()> {
    // `siginfo_t` of a queued signal: number, error, code, padding, sender's process and user, value.
    let mut info = [0u64; 16];
    let pid = sys::process_id();
    // SAFETY: no memory is touched.
    let uid = unsafe { sys::call(libc::SYS_getuid, [0; 6]) }.unwrap_or(0);
    info[0] = handler::SIGNAL as u64;
    info[1] = u64::from((libc::SI_QUEUE).cast_unsigned());
    info[2] = u64::from(pid) | (uid as u64) << 32;
    info[3] = value;
    // SAFETY: the kernel reads 128 bytes.
    unsafe {
        sys::call(
            libc::SYS_rt_tgsigqueueinfo,
            [pid as usize, tid as usize, handler::SIGNAL as usize, info.as_ptr() as usize, 0, 0],
        )
    }
    .map(drop)
}

/// The system call that a thread waits in; `None` if it runs.
fn call_of(tid: u32) -> Option<Call> {
    let path = Text::<64>::new().push(b"/proc/self/task/").number(tid).push(b"/syscall");
    let mut text = [0u8; 256];
    let filled = sys::read_whole(path.as_path(), &mut text).ok()?;
    // "number 0x… (six arguments) 0x(stack pointer) 0x(program counter)", or "running", or "-1 0x… 0x…" outside of any call.
    let text = text.get(..filled)?.trim_ascii_end();
    let (call_number, _) = number(text, 10)?;
    let mut words = text
        .rsplit(|byte| *byte == b' ')
        .map(|word| word.strip_prefix(b"0x").and_then(|digits| number(digits, 16)).map(|(value, _)| value));
    let (pc, sp) = (words.next()??, words.next()??);
    let mut number = call_number.cast_signed();
    if number == libc::SYS_restart_syscall {
        // A signal frame does not hold the call to continue.
        number = arch::resumed(pc).unwrap_or(number);
    }
    Some(Call { number, sp, pc })
}

/// Calls `each` with every name of a directory's entries that is a number.
fn each_number(entries: &[u8], mut each: impl FnMut(u32)) {
    /// Inode, offset; then length, type, name.
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let mut rest = entries;
    while let Some([low, high]) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
        let bytes = usize::from(arch::u16_of([*low, *high]));
        let name = rest.get(NAME_AT..bytes).unwrap_or(&[]);
        if let Some((tid, _)) = number(name, 10)
            && let Ok(tid) = u32::try_from(tid)
        {
            each(tid);
        }
        let Some(after) = rest.get(bytes..).filter(|_| bytes > NAME_AT) else { return };
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;

    /// One stop at a time.
    static STOPS: Mutex<()> = Mutex::new(());
    const TIMEOUT_NS: u64 = 10_000_000_000;

    /// A thread that counts until it is ordered to end.
    struct Counter {
        count: Arc<AtomicU64>,
        ends: Arc<AtomicBool>,
    }

    impl Counter {
        fn new() -> Counter {
            let (count, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let (counting, ending) = (Arc::clone(&count), Arc::clone(&ends));
            std::thread::spawn(move || {
                while !ending.load(Ordering::Relaxed) {
                    counting.fetch_add(1, Ordering::Relaxed);
                }
            });
            let counter = Counter { count, ends };
            counter.goes_on();
            counter
        }

        /// Waits until it has counted on.
        fn goes_on(&self) {
            let before = self.count.load(Ordering::Relaxed);
            while self.count.load(Ordering::Relaxed) == before {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Drop for Counter {
        fn drop(&mut self) {
            self.ends.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn no_thread_runs_until_the_release() {
        let _turn = STOPS.lock();
        install().expect("a handler");
        let counter = Counter::new();
        for _ in 0..20 {
            // Nothing may allocate, or wait for another thread, between here and the release.
            let stopped = stop(TIMEOUT_NS, 60);
            let before = counter.count.load(Ordering::Relaxed);
            let from = sys::now_ns();
            while sys::now_ns() - from < 2_000_000 {}
            let after = counter.count.load(Ordering::Relaxed);
            let released = stopped.map(Stopped::release);
            assert_eq!((before, released), (after, Ok(Ok(()))));
            counter.goes_on();
        }
    }

    /// Their stopper has ended, and never released them.
    #[test]
    fn threads_go_on_by_themselves_when_their_stopper_is_gone() {
        let _turn = STOPS.lock();
        install().expect("a handler");
        let counter = Counter::new();
        let stopper = std::thread::spawn(|| std::mem::forget(stop(TIMEOUT_NS, 60)));
        stopper.join().expect("it ends without a release");
        counter.goes_on();
        assert!(!threads_are_stopped());
    }

    /// It lives, and hangs.
    #[test]
    fn threads_go_on_by_themselves_without_a_sign_of_life() {
        let _turn = STOPS.lock();
        install().expect("a handler");
        let counter = Counter::new();
        let stopped = stop(TIMEOUT_NS, 0);
        let from = sys::now_ns();
        // No clock of another thread: this one only waits until the others went on.
        while threads_are_stopped() && sys::now_ns() - from < TIMEOUT_NS {}
        assert_eq!(stopped.map(Stopped::release), Ok(Err(StopFault::Lost)));
        counter.goes_on();
    }

    #[test]
    fn a_stop_leaves_the_library_s_own_use_of_the_signal_alone() {
        let _turn = STOPS.lock();
        install().expect("a handler");
        let _counter = Counter::new();
        // Informs all threads by signal 33, and waits for their answers. SAFETY: the group that the process already
        // has.
        assert_eq!(unsafe { libc::setgid(libc::getgid()) }, 0);
    }
}
