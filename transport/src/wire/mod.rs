//! Frames as bytes. `parse` rejects, `emit` cannot fail. Everything is little-endian.
//!
//! ```text
//! frame = header (80 bytes) [contact (56 bytes)] body (fixed per kind) payload
//! ```
//!
//! One file per kind of frame; each has its byte table in the module documentation, and docs/reference/protocol.md repeats them.

mod contact;
mod cts;
mod data;
mod eager;
mod header;
mod resync;
mod rts;
mod single;
mod stopped;

pub use contact::Contact;
pub use cts::Cts;
pub use data::Data;
pub use eager::Eager;
pub use header::{Flags, HEADER_BYTES, Header, Kind, TAG_BYTES, TAG_OFFSET, VERSION};
pub use resync::Resync;
pub use rts::{PLACE_END, Rts, write_place};
pub(crate) use single::{SINGLE_HEAD_BYTES, Single, emit_single};
pub use stopped::Stopped;

/// Bytes of a contact.
pub(crate) const CONTACT_BYTES: usize = contact::BYTES;
/// Bytes of an eager body.
pub(crate) const EAGER_BYTES: usize = eager::BYTES;
/// Bytes of a data body.
pub(crate) const DATA_BYTES: usize = data::BYTES;

/// Longest head of a frame: header, contact and the longest body.
pub const HEAD_BYTES_MAX: usize = HEADER_BYTES + contact::BYTES + rts::BYTES;

/// Why bytes are not a frame of ours. Counted, never reported to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Shorter than its kind needs.
    #[error("frame of {found} bytes, its kind needs at least {needed}")]
    Short {
        /// Bytes that came.
        found: usize,
        /// Bytes that the header asks for.
        needed: usize,
    },
    /// Not one of our frames at all.
    #[error("magic {found:#06x}, expected {expected:#06x}: not a stillwire frame")]
    Magic {
        /// The found value.
        found: u16,
        /// The first bytes of our frames.
        expected: u16,
    },
    /// From a build with another wire format.
    #[error("wire version {found}, this build speaks {VERSION}: run one build on all nodes")]
    Version {
        /// The found value.
        found: u8,
    },
    /// A kind of frame that this version does not have.
    #[error("frame kind {found} is not known to wire version {VERSION}")]
    Kind {
        /// The found value.
        found: u8,
    },
    /// The length field and the datagram disagree.
    #[error("frame announces {said} payload bytes, {found} arrived")]
    Length {
        /// The length field.
        said: usize,
        /// Bytes behind the head.
        found: usize,
    },
    /// A field holds a value that it cannot hold.
    #[error("field {field} holds {found}, at most {max} is allowed")]
    Field {
        /// Which one.
        field: &'static str,
        /// The found value.
        found: u64,
        /// Largest lawful value.
        max: u64,
    },
}

/// The purpose of a frame, with its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// Acknowledgement alone. Not numbered.
    Ack,
    /// Asks for an acknowledgement. Not numbered.
    Probe,
    /// First or only fragment of a copied message. Numbered.
    Eager(Eager),
    /// Next fragment of the copied message that this link has open. Numbered.
    More,
    /// A message whose payload waits for a matching receive. Numbered.
    Rts(Rts),
    /// The receive is there: send the payload. Numbered.
    Cts(Cts),
    /// A piece of a granted payload. Numbered.
    Data(Data),
    /// The sender will send nothing more on this link. Numbered.
    Close,
    /// The sender is about to pause. Not numbered.
    Stopped(Stopped),
    /// After a restart: "I have everything before". Not numbered.
    Resync(Resync),
}

impl Body {
    /// The kind byte of the header.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Body::Ack => Kind::Ack,
            Body::Probe => Kind::Probe,
            Body::Eager(_) => Kind::Eager,
            Body::More => Kind::More,
            Body::Rts(_) => Kind::Rts,
            Body::Cts(_) => Kind::Cts,
            Body::Data(_) => Kind::Data,
            Body::Close => Kind::Close,
            Body::Stopped(_) => Kind::Stopped,
            Body::Resync(_) => Kind::Resync,
        }
    }

    /// Writes the body and returns its length; `out` holds at least the longest body.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        match self {
            Body::Ack | Body::Probe | Body::More | Body::Close => 0,
            Body::Eager(body) => body.emit(out),
            Body::Rts(body) => body.emit(out),
            Body::Cts(body) => body.emit(out),
            Body::Data(body) => body.emit(out),
            Body::Stopped(body) => body.emit(out),
            Body::Resync(body) => body.emit(out),
        }
    }

    /// Reads the body of a frame of `kind` from the start of `bytes`; returns it and its length.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are too few or a field is out of its range.
    #[inline]
    pub fn parse(kind: Kind, bytes: &[u8]) -> Result<(Body, usize), Malformed> {
        Ok(match kind {
            Kind::Ack => (Body::Ack, 0),
            Kind::Probe => (Body::Probe, 0),
            Kind::More => (Body::More, 0),
            Kind::Close => (Body::Close, 0),
            Kind::Eager => (Body::Eager(Eager::parse(bytes)?), eager::BYTES),
            Kind::Rts => (Body::Rts(Rts::parse(bytes)?), rts::BYTES),
            Kind::Cts => (Body::Cts(Cts::parse(bytes)?), cts::BYTES),
            Kind::Data => (Body::Data(Data::parse(bytes)?), data::BYTES),
            Kind::Stopped => (Body::Stopped(Stopped::parse(bytes)?), stopped::BYTES),
            Kind::Resync => (Body::Resync(Resync::parse(bytes)?), resync::BYTES),
        })
    }
}

/// A whole frame, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The fixed part.
    pub header: Header,
    /// Present until the peer has sent its link index.
    pub contact: Option<Contact>,
    /// By kind.
    pub body: Body,
    /// Where the payload starts: everything before it is the head.
    pub head_bytes: usize,
    /// The user's payload.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Takes a received frame apart and checks every length against the received bytes.
    ///
    /// # Errors
    /// [`Malformed`], with the expected and the found value.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        let frame = Frame::split(bytes)?;
        frame.has(frame.payload.len())?;
        Ok(frame)
    }

    /// As [`Frame::parse`], of a frame whose payload of `payload_bytes` bytes does not lie behind its head.
    ///
    /// # Errors
    /// [`Malformed`], as [`Frame::parse`].
    pub fn parse_head(head: &'a [u8], payload_bytes: usize) -> Result<Frame<'a>, Malformed> {
        let frame = Frame::split(head)?;
        frame.has(frame.payload.len() + payload_bytes)?;
        Ok(frame)
    }

    fn has(&self, payload_bytes: usize) -> Result<(), Malformed> {
        let said = usize::try_from(self.header.payload_bytes).unwrap_or(usize::MAX);
        if said == payload_bytes { Ok(()) } else { Err(Malformed::Length { said, found: payload_bytes }) }
    }

    #[inline]
    fn split(bytes: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        let header = Header::parse(bytes)?;
        let mut at = HEADER_BYTES;
        let contact = if header.flags.contains(Flags::CONTACT) {
            let contact = Contact::parse(tail(bytes, at))?;
            at += contact::BYTES;
            Some(contact)
        } else {
            None
        };
        let (body, body_bytes) = Body::parse(header.kind, tail(bytes, at))?;
        at += body_bytes;
        Ok(Frame { header, contact, body, head_bytes: at, payload: tail(bytes, at) })
    }

    /// Writes head and payload of the frame into `out` (the tag stays as the header has it) and returns the length.
    /// `out` must be large enough; the port leases buffers of at least [`HEAD_BYTES_MAX`] plus the fragment size.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut at = HEADER_BYTES;
        if let Some(contact) = &self.contact {
            at += contact.emit(&mut out[at..]);
        }
        at += self.body.emit(&mut out[at..]);
        out[at..at + self.payload.len()].copy_from_slice(self.payload);
        self.header.emit(out);
        at + self.payload.len()
    }
}

fn tail(bytes: &[u8], at: usize) -> &[u8] {
    bytes.get(at..).unwrap_or(&[])
}

fn short(bytes: &[u8], needed: usize) -> Malformed {
    Malformed::Short { found: bytes.len(), needed }
}

/// Bytes without a meaning are zero, so that a frame has one spelling and a later version can give them one.
#[inline]
fn reserved(bytes: &[u8]) -> Result<(), Malformed> {
    // Without a branch for each byte.
    let found = bytes.iter().fold(0, |all, byte| all | byte);
    if found == 0 {
        Ok(())
    } else {
        Err(Malformed::Field { field: "reserved", found: u64::from(found), max: 0 })
    }
}
