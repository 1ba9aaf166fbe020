//! Messages that a cut would keep from peers that have not cut.

use crate::ids::PortId;
use crate::link::queues::Pending;
use crate::link::{Flags, Link};
use crate::port::Port;

impl Port {
    /// A peer that, if this rank cut now, could not receive everything before its own cut. Of the messages
    /// whose context `counts`, one has no number yet, or has been announced and its payload is not numbered
    /// to the end. Or a CTS has no number. Numbered frames go on reaching peers after the cut (R4).
    ///
    /// The numbers could be given at the cut instead, without waiting for a window. But then the messages could not be
    /// announced any more, and CTS frames would stand behind frames for which the peer has no room (R17).
    #[must_use]
    pub fn unreceived(&self, counts: impl Fn(u64) -> bool) -> Option<PortId> {
        let queued = self.links.iter().filter(|link| link.peer != self.id && link.holds_unnumbered(&counts));
        let announced = self.sends.values().filter(|send| {
            let Some(link) = self.links.get(send.link.0 as usize) else { return false };
            let streams = || link.queues.iter().flat_map(|queues| &queues.streams);
            link.peer != self.id
                && !link.flags.contains(Flags::BROKEN)
                && counts(send.envelope.context)
                && (send.granted.is_none() || streams().any(|stream| stream.op == send.envelope.op))
        });
        let announced = announced.filter_map(|send| self.links.get(send.link.0 as usize));
        queued.chain(announced).map(|link| link.peer).min()
    }
}

impl Link {
    /// Whether a copied message that `counts`, or a CTS, waits for its number, or will get it anew after a resync.
    fn holds_unnumbered(&self, counts: impl Fn(u64) -> bool) -> bool {
        let Some(queues) = self.queues.as_ref().filter(|_| !self.flags.contains(Flags::BROKEN)) else {
            return false;
        };
        let waits = |pending: &Pending| match pending {
            Pending::Copied { envelope, .. } => counts(envelope.context),
            // Among the port's sends.
            Pending::Rts { .. } => false,
        };
        let renumbered = self.flags.contains(Flags::RESYNC) && !queues.sent.is_empty();
        renumbered || !queues.control.is_empty() || queues.pending.iter().any(waits)
    }
}
