//! Threads that print: the reader of our output may stop reading, and the job still continues.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};

/// Bytes that wait to be printed on one stream, above which ranks are not listened to: they wait in their turn, as any program
/// does whose output nobody reads.
const PRINT_BYTES_MAX: usize = 1 << 20;

/// Between two looks whether it has been: a line takes some microseconds.
const SETTLE_SLICE: Duration = Duration::from_micros(200);

/// Where something is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    Output,
    Error,
}

/// A thread for each stream, so that one that is not read does not hold up the other.
#[derive(Debug)]
pub(crate) struct Printer {
    output: Queue,
    error: Queue,
}

/// A thread's other end.
#[derive(Debug)]
struct Queue {
    lines: Option<Sender<Vec<u8>>>,
    waiting: Arc<AtomicUsize>,
    /// Ends when everything has been printed.
    over: Receiver<()>,
}

impl Printer {
    pub(crate) fn start() -> io::Result<Printer> {
        Ok(Printer { output: Queue::start(io::stdout)?, error: Queue::start(io::stderr)? })
    }

    pub(crate) fn print(&self, stream: Stream, line: Vec<u8>) {
        match stream {
            Stream::Output => self.output.print(line),
            Stream::Error => self.error.print(line),
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.output.has_room() && self.error.has_room()
    }

    /// Waits until all lines given to it have been printed, at most for `limit`.
    pub(crate) fn settle(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while self.output.waits() || self.error.waits() {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(SETTLE_SLICE);
        }
    }

    /// Waits until everything is printed, at most for `limit`. False: it is not, and nobody seems to read.
    pub(crate) fn finish(&mut self, limit: Option<Duration>) -> bool {
        let until = limit.map(|limit| Instant::now() + limit);
        self.output.finish(until) & self.error.finish(until)
    }
}

impl Queue {
    fn start<W: Write>(open: impl Fn() -> W + Send + 'static) -> io::Result<Queue> {
        let (lines, taken) = channel::<Vec<u8>>();
        let (end, over) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        let run = move || {
            for line in taken {
                // Nobody may be there to read any more; the job goes on all the same.
                let _ = open().write_all(&line);
                if line.last() != Some(&b'\n') {
                    // Standard output holds back lines without an end; a prompt is waited for.
                    let _ = open().flush();
                }
                left.fetch_sub(line.len(), Ordering::Relaxed);
            }
            let _ = open().flush();
            drop(end);
        };
        // A thread inherits its maker's blocked signals: signals are for the thread that waits for them.
        let usual = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let started = std::thread::Builder::new().name("stillwire-printer".into()).spawn(run);
        usual.thread_set_mask()?;
        started?;
        Ok(Queue { lines: Some(lines), waiting, over })
    }

    fn print(&self, line: Vec<u8>) {
        if let Some(lines) = &self.lines {
            self.waiting.fetch_add(line.len(), Ordering::Relaxed);
            // The thread ends only when this end is dropped.
            let _ = lines.send(line);
        }
    }

    fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < PRINT_BYTES_MAX
    }

    fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn finish(&mut self, until: Option<Instant>) -> bool {
        self.lines = None;
        match until {
            None => self.over.recv().is_err(),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                self.over.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
            }
        }
    }
}
