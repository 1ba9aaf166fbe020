//! A look at what a program waits for, for people whose job hangs.

use core::time::Duration;

use drivers::sync::Ordering;
use transport::port::{OpenReceive, OpenSend, OwingLink};
use transport::{Instant, OpId, Port};

use crate::gate::Endpoint;
use crate::op_times::OpTimes;

/// The open operations of a port, seen under its gate.
pub struct Waits<'a> {
    port: &'a Port,
    times: &'a OpTimes,
    now: Instant,
    looks: u64,
    sleeps: bool,
}

impl Waits<'_> {
    /// Receives that are not complete, each with an age that it has at least.
    pub fn receives(&self) -> impl Iterator<Item = (OpenReceive, Duration)> {
        self.port.open_receives().map(|receive| (receive, self.age(receive.op)))
    }

    /// Sends that are not complete, likewise.
    pub fn sends(&self) -> impl Iterator<Item = (OpenSend, Duration)> {
        self.port.open_sends().map(|send| (send, self.age(send.op)))
    }

    /// Links on which peers owe acknowledgements.
    pub fn links(&self) -> impl Iterator<Item = OwingLink> {
        self.port.owing_links(self.now)
    }

    /// A number that grows with every look of the program for completions.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Whether a thread of the program sleeps in [`Endpoint::wait`] or one like it.
    #[must_use]
    pub fn sleeps(&self) -> bool {
        self.sleeps
    }

    /// A number that grows with every operation.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.port.next_op().0
    }

    fn age(&self, op: OpId) -> Duration {
        self.times.age(op, self.now)
    }
}

impl Endpoint {
    /// Looks at the port, if its gate is free within a time. `None`: it was not.
    pub fn look_at_waits<R>(&self, within: Duration, look: impl FnOnce(&Waits<'_>) -> R) -> Option<R> {
        let shared = &*self.shared;
        let inner = shared.lock_within(within)?;
        let waits = Waits {
            port: &inner.port,
            times: &inner.op_times,
            now: shared.clock.now(),
            looks: shared.rounds.load(Ordering::Relaxed),
            sleeps: shared.sleepers.load(Ordering::Relaxed) > 0,
        };
        Some(look(&waits))
    }
}
