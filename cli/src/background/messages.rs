//! Messages from the launcher to its watcher, and from the watcher to the command: lines of JSON in pipes.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde::{Deserialize, Serialize};

use super::candidate::Attempt;

/// A launcher's report to its watcher, which forwards it to the command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Report {
    /// The job has a directory (its path, byte for byte), and its output goes into files there from now on.
    Begun {
        job: String,
        directory: Vec<u8>,
        /// Another host continues the job if this one is lost.
        has_successors: bool,
    },
    /// All ranks run.
    Running,
    /// No process of the job is left, and the watcher does not continue it.
    Ended {
        exit_code: u8,
        /// A reason that no launcher has printed.
        why: Option<String>,
    },
    /// The launcher of a candidate has not made the job run, and why.
    NotBegun(Attempt),
}

/// The result of a read.
#[derive(Debug)]
pub(super) enum Received {
    Message(Report),
    /// No complete line yet.
    Nothing,
    /// The other end is closed.
    End,
}

/// The reading end. A path has 4096 bytes at most, so lines are short.
#[derive(Debug)]
pub(super) struct Messages {
    from: File,
    held: Vec<u8>,
    is_over: bool,
}

impl Messages {
    pub(super) fn new(from: File) -> Messages {
        Messages { from, held: Vec::new(), is_over: false }
    }

    pub(super) fn from(&self) -> &File {
        &self.from
    }

    /// Reads all pending bytes, without waiting.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        while !self.is_over {
            match self.from.read(&mut chunk) {
                Ok(0) => self.is_over = true,
                Ok(read) => self.held.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next complete message of the bytes that were read.
    pub(super) fn take(&mut self) -> io::Result<Received> {
        let Some(end) = self.held.iter().position(|byte| *byte == b'\n') else {
            return Ok(if self.is_over { Received::End } else { Received::Nothing });
        };
        let line: Vec<u8> = self.held.drain(..=end).collect();
        Ok(Received::Message(serde_json::from_slice(&line)?))
    }
}

/// A pipe that is closed on exec, with a non-blocking reading end.
pub(super) fn pipe() -> io::Result<(File, File)> {
    let (read, write): (OwnedFd, OwnedFd) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((read.into(), write.into()))
}

pub(super) fn send(mut pipe: &File, said: &Report) {
    let mut line = serde_json::to_vec(said).unwrap_or_default();
    line.push(b'\n');
    // Fails if the reader has ended, which needs no report then.
    let _ = pipe.write_all(&line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_an_end_after_them() {
        let (heard, told) = pipe().expect("a pipe");
        let mut lines = Messages::new(heard);
        lines.read().expect("nothing is there");
        assert!(matches!(lines.take(), Ok(Received::Nothing)));
        let begun =
            Report::Begun { job: "1".to_owned(), directory: b"/a\nb\xff".to_vec(), has_successors: false };
        send(&told, &begun);
        send(&told, &Report::Running);
        (&told).write_all(b"{\"ended").expect("a part");
        lines.read().expect("two lines and a part");
        assert!(matches!(lines.take(), Ok(Received::Message(said)) if said == begun));
        assert!(matches!(lines.take(), Ok(Received::Message(Report::Running))));
        assert!(matches!(lines.take(), Ok(Received::Nothing)));
        drop(told);
        lines.read().expect("an end");
        assert!(matches!(lines.take(), Ok(Received::End)));
    }
}
