//! A rank's messages to its keeper. No thread waits for a keeper that does not read, least of all the program.

use std::io::{Error, ErrorKind, Result};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use ckpt_glue::control::{Control, ControlKey, ControlWriter};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, send};

use crate::limits::{LINE_BYTES_MAX, LINE_WAIT_MAX};

/// The writing half of the connection to the keeper.
pub struct Line {
    stream: UnixStream,
    writer: ControlWriter,
    /// Bytes that the socket had no room for.
    waiting: Vec<u8>,
    /// Since when the keeper has taken nothing of it; `None` once that has been reported.
    since: Option<Instant>,
}

impl Line {
    /// The connection's writing half; `key` is the job's.
    pub fn new(stream: UnixStream, key: ControlKey) -> Line {
        Line { stream, writer: ControlWriter::new(key), waiting: Vec::new(), since: None }
    }

    /// Hands a message over without waiting. Bytes that find no room leave with [`Line::flush`].
    pub fn send(&mut self, control: &Control) -> Result<()> {
        if self.waiting.is_empty() {
            self.since = Some(Instant::now());
        }
        self.writer.emit(control, &mut self.waiting);
        self.flush()?;
        if self.waiting.len() > LINE_BYTES_MAX {
            // It gets no more messages, so it can neither save nor recover this rank: like one that is gone.
            let _ = self.stream.shutdown(Shutdown::Both);
            let problem = format!(
                "{} bytes wait for the launcher to read them, at most {LINE_BYTES_MAX} can: is it stopped?",
                self.waiting.len()
            );
            self.waiting.clear();
            return Err(Error::new(ErrorKind::TimedOut, problem));
        }
        Ok(())
    }

    /// Sends the bytes that the socket has room for.
    pub fn flush(&mut self) -> Result<()> {
        while !self.waiting.is_empty() {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(self.stream.as_fd().as_raw_fd(), &self.waiting, flags) {
                Ok(sent) => {
                    self.waiting.drain(..sent);
                    self.since = Some(Instant::now());
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(error) => {
                    self.waiting.clear();
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Events to wait for on the socket besides messages of the keeper.
    #[must_use]
    pub fn wants(&self) -> PollFlags {
        if self.waiting.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT }
    }

    /// When to call [`Line::overdue`].
    pub fn due(&self) -> Option<Instant> {
        self.since.filter(|_| !self.waiting.is_empty()).map(|since| since + LINE_WAIT_MAX)
    }

    /// Bytes that the keeper should have read long ago; reported once.
    pub fn overdue(&mut self, now: Instant) -> Option<usize> {
        self.due().filter(|due| now >= *due)?;
        self.since = None;
        Some(self.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::io::Read as _;

    use ckpt_glue::control::{ControlReader, Message};
    use ckpt_glue::names::Party;
    use transport::{Epoch, JobId, Life, Rank};

    use super::*;

    fn key() -> ControlKey {
        ControlKey::new(&[3; 16])
    }

    fn control(number: u32) -> Control {
        let life = Life { counter: 1, nonce: 2 };
        let sender = Party::Rank(Rank(1));
        Control { job: JobId(7), life, epoch: Epoch(number), sender, message: Message::StatusQuery }
    }

    /// Sends until something waits, and returns how many that took.
    fn fill(line: &mut Line) -> u32 {
        let mut sent = 0;
        while line.wants().is_empty() {
            line.send(&control(sent)).expect("it is there");
            sent += 1;
        }
        sent
    }

    #[test]
    fn a_keeper_that_reads_late_gets_everything_and_nobody_waits_for_it() {
        let (ours, mut keepers) = UnixStream::pair().expect("sockets");
        let mut line = Line::new(ours, key());
        let filled = fill(&mut line);
        let sent = filled + 100;
        for number in filled..sent {
            line.send(&control(number)).expect("it may wait");
        }
        let mut reader = ControlReader::new(key());
        let (mut heard, mut chunk) = (0, vec![0; 1 << 16]);
        while heard < sent {
            let read = keepers.read(&mut chunk).expect("there is more");
            reader.feed(&chunk[..read]);
            while let Some(found) = reader.next().expect("whole frames") {
                assert_eq!(found.epoch, Epoch(heard));
                heard += 1;
            }
            line.flush().expect("it is there");
        }
        assert!(line.wants().is_empty() && line.due().is_none());
    }

    #[test]
    fn a_keeper_that_does_not_read_is_reported_once_and_given_up_at_a_bound() {
        let (ours, _keepers) = UnixStream::pair().expect("sockets");
        let mut line = Line::new(ours, key());
        fill(&mut line);
        let due = line.due().expect("something waits");
        assert_eq!(line.overdue(due - Duration::from_nanos(1)), None);
        assert!(line.overdue(due).is_some_and(|bytes| bytes > 0));
        assert_eq!((line.overdue(due + LINE_WAIT_MAX), line.due()), (None, None));
        let error = (0..).find_map(|number| line.send(&control(number)).err()).expect("a bound");
        assert!(error.to_string().contains("bytes wait for the launcher to read them"), "{error}");
    }
}
