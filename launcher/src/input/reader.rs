//! The thread that reads the launcher's standard input, and keeps it.
//!
//! Nothing is read before a rank has room for it, so that unwanted input is left to the next reader of the same input. The descriptor stays as
//! it is: it is shared with the shell, and with anything else that has it. A terminal is read only while this process is in
//! its foreground; the thread blocks SIGTTIN, so that one that has just left it gets an error instead of being stopped.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, never};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{getpgrp, isatty};
use transport::Life;

use super::super::limits::{INPUT_ASKS_MAX, INPUT_EVENTS_MAX, INPUT_LOOK_EVERY, READ_BYTES};
use super::super::signals::thread_without_signals;
use super::log::Log;
use super::{FOLDER, Retention};

/// A request to the thread: to hand over at most so many bytes from this one on, for a rank in a life. The thread answers each with one event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) rank: u32,
    pub(crate) life: Life,
    pub(crate) from: u64,
    pub(crate) bytes: usize,
}

/// What the thread may read, and must keep. The newest values count, so they are not queued.
#[derive(Debug, Default)]
struct Marks {
    /// Read up to this byte.
    until: u64,
    /// Where nobody saves the job: forget the bytes before this one if there is no room.
    needed: u64,
    /// Forget the bytes before this one: nobody needs them any more.
    unneeded_below: u64,
}

/// A message from the thread.
#[derive(Debug)]
pub(crate) enum InputEvent {
    /// So many bytes have been read, and whether that is all.
    Read {
        end: u64,
        is_over: bool,
    },
    Bytes {
        rank: u32,
        life: Life,
        from: u64,
        bytes: Vec<u8>,
    },
    /// They are not kept any more.
    Lost {
        rank: u32,
        life: Life,
        from: u64,
        first: u64,
    },
    /// No more is read before the next commit: so many bytes are kept.
    Full {
        held: u64,
    },
    /// The input cannot be read, or not be kept: it ends here.
    Failed {
        error: String,
    },
}

/// The log's end when the thread began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) end: u64,
    pub(crate) is_over: bool,
}

/// The handle of the thread.
#[derive(Debug)]
pub(crate) struct Reader {
    asks: Sender<Ask>,
    marks: Arc<Mutex<Marks>>,
    wake: Arc<EventFd>,
    said: Receiver<InputEvent>,
    bell: Arc<EventFd>,
}

struct Thread {
    input: OwnedFd,
    is_terminal: bool,
    is_gone: bool,
    log: Log,
    forgets: bool,
    limit: u64,
    /// The input has ended, or cannot be kept: nothing more is read.
    is_done: bool,
    was_full: bool,
    said: Sender<InputEvent>,
    bell: Arc<EventFd>,
    wake: Arc<EventFd>,
    asks: Receiver<Ask>,
    marks: Arc<Mutex<Marks>>,
}

/// Whether a descriptor is the null device.
fn is_null(input: BorrowedFd<'_>) -> bool {
    let kept = nix::sys::stat::fstat(input).ok();
    let null = nix::sys::stat::stat("/dev/null").ok();
    kept.zip(null).is_some_and(|(kept, null)| kept.st_rdev == null.st_rdev && kept.st_rdev != 0)
}

impl Reader {
    /// `None`: there is nothing to read, now or from before. `reports_end`: that is to be reported, too.
    pub(crate) fn start(
        retention: &Retention,
        limit: u64,
        reports_end: bool,
    ) -> io::Result<Option<(Reader, Start)>> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let has_nothing = is_null(input.as_fd()) && !reports_end;
        let log = match retention {
            Retention::Files(folder) if has_nothing && !folder.exists() => return Ok(None),
            Retention::Files(folder) => Log::in_files(folder, limit)?,
            Retention::Memory | Retention::Newest if has_nothing => return Ok(None),
            Retention::Memory | Retention::Newest => Log::in_memory(),
        };
        let start = Start { end: log.end(), is_over: log.is_over() };
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let (to_thread, asks) = bounded(INPUT_ASKS_MAX);
        let (to, said) = bounded(INPUT_EVENTS_MAX);
        let marks = Arc::new(Mutex::new(Marks::default()));
        let is_terminal = isatty(&input).unwrap_or(false);
        let forgets = *retention == Retention::Newest;
        let mut thread = Thread {
            input,
            is_terminal,
            is_gone: false,
            log,
            forgets,
            limit,
            is_done: false,
            was_full: false,
            said: to,
            bell: Arc::clone(&bell),
            wake: Arc::clone(&wake),
            asks,
            marks: Arc::clone(&marks),
        };
        // SIGTTIN must reach no thread. The thread is never joined: somebody else may have taken the bytes that it was about to read.
        thread_without_signals("stillwire-input", move || thread.run())?;
        Ok(Some((Reader { asks: to_thread, marks, wake, said, bell }, start)))
    }

    /// False: there is no room, so that answers are open.
    pub(crate) fn ask(&self, ask: Ask) -> bool {
        // The thread ends only when this end is dropped, or with its last word.
        let is_full = self.asks.try_send(ask).is_err_and(|error| error.is_full());
        let _ = self.wake.write(1);
        !is_full
    }

    /// The thread may read up to this byte. `needed`: where nobody saves the job, bytes before it are forgotten if there is no room.
    pub(crate) fn allow(&self, until: u64, needed: u64) {
        self.mark(|marks| (marks.until, marks.needed) = (marks.until.max(until), needed));
    }

    /// Nobody needs the bytes before this one any more.
    pub(crate) fn forget(&self, below: u64) {
        self.mark(|marks| marks.unneeded_below = marks.unneeded_below.max(below));
    }

    fn mark(&self, set: impl FnOnce(&mut Marks)) {
        // Nothing that can panic runs while it is held, and nobody waits with it.
        set(&mut self.marks.lock().unwrap_or_else(PoisonError::into_inner));
        let _ = self.wake.write(1);
    }

    /// Rings for every message.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(crate) fn next(&self) -> Option<InputEvent> {
        let _ = self.bell.read();
        self.said.try_recv().ok()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The thread finds that nobody asks any more, and nobody listens.
        (self.asks, _) = bounded(0);
        self.said = never();
        let _ = self.wake.write(1);
    }
}

/// The outcome of a read.
enum Outcome {
    Bytes(usize),
    Over,
    /// Not now.
    Later,
    /// The terminal is gone, and its input has not ended: a later launcher may have another one.
    HungUp,
    Failed(Errno),
}

impl Thread {
    /// Waits for room, which the launcher's loop makes: it never waits for this thread.
    fn say(&self, said: InputEvent) {
        // Nobody listens any more; full means that it rings already.
        let _ = self.said.send(said);
        let _ = self.bell.write(1);
    }

    fn run(&mut self) {
        loop {
            loop {
                match self.asks.try_recv() {
                    Ok(ask) => self.on_ask(ask),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            let room = self.look_at_marks();
            let wants = room > 0;
            let is_ours = !wants || !self.is_terminal || self.is_in_foreground();
            let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
            if wants && is_ours {
                fds.push(PollFd::new(self.input.as_fd(), PollFlags::POLLIN));
            }
            let timeout = if wants && !is_ours { timeout(INPUT_LOOK_EVERY) } else { PollTimeout::NONE };
            let ready = poll(&mut fds, timeout).is_ok_and(|ready| ready > 0);
            let has_input = ready && fds.get(1).is_some_and(|fd| fd.any().unwrap_or(true));
            drop(fds);
            let _ = self.wake.read();
            if has_input && !self.read(room) {
                // Bytes that were read before can still be requested.
                self.is_done = true;
            }
        }
    }

    /// Forgets the bytes that nobody needs. Returns how many may be read now.
    fn look_at_marks(&mut self) -> usize {
        let (until, needed, unneeded_below) = {
            let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
            (marks.until, marks.needed, core::mem::take(&mut marks.unneeded_below))
        };
        if unneeded_below > 0
            && let Err(error) = self.log.forget(unneeded_below)
        {
            self.say(InputEvent::Failed { error: error.to_string() });
        }
        self.room(until, needed)
    }

    fn room(&mut self, until: u64, needed: u64) -> usize {
        let wanted = until.saturating_sub(self.log.end()).min(READ_BYTES as u64);
        if self.is_gone || self.is_done || self.log.is_over() || wanted == 0 {
            return 0;
        }
        if self.forgets && self.log.held() + wanted > self.limit {
            let below = (self.log.end() + wanted).saturating_sub(self.limit).min(needed);
            let _ = self.log.forget(below);
        }
        let left = self.limit.saturating_sub(self.log.held());
        if left == 0 && !core::mem::replace(&mut self.was_full, true) && !self.forgets {
            self.say(InputEvent::Full { held: self.log.held() });
        }
        usize::try_from(wanted.min(left)).unwrap_or(0)
    }

    fn on_ask(&mut self, Ask { rank, life, from, bytes }: Ask) {
        let first = self.log.first();
        self.say(match self.log.read(from, bytes) {
            _ if from < first => InputEvent::Lost { rank, life, from, first },
            Ok(bytes) => InputEvent::Bytes { rank, life, from, bytes },
            Err(error) => InputEvent::Failed { error: error.to_string() },
        });
    }

    fn is_in_foreground(&self) -> bool {
        // Without an answer it is not this process's terminal, and the read returns the error.
        // SAFETY: asks about a descriptor that is open.
        let group = unsafe { libc::tcgetpgrp(self.input.as_raw_fd()) };
        group < 0 || group == getpgrp().as_raw()
    }

    /// Reads once. False: nothing more will come.
    fn read(&mut self, room: usize) -> bool {
        let mut chunk = vec![0; room];
        let kept = match self.try_read(&mut chunk) {
            Outcome::Later => return true,
            Outcome::HungUp => {
                self.is_gone = true;
                return false;
            }
            Outcome::Bytes(read) => self.log.append(&chunk[..read]),
            Outcome::Over => self.log.finish(),
            Outcome::Failed(errno) => {
                self.say(InputEvent::Failed { error: format!("reading standard input: {}", errno.desc()) });
                self.log.finish()
            }
        };
        match kept {
            Ok(()) => {
                self.say(InputEvent::Read { end: self.log.end(), is_over: self.log.is_over() });
                !self.log.is_over()
            }
            Err(error) => {
                self.say(InputEvent::Failed {
                    error: format!("keeping standard input in {FOLDER}/: {error}"),
                });
                self.say(InputEvent::Read { end: self.log.end(), is_over: true });
                false
            }
        }
    }

    fn try_read(&self, chunk: &mut [u8]) -> Outcome {
        match nix::unistd::read(&self.input, chunk) {
            Ok(0) if self.is_terminal && nix::sys::termios::tcgetattr(&self.input).is_err() => {
                Outcome::HungUp
            }
            Ok(0) => Outcome::Over,
            Ok(read) => Outcome::Bytes(read),
            Err(Errno::EINTR) => Outcome::Later,
            // Somebody else has made it so, or was faster.
            Err(Errno::EAGAIN) => {
                std::thread::sleep(Duration::from_millis(1));
                Outcome::Later
            }
            // This process has just left the foreground.
            Err(Errno::EIO) if self.is_terminal && !self.is_in_foreground() => Outcome::Later,
            Err(Errno::EIO) if self.is_terminal => Outcome::HungUp,
            Err(errno) => Outcome::Failed(errno),
        }
    }
}

fn timeout(time: Duration) -> PollTimeout {
    PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX)
}
