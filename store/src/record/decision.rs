//! The record that begins a life.

use transport::{JobId, Life};

use super::grammar::{Form, GenerationText, LineReader, RecordWriter, generation, job, life};
use crate::error::RecordError;
use crate::job::GenerationId;

const FORM: Form = Form { what: "decision", version: 1 };
const NOTHING: &str = "nothing";

/// A new life and its starting generation.
///
/// One record serves two rules: it is durable before the first process of the life runs (rule 7), and it is the
/// decision that precedes the first restore (rule 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The job.
    pub job: JobId,
    /// The life that begins.
    pub life: Life,
    /// The generation that every rank restores; `None` if the program starts from its beginning.
    pub from: Option<GenerationId>,
}

impl Decision {
    /// The record's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut lines = RecordWriter::new(&FORM);
        lines.line("job", self.job);
        lines.line("life", self.life);
        match self.from {
            Some(from) => lines.line("from", GenerationText(from)),
            None => lines.line("from", NOTHING),
        }
        lines.finish()
    }

    /// Reads [`Decision::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<Decision, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let decision = Decision {
            job: lines.line("job", "job JOB", job)?,
            life: lines.line("life", "life COUNTER.NONCE", life)?,
            from: lines.line("from", "from LIFE EPOCH", |text| {
                if text == NOTHING { Some(None) } else { generation(text).map(Some) }
            })?,
        };
        lines.end()?;
        Ok(decision)
    }
}
