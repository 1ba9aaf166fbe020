//! Ctrl-C and its like, noticed by commands that leave nothing half done.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: i32) {
    STOPPED.store(true, Ordering::Relaxed);
}

/// As long as it lives, signals that end a process are only noticed: the first one of each kind. The second one ends the process at once, because the
/// event it waits for may never come.
pub(crate) struct InterruptGuard {
    before: Vec<(Signal, SigAction)>,
}

impl InterruptGuard {
    /// Those that a parent had ignored (`nohup`) stay ignored.
    pub(crate) fn begin() -> InterruptGuard {
        let flags = SaFlags::SA_RESTART | SaFlags::SA_RESETHAND;
        let own = SigAction::new(SigHandler::Handler(note), flags, SigSet::empty());
        let mut before = Vec::new();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // SAFETY: the handler stores to an atomic, which may be done at any instant.
            let Ok(was) = (unsafe { sigaction(signal, &own) }) else { continue };
            before.push((signal, was));
            if matches!(was.handler(), SigHandler::SigIgn) {
                give_back(signal, &was);
            }
        }
        InterruptGuard { before }
    }
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        for (signal, was) in &self.before {
            give_back(*signal, was);
        }
    }
}

fn give_back(signal: Signal, was: &SigAction) {
    // SAFETY: it is the action that the signal had before.
    let _ = unsafe { sigaction(signal, was) };
}

/// Whether the user ends this command.
pub(crate) fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}
