//! The record that a job has finished.

use transport::{JobId, Life};

use super::grammar::{Form, LineReader, RecordWriter, decimal, job, life};
use crate::error::RecordError;

const FORM: Form = Form { what: "end", version: 1 };

/// All ranks of a life ended as they should: there is nothing left to restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The job.
    pub job: JobId,
    /// The life in which it finished.
    pub life: Life,
    /// When, in milliseconds since 1970.
    pub ended_unix_ms: u64,
}

impl End {
    /// The record's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut lines = RecordWriter::new(&FORM);
        lines.line("job", self.job);
        lines.line("life", self.life);
        lines.line("ended-unix-ms", self.ended_unix_ms);
        lines.finish()
    }

    /// Reads [`End::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<End, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let end = End {
            job: lines.line("job", "job JOB", job)?,
            life: lines.line("life", "life COUNTER.NONCE", life)?,
            ended_unix_ms: lines.line("ended-unix-ms", "ended-unix-ms MILLISECONDS", decimal)?,
        };
        lines.end()?;
        Ok(end)
    }
}
