//! The matching spaces of a port whose owner is no session, and what operations in them are for.

use client::waits::{OpenOp, Purpose};
use transport::Space;

/// Messages without tags.
pub const MESSAGES: Space = Space(0);

/// Messages with tags.
pub const TAGGED: Space = Space(1);

/// Requests to memory.
pub const SERVICE: Space = Space(2);

/// Payloads of reads, from the owner of the memory.
pub const READ: Space = Space(3);

/// Payloads of writes, to the owner of the memory.
pub const WRITE: Space = Space(4);

/// The end that owns the memory serves its peers, and does not wait for them.
pub(crate) fn purpose(op: &OpenOp) -> Purpose {
    match op {
        OpenOp::Receive(receive) if receive.space == READ => Purpose::Memory,
        OpenOp::Send(send) if send.space == WRITE => Purpose::Memory,
        OpenOp::Receive(receive) if [MESSAGES, TAGGED].contains(&receive.space) => Purpose::Message,
        OpenOp::Send(send) if [MESSAGES, TAGGED].contains(&send.space) => Purpose::Message,
        OpenOp::Receive(_) | OpenOp::Send(_) => Purpose::Service,
    }
}
