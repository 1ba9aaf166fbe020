//! The sockets over which processes speak PMI.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use ckpt_glue::pmi::Member;

use super::limits::{PMI_QUEUE_BYTES_MAX, READ_BYTES};

/// Names the environment variable with the number of the inherited socket, and those with the rank and the number of ranks.
pub(crate) const FD_VARIABLE: &str = "PMI_FD";
pub(crate) const RANK_VARIABLE: &str = "PMI_RANK";
pub(crate) const SIZE_VARIABLE: &str = "PMI_SIZE";

/// Marks a process that others have spawned and wait for.
pub(crate) const SPAWNED_VARIABLE: &str = "PMI_SPAWNED";

/// Ranks on this host, and which of them this is: programs choose a device by it, and the provider knows that nobody has to be
/// reached over a network.
pub(crate) const LOCAL_SIZE_VARIABLE: &str = "MPI_LOCALNRANKS";
pub(crate) const LOCAL_RANK_VARIABLE: &str = "MPI_LOCALRANKID";

/// Data received from a socket.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    /// Nothing more will come.
    pub(crate) closed: bool,
}

#[derive(Debug)]
struct Line {
    stream: UnixStream,
    waiting: Vec<u8>,
}

/// The launcher's ends.
#[derive(Debug, Default)]
pub(crate) struct PmiLines(BTreeMap<Member, Line>);

impl PmiLines {
    pub(crate) fn insert(&mut self, member: Member, stream: UnixStream) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        self.0.insert(member, Line { stream, waiting: Vec::new() });
        Ok(())
    }

    pub(crate) fn remove(&mut self, member: Member) {
        self.0.remove(&member);
    }

    pub(crate) fn stream(&self, member: Member) -> Option<&UnixStream> {
        self.0.get(&member).map(|line| &line.stream)
    }

    /// Whether a line waits for the process to read.
    pub(crate) fn has_waiting(&self, member: Member) -> bool {
        self.0.get(&member).is_some_and(|line| !line.waiting.is_empty())
    }

    /// Sends a line, or keeps it until the process reads. `false`: it asks, and reads no answers.
    pub(crate) fn send(&mut self, member: Member, text: &str) -> bool {
        let Some(line) = self.0.get_mut(&member) else { return true };
        line.waiting.extend_from_slice(text.as_bytes());
        self.flush(member);
        self.0.get(&member).is_none_or(|line| line.waiting.len() <= PMI_QUEUE_BYTES_MAX)
    }

    /// Sends the waiting bytes, as far as the process reads.
    pub(crate) fn flush(&mut self, member: Member) {
        let Some(line) = self.0.get_mut(&member) else { return };
        let mut sent = 0;
        while sent < line.waiting.len() {
            match line.stream.write(&line.waiting[sent..]) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // It has ended; its status shows how.
                Err(_) => sent = line.waiting.len(),
            }
        }
        line.waiting.drain(..sent);
    }

    /// Reads available bytes, up to a bound: a process that sends without end must not keep the launcher from others.
    pub(crate) fn hear(&mut self, member: Member) -> Received {
        let Some(line) = self.0.get_mut(&member) else { return Received { bytes: Vec::new(), closed: true } };
        let mut bytes = vec![0; READ_BYTES];
        loop {
            match line.stream.read(&mut bytes) {
                Ok(count) => {
                    bytes.truncate(count);
                    return Received { closed: count == 0, bytes };
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Received { bytes: Vec::new(), closed: error.kind() != ErrorKind::WouldBlock };
                }
            }
        }
    }
}
