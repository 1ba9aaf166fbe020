//! Requests of peers to our memory. They come as messages, and our own progress reads and writes: no peer touches our memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use endpoint::{BorrowedBuffer, ReceiveBuffer, SendBuffer};
use transport::config::INCOMING_MAX;
use transport::slab::SlabKey;
use transport::{LinkIndex, Outgoing};

use super::arithmetic;
use super::receive::Received;
use super::regions::{Region, Use, failure};
use super::rma_initiator::{payload_of, payload_out};
use super::sinks::tick;
use super::target_credits::{TargetCredits, Total};
use super::wire::{Kind, Record};
use super::{Engine, Operation, Request, SPACE_READ, SPACE_SERVICE, SPACE_WRITE, State, context_of};
use crate::abi::{errno, flag};
use crate::boundary::{EAGAIN, EMSGSIZE, ENOMEM, Errno, Result, complain};
use crate::cq::Entry;
use crate::limits::{
    COPIED_BYTES_MAX, LONG_WRITES_MAX, PIECE_BYTES_MAX, REQUEST_HEAD_BYTES, SERVICE_BUFFERS, SERVICE_BYTES,
    SPARES_MAX, STALLED_MESSAGES_MAX,
};
use crate::memory::{Segments, read_guarded, with_room, write_guarded};

/// The state for serving peers' requests.
pub(super) struct RmaTarget {
    /// Buffers into which requests come.
    buffers: Vec<Buffer>,
    /// Those that found no room among the posted receives, by number.
    pub(super) unposted: Vec<usize>,
    /// Answers that have not been sent, by link: several records make one message.
    answers: Vec<(LinkIndex, Vec<u8>)>,
    /// Answers without room on their link, in order.
    waiting: VecDeque<(LinkIndex, Waiting)>,
    /// By link.
    links: Vec<LinkRequests>,
    /// Memory held for all peers.
    held: Total,
    /// Links whose requests wait.
    stalled: Vec<LinkIndex>,
    /// Requests in pieces that found no room for the next one.
    later: Vec<SlabKey>,
    /// Memory of long copies that peers have got: new memory costs as much as the copy.
    spares: Vec<Vec<u8>>,
}

/// The order of the messages with records on one link. Below, messages are matched in order, but not complete in order: one that finds no window is
/// fetched later, and others overtake it.
#[derive(Default)]
struct LinkRequests {
    /// Messages sent.
    sent: u64,
    /// Messages worked off.
    served: u64,
    /// Those that overtook others, by number.
    early: BTreeMap<u64, Vec<u8>>,
    /// Memory held for the peer.
    credits: TargetCredits,
    /// Our long writes that are open.
    long_writes: usize,
}

/// A peer's long write into our memory.
pub(super) struct Landing {
    /// `None`: the region was closed meanwhile.
    write: Option<Use>,
    pub(super) link: LinkIndex,
    op: Operation,
    /// Where the bytes belong, if they come elsewhere first because the memory may be missing.
    pub(super) elsewhere: Option<usize>,
    request: u64,
    data: Option<u32>,
    partial: bool,
    pub(super) bytes: usize,
}

/// A message that waits for room.
pub(super) enum Waiting {
    /// Answers, which are held for the peer.
    Record(Vec<u8>),
    /// Bytes that a peer has asked for.
    Read { request: u64, bytes: Vec<u8> },
    /// The program's payload of a long write.
    Long { outgoing: Outgoing, payload: Segments },
}

struct Buffer {
    /// From a box of `SERVICE_BYTES`; the endpoint writes to it while it is posted.
    start: *mut u8,
}

// SAFETY: the memory is our own, and used under the engine's lock; the endpoint writes to other parts of it under its gate.
unsafe impl Send for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        let whole = core::ptr::slice_from_raw_parts_mut(self.start, SERVICE_BYTES);
        // SAFETY: made from a box of this length. The state outlives the endpoint's use of it: the endpoint's table
        // drops its pointer without reading behind it, and nothing is placed after the helper has been joined.
        drop(unsafe { Box::from_raw(whole) });
    }
}

impl RmaTarget {
    /// Empty memory for a copy of so many bytes.
    fn room_for(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let fits = |spare: &Vec<u8>| spare.capacity() >= bytes;
        match self.spares.iter().rposition(fits).filter(|_| bytes > COPIED_BYTES_MAX) {
            Some(at) => {
                let mut room = self.spares.swap_remove(at);
                room.clear();
                Ok(room)
            }
            None => with_room(bytes),
        }
    }

    /// A peer has got a copy.
    pub(super) fn recycle(&mut self, copy: Vec<u8>) {
        if copy.capacity() == 0 {
            return;
        }
        if self.spares.len() == SPARES_MAX {
            // Longer ones serve more.
            let Some(least) = self.spares.iter_mut().min_by_key(|spare| spare.capacity()) else { return };
            if least.capacity() < copy.capacity() {
                *least = copy;
            }
        } else {
            self.spares.push(copy);
        }
    }

    /// A peer has taken so many bytes that were held for it.
    pub(super) fn return_credits(&mut self, link: LinkIndex, bytes: usize) {
        let Some(link_requests) = self.links.get_mut(link.0 as usize) else { return };
        link_requests.credits.give_back(&mut self.held, bytes);
    }

    fn take_credits(&mut self, link: LinkIndex, bytes: usize) {
        self.requests_of(link);
        self.links[link.0 as usize].credits.take(&mut self.held, bytes);
    }

    /// Whether the link has room for one more long write of ours.
    pub(super) fn may_write_long(&mut self, link: LinkIndex) -> bool {
        self.requests_of(link).long_writes < LONG_WRITES_MAX
    }

    pub(super) fn long_write_begins(&mut self, link: LinkIndex) {
        self.requests_of(link).long_writes += 1;
    }

    pub(super) fn long_write_ends(&mut self, link: LinkIndex) {
        let link_requests = self.requests_of(link);
        link_requests.long_writes = link_requests.long_writes.saturating_sub(1);
    }

    /// A request in pieces asks for the next one when there is room.
    pub(super) fn ask_later(&mut self, whole: SlabKey) {
        self.later.push(whole);
    }

    pub(super) fn new() -> RmaTarget {
        RmaTarget {
            buffers: Vec::new(),
            unposted: Vec::new(),
            answers: Vec::new(),
            waiting: VecDeque::new(),
            links: Vec::new(),
            held: Total::default(),
            stalled: Vec::new(),
            later: Vec::new(),
            spares: Vec::new(),
        }
    }

    fn requests_of(&mut self, link: LinkIndex) -> &mut LinkRequests {
        let at = link.0 as usize;
        if self.links.len() <= at {
            self.links.resize_with(at + 1, LinkRequests::default);
        }
        &mut self.links[at]
    }

    pub(super) fn wait(&mut self, link: LinkIndex, message: Waiting) {
        self.waiting.push_back((link, message));
    }

    fn answer(&mut self, link: LinkIndex, answer: &Record, payload: &[u8]) {
        let room = |message: &Vec<u8>| message.len() + REQUEST_HEAD_BYTES + payload.len() <= COPIED_BYTES_MAX;
        let open = self.answers.iter_mut().find(|(to, message)| *to == link && room(message));
        let message = match open {
            Some((_, message)) => message,
            None => {
                self.answers.push((link, Vec::new()));
                let Some((_, message)) = self.answers.last_mut() else { return };
                message
            }
        };
        answer.emit(message);
        message.extend_from_slice(payload);
        self.take_credits(link, REQUEST_HEAD_BYTES + payload.len());
    }
}

impl Engine {
    /// Posts the buffers for requests.
    pub(super) fn open_service(&self, state: &mut State) -> Result<()> {
        for number in 0..SERVICE_BUFFERS {
            let bytes = vec![0u8; SERVICE_BYTES].into_boxed_slice();
            let start = Box::into_raw(bytes).cast::<u8>();
            state.rma_target.buffers.push(Buffer { start });
            self.post_service(state, number)?;
        }
        Ok(())
    }

    fn post_service(&self, state: &mut State, number: usize) -> Result<()> {
        let start = state.rma_target.buffers[number].start;
        // SAFETY: memory of our own, written only by the endpoint while it is posted; read only where messages are
        // complete.
        let below = unsafe { BorrowedBuffer::new(start, SERVICE_BYTES) };
        let key = state.requests.insert(Request::TargetBuffer(number));
        let receive = transport::Receive {
            space: SPACE_SERVICE,
            source: None,
            tag: 0,
            ignore: u64::MAX,
            bytes_max: SERVICE_BYTES as u64,
            context: context_of(key),
            multi: Some(COPIED_BYTES_MAX as u64),
        };
        let posted = self.endpoint.post_receive(receive, ReceiveBuffer::Borrowed(below));
        posted.map(|_| ()).map_err(|_| {
            state.requests.remove(key);
            ENOMEM
        })
    }

    /// Serves the requests in a message.
    pub(super) fn serve_message(&self, state: &mut State, key: SlabKey, number: usize, received: &Received) {
        let offset = usize::try_from(received.offset).unwrap_or(SERVICE_BYTES);
        let bytes =
            usize::try_from(received.bytes).unwrap_or(0).min(SERVICE_BYTES - offset.min(SERVICE_BYTES));
        let start = state.rma_target.buffers[number].start;
        // SAFETY: a part of the buffer whose message is complete: the endpoint writes to it no more until the buffer is posted
        // again, which happens below, after the last use of this slice.
        let message = unsafe { core::slice::from_raw_parts(start.add(offset), bytes) };
        self.serve_in_order(state, received.source, received.data, message);
        if received.finished {
            state.requests.remove(key);
            if self.post_service(state, number).is_err() {
                // The program has posted as many receives as there may be.
                state.rma_target.unposted.push(number);
            }
        }
    }

    /// Serves the request with this number, and those that waited for it; or keeps it until the messages before it have
    /// come. Those have been matched and granted, so at most as many are kept as a link may have announced.
    fn serve_in_order(&self, state: &mut State, link: LinkIndex, number: u64, message: &[u8]) {
        let link_requests = state.rma_target.requests_of(link);
        if number != link_requests.served {
            if number < link_requests.served || link_requests.early.len() >= INCOMING_MAX {
                complain(format_args!(
                    "a peer numbers its requests to memory wrongly ({number} after {}); one is ignored",
                    link_requests.served
                ));
                return;
            }
            link_requests.early.insert(number, message.to_vec());
            return;
        }
        self.serve_or_stall(state, link, message);
        loop {
            let link_requests = state.rma_target.requests_of(link);
            link_requests.served += 1;
            let Some(message) = link_requests.early.remove(&link_requests.served) else { break };
            self.serve_or_stall(state, link, &message);
        }
    }

    fn serve_or_stall(&self, state: &mut State, link: LinkIndex, message: &[u8]) {
        let waits = state.rma_target.requests_of(link).credits.is_stalled();
        let rest = if waits { message } else { self.serve_records(state, link, message) };
        if rest.is_empty() {
            return;
        }
        if !waits {
            state.rma_target.stalled.push(link);
        }
        if !state.rma_target.requests_of(link).credits.stall(rest) {
            complain(format_args!(
                "a peer has more than {STALLED_MESSAGES_MAX} requests to memory open; some are ignored"
            ));
        }
    }

    /// Goes on with requests that have waited until less is held for their peers. True if any has been served.
    fn serve_stalled(&self, state: &mut State) -> bool {
        let mut served = false;
        for link in core::mem::take(&mut state.rma_target.stalled) {
            while let Some(message) = state.rma_target.requests_of(link).credits.next_stalled() {
                let rest = self.serve_records(state, link, &message);
                served |= rest.len() < message.len();
                if !rest.is_empty() {
                    let rest = rest.to_vec();
                    state.rma_target.requests_of(link).credits.stall_again(rest);
                    state.rma_target.stalled.push(link);
                    break;
                }
            }
        }
        served
    }

    /// Serves records up to one that has to wait. Returns the rest.
    fn serve_records<'a>(&self, state: &mut State, link: LinkIndex, message: &'a [u8]) -> &'a [u8] {
        let mut rest = message;
        while !rest.is_empty() {
            let Ok((record, payload, behind)) = Record::parse(rest) else {
                complain(format_args!(
                    "a peer's request to memory is malformed; the rest of its message is ignored"
                ));
                return &[];
            };
            let costs = match record.kind {
                Kind::Read | Kind::WriteLong | Kind::AtomicFetch | Kind::AtomicCompare => {
                    record.bytes.min(PIECE_BYTES_MAX as u64)
                }
                Kind::Done | Kind::Write | Kind::Atomic => 0,
            };
            let costs = REQUEST_HEAD_BYTES + usize::try_from(costs).unwrap_or(PIECE_BYTES_MAX);
            state.rma_target.requests_of(link);
            let RmaTarget { links, held, .. } = &state.rma_target;
            if record.kind != Kind::Done && !links[link.0 as usize].credits.may_take(held, costs) {
                return rest;
            }
            if record.data.is_some() && !self.sinks.receive.has_room() {
                return rest;
            }
            self.serve(state, link, &record, payload);
            rest = behind;
        }
        rest
    }

    /// Sends a message with records.
    pub(super) fn send_record(&self, state: &mut State, link: LinkIndex, message: &[u8]) -> Result<()> {
        let number = state.rma_target.requests_of(link).sent;
        // Records need no completion of their own: the answer is one.
        let outgoing = Outgoing { space: SPACE_SERVICE, tag: 0, data: number, context: 0, silent: true };
        self.send_below(link, outgoing, SendBuffer::Copied(message))?;
        state.rma_target.requests_of(link).sent += 1;
        Ok(())
    }

    fn serve(&self, state: &mut State, link: LinkIndex, record: &Record, payload: &[u8]) {
        let served = match record.kind {
            Kind::Done => return self.answered(state, link, record, payload),
            Kind::Write => self.serve_write(state, link, record, payload),
            Kind::WriteLong => return self.serve_long_write(state, link, record),
            Kind::Read => return self.serve_read(state, link, record),
            Kind::Atomic | Kind::AtomicFetch | Kind::AtomicCompare => self.serve_atomic(record, payload),
        };
        let (failed, answer) = match served {
            Ok(bytes) => (0, bytes),
            Err(error) => (failure(error), Vec::new()),
        };
        let done = Record::answer(record.request, failed, answer.len() as u64);
        state.rma_target.answer(link, &done, &answer);
    }

    fn serve_write(
        &self,
        state: &mut State,
        link: LinkIndex,
        record: &Record,
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        let (write, place) = self.find(record, flag::REMOTE_WRITE)?;
        if write.region().is_guarded() {
            write_guarded(place, payload)?;
        } else {
            // SAFETY: the region's owner has opened these bytes to writes of peers (fi_mr(3)), and `find` has checked the bounds; closing the
            // region waits for the end of `write`.
            unsafe { core::ptr::copy_nonoverlapping(payload.as_ptr(), place, payload.len()) };
        }
        write.region().written();
        self.was_written(state, link, record.data, record.bytes);
        Ok(Vec::new())
    }

    /// Reports a peer's write to the program, if it wants that.
    fn was_written(&self, state: &mut State, link: LinkIndex, data: Option<u32>, bytes: u64) {
        tick(&self.sinks.remote_writes, false);
        if let Some(data) = data {
            let source = self.source(state, link);
            self.sinks.receive.push(Entry {
                context: 0,
                flags: flag::REMOTE_CQ_DATA | flag::RMA | flag::REMOTE_WRITE,
                bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                buffer: 0,
                data: u64::from(data),
                tag: 0,
                source,
                failure: None,
            });
        }
    }

    /// Prepares for the payload that follows in a message of its own.
    fn serve_long_write(&self, state: &mut State, link: LinkIndex, record: &Record) {
        let found = self.find(record, flag::REMOTE_WRITE);
        let length = usize::try_from(record.bytes).unwrap_or(usize::MAX);
        let mut failed = None;
        let landed = found.and_then(|(write, place)| {
            let buffer = if write.region().is_guarded() {
                let mut bytes = state.rma_target.room_for(length)?;
                bytes.resize(length, 0);
                state.rma_target.take_credits(link, length);
                ReceiveBuffer::Owned(bytes)
            } else {
                // SAFETY: as in `serve_write`; closing the region waits for the end of the use, or takes the buffer away.
                ReceiveBuffer::Borrowed(unsafe { BorrowedBuffer::new(place, length) })
            };
            Ok((write, place, buffer))
        });
        let (key, buffer, bytes_max) = match landed {
            Ok((write, place, buffer)) => {
                let landing = Landing {
                    write: Some(write),
                    link,
                    op: None,
                    elsewhere: matches!(buffer, ReceiveBuffer::Owned(_)).then_some(place as usize),
                    request: record.request,
                    data: record.data,
                    partial: record.partial,
                    bytes: length,
                };
                (state.requests.insert(Request::Landing(landing)), buffer, record.bytes)
            }
            Err(error) => {
                failed = Some(error);
                // The payload is on its way all the same; it is received with length zero.
                (state.requests.insert(Request::Swallow), ReceiveBuffer::Owned(Vec::new()), 0)
            }
        };
        let receive = transport::Receive {
            space: SPACE_WRITE,
            source: Some(link),
            tag: record.request,
            ignore: 0,
            bytes_max,
            context: context_of(key),
            multi: None,
        };
        match (self.endpoint.post_receive(receive, buffer), state.requests.get_mut(key)) {
            (Ok(op), Some(Request::Landing(landing))) => landing.op = Some(op),
            (Ok(_), _) => {}
            (Err(_), _) => {
                if let Some(Request::Landing(landing)) = state.requests.remove(key)
                    && landing.elsewhere.is_some()
                {
                    state.rma_target.return_credits(link, length);
                }
                failed = Some(ENOMEM);
            }
        }
        if let Some(error) = failed {
            state.rma_target.answer(link, &Record::answer(record.request, failure(error), 0), &[]);
        }
    }

    /// A peer's long write has come.
    pub(super) fn write_landed(&self, state: &mut State, key: SlabKey, received: &Received) {
        let Some(Request::Landing(landing)) = state.requests.remove(key) else { return };
        let (link, request) = (landing.link, landing.request);
        let written = match (&landing.write, landing.elsewhere, &received.buffer) {
            // The region was closed meanwhile.
            (None, ..) => Err(Errno(libc::ECANCELED)),
            (Some(_), Some(place), Some(bytes)) => {
                let stored = usize::try_from(received.bytes).unwrap_or(usize::MAX).min(bytes.len());
                write_guarded(core::ptr::with_exposed_provenance_mut(place), &bytes[..stored])
            }
            (Some(_), Some(_), None) => Err(Errno(errno::EOTHER)),
            (Some(_), None, _) => Ok(()),
        };
        if landing.elsewhere.is_some() {
            state.rma_target.return_credits(link, landing.bytes);
        }
        if let (Ok(()), Some(write), false) = (written, &landing.write, landing.partial) {
            write.region().written();
            self.was_written(state, link, landing.data, landing.bytes as u64);
        }
        drop(landing);
        let failed = written.err().map_or(0, failure);
        state.rma_target.answer(link, &Record::answer(request, failed, 0), &[]);
    }

    /// Cuts off the writes of peers into a region that is being closed: later bytes are discarded, and the peers get an
    /// error.
    pub(crate) fn cut_off_writes(&self, region: &Arc<Region>) -> usize {
        let mut state = self.lock();
        let mut cut = 0;
        let into_it = |landing: &Landing| {
            landing.write.as_ref().is_some_and(|write| Arc::ptr_eq(write.region(), region))
        };
        let keys: Vec<SlabKey> = state
            .requests
            .iter()
            .filter(|(_, request)| matches!(request, Request::Landing(landing) if into_it(landing)))
            .map(|(key, _)| key)
            .collect();
        for key in keys {
            if let Some(Request::Landing(landing)) = state.requests.get_mut(key) {
                if landing.elsewhere.is_none()
                    && let Some(op) = landing.op
                {
                    drop(self.endpoint.abandon(op));
                }
                landing.write = None;
                cut += 1;
            }
        }
        cut
    }

    /// Answers with a copy: a peer reads the content of one instant, and the memory may be closed before it
    /// is on its way.
    fn serve_read(&self, state: &mut State, link: LinkIndex, record: &Record) {
        let copied = self.find(record, flag::REMOTE_READ).and_then(|(read, place)| {
            let length = usize::try_from(record.bytes).unwrap_or(usize::MAX);
            let mut bytes = state.rma_target.room_for(length)?;
            if read.region().is_guarded() {
                bytes.resize(length, 0);
                read_guarded(place, &mut bytes)?;
                return Ok(bytes);
            }
            // SAFETY: the region's owner has opened these bytes to reads of peers (fi_mr(3)), and `find` has checked the
            // bounds; closing the region waits for the end of `read`; the copy goes through raw pointers into memory with room for it.
            unsafe {
                core::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), length);
                bytes.set_len(length);
            }
            Ok(bytes)
        });
        match copied {
            Ok(bytes) => {
                if !record.partial {
                    tick(&self.sinks.remote_reads, false);
                }
                state.rma_target.take_credits(link, bytes.len());
                state.rma_target.wait(link, Waiting::Read { request: record.request, bytes });
            }
            Err(error) => {
                state.rma_target.answer(link, &Record::answer(record.request, failure(error), 0), &[]);
            }
        }
    }

    /// The memory that a request is for.
    fn find(&self, record: &Record, access: u64) -> Result<(Use, *mut u8)> {
        if record.bytes > PIECE_BYTES_MAX as u64 {
            return Err(EMSGSIZE);
        }
        self.regions.find(record.key, record.address, record.bytes, access)
    }

    fn serve_atomic(&self, record: &Record, payload: &[u8]) -> Result<Vec<u8>> {
        let (datatype, op) = record.atomic;
        let access = match record.kind {
            _ if op == arithmetic::op::READ => flag::REMOTE_READ,
            Kind::Atomic => flag::REMOTE_WRITE,
            _ => flag::REMOTE_READ | flag::REMOTE_WRITE,
        };
        let (used, place) = self.find(record, access)?;
        let _alone = self.regions.atomics();
        let bytes = usize::try_from(record.bytes).map_err(|_| Errno(libc::EINVAL))?;
        let before = if used.region().is_guarded() {
            let mut memory = vec![0; bytes];
            read_guarded(place, &mut memory)?;
            // SAFETY: memory of our own of this length.
            let before = unsafe { arithmetic::perform(datatype, op, payload, memory.as_mut_ptr(), bytes) }?;
            if memory != before {
                write_guarded(place, &memory)?;
            }
            before
        } else {
            // SAFETY: `find` has checked the bounds, and the region's owner has opened them (fi_mr(3)); closing the region waits for the end of
            // `used`.
            unsafe { arithmetic::perform(datatype, op, payload, place, bytes) }?
        };
        if op != arithmetic::op::READ {
            used.region().written();
        }
        tick(
            if record.kind == Kind::Atomic { &self.sinks.remote_writes } else { &self.sinks.remote_reads },
            false,
        );
        Ok(if record.kind == Kind::Atomic { Vec::new() } else { before })
    }

    /// Sends waiting answers, as far as there is room.
    #[inline]
    pub(super) fn flush(&self, state: &mut State) {
        let RmaTarget { answers, waiting, stalled, later, unposted, .. } = &state.rma_target;
        let nothing = answers.is_empty() && waiting.is_empty() && stalled.is_empty() && later.is_empty();
        if !nothing || !unposted.is_empty() {
            self.send_what_waits(state);
        }
    }

    fn send_what_waits(&self, state: &mut State) {
        for number in core::mem::take(&mut state.rma_target.unposted) {
            if self.post_service(state, number).is_err() {
                state.rma_target.unposted.push(number);
            }
        }
        for whole in core::mem::take(&mut state.rma_target.later) {
            self.ask_pieces(state, whole);
        }
        loop {
            self.send_answers(state);
            if state.rma_target.stalled.is_empty() || !self.serve_stalled(state) {
                break;
            }
        }
    }

    fn send_answers(&self, state: &mut State) {
        for (link, message) in state.rma_target.answers.drain(..) {
            state.rma_target.waiting.push_back((link, Waiting::Record(message)));
        }
        // Links without room; answers for others go on.
        let mut full: Vec<LinkIndex> = Vec::new();
        for _ in 0..state.rma_target.waiting.len() {
            let Some((link, message)) = state.rma_target.waiting.pop_front() else { break };
            if full.contains(&link) {
                state.rma_target.waiting.push_back((link, message));
                continue;
            }
            if let Some(message) = self.send_waiting(state, link, message) {
                full.push(link);
                state.rma_target.waiting.push_back((link, message));
            }
        }
    }

    /// Sends one message; gives it back if there is no room.
    fn send_waiting(&self, state: &mut State, link: LinkIndex, message: Waiting) -> Option<Waiting> {
        let sent = match &message {
            Waiting::Record(bytes) => self.send_record(state, link, bytes),
            Waiting::Long { outgoing, payload } => self
                .send_long(link, *outgoing, payload, false)
                .map(|_| payload_out(state, SlabKey::from_bits(outgoing.context), true)),
            Waiting::Read { request, bytes } if bytes.len() <= COPIED_BYTES_MAX => {
                let outgoing = Outgoing { silent: true, ..payload_of(SPACE_READ, *request, 0) };
                self.send_below(link, outgoing, SendBuffer::Copied(bytes)).map(|_| ())
            }
            Waiting::Read { .. } if !self.endpoint.can_send(link, 0) => Err(EAGAIN),
            Waiting::Read { .. } => {
                let Waiting::Read { request, bytes } = message else { return None };
                let length = bytes.len();
                let key = state.requests.insert(Request::Served(link, length));
                let outgoing = payload_of(SPACE_READ, request, context_of(key));
                if self.send_below(link, outgoing, SendBuffer::Owned(bytes)).is_err() {
                    state.requests.remove(key);
                    state.rma_target.return_credits(link, length);
                    complain(format_args!(
                        "a payload that a peer has asked for could not be sent: its link is closed"
                    ));
                }
                return None;
            }
        };
        match (sent, &message) {
            // A payload of which no copy can be made must follow all the same: there may be memory later.
            (Err(EAGAIN | ENOMEM), _) => return Some(message),
            // Sent, or its link is closed.
            (_, Waiting::Record(bytes) | Waiting::Read { bytes, .. }) => {
                state.rma_target.return_credits(link, bytes.len())
            }
            (Ok(()), Waiting::Long { .. }) => {}
            (Err(error), Waiting::Long { outgoing, .. }) => {
                self.rma_failed(state, SlabKey::from_bits(outgoing.context), failure(error));
            }
        }
        None
    }
}
