//! Ctrl-C and its like, noticed by benches that would leave something behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};

use crate::error::BenchError;

/// Exit code of a program that somebody has ended.
const ENDED: i32 = 130;

/// Whether somebody wants this program to end.
pub(crate) struct Stopping(Arc<AtomicBool>);

impl Stopping {
    /// From here on signals that end a process are only noticed, if no other thread was started before: the first one. The second one ends it where it stands,
    /// for what it waits for may never come.
    pub(crate) fn notice() -> Result<Stopping, BenchError> {
        let mut signals = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| signals.add(signal));
        signals.thread_block().map_err(std::io::Error::from)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&stopped);
        std::thread::Builder::new().name("stillwire-signals".into()).spawn(move || {
            if signals.wait().is_ok() {
                noted.store(true, Ordering::Relaxed);
            }
            if signals.wait().is_ok() {
                std::process::exit(ENDED);
            }
        })?;
        Ok(Stopping(stopped))
    }

    /// An error, if somebody does.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.0.load(Ordering::Relaxed) { Err(BenchError::Stopped) } else { Ok(()) }
    }
}
