//! The record that begins a life.

use ckpt_glue::GenerationId;
use serde::{Deserialize, Serialize};
use transport::{JobId, Life};

use super::grammar::{Form, GenerationText, LineReader, RecordWriter, generation, job, life};
use crate::error::RecordError;

const FORM: Form = Form { what: "decision", version: 1 };
const NOTHING: &str = "nothing";

/// A new life and its starting generation.
///
/// One record serves two rules: it is durable before the first process of the life runs (rule 7), and it is the
/// decision that precedes the first restore (rule 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct Decision {
    /// The job.
    pub job: JobId,
    /// The life that begins.
    pub life: Life,
    /// The generation that every rank restores; `None` if the program starts from its beginning.
    pub from: Option<GenerationId>,
}

/// In a message, as its record.
impl TryFrom<Vec<u8>> for Decision {
    type Error = RecordError;

    fn try_from(record: Vec<u8>) -> Result<Decision, RecordError> {
        Decision::parse(&record)
    }
}

impl From<Decision> for Vec<u8> {
    fn from(of: Decision) -> Vec<u8> {
        of.emit()
    }
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
