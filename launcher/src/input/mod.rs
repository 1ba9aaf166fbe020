//! The launcher's standard input: which ranks read it, and the input kept for a rollback.
//!
//! ```text
//!   standard input --> Reader (a thread) --> Log --> coordinator --> keeper --> a pipe for each rank that reads
//! ```
//!
//! Every byte has a number, from 0 at the beginning of the job on, over all its lives. A rank's position at its cut stands beside the
//! generation (`positions`); a rank that is restored gets the bytes behind that. Bytes before all generations that are kept are forgotten.

mod log;
pub(crate) mod positions;
mod reader;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(crate) use reader::{Ask, InputEvent, Reader, Start};

/// The folder in a job's directory with input that may be needed again.
const FOLDER: &str = "input";

/// Bytes that are kept in memory of a job that nobody saves, or whose files are encrypted.
pub(crate) const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// Which ranks read the launcher's standard input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readers {
    /// No rank.
    None,
    /// Each of them.
    All,
    /// This one.
    One(u32),
}

impl Readers {
    /// In a job of so many ranks.
    pub(crate) fn ranks(self, ranks: u32) -> std::ops::Range<u32> {
        match self {
            Readers::None => 0..0,
            Readers::All => 0..ranks,
            Readers::One(rank) => rank..rank + 1,
        }
    }
}

impl FromStr for Readers {
    type Err = String;

    fn from_str(text: &str) -> Result<Readers, String> {
        match text {
            "none" => Ok(Readers::None),
            "all" => Ok(Readers::All),
            number => number
                .parse()
                .map(Readers::One)
                .map_err(|_| format!("expected a rank's number, all, or none, found `{text}`")),
        }
    }
}

impl fmt::Display for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Readers::None => f.write_str("none"),
            Readers::All => f.write_str("all"),
            Readers::One(rank) => write!(f, "{rank}"),
        }
    }
}

/// Where the bytes are kept that a rollback needs again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Retention {
    /// In files of the job's directory: a restart by another launcher has them, too.
    Files(PathBuf),
    /// In memory: the job's files are encrypted, and these would not be.
    Memory,
    /// The newest in memory, and the older ones are forgotten: nobody saves the job.
    Newest,
}

/// How a job uses standard input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputPlan {
    /// The ranks that read it.
    pub readers: Readers,
    /// Limit of kept bytes; at the limit no more is read before the next commit.
    pub limit: u64,
    /// The job is saved; otherwise it can only begin again from its start.
    pub is_saved: bool,
    /// The only rank has a terminal, which the launcher's is connected to.
    pub has_terminal: bool,
}

impl InputPlan {
    /// Nobody reads anything.
    pub const NONE: InputPlan =
        InputPlan { readers: Readers::None, limit: 0, is_saved: false, has_terminal: false };

    /// Where it is kept, and how much.
    pub(crate) fn retention(&self, directory: &Path, is_encrypted: bool) -> (Retention, u64) {
        match (self.is_saved, is_encrypted) {
            (true, false) => (Retention::Files(directory.join(FOLDER)), self.limit),
            (true, true) => (Retention::Memory, self.limit.min(MEMORY_BYTES_MAX)),
            (false, _) => (Retention::Newest, self.limit.min(MEMORY_BYTES_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_are_written_as_they_are_read() {
        for (text, ranks) in [("none", 0..0), ("all", 0..4), ("0", 0..1), ("3", 3..4)] {
            let readers: Readers = text.parse().unwrap();
            assert_eq!((readers.to_string().as_str(), readers.ranks(4)), (text, ranks));
        }
        assert!("first".parse::<Readers>().is_err() && "-1".parse::<Readers>().is_err());
    }
}
