//! Why a command could not be carried out.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

use crate::exit::Exit;

/// Why a command could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(
        "{histories} histories from seed {first_seed} on: the last seed would be above {}, the largest; name a smaller --first-seed, or fewer --histories",
        u64::MAX
    )]
    SeedsUsedUp { histories: u64, first_seed: u64 },
    #[error("no rule is called {rule}; there are {known}")]
    NoSuchRule { rule: String, known: String },
    #[error("{path}: {error}; `stillwire-dev sim scenario --help` explains the language")]
    Scenario { path: PathBuf, error: sim::scenario::ScenarioError },
    #[error("{path}: expected a scenario, which is text of at most {expected} bytes, found {found}")]
    NoScenario { path: PathBuf, expected: usize, found: String },
    #[error("{path}: {}; expected a scenario, as `sim run --plan` and `sim shrink` print them", reason(.error))]
    File { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Shrink(#[from] sim::shrink::ShrinkError),
    #[error(transparent)]
    Scale(#[from] sim::scale::ScaleError),
    #[error(transparent)]
    Bench(#[from] bench::BenchError),
}

impl DevError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            DevError::Bench(bench::BenchError::Stopped) => Exit::Stopped,
            DevError::NoSuchRule { .. }
            | DevError::SeedsUsedUp { .. }
            | DevError::Scale(_)
            | DevError::Bench(bench::BenchError::OneRail { .. }) => Exit::Usage,
            _ => Exit::Failed,
        }
    }
}

/// The system's message, without its number.
fn reason(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |number| Errno::from_raw(number).desc().to_owned())
}
