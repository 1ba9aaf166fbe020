//! Descriptors enough for all ranks.

use std::io;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

use crate::error::LauncherError;
use crate::limits::{DESCRIPTORS_BESIDE, DESCRIPTORS_PER_RANK};

/// How many descriptors a process may have: now, and at most if it asks.
pub(crate) type Descriptors = (rlim_t, rlim_t);

/// Asks for as many descriptors as the launcher of so many ranks needs. Returns the limits from before, which ranks are given:
/// programs are made for it.
pub(crate) fn provide(ranks: u32) -> Result<Descriptors, LauncherError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(io::Error::from)?;
    let needed = u64::from(ranks) * DESCRIPTORS_PER_RANK + DESCRIPTORS_BESIDE;
    if hard < needed {
        return Err(LauncherError::Descriptors { ranks, needed, found: hard });
    }
    if soft < needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed, hard).map_err(io::Error::from)?;
    }
    Ok((soft, hard))
}

/// Gives this process that many.
pub(crate) fn restore((soft, hard): Descriptors) -> nix::Result<()> {
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard)
}
