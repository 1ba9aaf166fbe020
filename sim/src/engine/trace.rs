//! The trace of a history: one line per event. Off, it costs one branch per event and formats nothing.

use core::fmt::{self, Write as _};

use super::queue::Nanos;

/// Meaning of a trace's columns and words; printed above each trace.
pub const LEGEND: &str = "\
# time(us) who      what
# who: r2 rank 2 (one process), k1 keeper of node 1, c coordinator, net the network, disk the storage, plan the faults
# frame A>B n..   frame left the NIC of rank A for rank B: bytes, epoch and life of its sender
# arrive A>B      the receiving NIC wrote it into a buffer; lost/cut/dead/full/late say why a frame did not arrive, or when
# send/recv       the program handed over or got a message: peer, round.index, bytes
# cut e           the rank froze its ports and captured its memory for epoch e; thaw: it runs on
# image e         its image is durable (or: why there is none)
# ctl A>B         a control message; lost: the connection broke under it
# commit l.e      the commit record of life l, epoch e is durable; decide: a recovery decided on a generation
# restore l.e     a rank runs again from that generation in the new life
# fault           something of the plan happened
# JUDGE           a violation";

/// The owner of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Actor {
    /// One rank's process.
    Rank(u32),
    /// The keeper of a node.
    Keeper(u32),
    /// The coordinator.
    Coordinator,
    /// The network between NICs.
    Network,
    /// A disk.
    Disk,
    /// The plan of faults and commands.
    Plan,
    /// A judge.
    Judge,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Rank(rank) => write!(f, "r{rank}"),
            Actor::Keeper(node) => write!(f, "k{node}"),
            Actor::Coordinator => f.write_str("c"),
            Actor::Network => f.write_str("net"),
            Actor::Disk => f.write_str("disk"),
            Actor::Plan => f.write_str("plan"),
            Actor::Judge => f.write_str("JUDGE"),
        }
    }
}

/// Lines of a history, or nothing.
#[derive(Debug, Default)]
pub struct Trace {
    on: bool,
    text: String,
}

impl Trace {
    /// A trace that keeps lines if `on`.
    #[must_use]
    pub fn new(on: bool) -> Trace {
        Trace { on, text: String::new() }
    }

    /// Whether lines are wanted. Ask before building arguments that cost something.
    #[must_use]
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Adds a line. Callers go through [`trace!`](crate::trace), which asks [`is_on`](Trace::is_on) first.
    #[cold]
    pub fn line(&mut self, now: Nanos, who: Actor, what: fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let who = who.to_string();
        let _ = writeln!(self.text, "{:>10}.{:03} {who:<8} {what}", now / 1000, now % 1000);
    }

    /// All lines so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Takes the lines out.
    #[must_use]
    pub fn take(&mut self) -> String {
        core::mem::take(&mut self.text)
    }
}

/// Adds a line to a [`Trace`] if it is on; the arguments are not evaluated otherwise.
#[macro_export]
macro_rules! trace {
    ($trace:expr, $now:expr, $who:expr, $($what:tt)+) => {
        if $trace.is_on() {
            $trace.line($now, $who, format_args!($($what)+));
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_time_who_and_what_and_none_is_kept_when_off() {
        let mut on = Trace::new(true);
        trace!(on, 1_234_567, Actor::Rank(2), "cut e={}", 3);
        assert_eq!(on.text(), "      1234.567 r2       cut e=3\n");
        let mut off = Trace::new(false);
        let mut evaluated = false;
        trace!(off, 0, Actor::Plan, "{}", {
            evaluated = true;
            1
        });
        assert_eq!((off.text(), evaluated), ("", false));
    }
}
