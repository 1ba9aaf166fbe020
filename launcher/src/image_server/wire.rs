//! Messages of the launcher and a server of images: each is its length in bytes (32 bits, little-endian), then the message as `postcard` writes it. The
//! bytes of a file follow their message as they are.

use std::io::{self, Read, Write};

use ckpt_glue::protection::seat::Seat;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store::{Decision, GenerationId, Manifest};

use super::super::limits::LINK_FRAME_BYTES_MAX;
use super::super::nodes::NodeRoot;

/// Bytes of a file in one piece.
pub(super) const PIECE_BYTES_MAX: u32 = 1 << 20;

/// A file of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) generation: GenerationId,
    pub(super) rank: u32,
    pub(super) is_base: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The first one.
    Begin {
        version: String,
        job: u128,
        node: u32,
        root: NodeRoot,
    },
    Hold {
        decisions: Vec<Decision>,
    },
    Prepare {
        job_file: Vec<u8>,
        decisions: Vec<Decision>,
        generation: GenerationId,
        /// The one that the launcher holds (R34).
        seat: Option<Seat>,
    },
    Read(Part),
    /// Pieces follow, and [`Request::End`] or [`Request::Discard`].
    Write(Part),
    /// So many bytes follow.
    Data(u32),
    End,
    Commit(Manifest),
    Discard,
    Leave,
    /// Whether the node's lock is still held.
    Confirm,
    /// It has no answer, and may come between any two messages.
    Heartbeat,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    /// The answer takes its time.
    Busy,
    /// So many bytes follow, and a further answer.
    Data(u32),
    /// There is no such file.
    Absent,
    Refused(String),
}

pub(super) fn write(to: &mut (impl Write + ?Sized), message: &impl Serialize) -> io::Result<()> {
    to.write_all(&emit(message)?)
}

/// The bytes of a message.
pub(super) fn emit(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

pub(super) fn read<T: DeserializeOwned>(from: &mut (impl Read + ?Sized)) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length as usize > LINK_FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    from.take(u64::from(length)).read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Reads a piece of a file.
pub(super) fn read_piece(from: &mut (impl Read + ?Sized), bytes: u32, into: &mut Vec<u8>) -> io::Result<()> {
    if bytes > PIECE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    into.resize(bytes as usize, 0);
    from.read_exact(into)
}
