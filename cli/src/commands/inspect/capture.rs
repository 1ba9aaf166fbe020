//! Frames that were captured from a rail (`run --pcap`).

use std::collections::BTreeMap;
use std::io;

use drivers::capture::pcapng::{self, Direction, Packet};
use drivers::limits::CAPTURE_BYTES_MAX;
use serde::Serialize;
use store::storage::Shared;
use store::{Directory, Storage as _};
use transport::wire::{Body, Frame};

use crate::commands::say;
use crate::error::CliError;

/// The contents of a capture file.
#[derive(Debug, Serialize)]
pub(super) struct Captured {
    rail: String,
    frames: Vec<Explained>,
    damage: Option<String>,
}

/// One frame: its header, or the reason why the bytes are no frame of ours.
#[derive(Debug, Serialize)]
struct Explained {
    /// Nanoseconds since 1970.
    at_ns: u64,
    /// "in" or "out"; `null`: the file does not have it.
    direction: Option<&'static str>,
    /// Where to, of one that left.
    to: Option<String>,
    bytes: u32,
    #[serde(flatten)]
    found: Found,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Found {
    Frame(Header),
    /// Why these bytes are no frame.
    Malformed(String),
}

#[derive(Debug, Serialize)]
struct Header {
    kind: String,
    life: u64,
    epoch: u64,
    /// The receiver's index of the link; `null`: its sender does not know it yet, and the frame names the ports.
    link: Option<u32>,
    /// Of a numbered frame.
    seq: Option<u32>,
    /// Every frame before this has come.
    ack: u32,
    /// Frames behind it that have come too, as bits.
    selective: u64,
    transmission: u32,
    window_bytes: u32,
    window_frames: u16,
    head_bytes: usize,
    payload_bytes: u32,
    /// Its body, in words.
    says: String,
}

/// Reads a file, if it is a capture.
pub(super) fn inspect(
    storage: &mut Directory<Shared>,
    name: &str,
    head: &[u8],
) -> Result<Option<Captured>, CliError> {
    if !pcapng::is_capture(head) {
        return Ok(None);
    }
    let bytes = storage.read(name, CAPTURE_BYTES_MAX)?;
    let capture = match pcapng::read(&bytes) {
        Ok(capture) => capture,
        Err(damage) => {
            let damage = Some(damage.to_string());
            return Ok(Some(Captured { rail: String::new(), frames: Vec::new(), damage }));
        }
    };
    Ok(Some(Captured {
        rail: capture.name.to_owned(),
        frames: capture.packets.iter().map(explain).collect(),
        damage: capture.damage.map(|damage| damage.to_string()),
    }))
}

fn explain(packet: &Packet<'_>) -> Explained {
    let left_out = usize::try_from(packet.whole_bytes).unwrap_or(usize::MAX) - packet.bytes.len();
    let found = match Frame::parse_head(packet.bytes, left_out) {
        Ok(frame) => Found::Frame(header(&frame)),
        Err(malformed) => Found::Malformed(malformed.to_string()),
    };
    let direction = packet.direction.map(|direction| match direction {
        Direction::In => "in",
        Direction::Out => "out",
    });
    Explained {
        at_ns: packet.at_ns,
        direction,
        to: packet.to.map(str::to_owned),
        bytes: packet.whole_bytes,
        found,
    }
}

fn header(frame: &Frame<'_>) -> Header {
    let header = &frame.header;
    let mut says = match &frame.body {
        Body::Ack => "has received".to_owned(),
        Body::Probe => "asks for an acknowledgement".to_owned(),
        Body::Eager(body) => format!("message of {} bytes, tag {:#x}", body.total, body.tag),
        Body::More => "more of the message before".to_owned(),
        Body::Rts(body) => {
            format!("operation {}: {} bytes wait, tag {:#x}", body.operation.0, body.total, body.tag)
        }
        Body::Cts(body) => format!("operation {}: send {} bytes", body.operation.0, body.total),
        Body::Data(body) => format!("operation {}: bytes from {} on", body.operation.0, body.offset),
        Body::Close => "sends nothing more".to_owned(),
        Body::Stopped(body) => format!("pause {} of about {} us", body.pause, body.expected_ns / 1000),
        Body::Resync(body) => format!("has everything before {}, sends from {} on", body.expected, body.next),
    };
    if let Some(contact) = &frame.contact {
        says.push_str(&format!("; from {:?} to {:?}", contact.from, contact.to));
    }
    Header {
        kind: format!("{:?}", header.kind).to_lowercase(),
        life: header.life.counter.into(),
        epoch: header.epoch.0.into(),
        link: header.link,
        seq: header.kind.numbered().then_some(header.seq),
        ack: header.ack,
        selective: header.selective,
        transmission: header.transmission,
        window_bytes: header.window_bytes,
        window_frames: header.window_frames,
        head_bytes: frame.head_bytes,
        payload_bytes: header.payload_bytes,
        says,
    }
}

impl Captured {
    pub(super) fn damage(&self) -> Option<&String> {
        self.damage.as_ref()
    }

    pub(super) fn print(&self) -> io::Result<()> {
        say!("{} frames of a rail: {}", self.frames.len(), self.rail)?;
        say!(
            "{:>12} {:<3} {:<8} {:>5} {:>6} {:>10} {:>10} {:>6} {:>5}  SAYS",
            "MS",
            "",
            "KIND",
            "EPOCH",
            "LINK",
            "SEQ",
            "ACK",
            "HEAD",
            "DATA"
        )?;
        let first = self.frames.first().map_or(0, |frame| frame.at_ns);
        let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
        for frame in &self.frames {
            let us = frame.at_ns.saturating_sub(first) / 1000;
            let at = format!("{}.{:03}", us / 1000, us % 1000);
            let direction = frame.direction.unwrap_or("?");
            let to = frame.to.as_ref().map_or_else(String::new, |to| format!(" to {to}"));
            match &frame.found {
                Found::Frame(header) => {
                    *kinds.entry(&header.kind).or_default() += 1;
                    let number =
                        |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
                    let selective = match header.selective {
                        0 => String::new(),
                        bits => format!(", and {bits:#x} behind it"),
                    };
                    say!(
                        "{at:>12} {direction:<3} {:<8} {:>5} {:>6} {:>10} {:>10} {:>6} {:>5}  {}{selective}{to}",
                        header.kind,
                        header.epoch,
                        number(header.link),
                        number(header.seq),
                        header.ack,
                        header.head_bytes,
                        header.payload_bytes,
                        header.says
                    )?;
                }
                Found::Malformed(why) => {
                    *kinds.entry("malformed").or_default() += 1;
                    say!("{at:>12} {direction:<3} no frame: {why}{to}")?;
                }
            }
        }
        let kinds: Vec<String> = kinds.iter().map(|(kind, frames)| format!("{frames} {kind}")).collect();
        say!("in all: {}", kinds.join(", "))
    }
}
