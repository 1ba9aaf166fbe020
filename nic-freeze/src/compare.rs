//! Whether a section and a port in memory are the same: asked when a process image has been laid out again, before its
//! ports go on. A difference means that one of the two is damaged, and neither can be trusted.

use transport::FrozenPort;
use transport::port::StatePart;
use transport::port::state::{LinkState, PortState};

use crate::error::LoadError;
use crate::parse::parse;

/// The first difference between a section and the port in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mismatch {
    /// The section cannot even be read.
    #[error(transparent)]
    Section(#[from] LoadError),
    /// A number that differs.
    #[error(
        "{place}: {field} is {memory} in memory and {image} in the image: do not restart from this image"
    )]
    Number {
        /// Where.
        place: StatePart,
        /// Which field.
        field: &'static str,
        /// In the section.
        image: u64,
        /// In memory.
        memory: u64,
    },
    /// An entry of a list, or bytes, that differ.
    #[error(
        "{place}: {field} differ between memory and image, first in entry {entry}: do not restart from this image"
    )]
    Entry {
        /// Where.
        place: StatePart,
        /// Which list.
        field: &'static str,
        /// The first entry that differs, from 0.
        entry: u64,
    },
}

/// Compares a section with the port in memory that it should describe. Memory of the user is not looked at.
///
/// # Errors
/// The first [`Mismatch`].
pub fn compare(version: u16, section: &[u8], port: &FrozenPort) -> Result<(), Mismatch> {
    let image = parse(version, section)?.state;
    let memory = port.state();
    let place = StatePart::Port;
    let PortState { id, job, life, epoch, next_op, pause, acknowledged, .. } = memory;
    number(place, "identity", image.id.0, id.0)?;
    number(place, "job", image.job.0.into(), job.0.into())?;
    number(place, "life's counter", image.life.counter.into(), life.counter.into())?;
    number(place, "life's nonce", image.life.nonce, life.nonce)?;
    number(place, "epoch", image.epoch.0.into(), epoch.0.into())?;
    number(place, "next operation", image.next_op, next_op)?;
    number(place, "pause", image.pause, pause)?;
    number(place, "acknowledged frames", image.acknowledged, acknowledged)?;
    number(place, "links", image.links.len() as u64, memory.links.len() as u64)?;
    for (i, (image, memory)) in image.links.iter().zip(&memory.links).enumerate() {
        let place = StatePart::Link(transport::LinkIndex(u32::try_from(i).unwrap_or(u32::MAX)));
        links(place, image, memory)?;
    }
    list(place, "posted receives", &image.posted, &memory.posted)?;
    list(place, "waiting messages", &image.waiting, &memory.waiting)?;
    list(place, "sends", &image.sends, &memory.sends)?;
    list(place, "completions", &image.completions, &memory.completions)
}

fn links(place: StatePart, image: &LinkState, memory: &LinkState) -> Result<(), Mismatch> {
    number(place, "peer", image.peer.0, memory.peer.0)?;
    number(place, "next", image.next, memory.next)?;
    number(place, "expected", image.expected, memory.expected)?;
    number(place, "frames owed an acknowledgement", image.owed, memory.owed)?;
    number(place, "closing", image.ends.closing.into(), memory.ends.closing.into())?;
    number(place, "close sent", image.ends.close_sent.into(), memory.ends.close_sent.into())?;
    number(place, "closed by the peer", image.ends.peer_closed.into(), memory.ends.peer_closed.into())?;
    number(place, "announced", image.announced.into(), memory.announced.into())?;
    number(place, "place of the ring", image.copied_start, memory.copied_start)?;
    list(place, "frames sent", &image.sent, &memory.sent)?;
    list(place, "pending messages", &image.pending, &memory.pending)?;
    list(place, "CTS", &image.control, &memory.control)?;
    list(place, "streams", &image.streams, &memory.streams)?;
    list(place, "payloads coming in", &image.incoming, &memory.incoming)?;
    list(place, "message under assembly", image.open.as_slice(), memory.open.as_slice())?;
    list(place, "bytes in the ring", &image.copied, &memory.copied)
}

fn number(place: StatePart, field: &'static str, image: u64, memory: u64) -> Result<(), Mismatch> {
    if image == memory { Ok(()) } else { Err(Mismatch::Number { place, field, image, memory }) }
}

fn list<T: PartialEq>(
    place: StatePart,
    field: &'static str,
    image: &[T],
    memory: &[T],
) -> Result<(), Mismatch> {
    let differing = image.iter().zip(memory).position(|(image, memory)| image != memory);
    let entry = differing.or((image.len() != memory.len()).then_some(image.len().min(memory.len())));
    match entry {
        None => Ok(()),
        Some(entry) => Err(Mismatch::Entry { place, field, entry: entry as u64 }),
    }
}
