//! Output of ranks, line by line, or as it comes.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::unistd::read;

use super::limits::{LINE_BYTES_MAX, PIPE_BYTES_MAX, READ_BYTES, READS_MAX};

/// Where a rank printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Channel {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// Takes a pipe's bytes and hands out whole lines.
#[derive(Debug)]
pub struct LineReader {
    pipe: OwnedFd,
    held: Vec<u8>,
    /// Lines are handed out with their ends, and a line without an end is available without waiting for it.
    is_bare: bool,
}

impl LineReader {
    /// A reader of a pipe that does not block.
    pub fn new(pipe: OwnedFd) -> LineReader {
        LineReader { pipe, held: Vec::new(), is_bare: false }
    }

    /// A reader that hands out lines with their ends, and at the end, or on demand, a line without one.
    pub(crate) fn bare(pipe: OwnedFd) -> LineReader {
        LineReader { is_bare: true, ..LineReader::new(pipe) }
    }

    /// Whether a line has begun that [`LineReader::finish`] would hand out as it is.
    pub(crate) fn has_part(&self) -> bool {
        self.is_bare && !self.held.is_empty()
    }

    /// The pipe.
    pub fn pipe(&self) -> &OwnedFd {
        &self.pipe
    }

    /// Reads available bytes, up to a bound: a rank that never stops printing must not keep the launcher from anything else. `false`: nothing more
    /// will come, and the last line has been handed out.
    pub fn read(&mut self, each: &mut dyn FnMut(&[u8])) -> bool {
        self.read_times(READS_MAX, each)
    }

    /// Reads all that a pipe can hold: afterwards all output from before this call has been handed out, but for a line that has no end yet.
    pub(crate) fn drain(&mut self, each: &mut dyn FnMut(&[u8])) -> bool {
        self.read_times(PIPE_BYTES_MAX.div_ceil(READ_BYTES) + 1, each)
    }

    fn read_times(&mut self, times: usize, each: &mut dyn FnMut(&[u8])) -> bool {
        let mut chunk = vec![0; READ_BYTES];
        for _ in 0..times {
            match read(&self.pipe, &mut chunk) {
                Ok(0) => return self.end(each),
                Ok(count) => {
                    self.held.extend_from_slice(&chunk[..count]);
                    self.give(each);
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return true,
                Err(_) => return self.end(each),
            }
        }
        true
    }

    fn end(&mut self, each: &mut dyn FnMut(&[u8])) -> bool {
        self.finish(each);
        false
    }

    /// Hands out a last line that has no end.
    pub(crate) fn finish(&mut self, each: &mut dyn FnMut(&[u8])) {
        if !self.held.is_empty() {
            each(&self.held);
            self.held.clear();
        }
    }

    fn give(&mut self, each: &mut dyn FnMut(&[u8])) {
        let mut from = 0;
        while let Some(length) = self.held[from..].iter().position(|byte| *byte == b'\n') {
            each(&self.held[from..from + length + usize::from(self.is_bare)]);
            from += length + 1;
        }
        self.held.drain(..from);
        while self.held.len() > LINE_BYTES_MAX {
            each(&self.held[..LINE_BYTES_MAX]);
            self.held.drain(..LINE_BYTES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::unistd::{pipe, write};

    fn lines(reader: &mut LineReader) -> (Vec<String>, bool) {
        let mut lines = Vec::new();
        let open = reader.read(&mut |line| lines.push(String::from_utf8_lossy(line).into_owned()));
        (lines, open)
    }

    #[test]
    fn lines_are_whole_and_the_last_needs_no_end() {
        let (from, to) = pipe().unwrap();
        fcntl(&from, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let mut reader = LineReader::new(from);
        write(&to, b"one\ntw").unwrap();
        assert_eq!(lines(&mut reader), (vec!["one".to_owned()], true));
        write(&to, b"o\n\nthree").unwrap();
        assert_eq!(lines(&mut reader), (vec!["two".to_owned(), String::new()], true));
        drop(to);
        assert_eq!(lines(&mut reader), (vec!["three".to_owned()], false));
    }

    #[test]
    fn a_bare_reader_hands_out_every_byte_as_it_came() {
        let (from, to) = pipe().unwrap();
        fcntl(&from, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let mut reader = LineReader::bare(from);
        write(&to, b"one\n\nprompt> ").unwrap();
        assert_eq!(lines(&mut reader), (vec!["one\n".to_owned(), "\n".to_owned()], true));
        assert!(reader.has_part());
        let mut part = Vec::new();
        reader.finish(&mut |bytes| part.extend_from_slice(bytes));
        assert_eq!((part.as_slice(), reader.has_part()), (&b"prompt> "[..], false));
        write(&to, b"answer\nrest").unwrap();
        drop(to);
        assert_eq!(lines(&mut reader), (vec!["answer\n".to_owned(), "rest".to_owned()], false));
    }

    #[test]
    fn a_full_pipe_is_drained_in_one_go() {
        let (from, to) = pipe().unwrap();
        fcntl(&to, FcntlArg::F_SETPIPE_SZ(i32::try_from(PIPE_BYTES_MAX).unwrap())).unwrap();
        for end in [&from, &to] {
            fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        }
        let mut written = 0;
        while let Ok(count) = write(&to, b"a line of thirty-two bytes, all.\n") {
            written += count;
        }
        assert!(written > PIPE_BYTES_MAX / 2, "{written}");
        let mut reader = LineReader::new(from);
        let mut seen = 0;
        assert!(reader.drain(&mut |line| seen += line.len() + 1));
        assert_eq!(seen, written);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let (from, to) = pipe().unwrap();
        fcntl(&from, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let mut reader = LineReader::new(from);
        let mut seen = 0;
        for _ in 0..8 {
            write(&to, &[b'x'; LINE_BYTES_MAX / 4]).unwrap();
            reader.read(&mut |line| seen += line.len());
        }
        assert!(seen >= LINE_BYTES_MAX, "{seen} bytes handed out");
    }
}
