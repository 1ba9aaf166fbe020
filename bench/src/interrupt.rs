//! Ctrl-C and its like, noticed by benches that would leave something behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use crate::error::BenchError;

/// Exit code of a program that a signal has ended.
const ENDED: i32 = 130;

/// Whether a signal has asked this program to end.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<Noted>);

#[derive(Default)]
struct Noted {
    stopped: AtomicBool,
    /// Process group that runs for this program; 0: none.
    below: AtomicI32,
}

impl Interrupt {
    /// From here on signals that end a process are only noticed, if no other thread was started before: the first one.
    /// The second one ends it at once, as it may wait for ever, and passes the signal on to its children.
    pub(crate) fn notice() -> Result<Interrupt, BenchError> {
        let mut signals = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| signals.add(signal));
        signals.thread_block().map_err(std::io::Error::from)?;
        let interrupt = Interrupt(Arc::default());
        let noted = Arc::clone(&interrupt.0);
        std::thread::Builder::new().name("stillwire-signals".into()).spawn(move || {
            if signals.wait().is_ok() {
                noted.stopped.store(true, Ordering::Relaxed);
            }
            if signals.wait().is_ok() {
                let below = noted.below.load(Ordering::Relaxed);
                if below > 0 {
                    let _ = kill(Pid::from_raw(below), Signal::SIGTERM);
                }
                std::process::exit(ENDED);
            }
        })?;
        Ok(interrupt)
    }

    /// An error if it has been asked to end.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.0.stopped.load(Ordering::Relaxed) { Err(BenchError::Stopped) } else { Ok(()) }
    }

    /// That process runs for this program now, or none does.
    pub(crate) fn set_below(&self, below: Option<u32>) {
        let below = below.and_then(|pid| i32::try_from(pid).ok());
        self.0.below.store(below.unwrap_or(0), Ordering::Relaxed);
    }
}
