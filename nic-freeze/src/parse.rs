//! From bytes to plain data. Nothing is allocated before it is known that its bytes are there;
//! [`transport::FrozenPort::from_state`] checks the meaning of the data.

use alloc::vec::Vec;

use transport::matching::{Envelope as Matched, Message, MessageKey, MultiReceive, Pattern, Receive};
use transport::port::state::{
    Arrived, Control, Ends, Envelope, FrameRecord, Incoming, LinkState, Open, Pending, PortState, SendOp,
    SentFrame, Stream, Target, WaitingMessage,
};
use transport::slab::SlabKey;
use transport::{Epoch, Event, JobTag, Life, LinkIndex, OpId, PortId, Space};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::LoadError;
use crate::records::*;

/// A section as plain data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Section<'a> {
    pub(crate) state: PortState,
    pub(crate) payloads: Vec<SavedPayload<'a>>,
}

/// User memory in a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SavedPayload<'a> {
    pub(crate) op: OpId,
    /// Of a send; else of a receive.
    pub(crate) send: bool,
    /// From the start of the buffer on, as much as means something.
    pub(crate) bytes: &'a [u8],
    /// Length of the buffer.
    pub(crate) buffer_bytes: u64,
}

/// Reads a section of `version`.
pub(crate) fn parse(version: u16, bytes: &[u8]) -> Result<Section<'_>, LoadError> {
    if version != SECTION_VERSION {
        return Err(LoadError::Version { found: version, expected: SECTION_VERSION });
    }
    let mut reader = Reader { bytes };
    let header = *reader.record::<HeaderRecord>("header")?;
    if header.section_bytes.get() != bytes.len() as u64 {
        let expected = header.section_bytes.get();
        return Err(LoadError::Length { found: bytes.len() as u64, expected });
    }
    field(header.reserved.get() == 0, "header", 0, "reserved", header.reserved.get())?;
    let links = reader.list::<LinkRecord, _>("links", header.links.get(), |reader, i| link(reader, i))?;
    let receives = reader.records::<PostedRecord>("posted receives", header.posted.get())?;
    let posted =
        receives.iter().enumerate().map(|(i, record)| posted(i, record)).collect::<Result<_, _>>()?;
    let unclaimed = header.waiting.get();
    let waiting_len = unclaimed.saturating_add(header.claimed.get());
    let waiting = reader.list::<WaitingRecord, _>("waiting messages", waiting_len, |reader, i| {
        waiting(reader, i, i >= u64::from(unclaimed))
    })?;
    let sends = reader.list::<SendRecord, _>("sends", header.sends.get(), send)?;
    let events = reader.records::<CompletionRecord>("completions", header.completions.get())?;
    let completions = events.iter().enumerate().map(|(i, record)| completion(i, record));
    let completions = completions.collect::<Result<_, _>>()?;
    let payloads = reader.list::<PayloadRecord, _>("payloads", header.payloads.get(), payload)?;
    if !reader.bytes.is_empty() {
        let expected = (bytes.len() - reader.bytes.len()) as u64;
        return Err(LoadError::Length { found: bytes.len() as u64, expected });
    }
    let state = PortState {
        id: PortId(header.id.get()),
        job: JobTag(header.job.get()),
        life: Life { counter: header.life_counter.get(), nonce: header.life_nonce.get() },
        epoch: Epoch(header.epoch.get()),
        next_op: header.next_op.get(),
        pause: header.pause.get(),
        acknowledged: header.acknowledged.get(),
        links,
        posted,
        waiting,
        sends,
        completions,
    };
    Ok(Section { state, payloads })
}

/// The rest of the section.
struct Reader<'a> {
    bytes: &'a [u8],
}

trait Record: FromBytes + Immutable + KnownLayout + Unaligned {}
impl<R: FromBytes + Immutable + KnownLayout + Unaligned> Record for R {}

impl<'a> Reader<'a> {
    fn record<R: Record>(&mut self, what: &'static str) -> Result<&'a R, LoadError> {
        let bytes = self.bytes(what, size_of::<R>() as u64)?;
        R::ref_from_bytes(bytes).map_err(|_| short(what, size_of::<R>() as u64, bytes.len()))
    }

    fn records<R: Record>(&mut self, what: &'static str, count: u32) -> Result<&'a [R], LoadError> {
        let needed = u64::from(count) * size_of::<R>() as u64;
        let bytes = self.bytes(what, needed)?;
        <[R]>::ref_from_bytes(bytes).map_err(|_| short(what, needed, bytes.len()))
    }

    /// Entries of which each begins with an `R` and continues accordingly.
    fn list<R, T>(
        &mut self,
        what: &'static str,
        count: u32,
        mut entry: impl FnMut(&mut Reader<'a>, u64) -> Result<T, LoadError>,
    ) -> Result<Vec<T>, LoadError> {
        let needed = u64::from(count) * size_of::<R>() as u64;
        if needed > self.bytes.len() as u64 {
            return Err(short(what, needed, self.bytes.len()));
        }
        let mut list = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        for i in 0..u64::from(count) {
            list.push(entry(self, i)?);
        }
        Ok(list)
    }

    fn bytes(&mut self, what: &'static str, count: u64) -> Result<&'a [u8], LoadError> {
        let split = usize::try_from(count).ok().and_then(|count| self.bytes.split_at_checked(count));
        let (bytes, rest) = split.ok_or(short(what, count, self.bytes.len()))?;
        self.bytes = rest;
        Ok(bytes)
    }
}

fn short(what: &'static str, needed: u64, left: usize) -> LoadError {
    LoadError::Short { what, needed, left: left as u64 }
}

/// Complains unless `fine`.
fn field(
    fine: bool,
    what: &'static str,
    index: u64,
    name: &'static str,
    found: u64,
) -> Result<(), LoadError> {
    if fine { Ok(()) } else { Err(LoadError::Field { what, index, field: name, found }) }
}

fn truth(what: &'static str, index: u64, name: &'static str, byte: u8) -> Result<bool, LoadError> {
    field(byte <= 1, what, index, name, byte.into())?;
    Ok(byte == 1)
}

/// A record has one spelling: bytes that this version gives no meaning are those that it writes.
fn spelled<R: IntoBytes + Immutable>(
    what: &'static str,
    index: u64,
    found: &R,
    written: &R,
) -> Result<(), LoadError> {
    let mut pairs = found.as_bytes().iter().zip(written.as_bytes());
    match pairs.position(|(found, written)| found != written) {
        None => Ok(()),
        Some(at) => Err(LoadError::Field { what, index, field: "a meaningless byte at", found: at as u64 }),
    }
}

fn link(reader: &mut Reader<'_>, i: u64) -> Result<LinkState, LoadError> {
    let record = reader.record::<LinkRecord>("link")?;
    let flags = record.flags.get();
    field(flags & !LINK_FLAGS == 0, "link", i, "flags", flags.into())?;
    let sent = reader.records::<FrameRecord>("sent frames", record.sent.get())?;
    let sent = sent.iter().map(|record| sent_frame(i, record)).collect::<Result<_, _>>()?;
    let pending = reader.records::<FrameRecord>("pending messages", record.pending.get())?;
    let pending = pending.iter().map(|record| pending_message(i, record)).collect::<Result<_, _>>()?;
    let cts_frames = reader.records::<CtsRecord>("CTS", record.cts_frames.get())?;
    let cts = |record: &CtsRecord| Control::Cts { op: OpId(record.op.get()), total: record.total.get() };
    let streams = reader.records::<StreamRecord>("streams", record.streams.get())?;
    let stream = |record: &StreamRecord| Stream {
        op: OpId(record.op.get()),
        offset: record.offset.get(),
        end: record.end.get(),
    };
    let incoming = reader.records::<IncomingRecord>("payloads coming in", record.incoming.get())?;
    let incoming = incoming.iter().map(|record| incoming_payload(i, record)).collect::<Result<_, _>>()?;
    let open = if flags & LINK_OPEN != 0 {
        Some(open_message(i, reader.record::<OpenRecord>("message under assembly")?)?)
    } else {
        None
    };
    let copied = reader.bytes("ring", record.ring_bytes.get().into())?;
    Ok(LinkState {
        peer: PortId(record.peer.get()),
        next: record.next.get(),
        expected: record.expected.get(),
        owed: record.owed.get().into(),
        ends: Ends {
            closing: flags & LINK_CLOSING != 0,
            close_sent: flags & LINK_CLOSE_SENT != 0,
            peer_closed: flags & LINK_PEER_CLOSED != 0,
        },
        announced: record.announced.get(),
        copied_start: record.ring_start.get(),
        copied: copied.to_vec(),
        sent,
        pending,
        control: cts_frames.iter().map(cts).collect(),
        streams: streams.iter().map(stream).collect(),
        incoming,
        open,
    })
}

fn small_offset(link: u64, record: &FrameRecord) -> Result<u32, LoadError> {
    let offset = record.offset.get();
    u32::try_from(offset).map_err(|_| LoadError::Field {
        what: "frame of link",
        index: link,
        field: "offset",
        found: offset,
    })
}

fn sent_frame(link: u64, record: &FrameRecord) -> Result<SentFrame, LoadError> {
    if record.kind == FrameRecord::MORE {
        small_offset(link, record)?;
    }
    let unknown =
        LoadError::Field { what: "frame of link", index: link, field: "kind", found: record.kind.into() };
    let body = record.body().ok_or(unknown)?;
    let frame = SentFrame { body, start: record.start.get(), payload_bytes: record.bytes.get() };
    spelled("frame of link", link, record, &FrameRecord::new(&frame))?;
    Ok(frame)
}

fn pending_message(link: u64, record: &FrameRecord) -> Result<Pending, LoadError> {
    let pending = match record.kind {
        PENDING_COPIED => Pending::Copied {
            envelope: record.envelope(),
            start: record.start.get(),
            sent: small_offset(link, record)?,
        },
        PENDING_RTS => Pending::Rts { op: OpId(record.op.get()) },
        found => {
            let found = found.into();
            return Err(LoadError::Field { what: "message of link", index: link, field: "kind", found });
        }
    };
    spelled("message of link", link, record, &pending_record(&pending))?;
    Ok(pending)
}

fn incoming_payload(link: u64, record: &IncomingRecord) -> Result<Incoming, LoadError> {
    let incoming = Incoming {
        peer_op: OpId(record.peer_op.get()),
        op: OpId(record.op.get()),
        context: record.context.get(),
        base: record.base.get(),
        finished: truth("payload to link", link, "finished", record.finished)?,
        tag: record.tag.get(),
        data: record.data.get(),
        total: record.total.get(),
        granted: record.granted.get(),
        received: record.received.get(),
    };
    spelled("payload to link", link, record, &IncomingRecord::new(&incoming))?;
    Ok(incoming)
}

fn open_message(link: u64, record: &OpenRecord) -> Result<Open, LoadError> {
    let finished = truth("message to link", link, "finished", record.finished)?;
    let target = match record.target {
        TARGET_NOWHERE => Target::Nowhere,
        TARGET_WAITING => Target::Waiting(MessageKey(SlabKey::from_bits(record.op.get()))),
        TARGET_POSTED => Target::Posted {
            op: OpId(record.op.get()),
            context: record.context.get(),
            base: record.base.get(),
            bytes: record.bytes.get(),
            finished,
        },
        found => {
            let found = found.into();
            return Err(LoadError::Field { what: "message to link", index: link, field: "target", found });
        }
    };
    let open = Open {
        target,
        tag: record.tag.get(),
        data: record.data.get(),
        total: record.total.get(),
        received: record.received.get(),
    };
    spelled("message to link", link, record, &OpenRecord::new(&open))?;
    Ok(open)
}

fn posted(i: usize, record: &PostedRecord) -> Result<Receive, LoadError> {
    let (i, flags) = (i as u64, record.flags);
    let receive = Receive {
        op: OpId(record.op.get()),
        pattern: Pattern {
            space: Space(record.space),
            source: (flags & POSTED_SOURCE != 0).then(|| LinkIndex(record.source.get())),
            tag: record.tag.get(),
            ignore: record.ignore.get(),
        },
        bytes_max: record.bytes_max.get(),
        context: record.context.get(),
        multi: (flags & POSTED_MULTI != 0).then(|| MultiReceive {
            free_bytes_min: record.free_bytes_min.get(),
            filled_bytes: record.filled_bytes.get(),
        }),
    };
    spelled("posted receive", i, record, &PostedRecord::new(&receive))?;
    Ok(receive)
}

fn waiting(reader: &mut Reader<'_>, i: u64, claimed: bool) -> Result<WaitingMessage, LoadError> {
    let record = reader.record::<WaitingRecord>("waiting message")?;
    let flags = record.flags;
    let payload = if flags & WAITING_ANNOUNCED != 0 {
        Arrived::Announced(OpId(record.payload.get()))
    } else {
        Arrived::Copied(reader.bytes("payload of a waiting message", record.payload.get())?.to_vec())
    };
    let envelope = Matched {
        source: LinkIndex(record.source.get()),
        space: Space(record.space),
        tag: record.tag.get(),
        data: record.data.get(),
        bytes: record.bytes.get(),
    };
    let message = Message { envelope, finished: flags & WAITING_FINISHED != 0, payload };
    let key = MessageKey(SlabKey::from_bits(record.key.get()));
    spelled("waiting message", i, record, &WaitingRecord::new(key, &message))?;
    Ok(WaitingMessage { key, claimed, message })
}

fn send(reader: &mut Reader<'_>, i: u64) -> Result<SendOp, LoadError> {
    let record = reader.record::<SendRecord>("send")?;
    let flags = record.flags;
    let bytes = reader.bytes("payload of a send", record.owned_bytes.get())?;
    let owned = flags & SEND_OWNED != 0;
    field(owned || bytes.is_empty(), "send", i, "bytes of its payload", bytes.len() as u64)?;
    let send = SendOp {
        link: LinkIndex(record.link.get()),
        envelope: Envelope {
            space: Space(record.space),
            tag: record.tag.get(),
            data: record.data.get(),
            total: record.total.get(),
            op: OpId(record.op.get()),
            context: record.context.get(),
            silent: flags & SEND_SILENT != 0,
        },
        owned: owned.then(|| bytes.to_vec()),
        granted: (flags & SEND_GRANTED != 0).then(|| record.granted.get()),
        acked: record.acked.get(),
    };
    spelled("send", i, record, &SendRecord::new(&send))?;
    Ok(send)
}

fn completion(i: usize, record: &CompletionRecord) -> Result<Event, LoadError> {
    let i = i as u64;
    let finished = truth("completion", i, "finished", record.finished)?;
    let (link, op, peer) = (LinkIndex(record.link.get()), OpId(record.op.get()), PortId(record.op.get()));
    let event = match record.kind {
        COMPLETION_RECEIVED => Event::Received {
            op,
            context: record.context.get(),
            source: link,
            tag: record.tag.get(),
            data: record.data.get(),
            offset: record.offset.get(),
            bytes: record.bytes.get(),
            sent_bytes: record.sent_bytes.get(),
            finished,
        },
        COMPLETION_SEND_DONE => Event::SendDone { op, context: record.context.get() },
        COMPLETION_PEER_CLOSED => Event::PeerClosed { link, peer },
        COMPLETION_LINK_CLOSED => Event::LinkClosed { link, peer },
        found => {
            return Err(LoadError::Field {
                what: "completion",
                index: i,
                field: "kind",
                found: found.into(),
            });
        }
    };
    let written = CompletionRecord::new(&event).unwrap_or(*record);
    spelled("completion", i, record, &written)?;
    Ok(event)
}

fn payload<'a>(reader: &mut Reader<'a>, i: u64) -> Result<SavedPayload<'a>, LoadError> {
    let record = reader.record::<PayloadRecord>("memory of an operation")?;
    let kind = record.kind;
    field(kind == PAYLOAD_SEND || kind == PAYLOAD_RECEIVE, "memory", i, "kind", kind.into())?;
    let bytes = reader.bytes("memory of an operation", record.bytes.get())?;
    let buffer_bytes = record.buffer_bytes.get();
    field(buffer_bytes >= bytes.len() as u64, "memory", i, "length of the buffer", buffer_bytes)?;
    let op = OpId(record.op.get());
    spelled("memory", i, record, &PayloadRecord::new(kind, op, bytes, buffer_bytes))?;
    Ok(SavedPayload { op, send: kind == PAYLOAD_SEND, bytes, buffer_bytes })
}
