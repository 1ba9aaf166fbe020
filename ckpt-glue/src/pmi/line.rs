//! Lines of PMI-1: bytes of a stream into commands, commands into bytes.
//!
//! A line is `cmd=NAME key=value ...` and ends with a newline. Keys and values are separated by single spaces, and hold none
//! but behind a backslash; values are kept as they came, backslashes included, for they only travel through. A command that
//! needs many lines begins with `mcmd=NAME` and ends with a line `endcmd`; each line between them is `key=value`. Clients escape
//! nothing there: a value that holds a newline goes on in the next line.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt::Write as _;

use crate::limits::{
    PMI_FIELDS_MAX, PMI_LINE_BYTES_MAX, PMI_LONG_BYTES_MAX, PMI_LONG_FIELDS_MAX, PMI_REPLY_BYTES_MAX,
    PMI_REQUEST_BYTES_MAX,
};

/// Why bytes are no command.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoCommand {
    /// A line that does not end.
    #[error("a line of more than {PMI_LINE_BYTES_MAX} bytes")]
    TooLong,
    /// A command of several lines that does not end.
    #[error("a command of more than {PMI_LONG_BYTES_MAX} bytes")]
    TooLarge,
    /// A request through a relay that is no whole command.
    #[error("a request of more than {PMI_REQUEST_BYTES_MAX} bytes, or of several commands")]
    NotWhole,
    /// More keys than any command has.
    #[error("a line of more than {PMI_FIELDS_MAX} keys, or a command of more than {PMI_LONG_FIELDS_MAX}")]
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

/// A rank's request.
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

/// Takes the bytes of one client and hands out commands.
#[derive(Clone, Debug, Default)]
pub(super) struct LineReader {
    held: Vec<u8>,
    /// Held bytes that have been taken.
    taken: usize,
    /// Bytes behind those in which no line ends: they are not looked at again.
    looked: usize,
    long: Option<Long>,
}

/// A command of several lines that has not ended.
#[derive(Clone, Debug)]
struct Long {
    command: Command,
    bytes: usize,
}

impl LineReader {
    /// Takes received bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.held.drain(..self.taken);
        self.taken = 0;
        self.held.extend_from_slice(bytes);
    }

    /// The next command, if it is whole. After an error nothing more can be read.
    pub(super) fn next_command(&mut self) -> Result<Option<Command>, NoCommand> {
        loop {
            let (room, error) = match &self.long {
                Some(long) => (PMI_LONG_BYTES_MAX - long.bytes, NoCommand::TooLarge),
                None => (PMI_LINE_BYTES_MAX, NoCommand::TooLong),
            };
            let rest = &self.held[self.taken..];
            let ahead = rest.iter().take(room).skip(self.looked);
            let Some(end) = ahead.copied().position(|byte| byte == b'\n').map(|at| at + self.looked) else {
                self.looked = rest.len();
                return if rest.len() < room { Ok(None) } else { Err(error) };
            };
            let text = core::str::from_utf8(&rest[..end]).map_err(|_| NoCommand::NoText)?;
            if text.contains('\0') {
                return Err(NoCommand::NoText);
            }
            self.looked = 0;
            self.taken += end + 1;
            match (self.long.take(), text.strip_prefix("mcmd=")) {
                (Some(long), _) if text == "endcmd" => return Ok(Some(long.command)),
                (Some(mut long), _) => {
                    long.bytes += end + 1;
                    long.command.add_line(text)?;
                    self.long = Some(long);
                }
                (None, Some(name)) => {
                    let command = Command { name: name.to_string(), fields: Vec::new() };
                    self.long = Some(Long { command, bytes: end + 1 });
                }
                (None, None) => return parse(text).map(Some),
            }
        }
    }
}

/// The one command that these bytes are.
pub(super) fn whole(bytes: &[u8]) -> Result<Command, NoCommand> {
    let mut reader = LineReader::default();
    reader.feed(bytes);
    let command = reader.next_command()?.ok_or(NoCommand::NotWhole)?;
    if reader.taken == bytes.len() { Ok(command) } else { Err(NoCommand::NotWhole) }
}

impl Command {
    /// Adds a line of a long command: a key that has not been named before, or the rest of the value before.
    fn add_line(&mut self, line: &str) -> Result<(), NoCommand> {
        let named = line.split_once('=').filter(|(key, _)| is_long_key(key) && self.get(key).is_none());
        if named.is_some() && self.fields.len() == PMI_LONG_FIELDS_MAX {
            return Err(NoCommand::TooManyFields);
        }
        match (named, self.fields.last_mut()) {
            (Some((key, value)), _) => self.fields.push((key.to_string(), value.to_string())),
            (None, Some((_, value))) => {
                value.push('\n');
                value.push_str(line);
            }
            // Nothing to go on with.
            (None, None) => {}
        }
        Ok(())
    }
}

/// Whether a line of a long command begins with one of its keys: `spawn` is the only one, and its arguments may hold newlines.
fn is_long_key(key: &str) -> bool {
    const PLAIN: [&str; 7] =
        ["nprocs", "execname", "totspawns", "spawnssofar", "argcnt", "preput_num", "info_num"];
    const COUNTED: [&str; 5] = ["arg", "preput_key_", "preput_val_", "info_key_", "info_val_"];
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    PLAIN.contains(&key) || COUNTED.iter().any(|start| key.strip_prefix(start).is_some_and(is_number))
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
