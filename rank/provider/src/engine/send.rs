//! Sending messages.

use endpoint::{BorrowedPayload, SendBuffer};
use transport::slab::SlabKey;
use transport::{LinkIndex, OpId, Outgoing, SendError, Space};

use super::broken_links::LOST;
use super::sinks::{Submit, tick};
use super::{Engine, Request, SPACE_TAGGED, State, context_of, data_word};
use crate::abi::{FiAddr, flag};
use crate::boundary::{EAGAIN, EMSGSIZE, Errno, Result};
use crate::cq::{Entry, Failure};
use crate::limits::{EAGER_BYTES_MAX, MESSAGE_BYTES_MAX};
use crate::memory::Segments;

/// A message that the program sends.
pub(crate) struct Outbound<'a> {
    pub(crate) to: FiAddr,
    pub(crate) space: Space,
    pub(crate) tag: u64,
    /// Data for the completion queue of the receiver.
    pub(crate) data: Option<u64>,
    pub(crate) payload: &'a Segments,
    pub(crate) submit: Submit,
    /// The buffer is the program's again at once, and no completion is wanted.
    pub(crate) inject: bool,
}

/// A message under way.
pub(super) struct Sending {
    context: usize,
    /// Of its entry; none is wanted if `None`.
    flags: Option<u64>,
    pub(super) link: LinkIndex,
}

/// Completion levels at which the peer must have the message.
const UNTIL_RECEIVED: u64 = flag::TRANSMIT_COMPLETE | flag::DELIVERY_COMPLETE | flag::MATCH_COMPLETE;

impl State {
    /// Whether anything that was sent, or asked of a peer, is not complete: a fence waits for it.
    pub(super) fn has_open_transmits(&self) -> bool {
        self.rma_open > 0 || self.requests.iter().any(|(_, request)| matches!(request, Request::Send(_)))
    }
}

impl Engine {
    pub(crate) fn send(&self, message: &Outbound<'_>) -> Result<()> {
        let bytes = message.payload.bytes();
        let flags = message.submit.flags;
        if bytes > MESSAGE_BYTES_MAX
            || (message.inject || flags & flag::INJECT != 0) && bytes > EAGER_BYTES_MAX
        {
            return Err(EMSGSIZE);
        }
        let wanted = !message.inject && self.sinks.transmit.wants(flags);
        if wanted {
            self.wants_room(&self.sinks.transmit)?;
        }
        let mut state = self.lock();
        if flags & flag::FENCE != 0 && state.has_open_transmits() {
            drop(state);
            self.progress();
            return Err(EAGAIN);
        }
        let link = self.route(&mut state, message.to)?;
        let kind = if message.space == SPACE_TAGGED { flag::TAGGED } else { flag::MSG };
        // Only a long message, or one that wants to know of its match, is asked for by the receiver.
        let copied = bytes <= EAGER_BYTES_MAX && (message.inject || flags & flag::MATCH_COMPLETE == 0);
        let early = copied && (message.inject || flags & UNTIL_RECEIVED == 0);
        let sending =
            Sending { context: message.submit.context, flags: wanted.then_some(flag::SEND | kind), link };
        // A completion without counter and queue needs no trace.
        let tracked = !early && (wanted || self.sinks.sends.is_some()) || !copied;
        let key = if early || !tracked { None } else { Some(state.requests.insert(Request::Send(sending))) };
        let outgoing = Outgoing {
            space: message.space,
            tag: message.tag,
            data: data_word(message.data),
            context: key.map_or(0, context_of),
            silent: key.is_none(),
        };
        let sent = if copied {
            self.send_copied(link, outgoing, message.payload)
        } else {
            self.send_long(link, outgoing, message.payload, flags & flag::INJECT != 0)
        };
        if let Err(error) = sent {
            if let Some(key) = key {
                state.requests.remove(key);
            }
            if state.lost.contains(&link) {
                if !message.inject {
                    let flags = wanted.then_some(flag::SEND | kind);
                    self.fail_send(&Sending { context: message.submit.context, flags, link }, LOST);
                }
                return Ok(());
            }
            drop(state);
            if error == EAGAIN {
                self.progress();
            }
            return Err(error);
        }
        state.probe.sent();
        if early {
            tick(&self.sinks.sends, false);
            if wanted {
                self.sinks.transmit.push(sent_entry(message.submit.context, flag::SEND | kind));
            }
        }
        Ok(())
    }

    /// Sends a short payload, which is copied.
    pub(super) fn send_copied(
        &self,
        link: LinkIndex,
        outgoing: Outgoing,
        payload: &Segments,
    ) -> Result<OpId> {
        match payload.contiguous() {
            Some(bytes) => self.send_below(link, outgoing, SendBuffer::Copied(bytes)),
            None => {
                let mut bytes = Vec::with_capacity(payload.bytes());
                payload.gather(&mut bytes);
                self.send_below(link, outgoing, SendBuffer::Copied(&bytes))
            }
        }
    }

    /// Sends a payload that stays where it is; one in several segments, or one that the program takes back, is copied.
    pub(super) fn send_long(
        &self,
        link: LinkIndex,
        outgoing: Outgoing,
        payload: &Segments,
        copy: bool,
    ) -> Result<OpId> {
        if payload.is_contiguous() && !copy {
            // SAFETY: the program leaves the buffer alone until it gets the completion (fi_msg(3)): `Segments::new`.
            let borrowed = unsafe { BorrowedPayload::new(payload.start(), payload.bytes()) };
            return self.send_below(link, outgoing, SendBuffer::Borrowed(borrowed));
        }
        if !self.endpoint.can_send(link, 0) {
            return Err(EAGAIN);
        }
        self.send_below(link, outgoing, SendBuffer::Owned(payload.copied()?))
    }

    pub(super) fn send_below(
        &self,
        link: LinkIndex,
        outgoing: Outgoing,
        buffer: SendBuffer<'_>,
    ) -> Result<OpId> {
        self.endpoint.send(link, outgoing, buffer).map_err(|error| match error {
            SendError::Full { .. } => EAGAIN,
            SendError::TooLong { .. } => EMSGSIZE,
            SendError::Closed { .. } => Errno(libc::ESHUTDOWN),
            SendError::Broken { .. } => Errno(libc::ECONNABORTED),
        })
    }

    pub(super) fn finish_send(&self, state: &mut State, key: SlabKey) {
        let Some(Request::Send(sending)) = state.requests.remove(key) else { return };
        tick(&self.sinks.sends, false);
        if let Some(flags) = sending.flags {
            self.sinks.transmit.push(sent_entry(sending.context, flags));
        }
    }

    /// A send without a completion entry still reports a failure.
    pub(super) fn fail_send(&self, sending: &Sending, number: i32) {
        tick(&self.sinks.sends, true);
        self.sinks.transmit.push(Entry {
            failure: Some(Failure { number, cut_bytes: 0 }),
            ..sent_entry(sending.context, sending.flags.unwrap_or(flag::SEND))
        });
    }
}

fn sent_entry(context: usize, flags: u64) -> Entry {
    Entry {
        context,
        flags,
        bytes: 0,
        buffer: 0,
        data: 0,
        tag: 0,
        source: crate::abi::ADDR_NOTAVAIL,
        failure: None,
    }
}
