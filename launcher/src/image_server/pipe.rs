//! A pipe to a host that may stop answering.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::spawn::process::non_blocking;

/// One end of it. Reading and writing fail with [`io::ErrorKind::TimedOut`] if nothing moves for too long.
#[derive(Debug)]
pub(super) struct Pipe {
    file: File,
    silent_max: Duration,
}

impl Pipe {
    pub(super) fn new(fd: OwnedFd, silent_max: Duration) -> io::Result<Pipe> {
        Ok(Pipe { file: non_blocking(fd)?.into(), silent_max })
    }

    /// Writes a short message if there is room for it, without waiting. A pipe takes one of less than a page as a whole.
    pub(super) fn try_write(&mut self, message: &[u8]) -> io::Result<()> {
        match self.file.write(message) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let timeout = PollTimeout::try_from(self.silent_max).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.file.as_fd(), events)], timeout) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.wait(PollFlags::POLLIN)?;
        self.file.read(into)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.wait(PollFlags::POLLOUT)?;
            match self.file.write(bytes) {
                // Its room is for less than a page.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn an_end_that_is_silent_is_given_up() {
        let (from, to) = nix::unistd::pipe().expect("a pipe");
        let (mut from, mut to) =
            (Pipe::new(from, SHORT).expect("an end"), Pipe::new(to, SHORT).expect("an end"));
        let mut byte = [0];
        assert_eq!(from.read(&mut byte).expect_err("silence").kind(), io::ErrorKind::TimedOut);
        let much = vec![7; 4 << 20];
        assert_eq!(to.write_all(&much).expect_err("nobody reads").kind(), io::ErrorKind::TimedOut);
        assert_eq!((from.read(&mut byte).expect("a byte"), byte), (1, [7]));
        drop(from);
        assert_eq!(to.write_all(&much).expect_err("nobody is there").kind(), io::ErrorKind::BrokenPipe);
    }
}
