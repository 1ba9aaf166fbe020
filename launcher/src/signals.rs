//! Signals as events of the thread that waits for them.

use std::io;
use std::thread::JoinHandle;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Signals that end a process do so again.
pub fn give_signals_back() {
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        mask.add(signal);
    }
    // Fails for no set of signals.
    let _ = mask.thread_unblock();
}

/// Signals become events. Those that a parent had ignored (`nohup`) stay ignored.
pub fn take_signals(further: &[Signal]) -> io::Result<SignalFd> {
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].iter().chain(further) {
        mask.add(*signal);
    }
    mask.thread_block()?;
    Ok(SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

/// Starts a thread that blocks all signals. A signal that another thread takes as an event would otherwise end the process.
pub fn thread_without_signals<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread inherits its maker's blocked signals.
    let usual = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    usual.thread_set_mask()?;
    started
}
