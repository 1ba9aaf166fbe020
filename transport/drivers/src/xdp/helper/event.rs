//! The lines of a helper's log.

use core::fmt;
use std::net::SocketAddr;

use super::refusal::Refusal;
use crate::xdp::Attach;

/// Something that a helper has done, for its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The process that asked.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its outcome.
    pub outcome: Outcome,
}

/// The grant to a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Queues.
    Given {
        /// The device.
        device: String,
        /// How the program is attached.
        attach: Attach,
        /// Which queues.
        queues: Vec<u32>,
        /// Whose frames.
        address: SocketAddr,
    },
    /// Nothing.
    Refused(Refusal),
    /// It has given its queues back, or has ended.
    Over {
        /// Whose frames go through the kernel again.
        address: SocketAddr,
    },
    /// Its address was not its own any more, and the rail was ended.
    Shared {
        /// Whose frames go through the kernel again.
        address: SocketAddr,
    },
    /// Lines about its user before this one were not printed.
    Withheld {
        /// How many.
        lines: u32,
    },
    /// Further lines about its user are not printed within this minute.
    WithholdsNow,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { pid, uid, outcome } = self;
        match outcome {
            Outcome::Withheld { lines } => return write!(f, "user {uid}: {lines} lines were not printed"),
            Outcome::WithholdsNow => {
                return write!(
                    f,
                    "user {uid}: further lines within this minute are not printed (--user-log-lines)"
                );
            }
            _ => write!(f, "process {pid} of user {uid}: ")?,
        }
        match outcome {
            Outcome::Given { device, attach, queues, address } => {
                let attach = attach.name();
                write!(f, "given queues {queues:?} of {device} ({attach}) for frames to {address}")
            }
            Outcome::Refused(refusal) => write!(f, "refused: {refusal}"),
            Outcome::Over { address } => write!(f, "over; nothing is taken for {address} any more"),
            Outcome::Shared { address } => write!(
                f,
                "ended: its socket no longer has {address} for itself, or the interface has lost that address; nothing is taken for it any more"
            ),
            Outcome::Withheld { .. } | Outcome::WithholdsNow => Ok(()),
        }
    }
}
