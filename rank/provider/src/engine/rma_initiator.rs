//! Requests to peers' memory, at the side that asks.

use transport::slab::SlabKey;
use transport::{LinkIndex, Outgoing};

use super::receive::{Received, below};
use super::regions::failure;
use super::rma_target::Waiting;
use super::sinks::{Submit, tick};
use super::wire::{Kind, Record};
use super::{Engine, Operation, Request, SPACE_READ, SPACE_WRITE, State, context_of};
use crate::abi::{ADDR_NOTAVAIL, FiAddr, flag};
use crate::boundary::{EAGAIN, EINVAL, EMSGSIZE, ENOMEM, Result};
use crate::cq::{Entry, Failure};
use crate::limits::{
    EAGER_BYTES_MAX, MESSAGE_BYTES_MAX, PIECE_BYTES_MAX, REMOTE_REQUESTS_MAX, REQUEST_HEAD_BYTES,
};
use crate::memory::Segments;

/// Where in a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteAddress {
    pub(crate) peer: FiAddr,
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// The operands of an atomic request.
pub(crate) struct AtomicOperands<'a> {
    pub(crate) operands: &'a Segments,
    /// The values that memory is compared with.
    pub(crate) compare: Option<&'a Segments>,
    /// Where that goes which was there before.
    pub(crate) result: Option<&'a Segments>,
    pub(crate) datatype: u8,
    pub(crate) op: u8,
    /// Bytes of the memory that is operated on.
    pub(crate) bytes: usize,
}

/// A request that waits for its answer.
pub(super) struct PendingRma {
    pub(super) ends: Ends,
    pub(super) link: LinkIndex,
    /// Things that have to happen before it is over.
    steps: u8,
    failure: u32,
    /// The receive of the read bytes.
    op: Operation,
    /// Where an answer's payload goes, if not straight into the buffer.
    result: Option<Segments>,
    /// It takes one of the link's places for long writes.
    long_write: bool,
    /// Its payload is being sent from the program's buffer.
    payload_out: bool,
}

/// The receivers of a request's completion.
#[derive(Clone, Copy)]
pub(super) enum Ends {
    /// The program: its context, the flags of the entry, and whether it wants one.
    Program { context: usize, flags: u64, wanted: bool },
    /// A longer request, of which this is a piece.
    Whole(SlabKey),
}

impl PendingRma {
    fn new(ends: Ends, link: LinkIndex, steps: u8) -> PendingRma {
        PendingRma {
            ends,
            link,
            steps,
            failure: 0,
            op: None,
            result: None,
            long_write: false,
            payload_out: false,
        }
    }
}

impl Engine {
    /// Writes to a peer's memory. Over when the peer's memory has the bytes.
    pub(crate) fn write(
        &self,
        place: RemoteAddress,
        payload: &Segments,
        data: Option<u64>,
        submit: Submit,
        inject: bool,
    ) -> Result<()> {
        let bytes = payload.bytes();
        if bytes > MESSAGE_BYTES_MAX
            || (inject || submit.flags & flag::INJECT != 0) && bytes > EAGER_BYTES_MAX
        {
            return Err(EMSGSIZE);
        }
        let wanted = !inject && self.sinks.transmit.wants(submit.flags);
        let ends = Ends::Program { context: submit.context, flags: flag::RMA | flag::WRITE, wanted };
        self.ask(place, submit, |state, link, record| {
            let data = data.map(low_half);
            if bytes > PIECE_BYTES_MAX {
                let record = Record { kind: Kind::WriteLong, data, ..record };
                return self.ask_in_pieces(state, link, record, payload, ends);
            }
            if bytes > EAGER_BYTES_MAX {
                let record = Record { kind: Kind::WriteLong, data, bytes: bytes as u64, ..record };
                return self.write_long(state, link, record, payload, ends);
            }
            let key = state.requests.insert(Request::Rma(PendingRma::new(ends, link, 1)));
            let record =
                Record { kind: Kind::Write, data, bytes: bytes as u64, request: context_of(key), ..record };
            let mut message = head(&record, bytes);
            payload.gather(&mut message);
            let sent = self.send_record(state, link, &message);
            sent.inspect_err(|_| _ = state.requests.remove(key))
        })
    }

    /// Announces a write, whose payload follows in a message of its own.
    pub(super) fn write_long(
        &self,
        state: &mut State,
        link: LinkIndex,
        record: Record,
        payload: &Segments,
        ends: Ends,
    ) -> Result<()> {
        if !state.rma_target.may_write_long(link) {
            return Err(EAGAIN);
        }
        let pending = PendingRma { long_write: true, ..PendingRma::new(ends, link, 2) };
        let key = state.requests.insert(Request::Rma(pending));
        let record = Record { request: context_of(key), ..record };
        let sent = self.send_record(state, link, &head(&record, 0));
        sent.inspect_err(|_| _ = state.requests.remove(key))?;
        state.rma_target.long_write_begins(link);
        let outgoing = payload_of(SPACE_WRITE, context_of(key), context_of(key));
        match self.send_long(link, outgoing, payload, false) {
            Ok(_) => payload_out(state, key, true),
            // The request is out: its payload must follow, as soon as there is room.
            Err(EAGAIN | ENOMEM) => {
                state.rma_target.wait(link, Waiting::Long { outgoing, payload: payload.clone() })
            }
            Err(error) => self.rma_failed(state, key, failure(error)),
        }
        Ok(())
    }

    /// Reads from a peer's memory.
    pub(crate) fn read(&self, place: RemoteAddress, buffer: &Segments, submit: Submit) -> Result<()> {
        let bytes = buffer.bytes();
        if bytes > MESSAGE_BYTES_MAX {
            return Err(EMSGSIZE);
        }
        let wanted = self.sinks.transmit.wants(submit.flags);
        let ends = Ends::Program { context: submit.context, flags: flag::RMA | flag::READ, wanted };
        self.ask(place, submit, |state, link, record| {
            let record = Record { kind: Kind::Read, ..record };
            if bytes > PIECE_BYTES_MAX {
                return self.ask_in_pieces(state, link, record, buffer, ends);
            }
            self.read_once(state, link, Record { bytes: bytes as u64, ..record }, buffer, ends)
        })
    }

    /// Asks for bytes, which come in one message.
    pub(super) fn read_once(
        &self,
        state: &mut State,
        link: LinkIndex,
        record: Record,
        buffer: &Segments,
        ends: Ends,
    ) -> Result<()> {
        let (own, segments) = below(buffer)?;
        let pending = PendingRma { result: segments, ..PendingRma::new(ends, link, 1) };
        let key = state.requests.insert(Request::Rma(pending));
        let receive = transport::Receive {
            space: SPACE_READ,
            source: Some(link),
            tag: context_of(key),
            ignore: 0,
            bytes_max: record.bytes,
            context: context_of(key),
            multi: None,
        };
        let posted = self.endpoint.post_receive(receive, own);
        let Ok(op) = posted else {
            state.requests.remove(key);
            return Err(EAGAIN);
        };
        if let Some(Request::Rma(pending)) = state.requests.get_mut(key) {
            pending.op = Some(op);
        }
        let record = Record { request: context_of(key), ..record };
        self.send_record(state, link, &head(&record, 0)).inspect_err(|_| {
            self.endpoint.cancel(op);
            state.requests.remove(key);
        })
    }

    /// Operates on a peer's memory in one step.
    pub(crate) fn operate(
        &self,
        place: RemoteAddress,
        local: &AtomicOperands<'_>,
        submit: Submit,
        inject: bool,
    ) -> Result<()> {
        let kind = match (local.result, local.compare) {
            (None, None) => Kind::Atomic,
            (Some(_), None) => Kind::AtomicFetch,
            (Some(_), Some(_)) => Kind::AtomicCompare,
            (None, Some(_)) => return Err(EINVAL),
        };
        let payload_bytes = local.bytes * if local.compare.is_some() { 2 } else { 1 };
        if payload_bytes > EAGER_BYTES_MAX {
            return Err(EMSGSIZE);
        }
        self.ask(place, submit, |state, link, record| {
            let record =
                Record { kind, atomic: (local.datatype, local.op), bytes: local.bytes as u64, ..record };
            let flags = flag::ATOMIC | if local.result.is_some() { flag::READ } else { flag::WRITE };
            let wanted = !inject && self.sinks.transmit.wants(submit.flags);
            let ends = Ends::Program { context: submit.context, flags, wanted };
            let pending = PendingRma { result: local.result.cloned(), ..PendingRma::new(ends, link, 1) };
            let key = state.requests.insert(Request::Rma(pending));
            let mut message = head(&Record { request: context_of(key), ..record }, payload_bytes);
            local.operands.gather(&mut message);
            // Reading needs no operands; the place for them is kept.
            message.resize(REQUEST_HEAD_BYTES + local.bytes, 0);
            if let Some(compare) = local.compare {
                compare.gather(&mut message);
                message.resize(REQUEST_HEAD_BYTES + 2 * local.bytes, 0);
            }
            let sent = self.send_record(state, link, &message);
            sent.inspect_err(|_| _ = state.requests.remove(key))
        })
    }

    /// The common part of all requests: room, order, back-pressure.
    fn ask(
        &self,
        place: RemoteAddress,
        submit: Submit,
        ask: impl FnOnce(&mut State, LinkIndex, Record) -> Result<()>,
    ) -> Result<()> {
        // A request without a completion entry still gets one if it fails.
        self.wants_room(&self.sinks.transmit)?;
        let mut state = self.lock();
        let link = self.route(&mut state, place.peer)?;
        let open = state.rma_open;
        let fenced = submit.flags & flag::FENCE != 0 && state.has_open_transmits();
        let pending = if fenced || open >= REMOTE_REQUESTS_MAX {
            Err(EAGAIN)
        } else {
            let record = Record {
                kind: Kind::Read,
                atomic: (0, 0),
                data: None,
                partial: false,
                failure: 0,
                request: 0,
                address: place.address,
                key: place.key,
                bytes: 0,
            };
            state.rma_open += 1;
            ask(&mut state, link, record).inspect_err(|_| state.rma_open -= 1)
        };
        if pending == Err(EAGAIN) {
            drop(state);
            self.progress();
        }
        pending
    }

    /// A request is over, even if it still waits.
    pub(super) fn rma_failed(&self, state: &mut State, key: SlabKey, failure: u32) {
        if let Some(Request::Rma(pending)) = state.requests.get_mut(key) {
            pending.steps = 1;
        }
        self.rma_step(state, key, failure);
    }

    /// Nothing more comes over the link of a request. Its payload is the program's again when the rails have
    /// done with it, which they will report.
    pub(super) fn rma_broken(&self, state: &mut State, key: SlabKey, failure: u32) {
        match state.requests.get_mut(key) {
            Some(Request::Rma(pending)) if pending.payload_out => {
                pending.steps = 1;
                pending.failure = pending.failure.max(failure);
            }
            _ => self.rma_failed(state, key, failure),
        }
    }

    /// One of the things has happened that a request waits for. `failure`: it went wrong.
    pub(super) fn rma_step(&self, state: &mut State, key: SlabKey, failure: u32) {
        let Some(Request::Rma(pending)) = state.requests.get_mut(key) else { return };
        pending.steps = pending.steps.saturating_sub(1);
        pending.failure = pending.failure.max(failure);
        if pending.steps > 0 {
            return;
        }
        let Some(Request::Rma(pending)) = state.requests.remove(key) else { return };
        if pending.long_write {
            state.rma_target.long_write_ends(pending.link);
        }
        match pending.ends {
            Ends::Whole(whole) => self.piece_ended(state, whole, pending.failure),
            ends => self.rma_ended(state, ends, pending.failure),
        }
    }

    /// Reports the end of a request to the program.
    pub(super) fn rma_ended(&self, state: &mut State, ends: Ends, failure: u32) {
        let Ends::Program { context, flags, wanted } = ends else { return };
        state.rma_open = state.rma_open.saturating_sub(1);
        let failed = failure != 0;
        tick(if flags & flag::READ != 0 { &self.sinks.reads } else { &self.sinks.writes }, failed);
        if wanted || failed {
            let number = i32::try_from(failure).unwrap_or(crate::abi::errno::EOTHER);
            self.sinks.transmit.push(Entry {
                context,
                flags,
                bytes: 0,
                buffer: 0,
                data: 0,
                tag: 0,
                source: ADDR_NOTAVAIL,
                failure: failed.then_some(Failure { number, cut_bytes: 0 }),
            });
        }
    }

    /// The payload of a read has arrived.
    pub(super) fn read_arrived(&self, state: &mut State, key: SlabKey, received: &Received) {
        if let Some(Request::Rma(pending)) = state.requests.get_mut(key)
            && let (Some(segments), Some(bytes)) = (&pending.result, &received.buffer)
        {
            segments.scatter(bytes);
        }
        self.rma_step(state, key, 0);
    }

    /// A peer has answered.
    pub(super) fn answered(&self, state: &mut State, link: LinkIndex, answer: &Record, payload: &[u8]) {
        let key = SlabKey::from_bits(answer.request);
        if answer.failure != 0 {
            self.note_refusal(link, answer.failure);
        }
        let Some(Request::Rma(pending)) = state.requests.get_mut(key) else { return };
        if let Some(segments) = &pending.result
            && pending.op.is_none()
        {
            segments.scatter(payload);
        }
        if let Some(op) = pending.op.take() {
            // The bytes to read will not come.
            self.endpoint.cancel(op);
        }
        self.rma_step(state, key, answer.failure);
    }
}

/// Whether the payload of a long write is being sent from the program's buffer.
pub(super) fn payload_out(state: &mut State, key: SlabKey, out: bool) {
    if let Some(Request::Rma(pending)) = state.requests.get_mut(key) {
        pending.payload_out = out;
    }
}

/// A payload that belongs to a request.
pub(super) fn payload_of(space: transport::Space, request: u64, context: u64) -> Outgoing {
    Outgoing { space, tag: request, data: 0, context, silent: false }
}

fn head(record: &Record, payload_bytes: usize) -> Vec<u8> {
    let mut message = Vec::with_capacity(REQUEST_HEAD_BYTES + payload_bytes);
    record.emit(&mut message);
    message
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "`cq_data_size` tells the application that four bytes travel"
)]
fn low_half(data: u64) -> u32 {
    data as u32
}
