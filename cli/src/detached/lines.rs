//! What launcher, watcher and command tell each other: lines of JSON in pipes.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde::{Deserialize, Serialize};

/// A launcher's message to its watcher, which passes it on to the command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Said {
    /// The job has a directory (its path, byte for byte), and its output goes into files there from now on.
    Begun { job: String, directory: Vec<u8> },
    /// All ranks run.
    Running,
    /// Nothing of the job runs any more, and nobody takes it over.
    Ended { exit_code: u8 },
}

/// What has come over a pipe.
#[derive(Debug)]
pub(super) enum Heard {
    Line(Said),
    /// No whole line yet.
    Nothing,
    /// Nobody is left at the other end.
    End,
}

/// The reading end. A path has 4096 bytes at most, so lines are short.
#[derive(Debug)]
pub(super) struct Lines {
    from: File,
    held: Vec<u8>,
    is_over: bool,
}

impl Lines {
    pub(super) fn new(from: File) -> Lines {
        Lines { from, held: Vec::new(), is_over: false }
    }

    pub(super) fn from(&self) -> &File {
        &self.from
    }

    /// Takes what has come, without waiting.
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

    /// The next message of what has been read.
    pub(super) fn take(&mut self) -> io::Result<Heard> {
        let Some(end) = self.held.iter().position(|byte| *byte == b'\n') else {
            return Ok(if self.is_over { Heard::End } else { Heard::Nothing });
        };
        let line: Vec<u8> = self.held.drain(..=end).collect();
        Ok(Heard::Line(serde_json::from_slice(&line)?))
    }
}

/// A pipe that no other program inherits, and whose reading end does not wait.
pub(super) fn pipe() -> io::Result<(File, File)> {
    let (read, write): (OwnedFd, OwnedFd) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((read.into(), write.into()))
}

pub(super) fn send(mut pipe: &File, said: &Said) {
    let mut line = serde_json::to_vec(said).unwrap_or_default();
    line.push(b'\n');
    // Who does not listen any more does not want it.
    let _ = pipe.write_all(&line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_an_end_after_them() {
        let (heard, told) = pipe().expect("a pipe");
        let mut lines = Lines::new(heard);
        lines.read().expect("nothing is there");
        assert!(matches!(lines.take(), Ok(Heard::Nothing)));
        let begun = Said::Begun { job: "1".to_owned(), directory: b"/a\nb\xff".to_vec() };
        send(&told, &begun);
        send(&told, &Said::Running);
        (&told).write_all(b"{\"ended").expect("a part");
        lines.read().expect("two lines and a part");
        assert!(matches!(lines.take(), Ok(Heard::Line(said)) if said == begun));
        assert!(matches!(lines.take(), Ok(Heard::Line(Said::Running))));
        assert!(matches!(lines.take(), Ok(Heard::Nothing)));
        drop(told);
        lines.read().expect("an end");
        assert!(matches!(lines.take(), Ok(Heard::End)));
    }
}
