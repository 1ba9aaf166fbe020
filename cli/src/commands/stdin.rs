//! The options about standard input.

use clap::Args;
use launcher::input::{InputPlan, Readers};
use store::JobFile;

use super::run::setting;
use crate::error::CliError;

/// Bytes that are kept by default.
const LIMIT: u64 = 4_000_000_000;

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct StdinArguments {
    /// Ranks that read the standard input of this command: a rank's number, all, or none. The input of other ranks is empty. End of file is passed on
    #[arg(long, value_name = "0|all|none|RANK", default_value = "0")]
    stdin: Readers,
    /// Bytes of standard input that are kept in the job's directory, so that ranks can read them again after a rollback (k, M, G: thousands, millions, billions).
    ///
    /// When that many are kept, no more is read before the next checkpoint is committed. With --encrypt, and without checkpoints, they are kept in memory, at most 67M. Without checkpoints the oldest bytes are discarded.
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = size)]
    stdin_limit: u64,
    /// Give the only rank a terminal: programs that edit lines or draw on the screen work, and every key goes to the program.
    ///
    /// Its settings and its size are as those of the terminal of this command, and are saved with a checkpoint. Ctrl-C is the program's; Ctrl-Z stops the job unless the program reads single keys. Output is passed on unchanged.
    #[arg(long, conflicts_with = "stdin")]
    tty: bool,
}

#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct StdinChange {
    /// Ranks that read standard input, as for `run` [default: as the job was started]. They first read again the earlier input that they need, then that of this command
    #[arg(long, value_name = "0|all|none|RANK")]
    stdin: Option<Readers>,
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k')) => (&text[..at], 1_000),
        Some((at, 'M')) => (&text[..at], 1_000_000),
        Some((at, 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("expected a number of bytes, such as 64M or 4G, found `{text}`"))
}

impl StdinArguments {
    pub(super) fn plan(&self, ranks: u32, is_saved: bool) -> Result<InputPlan, CliError> {
        checked(self.stdin, ranks)?;
        if self.tty && ranks != 1 {
            return Err(CliError::TerminalOfMany { ranks });
        }
        Ok(InputPlan { readers: self.stdin, limit: self.stdin_limit, is_saved, has_terminal: self.tty })
    }

    pub(super) fn has_terminal(&self) -> bool {
        self.tty
    }

    /// As Open MPI's mpirun takes it.
    pub(super) fn readers(&self) -> Readers {
        self.stdin
    }
}

impl StdinChange {
    /// For a job that is restarted.
    pub(super) fn plan(&self, file: &JobFile) -> Result<InputPlan, CliError> {
        let text = |name: &str| file.settings.get(name);
        let before = text(setting::STDIN).and_then(|text| text.parse().ok()).unwrap_or(Readers::None);
        let readers = self.stdin.unwrap_or(before);
        checked(readers, file.ranks)?;
        let limit = text(setting::STDIN_LIMIT).and_then(|text| text.parse().ok()).unwrap_or(LIMIT);
        let has_terminal = text(setting::TTY).is_some();
        Ok(InputPlan { readers, limit, is_saved: true, has_terminal })
    }
}

fn checked(readers: Readers, ranks: u32) -> Result<(), CliError> {
    match readers {
        Readers::One(rank) if rank >= ranks => Err(CliError::NoSuchReader { rank, ranks }),
        _ => Ok(()),
    }
}

/// The job file's settings for standard input.
pub(super) fn settings(plan: &InputPlan) -> impl Iterator<Item = (String, String)> {
    let tty = plan.has_terminal.then(|| (setting::TTY.to_owned(), "1".to_owned()));
    let streams = [
        (setting::STDIN.to_owned(), plan.readers.to_string()),
        (setting::STDIN_LIMIT.to_owned(), plan.limit.to_string()),
    ];
    streams.into_iter().chain(tty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            [size("4G"), size("64M"), size("3k"), size("17")].map(Result::unwrap),
            [LIMIT, 64_000_000, 3000, 17]
        );
        for wrong in ["", "G", "0", "-1", "4T", "99999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
