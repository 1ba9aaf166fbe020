//! Lines of PMI-1: bytes of a stream into commands, commands into bytes.
//!
//! A line is `cmd=NAME key=value ...` and ends with a newline. Keys and values are separated by single spaces, and hold none
//! but behind a backslash; values are kept as they came, backslashes included, for they only travel through. A command that
//! needs many lines begins with `mcmd=NAME` and ends with a line `endcmd`.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt::Write as _;

use crate::limits::{PMI_FIELDS_MAX, PMI_LINE_BYTES_MAX, PMI_LONG_LINES_MAX, PMI_REPLY_BYTES_MAX};

/// Why bytes are no command.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoCommand {
    /// A line that does not end.
    #[error("a line of more than {PMI_LINE_BYTES_MAX} bytes")]
    TooLong,
    /// A command of several lines that does not end.
    #[error("a command of more than {PMI_LONG_LINES_MAX} lines")]
    TooManyLines,
    /// More keys than any command has.
    #[error("a line of more than {PMI_FIELDS_MAX} keys")]
    TooManyFields,
    /// Bytes that are no text.
    #[error("bytes that are no text")]
    NoText,
    /// A line that names no command.
    #[error("a line that begins with `{start}`, expected `cmd=` or `mcmd=`")]
    NoName {
        /// Its first characters.
        start: String,
    },
}

/// What a rank asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Command {
    /// Its name.
    pub(super) name: String,
    fields: Vec<(String, String)>,
}

impl Command {
    /// The value of a key; of several, the first.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The value of a key that is a number.
    pub(super) fn number<T: core::str::FromStr>(&self, key: &str) -> Option<T> {
        self.get(key)?.parse().ok()
    }
}

/// Takes the bytes of one rank and hands out commands.
#[derive(Clone, Debug, Default)]
pub(super) struct LineReader {
    held: Vec<u8>,
    /// A command of several lines that has not ended: its name, and how many lines it has so far. What they say is not
    /// kept: no such command is carried out.
    long: Option<(String, usize)>,
}

impl LineReader {
    /// Takes what came.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next command, if it is whole. After an error nothing more can be read.
    pub(super) fn next_command(&mut self) -> Result<Option<Command>, NoCommand> {
        loop {
            let end = self.held.iter().take(PMI_LINE_BYTES_MAX).position(|byte| *byte == b'\n');
            let Some(end) = end else {
                let room = self.held.len() < PMI_LINE_BYTES_MAX;
                return if room { Ok(None) } else { Err(NoCommand::TooLong) };
            };
            let line: Vec<u8> = self.held.drain(..=end).collect();
            let text = core::str::from_utf8(&line[..end]).map_err(|_| NoCommand::NoText)?;
            if text.contains('\0') {
                return Err(NoCommand::NoText);
            }
            match self.long.take() {
                Some((name, _)) if text == "endcmd" => {
                    return Ok(Some(Command { name, fields: Vec::new() }));
                }
                Some((_, PMI_LONG_LINES_MAX)) => return Err(NoCommand::TooManyLines),
                Some((name, lines)) => self.long = Some((name, lines + 1)),
                None => match text.strip_prefix("mcmd=") {
                    Some(name) => self.long = Some((name.to_string(), 0)),
                    None => return parse(text).map(Some),
                },
            }
        }
    }
}

fn parse(line: &str) -> Result<Command, NoCommand> {
    let mut fields = Vec::new();
    let mut rest = line.trim_matches([' ', '\r']);
    while !rest.is_empty() {
        let end = field_end(rest);
        let (key, value) = rest[..end].split_once('=').unwrap_or((&rest[..end], ""));
        if fields.len() == PMI_FIELDS_MAX {
            return Err(NoCommand::TooManyFields);
        }
        fields.push((key.to_string(), value.to_string()));
        rest = rest[end..].trim_start_matches(' ');
    }
    match fields.first() {
        Some((key, name)) if key == "cmd" && !name.is_empty() => {
            let (_, name) = fields.remove(0);
            Ok(Command { name, fields })
        }
        _ => Err(NoCommand::NoName { start: line.chars().take(40).flat_map(char::escape_default).collect() }),
    }
}

/// Where the first field ends: at a space that no backslash precedes.
fn field_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, symbol) in text.char_indices() {
        match symbol {
            ' ' if !escaped => return at,
            '\\' if !escaped => escaped = true,
            _ => escaped = false,
        }
    }
    text.len()
}

/// A line of ours.
#[derive(Clone, Debug)]
pub(super) struct Reply(String);

impl Reply {
    pub(super) fn new(name: &str) -> Reply {
        Reply(alloc::format!("cmd={name}"))
    }

    pub(super) fn with(mut self, key: &str, value: impl core::fmt::Display) -> Reply {
        // Writing to a string does not fail.
        let _ = write!(self.0, " {key}={value}");
        self
    }

    /// # Panics
    /// If the line is longer than clients can read. The bounds of keys and values keep it below.
    pub(super) fn emit(mut self) -> String {
        self.0.push('\n');
        assert!(self.0.len() <= PMI_REPLY_BYTES_MAX, "a reply of {} bytes", self.0.len());
        self.0
    }
}
