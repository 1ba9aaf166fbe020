//! The record that makes a generation exist.

use ckpt_glue::{GenerationId, ImageDigest};
use transport::JobId;

use super::grammar::{Form, GenerationText, LineReader, RecordWriter, digest, generation, job, sum};
use crate::error::RecordError;
use crate::limits::RANKS_MAX;

const FORM: Form = Form { what: "commit", version: 1 };

/// The parts of a generation, written last (rule 8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRecord {
    /// The job.
    pub job: JobId,
    /// The generation.
    pub generation: GenerationId,
    /// Checksum of the manifest's bytes.
    pub manifest: u64,
    /// Digest of every image, by rank.
    pub images: Vec<ImageDigest>,
}

impl CommitRecord {
    /// The record's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut lines = RecordWriter::new(&FORM);
        lines.line("job", self.job);
        lines.line("generation", GenerationText(self.generation));
        lines.line("manifest", format_args!("{:016x}", self.manifest));
        for image in &self.images {
            lines.line("image", image);
        }
        lines.finish()
    }

    /// Reads [`CommitRecord::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<CommitRecord, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let record = CommitRecord {
            job: lines.line("job", "job JOB", job)?,
            generation: lines.line("generation", "generation LIFE EPOCH", generation)?,
            manifest: lines.line("manifest", "manifest CHECKSUM", sum)?,
            images: lines.lines("image", "image DIGEST", RANKS_MAX as usize, digest)?,
        };
        lines.end()?;
        Ok(record)
    }
}
