//! The record of a job's end in the directory of a node.

use ckpt_glue::protection::seat::JobEnd;
use transport::JobId;

use super::grammar::{Form, LineReader, RecordWriter, job, life};
use crate::error::RecordError;

const FORM: Form = Form { what: "job-end", version: 1 };
const FINISHED: &str = "finished";
const ENDED: &str = "ended";

/// The job's end, as its launcher reported it to the node (rule 34).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobEndRecord {
    /// The job.
    pub job: JobId,
    /// Its end.
    pub end: JobEnd,
}

impl JobEndRecord {
    /// The record's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut lines = RecordWriter::new(&FORM);
        lines.line("job", self.job);
        lines.line("life", self.end.life);
        lines.line("how", if self.end.has_finished { FINISHED } else { ENDED });
        lines.finish()
    }

    /// Reads [`JobEndRecord::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<JobEndRecord, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let job = lines.line("job", "job JOB", job)?;
        let life = lines.line("life", "life COUNTER.NONCE", life)?;
        let has_finished = lines.line("how", "how finished|ended", |text| match text {
            FINISHED => Some(true),
            ENDED => Some(false),
            _ => None,
        })?;
        lines.end()?;
        Ok(JobEndRecord { job, end: JobEnd { life, has_finished } })
    }
}
