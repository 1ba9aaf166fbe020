//! Bytes in packets: compressed, and yet any block of them is read in constant time.
//!
//! The content is cut into blocks of equal length, so many of them are a packet, and each packet is compressed on its
//! own, or not at all where nothing is gained. A table says where each one lies. A reader of a block reads two places
//! of the file: the packet's entry and the packet. Every packet has a checksum that holds for its place alone, so
//! nothing unchecked is ever handed out. Byte tables: `docs/reference/image-format.md`.
//!
//! ```text
//! | front, 8 bytes | packet 0 | packet 1 | ... | table, 24 bytes a packet | footer, 104 bytes |
//! ```
//!
//! Packets can be encrypted or signed: see [`Sealing`].

mod codec;
mod error;
pub mod layout;
pub mod parallel;
mod reader;
mod writer;

pub use codec::{Codec, Compression, Unpacker};
pub use error::PacketsError;
pub use reader::PacketReader;
pub use writer::{PacketWriter, PacketsSummary};

pub use crate::seal::{Key, KeyUse, SALT_BYTES, Sealing};

use crate::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, PACKET_BYTES_MAX};
use crate::storage::StorageError;

/// How a content is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    block_bytes: u32,
    blocks_per_packet: u32,
}

impl Cut {
    /// Blocks of so many bytes, a power of two, and so many of them in a packet. `None` beyond the limits: blocks of [`BLOCK_BYTES_MIN`] to
    /// [`BLOCK_BYTES_MAX`] bytes, packets of at most [`PACKET_BYTES_MAX`].
    #[must_use]
    pub fn new(block_bytes: u32, blocks_per_packet: u32) -> Option<Cut> {
        let block =
            block_bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes);
        let packet = block_bytes
            .checked_mul(blocks_per_packet)
            .is_some_and(|bytes| (1..=PACKET_BYTES_MAX).contains(&bytes));
        (block && packet).then_some(Cut { block_bytes, blocks_per_packet })
    }

    /// Blocks of so many bytes, in packets of 64 KiB or of one block: `docs/adr/0088-packets-are-compressed-where-a-sample-shows-a-gain.md`.
    #[must_use]
    pub fn of_blocks(block_bytes: u32) -> Option<Cut> {
        Cut::new(block_bytes, (PACKET_BYTES / block_bytes.max(1)).max(1))
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> u32 {
        self.block_bytes
    }

    /// Blocks of a packet.
    #[must_use]
    pub fn blocks_per_packet(self) -> u32 {
        self.blocks_per_packet
    }

    /// Bytes of a packet's content, but for the last one's.
    #[must_use]
    pub fn packet_bytes(self) -> u32 {
        self.block_bytes * self.blocks_per_packet
    }
}

const PACKET_BYTES: u32 = 64 << 10;

/// Where packed bytes are read from.
pub trait Source {
    /// How many there are.
    fn bytes(&self) -> u64;

    /// Fills `into` from `offset`. [`StorageError::Short`] if the source ends before that.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError>;
}

/// Where packed bytes go.
pub trait Sink {
    /// Takes the next ones.
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError>;
}

impl Source for [u8] {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let start = usize::try_from(offset).ok();
        let found = start.and_then(|start| self.get(start..start.checked_add(into.len())?));
        let Some(found) = found else {
            let (wanted_bytes, found_bytes) = (into.len() as u64, self.len() as u64);
            return Err(StorageError::Short { path: "memory".to_owned(), offset, wanted_bytes, found_bytes });
        };
        into.copy_from_slice(found);
        Ok(())
    }
}

impl Source for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.as_slice().bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.as_slice().read_at(offset, into)
    }
}

impl<T: Source + ?Sized> Source for &T {
    fn bytes(&self) -> u64 {
        (**self).bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        (**self).read_at(offset, into)
    }
}

impl<T: Source + ?Sized> Source for Box<T> {
    fn bytes(&self) -> u64 {
        (**self).bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        (**self).read_at(offset, into)
    }
}

/// A part of another source.
#[derive(Clone, Copy, Debug)]
pub struct Part<T> {
    of: T,
    start: u64,
    bytes: u64,
}

impl<T: Source> Part<T> {
    /// `bytes` of `of` from `start` on, as far as there are so many.
    pub fn new(of: T, start: u64, bytes: u64) -> Part<T> {
        let start = start.min(of.bytes());
        let bytes = bytes.min(of.bytes() - start);
        Part { of, start, bytes }
    }
}

impl<T: Source> Source for Part<T> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let wanted_bytes = into.len() as u64;
        if offset.checked_add(wanted_bytes).is_none_or(|end| end > self.bytes) {
            let (path, found_bytes) = ("a part of a file".to_owned(), self.bytes);
            return Err(StorageError::Short { path, offset, wanted_bytes, found_bytes });
        }
        self.of.read_at(self.start + offset, into)
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

impl<T: Sink + ?Sized> Sink for &mut T {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        (**self).put(bytes)
    }
}
