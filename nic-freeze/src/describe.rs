//! A section for people: the output of `inspect`, as text or as JSON.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::Serialize;
use transport::port::state::{Arrived, LinkState, Pending, SentBody};

use crate::error::LoadError;
use crate::parse::parse;

/// A frozen port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PortReport {
    /// `RANK/NUMBER`
    pub port: String,
    /// `COUNTER.NONCE`
    pub life: String,
    /// Epoch of the rank.
    pub epoch: u32,
    /// Folded id of the job, hexadecimal.
    pub job_tag: String,
    /// The next operation.
    pub next_op: u64,
    /// Number of the last announced pause.
    pub pause: u64,
    /// Frames by the state in which the freeze found them, over all links.
    pub frames: Frames,
    /// Links, used or not.
    pub links: u64,
    /// Links on which something was ever sent or received.
    pub links_used: Vec<LinkReport>,
    /// Posted receives.
    pub posted: u64,
    /// Unexpected messages, those that the program has claimed included.
    pub waiting: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Those of them that the program has claimed.
    pub claimed: u64,
    /// Sends whose payload is with the user or had to be announced.
    pub sends: Vec<SendReport>,
    /// Completions that the program has not seen.
    pub completions: u64,
    /// Memory of the user in the section.
    pub payloads: Vec<PayloadReport>,
    /// Bytes of the section.
    pub bytes: u64,
}

/// Frames and messages by state (Huo et al. 2006).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Frames {
    /// State 1: to be sent.
    pub to_be_sent: u64,
    /// State 2: sent, not acknowledged.
    pub sent_unacknowledged: u64,
    /// State 3: sent and acknowledged since the freeze before.
    pub acknowledged: u64,
    /// State 4: counted, acknowledgement not sent.
    pub received_unacknowledged: u64,
    /// State 5: received, waits for the program.
    pub delivered_waiting: u64,
}

/// A link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LinkReport {
    /// Place in the port's table.
    pub link: u64,
    /// Port at the other end, `RANK/NUMBER`.
    pub peer: String,
    /// Oldest frame that is kept.
    pub oldest_held: u64,
    /// Number of the next frame to send.
    pub next: u64,
    /// Number of the next frame to be counted.
    pub expected: u64,
    /// Frames counted and not acknowledged to the peer.
    pub received_unacknowledged: u64,
    /// Frames not acknowledged: fragments of copied messages.
    pub copied_frames: u64,
    /// Likewise: RTS and CTS frames.
    pub control_frames: u64,
    /// Likewise: pieces of announced payloads.
    pub data_frames: u64,
    /// Messages that wait to be sent.
    pub messages_waiting: u64,
    /// CTS frames that wait to be sent.
    pub grants_waiting: u64,
    /// Payloads that have been asked for and not sent to their end.
    pub streams: u64,
    /// Announced messages that the peer has not asked for.
    pub announced: u64,
    /// Payloads that come in.
    pub incoming: u64,
    /// Bytes of them that are here.
    pub incoming_bytes: u64,
    /// A copied message of which fragments are missing.
    pub assembling: bool,
    /// Copied payload that is kept.
    pub copied_bytes: u64,
    /// `open`, `closing`, `closed`, and the peer's state.
    pub ends: &'static str,
}

/// A send whose payload is not copied in a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SendReport {
    /// The operation.
    pub op: u64,
    /// Its link.
    pub link: u32,
    /// Bytes of the payload.
    pub bytes: u64,
    /// Bytes that the peer wants, once it has asked.
    pub granted: Option<u64>,
    /// Bytes of them that it has acknowledged.
    pub acknowledged: u64,
    /// The payload is the port's own copy.
    pub owned: bool,
}

/// Memory of the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct PayloadReport {
    /// The operation.
    pub op: u64,
    /// Payload of a send; else buffer of a receive.
    pub send: bool,
    /// Bytes that are saved.
    pub bytes: u64,
    /// Length of the buffer.
    pub buffer_bytes: u64,
}

/// Describes a section without making a port of it: no key and no configuration is needed.
///
/// # Errors
/// [`LoadError`] if the section cannot be read. Whether its contents fit together only [`crate::load`] finds out.
pub fn describe(version: u16, section: &[u8]) -> Result<PortReport, LoadError> {
    let parsed = parse(version, section)?;
    let state = &parsed.state;
    let mut frames = Frames { acknowledged: state.acknowledged, ..Frames::default() };
    let mut links_used = Vec::new();
    for (i, link) in state.links.iter().enumerate() {
        frames.to_be_sent += (link.pending.len() + link.control.len() + link.streams.len()) as u64;
        frames.sent_unacknowledged += link.sent.len() as u64;
        frames.received_unacknowledged = frames.received_unacknowledged.saturating_add(link.owed);
        let used = link.next > 0 || link.expected > 0 || !link.pending.is_empty();
        if used {
            links_used.push(link_report(i as u64, link));
        }
    }
    frames.delivered_waiting = state.waiting.len() as u64;
    let waiting_bytes = state.waiting.iter().map(|waiting| match &waiting.message.payload {
        Arrived::Copied(bytes) => bytes.len() as u64,
        Arrived::Announced(_) => 0,
    });
    Ok(PortReport {
        port: state.id.to_string(),
        life: state.life.to_string(),
        epoch: state.epoch.0,
        job_tag: alloc::format!("{:08x}", state.job.0),
        next_op: state.next_op,
        pause: state.pause,
        frames,
        links: state.links.len() as u64,
        links_used,
        posted: state.posted.len() as u64,
        waiting: state.waiting.len() as u64,
        waiting_bytes: waiting_bytes.sum(),
        claimed: state.waiting.iter().filter(|waiting| waiting.claimed).count() as u64,
        sends: state
            .sends
            .iter()
            .map(|send| SendReport {
                op: send.envelope.op.0,
                link: send.link.0,
                bytes: send.envelope.total,
                granted: send.granted,
                acknowledged: send.acked,
                owned: send.owned.is_some(),
            })
            .collect(),
        completions: state.completions.len() as u64,
        payloads: parsed
            .payloads
            .iter()
            .map(|payload| PayloadReport {
                op: payload.op.0,
                send: payload.send,
                bytes: payload.bytes.len() as u64,
                buffer_bytes: payload.buffer_bytes,
            })
            .collect(),
        bytes: section.len() as u64,
    })
}

fn link_report(index: u64, link: &LinkState) -> LinkReport {
    let frames = |is: fn(&SentBody) -> bool| link.sent.iter().filter(|sent| is(&sent.body)).count() as u64;
    let control =
        |body: &SentBody| matches!(body, SentBody::Rts { .. } | SentBody::Cts { .. } | SentBody::Close);
    LinkReport {
        link: index,
        peer: link.peer.to_string(),
        oldest_held: link.next.saturating_sub(link.sent.len() as u64),
        next: link.next,
        expected: link.expected,
        received_unacknowledged: link.owed,
        copied_frames: frames(SentBody::is_copied),
        control_frames: frames(control),
        data_frames: frames(|body| matches!(body, SentBody::Data { .. })),
        messages_waiting: link.pending.len() as u64,
        grants_waiting: link.control.len() as u64,
        streams: link.streams.len() as u64,
        announced: link.announced.into(),
        incoming: link.incoming.len() as u64,
        incoming_bytes: link.incoming.iter().fold(0, |sum, incoming| incoming.received.saturating_add(sum)),
        assembling: link.open.is_some() || link.pending.iter().any(is_begun),
        copied_bytes: link.copied.len() as u64,
        ends: match (link.ends.close_sent, link.ends.closing, link.ends.peer_closed) {
            (false, false, false) => "open",
            (false, false, true) => "closed by the peer",
            (false, true, false) => "closing",
            (false, true, true) => "closing, closed by the peer",
            (true, _, false) => "closed",
            (true, _, true) => "closed at both ends",
        },
    }
}

fn is_begun(pending: &Pending) -> bool {
    matches!(pending, Pending::Copied { sent, .. } if *sent > 0)
}
