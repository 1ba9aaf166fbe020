//! The record by which a member of a group knows that a generation is protected, and how.

use ckpt_glue::GenerationId;
use transport::JobId;

use super::grammar::{Form, GenerationText, LineReader, RecordWriter, decimal, generation, job};
use crate::error::RecordError;
use crate::limits::PARITY_UNIT_PAGES_MAX;

const FORM: Form = Form { what: "protected", version: 1 };

/// A member's record that all its data for a generation is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protected {
    /// The job.
    pub job: JobId,
    /// The generation.
    pub generation: GenerationId,
    /// The generation whose parity this one's changes build upon; `None`: it stands for itself.
    pub from: Option<GenerationId>,
    /// Which of the nodes this is.
    pub member: usize,
    /// Members that may be lost.
    pub losses: usize,
    /// Pages of a unit.
    pub unit_pages: u64,
    /// The numbers of the members' nodes in the manifest.
    pub nodes: Vec<u32>,
}

impl Protected {
    /// The record's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut lines = RecordWriter::new(&FORM);
        lines.line("job", self.job);
        lines.line("generation", GenerationText(self.generation));
        match self.from {
            Some(from) => lines.line("from", GenerationText(from)),
            None => lines.line("from", "nothing"),
        }
        lines.line("member", self.member);
        lines.line("losses", self.losses);
        lines.line("unit-pages", self.unit_pages);
        for node in &self.nodes {
            lines.line("node", node);
        }
        lines.finish()
    }

    /// Reads [`Protected::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<Protected, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let record = Protected {
            job: lines.line("job", "job JOB", job)?,
            generation: lines.line("generation", "generation LIFE EPOCH", generation)?,
            from: lines.line("from", "from LIFE EPOCH, or from nothing", |text| match text {
                "nothing" => Some(None),
                text => generation(text).map(Some),
            })?,
            member: lines.line("member", "member MEMBER", decimal)?,
            losses: lines.line("losses", "losses LOSSES", decimal)?,
            unit_pages: lines.line("unit-pages", "unit-pages PAGES", |text| {
                decimal(text).filter(|pages| (1..=PARITY_UNIT_PAGES_MAX).contains(pages))
            })?,
            nodes: lines.lines("node", NODE_FORM, parity::MEMBERS_MAX, decimal)?,
        };
        lines.end()?;
        let members = record.nodes.len();
        if record.member >= members || record.losses == 0 || record.losses >= members {
            return Err(lines.line_before(NODE_FORM));
        }
        Ok(record)
    }
}

const NODE_FORM: &str = "node NODE, once for each member";
