//! Consent to run a copy that no key vouches for: every user who can write to its place can choose the command, the environment, the memory of the program, and the
//! command that reaches other hosts.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _};

use copies::CopyLocation;
use launcher::text;
use store::JobFile;
use store::record::Copied;

use super::print_message;
use super::run::setting;
use crate::error::CliError;

/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64;

/// Whether a person wants a copy to run.
pub(super) struct Consent {
    is_given: bool,
    /// The last job file that a person has accepted.
    accepted: Option<JobFile>,
}

impl Consent {
    /// `is_given`: a person has said so on the command line.
    pub(super) fn new(is_given: bool) -> Consent {
        Consent { is_given, accepted: None }
    }

    /// Shows what a restart from this copy runs, and asks; an error without a terminal.
    pub(super) fn obtain(
        &mut self,
        from: &CopyLocation,
        copied: &Copied,
        file: &JobFile,
    ) -> Result<(), CliError> {
        if self.is_given || self.accepted.as_ref() == Some(file) {
            return Ok(());
        }
        print_message(format_args!("{}", Shown { from, copied, file }));
        let place = from.to_string();
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(CliError::NotTrusted { generation: copied.generation, place });
        }
        eprint!("Run it? [y/N] ");
        if !is_yes()? {
            return Err(CliError::Declined { place });
        }
        self.accepted = Some(file.clone());
        Ok(())
    }
}

/// From the terminal itself: bytes behind the answer's line are the program's input.
fn is_yes() -> io::Result<bool> {
    let mut answer = Vec::new();
    let terminal = File::open("/dev/tty")?;
    BufReader::with_capacity(1, io::Read::take(terminal, ANSWER_BYTES_MAX)).read_until(b'\n', &mut answer)?;
    let answer = String::from_utf8_lossy(&answer).trim().to_ascii_lowercase();
    Ok(matches!(&answer[..], "y" | "yes"))
}

/// A copy for a person to judge.
struct Shown<'a> {
    from: &'a CopyLocation,
    copied: &'a Copied,
    file: &'a JobFile,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { from, copied, file } = self;
        write!(
            f,
            "no key vouches for the copy of generation {} at {from}: everybody who can write there decides what runs here",
            copied.generation
        )?;
        let mut line = |name: &str, value: &dyn fmt::Display| write!(f, "\n    {name:<14}{value}");
        line("command", &Words(&file.command))?;
        line("directory", &Word(&file.directory))?;
        for entry in &file.environment {
            line("environment", &Word(entry))?;
        }
        let settings = [
            ("hosts", setting::HOSTS),
            ("remote shell", setting::REMOTE_SHELL),
            ("MPI library", setting::MPI_FROM),
            ("node dirs", setting::NODE_DIRECTORY),
            ("copies to", setting::FLUSH_TO),
        ];
        for (name, key) in settings {
            if let Some(value) = file.settings.get(key) {
                line(name, &Word(value.as_bytes()))?;
            }
        }
        let (ranks, bytes) = (copied.ranks.len(), text::bytes(copied.bytes()));
        line("saved memory", &format_args!("{bytes} of {ranks} ranks, code included"))
    }
}

/// A word of a stranger, without the power to move the cursor or to reorder text.
struct Word<'a>(&'a [u8]);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:=,@+%".contains(byte);
        if !self.0.is_empty() && self.0.iter().all(is_plain) {
            return self.0.iter().try_for_each(|byte| f.write_char(char::from(*byte)));
        }
        f.write_char('"')?;
        for chunk in self.0.utf8_chunks() {
            write!(f, "{}{}", chunk.valid().escape_debug(), chunk.invalid().escape_ascii())?;
        }
        f.write_char('"')
    }
}

struct Words<'a>(&'a [Vec<u8>]);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, word) in self.0.iter().enumerate() {
            let gap = if at == 0 { "" } else { " " };
            write!(f, "{gap}{}", Word(word))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_strangers_are_shown_and_not_obeyed() {
        for (word, shown) in [
            (&b"--name=a,b"[..], "--name=a,b"),
            (b"", "\"\""),
            (b"a b", "\"a b\""),
            (b"\x1b[2J\r\n\"", "\"\\u{1b}[2J\\r\\n\\\"\""),
            ("ü\u{202e}".as_bytes(), "\"ü\\u{202e}\""),
            (b"\xff", "\"\\xff\""),
        ] {
            assert_eq!(Word(word).to_string(), shown);
        }
    }
}
