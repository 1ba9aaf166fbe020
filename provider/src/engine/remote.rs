//! Requests to peers' memory, at the side that asks.

use transport::slab::SlabKey;
use transport::{LinkIndex, Outgoing};

use super::receive::{Received, below};
use super::service::Waiting;
use super::sinks::{Submit, tick};
use super::wire::{Kind, Record};
use super::{Engine, Operation, Request, SPACE_READ, SPACE_WRITE, State, context_of};
use crate::abi::{ADDR_NOTAVAIL, FiAddr, flag};
use crate::boundary::{EAGAIN, EINVAL, EMSGSIZE, Result};
use crate::cq::{Entry, Failure};
use crate::limits::{EAGER_BYTES_MAX, MESSAGE_BYTES_MAX, REMOTE_REQUESTS_MAX, REQUEST_HEAD_BYTES};
use crate::memory::Segments;

/// Where in a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) peer: FiAddr,
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// The operands of an atomic request.
pub(crate) struct Local<'a> {
    pub(crate) operands: &'a Segments,
    /// What memory is compared with.
    pub(crate) compare: Option<&'a Segments>,
    /// Where that goes which was there before.
    pub(crate) result: Option<&'a Segments>,
    pub(crate) datatype: u8,
    pub(crate) op: u8,
    /// Bytes of the memory that is operated on.
    pub(crate) bytes: usize,
}

/// A request that waits for its answer.
pub(super) struct Asked {
    context: usize,
    /// Of its entry.
    flags: u64,
    wanted: bool,
    /// Things that have to happen before it is over.
    steps: u8,
    failure: u32,
    /// The receive of what is read.
    op: Operation,
    /// Where an answer's payload goes, if not straight into the buffer.
    result: Option<Segments>,
}

impl Engine {
    /// Writes to a peer's memory. Over when the peer's memory has the bytes.
    pub(crate) fn write(
        &self,
        place: Place,
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
        let long = bytes > EAGER_BYTES_MAX;
        let flags = flag::RMA | flag::WRITE;
        let wanted = !inject && self.sinks.transmit.wants(submit.flags);
        self.ask(place, submit, |state, link, record| {
            let record = Record {
                kind: if long { Kind::WriteLong } else { Kind::Write },
                data: data.map(low_half),
                bytes: bytes as u64,
                ..record
            };
            let asked = Asked {
                context: submit.context,
                flags,
                wanted,
                steps: if long { 2 } else { 1 },
                failure: 0,
                op: None,
                result: None,
            };
            let key = state.requests.insert(Request::Remote(asked));
            let record = Record { request: context_of(key), ..record };
            let mut message = head(&record, if long { 0 } else { bytes });
            if !long {
                payload.gather(&mut message);
            }
            let sent = self.send_record(state, link, &message);
            sent.inspect_err(|_| _ = state.requests.remove(key))?;
            if long {
                let outgoing = payload_of(SPACE_WRITE, context_of(key), context_of(key));
                match self.send_long(link, outgoing, payload, false) {
                    Ok(_) => {}
                    // The request is out: its payload must follow, as soon as there is room.
                    Err(EAGAIN) => {
                        state.service.wait(link, Waiting::Long { outgoing, payload: payload.clone() })
                    }
                    Err(_) => self.remote_step(state, key, libc::ESHUTDOWN as u32),
                }
            }
            Ok(())
        })
    }

    /// Reads from a peer's memory.
    pub(crate) fn read(&self, place: Place, buffer: &Segments, submit: Submit) -> Result<()> {
        let bytes = buffer.bytes();
        if bytes > MESSAGE_BYTES_MAX {
            return Err(EMSGSIZE);
        }
        self.ask(place, submit, |state, link, record| {
            let wanted = self.sinks.transmit.wants(submit.flags);
            let (own, segments) = below(buffer)?;
            let flags = flag::RMA | flag::READ;
            let asked = Asked {
                context: submit.context,
                flags,
                wanted,
                steps: 1,
                failure: 0,
                op: None,
                result: segments,
            };
            let key = state.requests.insert(Request::Remote(asked));
            let receive = transport::Receive {
                space: SPACE_READ,
                source: Some(link),
                tag: context_of(key),
                ignore: 0,
                bytes_max: bytes as u64,
                context: context_of(key),
                multi: None,
            };
            let posted = self.endpoint.post_receive(receive, own);
            let Ok(op) = posted else {
                state.requests.remove(key);
                return Err(EAGAIN);
            };
            if let Some(Request::Remote(asked)) = state.requests.get_mut(key) {
                asked.op = Some(op);
            }
            let record = Record { kind: Kind::Read, request: context_of(key), bytes: bytes as u64, ..record };
            self.send_record(state, link, &head(&record, 0)).inspect_err(|_| {
                self.endpoint.cancel(op);
                state.requests.remove(key);
            })
        })
    }

    /// Operates on a peer's memory in one step.
    pub(crate) fn operate(
        &self,
        place: Place,
        local: &Local<'_>,
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
            let asked = Asked {
                context: submit.context,
                flags,
                wanted: !inject && self.sinks.transmit.wants(submit.flags),
                steps: 1,
                failure: 0,
                op: None,
                result: local.result.cloned(),
            };
            let key = state.requests.insert(Request::Remote(asked));
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

    /// What all requests have in common: room, order, back-pressure.
    fn ask(
        &self,
        place: Place,
        submit: Submit,
        ask: impl FnOnce(&mut State, LinkIndex, Record) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.lock();
        let link = self.route(&mut state, place.peer)?;
        let open = state.remote_open;
        let fenced = submit.flags & flag::FENCE != 0 && open > 0;
        let asked = if fenced || open >= REMOTE_REQUESTS_MAX {
            Err(EAGAIN)
        } else {
            let record = Record {
                kind: Kind::Read,
                atomic: (0, 0),
                data: None,
                failure: 0,
                request: 0,
                address: place.address,
                key: place.key,
                bytes: 0,
            };
            ask(&mut state, link, record)
        };
        match asked {
            Ok(()) => state.remote_open += 1,
            Err(EAGAIN) => {
                drop(state);
                self.progress();
            }
            Err(_) => {}
        }
        asked
    }

    /// One of the things has happened that a request waits for. `failure`: it went wrong.
    pub(super) fn remote_step(&self, state: &mut State, key: SlabKey, failure: u32) {
        let Some(Request::Remote(asked)) = state.requests.get_mut(key) else { return };
        asked.steps = asked.steps.saturating_sub(1);
        asked.failure = asked.failure.max(failure);
        if asked.steps > 0 {
            return;
        }
        let Some(Request::Remote(asked)) = state.requests.remove(key) else { return };
        state.remote_open = state.remote_open.saturating_sub(1);
        let failed = asked.failure != 0;
        let counter = if asked.flags & flag::READ != 0 { &self.sinks.reads } else { &self.sinks.writes };
        tick(counter, failed);
        if asked.wanted || failed {
            let number = i32::try_from(asked.failure).unwrap_or(crate::abi::errno::EOTHER);
            self.sinks.transmit.push(Entry {
                context: asked.context,
                flags: asked.flags,
                bytes: 0,
                buffer: 0,
                data: 0,
                tag: 0,
                source: ADDR_NOTAVAIL,
                failure: failed.then_some(Failure { number, cut_bytes: 0 }),
            });
        }
    }

    /// What was read has come.
    pub(super) fn read_arrived(&self, state: &mut State, key: SlabKey, received: &Received) {
        if let Some(Request::Remote(asked)) = state.requests.get_mut(key)
            && let (Some(segments), Some(bytes)) = (&asked.result, &received.buffer)
        {
            segments.scatter(bytes);
        }
        self.remote_step(state, key, 0);
    }

    /// A peer has answered.
    pub(super) fn answered(&self, state: &mut State, answer: &Record, payload: &[u8]) {
        let key = SlabKey::from_bits(answer.request);
        let Some(Request::Remote(asked)) = state.requests.get_mut(key) else { return };
        if let Some(segments) = &asked.result
            && asked.op.is_none()
        {
            segments.scatter(payload);
        }
        if let Some(op) = asked.op.take() {
            // What was to be read will not come.
            self.endpoint.cancel(op);
        }
        self.remote_step(state, key, answer.failure);
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
