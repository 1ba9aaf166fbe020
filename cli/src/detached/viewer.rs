//! Shows the streams of a detached job as they grow.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

use super::records::Records;
use crate::commands::Stream;

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 16;

/// Where the viewer begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    /// At the beginning of the run.
    Beginning,
    /// With what is written from now on.
    Now,
}

/// Both streams, and how far they have been shown.
#[derive(Debug)]
pub(crate) struct Viewer {
    output: File,
    messages: File,
    /// Standard output belongs to something else: the ranks' output goes to standard error too.
    keeps_output_free: bool,
}

impl Viewer {
    pub(crate) fn open(records: &Records, from: From, keeps_output_free: bool) -> io::Result<Viewer> {
        let run = records.run()?;
        let start = |stream, begins: u64| {
            let mut file = records.open(stream)?;
            file.seek(match from {
                From::Beginning => SeekFrom::Start(begins),
                From::Now => SeekFrom::End(0),
            })?;
            Ok::<File, io::Error>(file)
        };
        Ok(Viewer {
            output: start(Stream::Output, run.as_ref().map_or(0, |run| run.output_from))?,
            messages: start(Stream::Error, run.as_ref().map_or(0, |run| run.messages_from))?,
            keeps_output_free,
        })
    }

    /// Prints all that is new.
    pub(crate) fn show(&mut self) -> io::Result<()> {
        copy(&mut self.messages, io::stderr())?;
        if self.keeps_output_free {
            copy(&mut self.output, io::stderr())
        } else {
            copy(&mut self.output, io::stdout())
        }
    }
}

fn copy(from: &mut File, mut to: impl io::Write) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = from.read(&mut chunk)?;
        if read == 0 {
            return to.flush();
        }
        to.write_all(&chunk[..read])?;
    }
}
