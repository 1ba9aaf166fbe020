//! The fixed header, 80 bytes.
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 2 | magic | 0x5753 ("SW"); turns stray datagrams away |
//! | 2 | 1 | version | this layout is 1 |
//! | 3 | 1 | kind | see [`Kind`] |
//! | 4 | 4 | job | folded job id |
//! | 8 | 4 | life counter | with the nonce: not equal to ours, dropped (R7) |
//! | 12 | 4 | epoch | of the sender's rank; higher than ours: cut first (R3) |
//! | 16 | 8 | life nonce | |
//! | 24 | 4 | link | index of the link at the receiver; 0xffff_ffff: not known yet, a contact follows |
//! | 28 | 4 | sequence | low half of the frame's number, or of the next one for frames without a number |
//! | 32 | 4 | acknowledgement | low half of the number of the next frame that the sender expects |
//! | 36 | 4 | transmission | low half of the count of frames sent on this link, resends included |
//! | 40 | 4 | echo | transmission number of the newest frame that the sender received |
//! | 44 | 4 | window bytes | copied payload that the sender of this frame is ready to take beyond the acknowledgement |
//! | 48 | 8 | selective | bit i: frame acknowledgement + 1 + i has been received |
//! | 56 | 2 | window frames | frames with copied payload, likewise |
//! | 58 | 1 | flags | 1: contact follows; 2: acknowledge at once |
//! | 59 | 1 | reserved | zero |
//! | 60 | 4 | payload bytes | behind the body |
//! | 64 | 16 | tag | AEGIS-128L MAC; zero where authentication is off |

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, short};
use crate::ids::{Epoch, JobTag, Life};

/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 80;
/// Where the authentication tag stands.
pub const TAG_OFFSET: usize = 64;
/// Bytes of the authentication tag.
pub const TAG_BYTES: usize = 16;
/// The wire format that this build speaks.
pub const VERSION: u8 = 1;

const MAGIC: u16 = 0x5753;

/// The purpose of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// See [`super::Body::Ack`].
    Ack = 1,
    /// See [`super::Body::Probe`].
    Probe = 2,
    /// See [`super::Body::Eager`].
    Eager = 3,
    /// See [`super::Body::More`].
    More = 4,
    /// See [`super::Body::Rts`].
    Rts = 5,
    /// See [`super::Body::Cts`].
    Cts = 6,
    /// See [`super::Body::Data`].
    Data = 7,
    /// See [`super::Body::Close`].
    Close = 8,
    /// See [`super::Body::Stopped`].
    Stopped = 9,
    /// See [`super::Body::Resync`].
    Resync = 10,
}

impl Kind {
    /// The kind with this number.
    ///
    /// # Errors
    /// [`Malformed::Kind`] for a number that this version does not have.
    pub fn from_number(number: u8) -> Result<Kind, Malformed> {
        Ok(match number {
            1 => Kind::Ack,
            2 => Kind::Probe,
            3 => Kind::Eager,
            4 => Kind::More,
            5 => Kind::Rts,
            6 => Kind::Cts,
            7 => Kind::Data,
            8 => Kind::Close,
            9 => Kind::Stopped,
            10 => Kind::Resync,
            found => return Err(Malformed::Kind { found }),
        })
    }

    /// Whether frames of this kind have a sequence number of their own, are acknowledged and sent again.
    #[must_use]
    pub fn numbered(self) -> bool {
        !matches!(self, Kind::Ack | Kind::Probe | Kind::Stopped | Kind::Resync)
    }
}

bitflags! {
    /// Flags of a frame.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Flags: u8 {
        /// A [`super::Contact`] follows the header.
        const CONTACT = 1;
        /// The sender waits for the acknowledgement: do not delay it.
        const ACK_NOW = 2;
    }
}

/// The meaning of the fixed header. Sequence, acknowledgement and transmission numbers are the low halves of 64-bit
/// counts; the link knows the high halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The purpose of the frame.
    pub kind: Kind,
    /// Folded job id.
    pub job: JobTag,
    /// Life of the link: that of the job, unless one of its ends has moved (R13).
    pub life: Life,
    /// Epoch of the sender's rank.
    pub epoch: Epoch,
    /// Index of the link at the receiver, once the receiver has sent it.
    pub link: Option<u32>,
    /// Number of this frame, or of the next numbered one.
    pub seq: u32,
    /// Number of the next frame that the sender expects.
    pub ack: u32,
    /// Count of this transmission.
    pub transmission: u32,
    /// Newest transmission that the sender has received.
    pub echo: u32,
    /// Copied bytes that the sender takes beyond `ack`.
    pub window_bytes: u32,
    /// Bit i: frame `ack + 1 + i` has been received.
    pub selective: u64,
    /// Frames with copied payload that the sender takes beyond `ack`.
    pub window_frames: u16,
    /// See [`Flags`].
    pub flags: Flags,
    /// Bytes behind the body.
    pub payload_bytes: u32,
    /// Authentication tag.
    pub tag: [u8; TAG_BYTES],
}

const LINK_UNKNOWN: u32 = u32::MAX;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Raw {
    pub(super) magic: U16,
    pub(super) version: u8,
    pub(super) kind: u8,
    pub(super) job: U32,
    pub(super) life_counter: U32,
    pub(super) epoch: U32,
    pub(super) life_nonce: U64,
    pub(super) link: U32,
    pub(super) seq: U32,
    pub(super) ack: U32,
    pub(super) transmission: U32,
    pub(super) echo: U32,
    pub(super) window_bytes: U32,
    pub(super) selective: U64,
    pub(super) window_frames: U16,
    pub(super) flags: u8,
    pub(super) reserved: u8,
    pub(super) payload_bytes: U32,
    pub(super) tag: [u8; TAG_BYTES],
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);
const _: () = assert!(core::mem::offset_of!(Raw, tag) == TAG_OFFSET);

/// The first three bytes of all frames, as a number.
pub(super) const ALIKE: u32 = MAGIC as u32 | (VERSION as u32) << 16;

impl Raw {
    /// The first four bytes: [`ALIKE`], and the kind above it.
    #[inline]
    pub(super) fn alike(&self) -> u32 {
        u32::from(self.magic.get()) | u32::from(self.version) << 16 | u32::from(self.kind) << 24
    }
}

impl Header {
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`] for anything that this version would not have written.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| short(bytes, HEADER_BYTES))?;
        if raw.magic.get() != MAGIC {
            return Err(Malformed::Magic { found: raw.magic.get(), expected: MAGIC });
        }
        if raw.version != VERSION {
            return Err(Malformed::Version { found: raw.version });
        }
        let flags = Flags::from_bits(raw.flags).ok_or(Malformed::Field {
            field: "flags",
            found: u64::from(raw.flags),
            max: u64::from(Flags::all().bits()),
        })?;
        if raw.reserved != 0 {
            return Err(Malformed::Field { field: "reserved", found: u64::from(raw.reserved), max: 0 });
        }
        let link = raw.link.get();
        Ok(Header {
            kind: Kind::from_number(raw.kind)?,
            job: JobTag(raw.job.get()),
            life: Life { counter: raw.life_counter.get(), nonce: raw.life_nonce.get() },
            epoch: Epoch(raw.epoch.get()),
            link: (link != LINK_UNKNOWN).then_some(link),
            seq: raw.seq.get(),
            ack: raw.ack.get(),
            transmission: raw.transmission.get(),
            echo: raw.echo.get(),
            window_bytes: raw.window_bytes.get(),
            selective: raw.selective.get(),
            window_frames: raw.window_frames.get(),
            flags,
            payload_bytes: raw.payload_bytes.get(),
            tag: raw.tag,
        })
    }

    /// The header up to the tag, as numbers whose bytes in little-endian order are its bytes.
    #[inline]
    pub(crate) fn words(&self) -> [u64; TAG_OFFSET / 8] {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let last = u32::from(self.window_frames) | u32::from(self.flags.bits()) << 16;
        [
            two(ALIKE | u32::from(self.kind as u8) << 24, self.job.0),
            two(self.life.counter, self.epoch.0),
            self.life.nonce,
            two(self.link.unwrap_or(LINK_UNKNOWN), self.seq),
            two(self.ack, self.transmission),
            two(self.echo, self.window_bytes),
            self.selective,
            two(last, self.payload_bytes),
        ]
    }

    /// Writes the header to the start of `out`, which holds at least [`HEADER_BYTES`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let Ok((raw, _)) = Raw::mut_from_prefix(out) else { unreachable!("a buffer shorter than a header") };
        *raw = Raw {
            magic: U16::new(MAGIC),
            version: VERSION,
            kind: self.kind as u8,
            job: U32::new(self.job.0),
            life_counter: U32::new(self.life.counter),
            epoch: U32::new(self.epoch.0),
            life_nonce: U64::new(self.life.nonce),
            link: U32::new(self.link.unwrap_or(LINK_UNKNOWN)),
            seq: U32::new(self.seq),
            ack: U32::new(self.ack),
            transmission: U32::new(self.transmission),
            echo: U32::new(self.echo),
            window_bytes: U32::new(self.window_bytes),
            selective: U64::new(self.selective),
            window_frames: U16::new(self.window_frames),
            flags: self.flags.bits(),
            reserved: 0,
            payload_bytes: U32::new(self.payload_bytes),
            tag: self.tag,
        };
    }
}
