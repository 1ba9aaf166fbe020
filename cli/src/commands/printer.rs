//! Threads that print: the reader of our output may stop reading, and the job still continues.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

/// Bytes that wait to be printed on one stream, above which ranks are not listened to: they wait in their turn, as any program
/// does whose output nobody reads.
/// Lines that are on their way already come on top: as many as keepers may hand over unasked.
const PRINT_BYTES_MAX: usize = 1 << 20;

/// Bytes that wait on one stream, above which the launcher's own messages are left out and counted. More than the former: a message that follows
/// much output is printed, too.
const MESSAGE_BYTES_MAX: usize = 4 * PRINT_BYTES_MAX;

/// Time between attempts to write to a full disk.
const FULL_EVERY: Duration = Duration::from_millis(500);

/// How long the end of a job waits for room on a full disk.
const FULL_MAX: Duration = Duration::from_secs(60);

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

/// An entry of a thread's queue.
#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// Everything before this has been printed: the sender is dropped.
    Settle(Sender<()>),
}

/// A thread's other end. Its bound is one of bytes ([`PRINT_BYTES_MAX`]): lines have between one byte and 64 KiB.
#[derive(Debug)]
struct Queue {
    lines: Option<Sender<Entry>>,
    waiting: Arc<AtomicUsize>,
    /// Messages that were left out.
    missing: Arc<AtomicU64>,
    /// The job is over: a full disk is not waited for without end.
    is_leaving: Arc<AtomicBool>,
    /// Ends when everything has been printed.
    over: Receiver<()>,
}

impl Printer {
    pub(crate) fn start() -> io::Result<Printer> {
        Ok(Printer { output: Queue::start(io::stdout)?, error: Queue::start(io::stderr)? })
    }

    /// Prints a line of a rank, or a part of one.
    pub(crate) fn print(&self, stream: Stream, line: Vec<u8>) {
        match stream {
            Stream::Output => self.output.print(line),
            Stream::Error => self.error.print(line),
        }
    }

    /// Prints a message of the launcher on the standard error output. It is left out if nobody has read for long.
    pub(crate) fn print_message(&self, line: Vec<u8>) {
        self.error.print_message(line);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.output.has_room() && self.error.has_room()
    }

    /// Waits until all lines given to it have been printed, at most for `limit`.
    pub(crate) fn settle(&self, limit: Duration) {
        let until = Instant::now() + limit;
        for settled in [&self.output, &self.error].map(Queue::settled) {
            // Disconnected, or too late.
            let _ = settled.recv_deadline(until);
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
        let (lines, taken) = unbounded();
        let (end, over) = bounded(0);
        let (waiting, missing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let (left, missed) = (Arc::clone(&waiting), Arc::clone(&missing));
        let is_leaving = Arc::new(AtomicBool::new(false));
        let leaving = Arc::clone(&is_leaving);
        let run = move || {
            for entry in taken {
                let line = match entry {
                    Entry::Line(line) => line,
                    Entry::Settle(waits) => {
                        drop(waits);
                        continue;
                    }
                };
                print_all(&mut open(), &line, &leaving);
                if line.last() != Some(&b'\n') {
                    // Standard output holds back lines without an end; a prompt is waited for.
                    let _ = open().flush();
                }
                if left.fetch_sub(line.len(), Ordering::Relaxed) == line.len() {
                    let missing = missed.swap(0, Ordering::Relaxed);
                    if missing > 0 {
                        let words = format!(
                            "stillwire: {missing} messages are missing here: nobody read this output while {} MiB waited (MESSAGE_BYTES_MAX)\n",
                            MESSAGE_BYTES_MAX >> 20
                        );
                        let _ = open().write_all(words.as_bytes());
                    }
                }
            }
            let _ = open().flush();
            drop(end);
        };
        launcher::thread_without_signals("stillwire-printer", run)?;
        Ok(Queue { lines: Some(lines), waiting, missing, is_leaving, over })
    }

    fn print(&self, line: Vec<u8>) {
        if let Some(lines) = &self.lines {
            self.waiting.fetch_add(line.len(), Ordering::Relaxed);
            // The thread ends only when this end is dropped.
            let _ = lines.send(Entry::Line(line));
        }
    }

    fn print_message(&self, line: Vec<u8>) {
        if self.waiting.load(Ordering::Relaxed) < MESSAGE_BYTES_MAX {
            self.print(line);
        } else {
            self.missing.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < PRINT_BYTES_MAX
    }

    /// Ends when everything that waits now has been printed.
    fn settled(&self) -> Receiver<()> {
        let (waits, settled) = bounded(0);
        if let Some(lines) = self.lines.as_ref().filter(|_| self.waiting.load(Ordering::Relaxed) > 0) {
            // The thread ends only when this end is dropped.
            let _ = lines.send(Entry::Settle(waits));
        }
        settled
    }

    fn finish(&mut self, until: Option<Instant>) -> bool {
        self.lines = None;
        self.is_leaving.store(true, Ordering::Relaxed);
        match until {
            None => self.over.recv().is_err(),
            Some(until) => self.over.recv_deadline(until) == Err(RecvTimeoutError::Disconnected),
        }
    }
}

/// Prints all bytes. While the disk is full it retries: the output would be lost otherwise. Ranks wait once [`PRINT_BYTES_MAX`] bytes are pending. Any other
/// error means that nobody reads; the job continues without its output.
fn print_all(to: &mut impl Write, mut bytes: &[u8], is_leaving: &AtomicBool) {
    let mut give_up_at = None;
    let mut is_reported = false;
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return,
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                if !core::mem::replace(&mut is_reported, true) {
                    super::print_message(format_args!(
                        "the ranks' output cannot be written: {error}. Free some space: ranks wait once {} MiB of output are pending",
                        PRINT_BYTES_MAX >> 20
                    ));
                }
                let now = Instant::now();
                if is_leaving.load(Ordering::Relaxed) && *give_up_at.get_or_insert(now + FULL_MAX) <= now {
                    return;
                }
                std::thread::sleep(FULL_EVERY);
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream whose reader reads when it is let.
    struct Held {
        go: Receiver<()>,
        printed: Sender<Vec<u8>>,
    }

    impl Write for Held {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Until the test lets it go on.
            let _ = self.go.recv();
            let _ = self.printed.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A disk that is full for a while.
    struct Full {
        failures: u32,
        printed: Vec<u8>,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.failures > 0 {
                self.failures -= 1;
                return Err(ErrorKind::StorageFull.into());
            }
            self.printed.push(bytes[0]);
            self.failures = 1;
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_waited_for() {
        let mut full = Full { failures: 1, printed: Vec::new() };
        print_all(&mut full, b"abc", &AtomicBool::new(false));
        assert_eq!(full.printed, b"abc");
    }

    #[test]
    fn messages_that_nobody_reads_are_left_out_and_counted() {
        let (go, held) = bounded(0);
        let (printed, seen) = unbounded();
        let mut queue =
            Queue::start(move || Held { go: held.clone(), printed: printed.clone() }).expect("a thread");
        assert!(queue.has_room());
        queue.print(vec![b'\n'; PRINT_BYTES_MAX]);
        assert!(!queue.has_room());
        // Behind output that is not read yet, a message is still taken.
        queue.print_message(b"early\n".to_vec());
        queue.print(vec![b'\n'; MESSAGE_BYTES_MAX]);
        (0..3).for_each(|_| queue.print_message(b"late\n".to_vec()));
        assert_eq!(
            queue.settled().recv_timeout(Duration::from_millis(1)),
            Err(RecvTimeoutError::Timeout),
            "nothing is printed yet"
        );
        drop(go);
        assert!(queue.finish(None));
        let seen: Vec<Vec<u8>> = seen.try_iter().collect();
        assert_eq!(seen.len(), 4, "output, message, output, the number of missing messages");
        assert_eq!(seen[1], b"early\n");
        assert!(seen[3].starts_with(b"stillwire: 3 messages are missing here"));
    }
}
