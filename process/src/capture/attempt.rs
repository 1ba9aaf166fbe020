//! One capture.

mod held;

pub use held::{Held, HeldOutcome};

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::child::{fork, has_child, in_child, kill, wait};
use super::copy::{self, CopyRoom};
use super::describe::KnownFiles;
use super::facts::Facts;
use super::image::Notes;
use super::room::{DONE, FAILED, Room, Size};
use super::save::{self, Fault, SaveFault, SaveRoom, Work};
use super::{CaptureError, Content, Image, Mode, Options, Sink};
use crate::arch::{self, PAGE_BYTES};
use crate::content::Hashes;
use crate::declared::Declared;
use crate::files;
use crate::pages::{Cover, InUse, Pace, Progress, Sum, write_some};
use crate::preflight::{self, Look};
use crate::scratch::Scratch;
use crate::signals;
use crate::state::memory::PageRun;
use crate::state::threads::At;
use crate::stop::{self, Noted, StopFault, Stopped};
use crate::sys::{self, Errno};

/// A process that was looked at, and room for its state.
pub struct Prepared {
    pub(super) look: Look,
    options: Options,
    pub(super) files: files::Prepared,
    pub(super) signals: signals::Prepared,
    pub(super) content: Content,
    pace: Option<Box<dyn Pace>>,
    /// Pages that may be left out in [`Mode::Scan`] if they were not written; `None`: all.
    handed_over: Option<Vec<PageRun>>,
    pub(super) known_files: KnownFiles,
    pub(super) room: Room,
    // After `room`, which lies in it.
    scratch: Scratch,
}

/// How often [`Prepared::capture`] returned.
pub enum Outcome {
    /// The first time: the process goes on.
    Captured(Box<Captured>),
    /// Once more: this is the restored process, and its threads have gone on.
    Restored,
}

/// Times of one stop, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pause {
    /// Until all threads stood still.
    pub stop_ns: u64,
    /// Writing down the kernel's facts.
    pub state_ns: u64,
    /// Copying shared memory; fork, or writing all pages.
    pub memory_ns: u64,
    /// From the first signal until the threads could go on.
    pub total_ns: u64,
    /// Threads that stood still.
    pub threads: u32,
    /// Of these, interrupted in a system call that they make again.
    pub rewound: u32,
}

/// A process was captured; its pages are written, or are being written.
pub struct Captured {
    mode: Mode,
    pause: Pause,
    fork_refused: Option<Errno>,
    child: Option<u32>,
    prepared: Prepared,
    noted: Facts,
    threads: Vec<(u32, Noted)>,
    agent: At,
    maps_bytes: usize,
    /// In [`Mode::Scan`].
    progress: Progress,
}

impl Prepared {
    /// Looks at the process. Ordinary code: threads run, memory may be allocated.
    pub fn look(declared: &Declared, options: Options) -> Result<Prepared, CaptureError> {
        stop::install()
            .map_err(|errno| CaptureError::Call { call: "rt_sigaction of the stop signal", errno })?;
        let look = preflight::look(declared)?;
        let files = files::prepare(declared, look.shared_files()).map_err(CaptureError::from)?;
        let signals = signals::prepare().map_err(CaptureError::Timers)?;
        let size = Size {
            maps: look.maps_bytes,
            smaps: look.smaps_bytes,
            pages: look.pages,
            shared: look.shared_bytes,
            written: if options.mode == Mode::Scan { options.copy_bytes } else { 0 },
            threads: look.threads,
        };
        let (scratch, room) = Room::new(size.with_margin())
            .map_err(|errno| CaptureError::Call { call: "mmap of the capture's own memory", errno })?;
        let content = Content::Unknown;
        let mut prepared = Prepared {
            look,
            options,
            files,
            signals,
            content,
            pace: None,
            handed_over: None,
            known_files: HashMap::new(),
            room,
            scratch,
        };
        prepared.look.plan.ignored.extend([prepared.scratch.range(), prepared.files.memory()]);
        prepared.look.plan.ignored.sort_by_key(|range| range.start);
        Ok(prepared)
    }

    /// Has hashes of all pages noted while they are written, so that later images need not hold unchanged
    /// pages. Not in [`Mode::Scan`].
    pub fn note_content(&mut self) -> Result<(), CaptureError> {
        // As many as the lists of pages have room for.
        let hashes = Hashes::new(self.look.pages * 2 + self.look.shared_bytes / PAGE_BYTES + (64 << 10))
            .map_err(|errno| CaptureError::Call { call: "mmap for hashes of pages", errno })?;
        self.look.plan.ignored.push(hashes.memory());
        self.look.plan.ignored.sort_by_key(|range| range.start);
        self.content = Content::Noted(Box::new(hashes));
        Ok(())
    }

    /// Has pages left out that the image with these hashes has as they are. The function that inspected the process got
    /// them ([`Hashes::declare`]). Not in [`Mode::Scan`].
    pub fn compare_content(&mut self, with: Arc<Hashes>) {
        self.content = Content::Compared(with);
    }

    /// Has pages copied in [`Mode::Scan`] although they were not written, unless they are among these
    /// ([`crate::live::Rounds::handed_over`]): by rising address, without overlap.
    pub fn handed_over(&mut self, pages: Vec<PageRun>) {
        self.handed_over = Some(pages);
    }

    /// Has pages written no faster than that, as long as the program runs meanwhile: not in [`Mode::Sync`].
    pub fn limit(&mut self, pace: Box<dyn Pace>) {
        self.pace = Some(pace);
    }

    /// Captures. All other threads of the process stand still meanwhile, and go on before this returns, however it
    /// returns. The calling thread must have been started by the C library, and is part of the image.
    pub fn capture(self, sink: Sink<'_>, sum: &mut dyn Sum) -> Result<Outcome, CaptureError> {
        let Some((attempt, prepared)) = self.run(Some(sink), sum, None)? else {
            return Ok(Outcome::Restored);
        };
        let agent = attempt.agent();
        Ok(Outcome::Captured(Box::new(Captured {
            mode: attempt.mode,
            pause: attempt.pause,
            fork_refused: attempt.fork_refused,
            child: attempt.child,
            noted: attempt.facts,
            threads: attempt.threads,
            agent,
            maps_bytes: attempt.maps_bytes,
            progress: Progress::default(),
            prepared,
        })))
    }

    /// Stops the threads, and lets them go on. `None` in the restored process.
    fn run<'a>(
        self,
        sink: Option<Sink<'a>>,
        sum: &'a mut dyn Sum,
        hold: Option<&'a mut dyn FnMut(&mut Held<'_>)>,
    ) -> Result<Option<(Attempt<'a>, Prepared)>, CaptureError> {
        const NO_SINK: i32 = -1;
        let size = self.look.threads * 2 + 64;
        let mut attempt = ManuallyDrop::new(Attempt {
            registers: [0; arch::REGISTERS],
            mode: self.options.mode,
            offset: sink.as_ref().map_or(0, |sink| sink.offset),
            sink: sink.as_ref().map_or(NO_SINK, Sink::number),
            cover: sink.and_then(|sink| sink.cover),
            sum,
            hold,
            refused: None,
            facts: Facts::NOTHING,
            // Before the stop: this thread can ask for itself at any time.
            own: (sys::thread_id(), stop::note_self()),
            threads: Vec::with_capacity(size),
            waiting: Vec::with_capacity(size * Noted::USED_PAGES),
            maps_bytes: 0,
            pause: Pause::default(),
            fork_refused: None,
            child: None,
            outcome: Ok(()),
            prepared: ManuallyDrop::new(self),
        });
        let signals = BlockedSignals::new();
        let attempt_address: *mut Attempt<'_> = &raw mut *attempt;
        // SAFETY: the registers have room; `in_stop` does not unwind, and is the only user of the attempt meanwhile.
        let returned = unsafe {
            arch::call_noting_registers(
                (&raw mut (*attempt_address).registers).cast(),
                in_stop,
                attempt_address.cast(),
            )
        };
        let is_restored = returned == arch::RESTORED;
        if is_restored {
            stop::forget();
        }
        signals.restore();
        let mut attempt = ManuallyDrop::into_inner(attempt);
        // SAFETY: it is taken once, here, and has no other user.
        let prepared = unsafe { ManuallyDrop::take(&mut attempt.prepared) };
        if is_restored {
            // Both were left out of the image: nothing is mapped there, or something else.
            let Prepared { files, content, scratch, .. } = prepared;
            std::mem::forget((files, content, scratch));
            return Ok(None);
        }
        if let Some(refused) = attempt.refused.take() {
            return Err(refused);
        }
        attempt.outcome.map_err(InStop::into_error)?;
        Ok(Some((attempt, prepared)))
    }
}

/// The failure while threads stood still. Turned into words when they go on.
#[derive(Clone, Copy)]
enum InStop {
    Stop(StopFault),
    Call(&'static str, Errno),
    Grown(&'static str),
    Child,
    Files(files::Fault),
    Save(SaveFault),
}

impl InStop {
    fn into_error(self) -> CaptureError {
        match self {
            InStop::Stop(fault) => CaptureError::Stop { fault, about: preflight::describe(fault) },
            InStop::Call(what, Errno(libc::ENOBUFS)) | InStop::Grown(what) => CaptureError::Grown { what },
            InStop::Child => CaptureError::Grown { what: "child processes" },
            InStop::Call(call, errno) => CaptureError::Call { call, errno },
            InStop::Files(files::Fault::Full { .. }) => CaptureError::Grown { what: "descriptors" },
            InStop::Files(fault) => CaptureError::Files(fault.to_string()),
            InStop::Save(fault) => fault.into(),
        }
    }
}

/// Everything that the stop reads and writes: made before it, looked at after it.
struct Attempt<'a> {
    registers: [u64; arch::REGISTERS],
    mode: Mode,
    sink: i32,
    offset: u64,
    cover: Option<&'a dyn Cover>,
    sum: &'a mut dyn Sum,
    /// What runs before the threads go on.
    hold: Option<&'a mut dyn FnMut(&mut Held<'_>)>,
    /// Why it did not run.
    refused: Option<CaptureError>,
    facts: Facts,
    own: (u32, Noted),
    threads: Vec<(u32, Noted)>,
    /// Room for [`Work::waiting`].
    waiting: Vec<u64>,
    maps_bytes: usize,
    pause: Pause,
    fork_refused: Option<Errno>,
    child: Option<u32>,
    outcome: Result<(), InStop>,
    prepared: ManuallyDrop<Prepared>,
}

unsafe extern "C" fn in_stop(attempt: *mut c_void) -> u64 {
    // SAFETY: `capture` gives its attempt, and does not touch it meanwhile.
    let attempt = unsafe { &mut *attempt.cast::<Attempt<'_>>() };
    let began = sys::now_ns();
    // A fork takes some 20 ms a GB; a thread that waits much longer than the whole needs is on its own.
    let patience_s = u32::try_from(30 + attempt.prepared.look.pages / (1 << 16)).unwrap_or(u32::MAX);
    attempt.outcome = match stop::stop(attempt.prepared.options.stop_timeout_ns, patience_s) {
        Err(fault) => Err(InStop::Stop(fault)),
        Ok(stopped) => {
            attempt.pause.stop_ns = sys::now_ns() - began;
            let outcome = attempt.stopped(&stopped);
            attempt.pause.total_ns = sys::now_ns() - began;
            let released = stopped.release().map_err(InStop::Stop);
            match (outcome, released) {
                (Ok(()), Err(lost)) => {
                    // Threads ran while their state was taken: it is worth nothing.
                    attempt.end_child();
                    Err(lost)
                }
                (outcome, _) => outcome,
            }
        }
    };
    0
}

impl Attempt<'_> {
    /// No allocation, no lock, no panic from here on.
    fn stopped(&mut self, stopped: &Stopped) -> Result<(), InStop> {
        let began = sys::now_ns();
        self.pause.rewound = stopped.rewind();
        let room = &mut self.prepared.room;
        // The look before the stop refuses children by name. One that was started since then would not be there after a restore.
        if has_child() {
            return Err(InStop::Child);
        }
        self.maps_bytes = sys::read_whole(c"/proc/self/maps", room.maps)
            .map_err(|errno| InStop::Call("reading /proc/self/maps", errno))?;
        self.facts.look().map_err(|errno| InStop::Call("asking for the state of the process", errno))?;
        self.prepared.files.look().map_err(InStop::Files)?;
        let timers = self.prepared.signals.look();
        timers.map_err(|errno| InStop::Call("reading timers", errno))?;
        for thread in stopped.threads() {
            if self.threads.len() + 1 >= self.threads.capacity() {
                return Err(InStop::Grown("threads"));
            }
            self.waiting.extend(thread.1.used_pages());
            self.threads.push(thread);
        }
        self.waiting.sort_unstable();
        self.waiting.dedup();
        self.pause.threads = u32::try_from(self.threads.len()).unwrap_or(u32::MAX);
        self.threads.push(self.own);
        stopped.beat();
        let looked = sys::now_ns();
        self.pause.state_ns = looked - began;
        let outcome = self.memory(stopped);
        self.pause.memory_ns = sys::now_ns() - looked;
        outcome?;
        if self.hold.is_some() { self.held(stopped, began) } else { Ok(()) }
    }

    /// How the calling thread goes on in a restored process.
    fn agent(&self) -> At {
        At::Agent { registers: self.registers.to_vec(), mask: u64::MAX }
    }

    fn memory(&mut self, stopped: &Stopped) -> Result<(), InStop> {
        let Prepared { look, room, content, pace, handed_over, .. } = &mut *self.prepared;
        let maps = room.maps.get(..self.maps_bytes).unwrap_or(&[]);
        let shared =
            save::copy_shared(maps, &look.plan, room.shared_runs, room.copies).map_err(InStop::Save)?;
        stopped.beat();
        let work = Work {
            plan: &look.plan,
            maps,
            shared: room.shared_runs.get(..shared).unwrap_or(&[]),
            waiting: &self.waiting,
            content,
            handed_over: handed_over.as_deref(),
            sink: self.sink,
            offset: self.offset,
            cover: self.cover,
            pace: pace.as_ref().map_or(0..0, |pace| save::memory_of(&**pace)),
        };
        let report = room.report;
        if self.mode == Mode::Scan {
            let copy_room = CopyRoom {
                runs: room.runs,
                guards: room.guards,
                unchanged: room.unchanged,
                copies: room.written,
            };
            match copy::changed(&work, copy_room, report) {
                // More was written than expected: all of it is saved.
                Err(SaveFault { errno: Errno(libc::ENOBUFS), .. }) => self.mode = Mode::Fork,
                copied => return copied.map_err(InStop::Save),
            }
        }
        if self.hold.is_some() {
            self.mode = Mode::Sync;
            // The list of found pages is needed no more when the one with their copies is whole: they change places, so
            // that the image's list is where it always is.
            std::mem::swap(&mut room.runs, &mut room.changed);
            let in_place = held::InPlaceRoom {
                runs: room.changed,
                guards: room.guards,
                all: room.runs,
                copies: room.used,
            };
            return held::in_place(&work, in_place, self.sum, report).map_err(InStop::Save);
        }
        if self.mode == Mode::Fork {
            keep_from_child(&*look, false);
            let child = fork();
            match child {
                Ok(0) => {
                    let save_room = SaveRoom {
                        runs: room.runs,
                        guards: room.guards,
                        unchanged: room.unchanged,
                        changed: room.changed,
                        buffer: room.buffer,
                    };
                    let texts = (&mut *room.child_maps, &mut *room.smaps);
                    in_child(&work, texts, save_room, self.sum, pace.as_deref_mut(), report)
                }
                child => {
                    keep_from_child(&*look, true);
                    match child {
                        Ok(child) => {
                            self.child = u32::try_from(child).ok();
                            return Ok(());
                        }
                        // Memory or processes are limited: the pages can still be written here.
                        Err(errno) => {
                            self.fork_refused = Some(errno);
                            self.mode = Mode::Sync;
                        }
                    }
                }
            }
        }
        save::protect(maps, &look.plan, true).map_err(InStop::Save)?;
        let save_room = SaveRoom {
            runs: room.runs,
            guards: room.guards,
            unchanged: room.unchanged,
            changed: room.changed,
            buffer: room.buffer,
        };
        let saved = save::save(&work, save_room, self.sum, None, report);
        let protected = save::protect(maps, &look.plan, false);
        saved.and(protected).map_err(InStop::Save)
    }

    fn end_child(&mut self) {
        if let Some(child) = self.child.take() {
            kill(child);
        }
    }
}

/// Regions that the program wants no child to have are given to ours, and taken from later ones again.
fn keep_from_child(look: &Look, keep: bool) {
    for (range, advice) in &look.kept {
        let advice = if keep { advice.keep } else { advice.give };
        let bytes = (range.end - range.start) as usize;
        // SAFETY: sets only the behaviour of a fork. A region that is gone meanwhile is an error without
        // effect.
        let _ =
            unsafe { sys::call(libc::SYS_madvise, [range.start as usize, bytes, advice as usize, 0, 0, 0]) };
    }
}

impl Captured {
    /// The mode that was used.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the image needs one below it.
    #[must_use]
    pub fn is_delta(&self) -> bool {
        self.mode == Mode::Scan || matches!(self.prepared.content, Content::Compared(_))
    }

    /// Why there was no fork although one was asked for: a limit of memory or processes.
    #[must_use]
    pub fn fork_refused(&self) -> Option<Errno> {
        self.fork_refused
    }

    /// How long threads stood still.
    #[must_use]
    pub fn pause(&self) -> Pause {
        self.pause
    }

    /// Bytes of pages that are written.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.prepared.room.report.written.load(Ordering::Acquire)
    }

    /// Whether [`Captured::finish`] would not wait.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let Some(child) = self.child else { return true };
        let flags = (libc::__WALL | libc::WNOHANG | libc::WEXITED | libc::WNOWAIT) as usize;
        // As long as a siginfo_t, whose first word stays 0 where nothing has happened yet.
        let mut about = [0u32; 32];
        // SAFETY: the kernel writes its facts about our child there.
        let answer = unsafe {
            let about = (&raw mut about) as usize;
            sys::call(libc::SYS_waitid, [libc::P_PID as usize, child as usize, about, flags, 0, 0])
        };
        answer.is_err() || about[0] != 0
    }

    /// Abandons the image: its writer is ended. Written bytes stay in the sink.
    pub fn cancel(mut self) {
        if let Some(child) = self.child.take() {
            kill(child);
        }
    }

    /// Writes the copies of [`Mode::Scan`]; does nothing in other modes. Ordinary code, while the program runs. If [`Prepared::limit`] has it wait,
    /// it returns for how long, and must be called again then, with the same sum; `None`: all is written.
    pub fn write_copies(
        &mut self,
        sink: Sink<'_>,
        sum: &mut dyn Sum,
    ) -> Result<Option<Duration>, CaptureError> {
        if self.mode != Mode::Scan {
            return Ok(None);
        }
        let room = &mut self.prepared.room;
        let report = room.report;
        let runs = room.runs.get(..report.runs.load(Ordering::Relaxed) as usize).unwrap_or(&[]);
        let pace = self.prepared.pace.as_deref();
        let target = sink.target(&report.written, report.bytes.load(Ordering::Relaxed), pace);
        // All of it is in memory of the capture's own.
        let mut in_use = InUse::nothing(room.buffer);
        loop {
            let written = write_some(runs, &mut self.progress, target, &mut in_use, sum, None);
            let bytes = written.map_err(|fault| SaveFault {
                fault: Fault::Write,
                address: fault.address,
                errno: fault.errno,
            })?;
            if bytes == 0 {
                break;
            }
            match self.prepared.pace.as_mut().map_or(0, |pace| pace.wait_ns(bytes)) {
                0 => {}
                wait => return Ok(Some(Duration::from_nanos(wait))),
            }
        }
        report.sum.store(sum.value(), Ordering::Relaxed);
        report.stage.store(DONE, Ordering::Release);
        Ok(None)
    }

    /// Waits until all pages are written, and puts the state together.
    ///
    /// # Panics
    /// In [`Mode::Scan`], if [`Captured::write_copies`] has not written all before.
    pub fn finish(mut self) -> Result<Image, CaptureError> {
        let report = self.prepared.room.report;
        let is_written = self.mode != Mode::Scan || report.stage.load(Ordering::Acquire) == DONE;
        assert!(is_written, "copies are written before");
        let status = match self.child.take() {
            None => 0,
            // Other code waits for all children, ours too: the child's report is there.
            Some(child) => wait(child).unwrap_or(0),
        };
        match report.stage.load(Ordering::Acquire) {
            DONE => {}
            FAILED => {
                let fault = Fault::ALL.get(report.fault.load(Ordering::Relaxed) as usize);
                return Err(SaveFault {
                    fault: *fault.unwrap_or(&Fault::Maps),
                    address: report.address.load(Ordering::Relaxed),
                    errno: Errno(report.errno.load(Ordering::Relaxed).cast_signed()),
                }
                .into());
            }
            _ => return Err(CaptureError::ChildEnded { status }),
        }
        self.prepared.image(&Notes {
            facts: &self.noted,
            threads: &self.threads,
            agent: &self.agent,
            maps_bytes: self.maps_bytes,
            is_held: false,
        })
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            kill(child);
        }
    }
}

/// All signals of the calling thread are blocked until they are put back: a handler of the program's must not run here.
struct BlockedSignals {
    mask: u64,
    stack: libc::stack_t,
}

impl BlockedSignals {
    fn new() -> BlockedSignals {
        let all = u64::MAX;
        let mut kept = BlockedSignals {
            mask: 0,
            stack: libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 },
        };
        // SAFETY: the kernel reads the one mask and writes the other, and the description of the signal stack.
        unsafe {
            let _ = sys::call(
                libc::SYS_rt_sigprocmask,
                [libc::SIG_SETMASK as usize, &raw const all as usize, &raw mut kept.mask as usize, 8, 0, 0],
            );
            let _ = sys::call(libc::SYS_sigaltstack, [0, &raw mut kept.stack as usize, 0, 0, 0, 0]);
        }
        kept
    }

    fn restore(self) {
        // SAFETY: as it was before; a restored thread has lost its signal stack.
        unsafe {
            let _ = sys::call(libc::SYS_sigaltstack, [&raw const self.stack as usize, 0, 0, 0, 0, 0]);
            let _ = sys::call(
                libc::SYS_rt_sigprocmask,
                [libc::SIG_SETMASK as usize, &raw const self.mask as usize, 0, 8, 0, 0],
            );
        }
    }
}
