//! From a frozen port to bytes.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use transport::matching::{Message, MessageKey};
use transport::port::state::{Arrived, LinkView, Target};
use transport::{Event, FrozenPort, OpId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::error::DumpError;
use crate::records::{
    CompletionRecord, CtsRecord, HeaderRecord, IncomingRecord, LinkRecord, OpenRecord, PAYLOAD_RECEIVE,
    PAYLOAD_SEND, PayloadRecord, PostedRecord, SendRecord, StreamRecord, WaitingRecord, link_flags,
    pending_record,
};

/// The user's memory, as the shell that owns it knows it: by operation. `None`: not the shell's, or saved otherwise.
pub trait Payloads {
    /// The whole payload of a send.
    fn send_payload(&self, op: OpId) -> Option<&[u8]>;
    /// The whole buffer of a receive.
    fn receive_buffer(&self, op: OpId) -> Option<&[u8]>;
}

/// Gets `out` ready for a section of about `bytes`: its memory exists, and lies in the caches as far as they
/// reach. A dump that waits for neither is half as long, so this belongs before the freeze, while messages
/// still come and go. The size of a port's last section is a good measure.
pub fn make_room(out: &mut Vec<u8>, bytes: usize) {
    out.clear();
    // Writes every byte, which a fresh zeroed allocation would not.
    out.resize(bytes, 0);
}

/// Writes the section of a frozen port into `out`, whose contents are replaced and whose memory is used again. The user's
/// memory is only referred to, by operation; where the image does not hold it otherwise, [`append_payloads`] follows.
pub fn dump(port: &FrozenPort, out: &mut Vec<u8>) {
    out.clear();
    push(out, &HeaderRecord::new_zeroed());
    let links = port.links();
    let mut header = HeaderRecord {
        section_bytes: U64::ZERO,
        id: U64::new(port.id().0),
        life_nonce: U64::new(port.life().nonce),
        life_counter: U32::new(port.life().counter),
        epoch: U32::new(port.epoch().0),
        job: U32::new(port.job().0),
        links: count(links.len()),
        posted: count(port.posted_len()),
        waiting: U32::ZERO,
        claimed: U32::ZERO,
        sends: U32::ZERO,
        completions: U32::ZERO,
        payloads: U32::ZERO,
        next_op: U64::new(port.next_op()),
        pause: U64::new(port.pause()),
        acknowledged: U64::new(port.census().acknowledged),
        reserved: U64::ZERO,
    };
    for link in links {
        push_link(out, &link);
    }
    for receive in port.posted() {
        push(out, &PostedRecord::new(receive));
    }
    let unexpected = port.unexpected().map(|message| push_waiting(out, message)).count();
    header.waiting = count(unexpected);
    let claimed = port.claimed().map(|message| push_waiting(out, message)).count();
    header.claimed = count(claimed);
    let sends = port.sends();
    header.sends = count(sends.len());
    for send in sends {
        push(out, &SendRecord::new(send));
        out.extend_from_slice(send.owned.as_deref().unwrap_or(&[]));
    }
    let completions = port.completions().filter_map(CompletionRecord::new);
    header.completions = count(completions.map(|record| push(out, &record)).count());
    header.section_bytes = U64::new(out.len() as u64);
    out[..size_of::<HeaderRecord>()].copy_from_slice(header.as_bytes());
}

/// Adds the user's memory to a section that [`dump`] has just written: payloads of sends, and of receives as much as has
/// been placed. The bytes are copied, at the speed of memory.
///
/// # Errors
/// [`DumpError`]; the section is as it was then.
pub fn append_payloads(
    port: &FrozenPort,
    payloads: &impl Payloads,
    out: &mut Vec<u8>,
) -> Result<(), DumpError> {
    let section_bytes = out.len();
    let not_a_section = DumpError::NotASection { found: section_bytes };
    let (header, _) = HeaderRecord::read_from_prefix(out).map_err(|_| not_a_section)?;
    if header.section_bytes.get() != section_bytes as u64
        || header.id.get() != port.id().0
        || header.payloads.get() != 0
    {
        return Err(not_a_section);
    }
    let mut pieces = Vec::new();
    for send in port.sends() {
        let op = send.envelope.op;
        if send.owned.is_none()
            && let Some(bytes) = payloads.send_payload(op)
        {
            pieces.push(piece(PAYLOAD_SEND, op, bytes, send.envelope.total)?);
        }
    }
    for (op, filled) in filled(port) {
        if let Some(buffer) = payloads.receive_buffer(op) {
            pieces.push(piece(PAYLOAD_RECEIVE, op, buffer, filled)?);
        }
    }
    let bytes: usize = pieces.iter().map(|(_, bytes)| bytes.len() + size_of::<PayloadRecord>()).sum();
    out.reserve(bytes);
    for (record, bytes) in &pieces {
        push(out, record);
        out.extend_from_slice(bytes);
    }
    let header =
        HeaderRecord { section_bytes: U64::new(out.len() as u64), payloads: count(pieces.len()), ..header };
    out[..size_of::<HeaderRecord>()].copy_from_slice(header.as_bytes());
    Ok(())
}

fn piece(kind: u8, op: OpId, buffer: &[u8], used: u64) -> Result<(PayloadRecord, &[u8]), DumpError> {
    let short = DumpError::Memory { op, found: buffer.len() as u64, needed: used };
    let bytes = usize::try_from(used).ok().and_then(|used| buffer.get(..used)).ok_or(short)?;
    Ok((PayloadRecord::new(kind, op, bytes, buffer.len() as u64), bytes))
}

/// Every receive that the port still knows, with the bytes from the start of its buffer that hold something.
pub(crate) fn filled(port: &FrozenPort) -> BTreeMap<OpId, u64> {
    let mut filled = BTreeMap::new();
    let mut note = |op: OpId, bytes: u64| {
        let most = filled.entry(op).or_insert(0);
        *most = bytes.max(*most);
    };
    for receive in port.posted() {
        note(receive.op, receive.multi.map_or(0, |multi| multi.filled_bytes));
    }
    for queues in port.links().filter_map(|link| link.queues()) {
        for incoming in queues.incoming() {
            note(incoming.op, incoming.base + incoming.received);
        }
        if let Some(open) = queues.open()
            && let Target::Posted { op, base, bytes, .. } = open.target
        {
            note(op, base + bytes.min(open.received));
        }
    }
    for event in port.completions() {
        if let Event::Received { op, offset, bytes, .. } = *event {
            note(op, offset + bytes);
        }
    }
    filled
}

#[inline]
fn push<R: IntoBytes + Immutable>(out: &mut Vec<u8>, record: &R) {
    out.extend_from_slice(record.as_bytes());
}

fn count(entries: usize) -> U32 {
    // Every table of a port is bounded far below this (transport's config.rs).
    U32::new(u32::try_from(entries).unwrap_or(u32::MAX))
}

fn push_link(out: &mut Vec<u8>, link: &LinkView<'_>) {
    let mut record = LinkRecord {
        peer: U64::new(link.peer().0),
        next: U64::new(link.next()),
        expected: U64::new(link.expected()),
        ring_start: U64::ZERO,
        ring_bytes: U32::ZERO,
        sent: U32::ZERO,
        pending: U32::ZERO,
        cts_frames: U32::ZERO,
        streams: U32::ZERO,
        incoming: U32::ZERO,
        owed: U32::new(u32::try_from(link.owed()).unwrap_or(u32::MAX)),
        announced: U16::new(link.announced()),
        flags: U16::new(link_flags(link.ends(), false)),
    };
    let Some(queues) = link.queues() else {
        push(out, &record);
        return;
    };
    let (frames, open) = (queues.frames(), queues.open());
    let (first, second) = queues.copied();
    record.ring_start = U64::new(queues.copied_start());
    record.ring_bytes = count(first.len() + second.len());
    record.sent = count(frames.0.len() + frames.1.len());
    record.pending = count(queues.pending().len());
    record.cts_frames = count(queues.control().len());
    record.streams = count(queues.streams().len());
    record.incoming = count(queues.incoming().len());
    record.flags = U16::new(link_flags(link.ends(), open.is_some()));
    push(out, &record);
    out.extend_from_slice(frames.0.as_bytes());
    out.extend_from_slice(frames.1.as_bytes());
    for pending in queues.pending() {
        push(out, &pending_record(pending));
    }
    for control in queues.control() {
        push(out, &CtsRecord::new(control));
    }
    for stream in queues.streams() {
        push(out, &StreamRecord::new(stream));
    }
    for incoming in queues.incoming() {
        push(out, &IncomingRecord::new(incoming));
    }
    if let Some(open) = open {
        push(out, &OpenRecord::new(&open));
    }
    out.extend_from_slice(first);
    out.extend_from_slice(second);
}

fn push_waiting(out: &mut Vec<u8>, (key, message): (MessageKey, &Message<Arrived>)) {
    push(out, &WaitingRecord::new(key, message));
    if let Arrived::Copied(bytes) = &message.payload {
        out.extend_from_slice(bytes);
    }
}
