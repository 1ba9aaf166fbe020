//! The job file: the facts about a job that `restart` needs beside the images.

use std::collections::BTreeMap;

use transport::JobId;

use super::grammar::{Escaped, Form, LineReader, RecordWriter, decimal, job, unescaped, unescaped_text};
use crate::error::RecordError;
use crate::limits::{JOB_FILE_ENTRIES_MAX, KEEP_MAX, RANKS_MAX};

const FORM: Form = Form { what: "job", version: 1 };
const NEVER: &str = "never";

/// A job: its name, its program, how it is checkpointed. Bytes where the operating system has bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFile {
    /// The job.
    pub job: JobId,
    /// Number of ranks.
    pub ranks: u32,
    /// When and how generations are taken.
    pub checkpoint: CheckpointSettings,
    /// The working directory.
    pub directory: Vec<u8>,
    /// Program and arguments.
    pub command: Vec<Vec<u8>>,
    /// Environment entries (`NAME=VALUE`) that the program starts with beyond the launcher's.
    pub environment: Vec<Vec<u8>>,
    /// Settings of the launcher's own: names without spaces, any text as value.
    pub settings: BTreeMap<String, String>,
}

/// When and how generations are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointSettings {
    /// Time between two checkpoints in milliseconds; `None`: only on command.
    pub every_ms: Option<u64>,
    /// Committed generations that are kept, at least 1.
    pub keep: u32,
}

impl JobFile {
    /// The file's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut lines = RecordWriter::new(&FORM);
        lines.line("job", self.job);
        lines.line("ranks", self.ranks);
        match self.checkpoint.every_ms {
            Some(every_ms) => lines.line("every-ms", every_ms),
            None => lines.line("every-ms", NEVER),
        }
        lines.line("keep", self.checkpoint.keep);
        lines.line("directory", Escaped(&self.directory));
        for argument in &self.command {
            lines.line("argument", Escaped(argument));
        }
        for entry in &self.environment {
            lines.line("environment", Escaped(entry));
        }
        for (name, value) in &self.settings {
            lines.line("setting", format_args!("{} {}", Escaped(name.as_bytes()), Escaped(value.as_bytes())));
        }
        lines.finish()
    }

    /// Reads [`JobFile::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<JobFile, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let file = JobFile {
            job: lines.line("job", "job JOB", job)?,
            ranks: lines.line("ranks", "ranks NUMBER", |text| {
                decimal(text).filter(|ranks| (1..=RANKS_MAX).contains(ranks))
            })?,
            checkpoint: CheckpointSettings {
                every_ms: lines.line("every-ms", "every-ms MILLISECONDS", |text| {
                    if text == NEVER { Some(None) } else { decimal(text).map(Some) }
                })?,
                keep: lines.line("keep", "keep NUMBER", |text| {
                    decimal(text).filter(|keep| (1..=KEEP_MAX).contains(keep))
                })?,
            },
            directory: lines.line("directory", "directory PATH", unescaped)?,
            command: lines.lines("argument", "argument WORD", JOB_FILE_ENTRIES_MAX, unescaped)?,
            environment: lines.lines("environment", "environment WORD", JOB_FILE_ENTRIES_MAX, unescaped)?,
            settings: parse_settings(&mut lines)?,
        };
        lines.end()?;
        // The first one is the program.
        if file.command.is_empty() {
            return Err(lines.line_before("argument WORD, at least one"));
        }
        Ok(file)
    }
}

/// Settings stand in the order of their names, each once: one spelling per file.
fn parse_settings(lines: &mut LineReader<'_>) -> Result<BTreeMap<String, String>, RecordError> {
    let form = "setting NAME VALUE";
    let mut last: Option<String> = None;
    let pairs = lines.lines("setting", form, JOB_FILE_ENTRIES_MAX, |value| {
        let (name, value) = value.split_once(' ')?;
        let (name, value) = (unescaped_text(name)?, unescaped_text(value)?);
        let rises = last.as_ref().is_none_or(|last| *last < name);
        last = Some(name.clone());
        rises.then_some((name, value))
    })?;
    Ok(pairs.into_iter().collect())
}
