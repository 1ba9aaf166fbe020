//! Receiving messages: posted receives, looks at waiting messages, claims, cancellation.

use endpoint::{BorrowedBuffer, ReceiveBuffer};
use transport::matching::{Envelope, MatchError, Pattern};
use transport::slab::SlabKey;
use transport::{LinkIndex, OpId, Space};

use super::sinks::{Submit, tick};
use super::{DATA_PRESENT, Engine, Operation, Request, SPACE_TAGGED, State, context_of};
use crate::abi::{ADDR_UNSPEC, FiAddr, errno, flag};
use crate::boundary::{EAGAIN, EINVAL, Errno, Result};
use crate::cq::{Entry, Failure};
use crate::memory::{Segments, with_room};

/// A receive that the program posts.
pub(crate) struct Inbound<'a> {
    pub(crate) space: Space,
    pub(crate) from: FiAddr,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) buffer: &'a Segments,
    pub(crate) submit: Submit,
    /// The buffer takes several messages until less than this is free.
    pub(crate) multi: Option<usize>,
}

/// A look at the messages that wait.
pub(crate) struct Peek {
    pub(crate) space: Space,
    pub(crate) from: FiAddr,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) submit: Submit,
}

/// Whether a look at messages of any source may find one.
///
/// MPICH takes messages to oneself past the provider, and looks first there, then here, then makes progress on both. A
/// program that sends to itself and to others and then probes for any source would find a peer's message here before its
/// own has come up there; the receive that follows looks in the other place first, and gets the wrong one. So the first
/// look after a send finds nothing, and the next one, before which MPICH has made progress on both, is a real one.
///
/// A message that a look has shown stays visible until a message is received, regardless of sends meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProbeState {
    /// Looks are real.
    Free,
    /// Something was sent: the next look finds nothing.
    Held,
    /// A look has found nothing for that reason. Regardless of sends meanwhile, the next one is real.
    Due,
    /// A look has found a message. Whether something was sent since.
    Shown(bool),
}

impl ProbeState {
    pub(super) fn sent(&mut self) {
        match self {
            ProbeState::Free => *self = ProbeState::Held,
            ProbeState::Shown(sent) => *sent = true,
            ProbeState::Held | ProbeState::Due => {}
        }
    }

    /// A look has found a message, which is still there.
    fn shown(&mut self) {
        if !matches!(self, ProbeState::Shown(_)) {
            *self = ProbeState::Shown(false);
        }
    }

    /// Something is received, perhaps the message that was shown.
    fn received(&mut self) {
        if let ProbeState::Shown(sent) = *self {
            *self = if sent { ProbeState::Held } else { ProbeState::Free };
        }
    }

    /// Takes one look: whether it is real.
    fn is_real(&mut self) -> bool {
        match self {
            ProbeState::Shown(_) => true,
            ProbeState::Held => {
                *self = ProbeState::Due;
                false
            }
            ProbeState::Free | ProbeState::Due => {
                *self = ProbeState::Free;
                true
            }
        }
    }
}

/// A receive that waits or fills.
pub(super) struct Posted {
    context: usize,
    /// It gets an entry when it succeeds.
    wanted: bool,
    kind: u64,
    buffer: usize,
    /// Where the bytes go that were received elsewhere first: segments.
    segments: Option<Segments>,
    op: Operation,
    /// Several messages go into the buffer.
    pub(super) multi: bool,
    /// The program has taken it back, and is notified when the messages already given to it have come.
    cancelled: bool,
}

/// A complete message, as the endpoint reports it.
pub(super) struct Received {
    pub(super) source: LinkIndex,
    pub(super) tag: u64,
    pub(super) data: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) finished: bool,
    pub(super) buffer: Option<Vec<u8>>,
}

impl Engine {
    pub(crate) fn receive(&self, inbound: &Inbound<'_>) -> Result<()> {
        let multi = inbound.multi.is_some();
        if multi && !inbound.buffer.is_contiguous() {
            // Where a message has come would not be a place in the program's memory.
            return Err(EINVAL);
        }
        self.wants_room(&self.sinks.receive)?;
        let mut state = self.lock();
        let source = self.source_link(&mut state, inbound.from)?;
        let (buffer, segments) = below(inbound.buffer)?;
        state.probe.received();
        let posted = self.posted(inbound.space, inbound.submit, inbound.buffer, segments, multi);
        let key = state.requests.insert(Request::Receive(posted));
        let receive = transport::Receive {
            space: inbound.space,
            source,
            tag: inbound.tag,
            ignore: inbound.ignore,
            bytes_max: inbound.buffer.bytes() as u64,
            context: context_of(key),
            multi: inbound.multi.map(|bytes| bytes as u64),
        };
        let result = self.endpoint.post_receive(receive, buffer);
        settle(&mut state, key, result)
    }

    fn posted(
        &self,
        space: Space,
        submit: Submit,
        buffer: &Segments,
        segments: Option<Segments>,
        multi: bool,
    ) -> Posted {
        Posted {
            context: submit.context,
            wanted: self.sinks.receive.wants(submit.flags),
            kind: kind_of(space),
            buffer: buffer.start() as usize,
            segments,
            op: None,
            multi,
            cancelled: false,
        }
    }

    fn source_link(&self, state: &mut State, from: FiAddr) -> Result<Option<LinkIndex>> {
        if !self.directed || from == ADDR_UNSPEC {
            return Ok(None);
        }
        self.route(state, from).map(Some)
    }

    pub(super) fn finish_receive(&self, state: &mut State, key: SlabKey, received: Received) {
        let source = self.source(state, received.source);
        let Some(Request::Receive(posted)) = state.requests.get_mut(key) else { return };
        if let (Some(segments), Some(bytes)) = (&posted.segments, &received.buffer) {
            let stored = usize::try_from(received.bytes).unwrap_or(usize::MAX).min(bytes.len());
            segments.scatter(&bytes[..stored]);
        }
        let bytes = usize::try_from(received.bytes).unwrap_or(usize::MAX);
        let cut_bytes = usize::try_from(received.sent_bytes - received.bytes).unwrap_or(usize::MAX);
        let failure = (cut_bytes > 0).then_some(Failure { number: errno::ETRUNC, cut_bytes });
        let cancelled = posted.cancelled;
        let released = received.finished && posted.multi && !cancelled;
        let has_data = received.data & DATA_PRESENT != 0;
        let entry = Entry {
            context: posted.context,
            flags: flag::RECV
                | posted.kind
                | if released { flag::MULTI_RECV } else { 0 }
                | if has_data { flag::REMOTE_CQ_DATA } else { 0 },
            bytes,
            buffer: posted.buffer + usize::try_from(received.offset).unwrap_or(0),
            data: received.data & (DATA_PRESENT - 1),
            tag: if posted.kind == flag::TAGGED { received.tag } else { 0 },
            source,
            failure,
        };
        let reported = posted.wanted || released || failure.is_some();
        tick(&self.sinks.receives, failure.is_some());
        if reported {
            self.sinks.receive.push(entry);
        }
        if received.finished {
            if cancelled {
                self.receive_ended(state, key);
            } else {
                state.requests.remove(key);
            }
        }
    }

    /// Looks for a waiting message, and reports it, or its absence, through the queue. With `FI_CLAIM` the message is
    /// set aside under the call's context, with `FI_DISCARD` it is discarded.
    pub(crate) fn peek(&self, peek: &Peek) -> Result<()> {
        self.progress();
        self.wants_room(&self.sinks.receive)?;
        let mut state = self.lock();
        let source = self.source_link(&mut state, peek.from)?;
        let pattern = Pattern { space: peek.space, source, tag: peek.tag, ignore: peek.ignore };
        let keeps = peek.submit.flags & (flag::CLAIM | flag::DISCARD) == 0;
        let found = if keeps && source.is_none() && !state.probe.is_real() {
            None
        } else if keeps {
            self.endpoint.peek(&pattern).inspect(|_| state.probe.shown())
        } else {
            state.probe.received();
            self.endpoint.claim(&pattern).map(|(key, envelope)| {
                if peek.submit.flags & flag::CLAIM != 0 {
                    state.claims.insert(peek.submit.context, (key, envelope));
                } else {
                    let _ = self.endpoint.discard(key);
                }
                envelope
            })
        };
        let entry = match found {
            Some(envelope) => self.seen(&mut state, peek.space, peek.submit, &envelope),
            None => self.unseen(peek),
        };
        self.sinks.receive.push(entry);
        Ok(())
    }

    fn seen(&self, state: &mut State, space: Space, submit: Submit, envelope: &Envelope) -> Entry {
        let has_data = envelope.data & DATA_PRESENT != 0;
        Entry {
            context: submit.context,
            flags: flag::RECV | kind_of(space) | if has_data { flag::REMOTE_CQ_DATA } else { 0 },
            bytes: usize::try_from(envelope.bytes).unwrap_or(usize::MAX),
            buffer: 0,
            data: envelope.data & (DATA_PRESENT - 1),
            tag: envelope.tag,
            source: self.source(state, envelope.source),
            failure: None,
        }
    }

    fn unseen(&self, peek: &Peek) -> Entry {
        Entry {
            context: peek.submit.context,
            flags: flag::RECV | kind_of(peek.space),
            bytes: 0,
            buffer: 0,
            data: 0,
            tag: peek.tag,
            source: peek.from,
            failure: Some(Failure { number: libc::ENOMSG, cut_bytes: 0 }),
        }
    }

    /// Receives the message that was set aside under this context, or discards it.
    pub(crate) fn receive_claimed(&self, space: Space, buffer: &Segments, submit: Submit) -> Result<()> {
        self.wants_room(&self.sinks.receive)?;
        // Before the message is given up for good.
        let room = if submit.flags & flag::DISCARD == 0 { Some(below(buffer)?) } else { None };
        let mut state = self.lock();
        let (claimed, envelope) = state.claims.remove(&submit.context).ok_or(EINVAL)?;
        let Some((below, segments)) = room else {
            if !self.endpoint.discard(claimed) {
                return Err(EINVAL);
            }
            if self.sinks.receive.wants(submit.flags) {
                let entry = self.seen(&mut state, space, submit, &envelope);
                self.sinks.receive.push(entry);
            }
            return Ok(());
        };
        let posted = self.posted(space, submit, buffer, segments, false);
        let key = state.requests.insert(Request::Receive(posted));
        let result = self.endpoint.receive_claimed(claimed, context_of(key), below);
        settle(&mut state, key, result)
    }

    /// Takes back a receive that no message has been given to. Its entry reports that it was cancelled. A
    /// buffer for several messages gets no more of them; its entry follows those of the messages that are in
    /// it, or on their way.
    pub(crate) fn cancel(&self, context: usize) {
        let mut state = self.lock();
        let found = state.requests.iter().find_map(|(key, request)| match request {
            Request::Receive(posted) if posted.context == context && !posted.cancelled => {
                Some((key, posted.op?, posted.multi))
            }
            _ => None,
        });
        let Some((key, op, multi)) = found else { return };
        if !multi {
            if self.endpoint.cancel(op).is_some() {
                self.receive_ended(&mut state, key);
            }
        } else if self.endpoint.stop(op, context_of(key))
            && let Some(Request::Receive(posted)) = state.requests.get_mut(key)
        {
            posted.cancelled = true;
        }
    }

    /// The message on its way into a receive, or the only one that could come, will not come. `finished`: nothing more comes into the buffer.
    pub(super) fn fail_receive(
        &self,
        state: &mut State,
        key: SlabKey,
        tag: u64,
        finished: bool,
        number: i32,
    ) {
        let Some(Request::Receive(posted)) = state.requests.get(key) else { return };
        let released = finished && posted.multi && !posted.cancelled;
        tick(&self.sinks.receives, true);
        self.sinks.receive.push(Entry {
            context: posted.context,
            flags: flag::RECV | posted.kind | if released { flag::MULTI_RECV } else { 0 },
            bytes: 0,
            buffer: posted.buffer,
            data: 0,
            tag: if posted.kind == flag::TAGGED { tag } else { 0 },
            source: ADDR_UNSPEC,
            failure: Some(Failure { number, cut_bytes: 0 }),
        });
        if !finished {
            return;
        }
        if posted.cancelled {
            self.receive_ended(state, key);
        } else {
            state.requests.remove(key);
        }
    }

    /// A receive that was taken back is over.
    pub(super) fn receive_ended(&self, state: &mut State, key: SlabKey) {
        let Some(Request::Receive(posted)) = state.requests.remove(key) else { return };
        tick(&self.sinks.receives, true);
        self.sinks.receive.push(Entry {
            context: posted.context,
            flags: flag::RECV | posted.kind | if posted.multi { flag::MULTI_RECV } else { 0 },
            bytes: 0,
            buffer: posted.buffer,
            data: 0,
            tag: 0,
            source: ADDR_UNSPEC,
            failure: Some(Failure { number: libc::ECANCELED, cut_bytes: 0 }),
        });
    }
}

/// The buffer for the endpoint: the program's own, or one of ours for memory in segments.
pub(super) fn below(buffer: &Segments) -> Result<(ReceiveBuffer, Option<Segments>)> {
    if buffer.is_contiguous() {
        // SAFETY: the program leaves the buffer alone until it gets the completion (fi_msg(3)): `Segments::new`.
        let borrowed = unsafe { BorrowedBuffer::new(buffer.start(), buffer.bytes()) };
        Ok((ReceiveBuffer::Borrowed(borrowed), None))
    } else {
        let mut own = with_room(buffer.bytes())?;
        own.resize(buffer.bytes(), 0);
        Ok((ReceiveBuffer::Owned(own), Some(buffer.clone())))
    }
}

fn settle(state: &mut State, key: SlabKey, result: core::result::Result<OpId, MatchError>) -> Result<()> {
    match result {
        Ok(op) => {
            if let Some(Request::Receive(posted)) = state.requests.get_mut(key) {
                posted.op = Some(op);
            }
            Ok(())
        }
        Err(error) => {
            state.requests.remove(key);
            Err(match error {
                MatchError::PostedFull { .. } => EAGAIN,
                MatchError::NotClaimed { .. } => EINVAL,
                _ => Errno(errno::EOTHER),
            })
        }
    }
}

fn kind_of(space: Space) -> u64 {
    if space == SPACE_TAGGED { flag::TAGGED } else { flag::MSG }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_look_after_a_send_finds_nothing_and_the_next_one_is_real() {
        let mut probe = ProbeState::Free;
        assert!(probe.is_real() && probe.is_real());
        probe.sent();
        probe.sent();
        assert!(!probe.is_real());
        // A program that sends before each look must see messages all the same.
        probe.sent();
        assert!(probe.is_real());
        probe.sent();
        assert!(!probe.is_real() && probe.is_real() && probe.is_real());
    }

    #[test]
    fn what_was_shown_stays_visible_until_something_is_received() {
        let mut probe = ProbeState::Free;
        probe.shown();
        probe.sent();
        assert!(probe.is_real() && probe.is_real());
        probe.received();
        assert!(!probe.is_real() && probe.is_real());
        probe.shown();
        probe.received();
        assert!(probe.is_real(), "nothing was sent");
    }
}
