//! A frame's acknowledgement is for the port, its message for the program: on the fast path the message comes first,
//! and so does the program's answer to it.
//!
//! An acknowledgement may come late by every rule (it could have been lost), so nothing but time is at stake: the next
//! call that takes a frame, writes one, or polls timers or events, catches up. So does a freeze. Until then the link
//! has sent nothing that is not acknowledged.

use crate::ids::LinkIndex;
use crate::link::Flags;
use crate::message::Event;
use crate::port::Port;

/// An acknowledgement that has been read and not looked at (R16).
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeferredAck {
    pub(super) link: LinkIndex,
    /// Frames below have been counted by the peer.
    pub(super) ack: u64,
    /// Newest transmission that the peer had received.
    pub(super) echo: u64,
    /// When it was read; port time, nanoseconds.
    pub(super) now: u64,
}

impl Port {
    /// Whether an acknowledgement has been put off: the port may have more to report than its events.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.deferred_ack.is_some()
    }

    /// Looks at the acknowledgement that was put off.
    #[inline]
    pub fn catch_up(&mut self) {
        if let Some(DeferredAck { link, ack, echo, now }) = self.deferred_ack.take()
            && !self.links[link.0 as usize].flags.contains(Flags::BROKEN)
        {
            self.acknowledge(link, ack, echo, None, now);
            self.arm(link);
        }
    }

    /// As [`Port::poll_event`], but does not catch up: all events so far are there.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
