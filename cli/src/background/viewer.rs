//! Shows the streams of a detached job as they grow.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write};

use super::records::Records;
use crate::commands::Stream;

/// The first output that the viewer shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    /// All output of the run.
    Run,
    /// New output only.
    Now,
}

/// Both streams, and how far they have been shown.
#[derive(Debug)]
pub(crate) struct Viewer {
    output: File,
    messages: File,
    /// The command prints its own result on standard output, and the ranks' output on standard error.
    keeps_output_free: bool,
}

impl Viewer {
    pub(crate) fn open(records: &Records, start: Start, keeps_output_free: bool) -> io::Result<Viewer> {
        let run = records.run()?;
        let open = |stream, begins: u64| {
            let mut file = records.open(stream)?;
            file.seek(match start {
                Start::Run => SeekFrom::Start(begins),
                Start::Now => SeekFrom::End(0),
            })?;
            Ok::<File, io::Error>(file)
        };
        Ok(Viewer {
            output: open(Stream::Output, run.as_ref().map_or(0, |run| run.output_from))?,
            messages: open(Stream::Error, run.as_ref().map_or(0, |run| run.messages_from))?,
            keeps_output_free,
        })
    }

    /// Prints all new output.
    pub(crate) fn show(&mut self) -> io::Result<()> {
        copy(&mut self.messages, io::stderr())?;
        if self.keeps_output_free {
            copy(&mut self.output, io::stderr())
        } else {
            copy(&mut self.output, io::stdout())
        }
    }
}

fn copy(from: &mut File, mut to: impl Write) -> io::Result<()> {
    io::copy(from, &mut to)?;
    to.flush()
}
