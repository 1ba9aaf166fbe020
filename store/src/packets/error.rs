//! The faults of a stream of packets.

use core::ops::RangeInclusive;

use super::codec::Codec;
use crate::storage::StorageError;

/// Why packed bytes cannot be read, or not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named by the messages")]
pub enum PacketsError {
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Shorter than the parts that every stream has.
    #[error("packed bytes take at least {expected_bytes} bytes, here are {found_bytes}; the file is cut off")]
    TooShort { expected_bytes: u64, found_bytes: u64 },
    /// Another kind of file.
    #[error(
        "packed bytes begin and end with {expected:02x?}, here is {found:02x?}; it is damaged, cut off, or another kind of file"
    )]
    NotPackets { expected: [u8; 4], found: [u8; 4] },
    /// The footer's checksum does not fit the footer.
    #[error("the footer's checksum is {expected:016x}, its bytes give {found:016x}; the footer is damaged")]
    FooterDamaged { expected: u64, found: u64 },
    /// A format of another time.
    #[error("the packets have format version {found}, this build reads {} to {}; use a build that reads version {found}", readable.start(), readable.end())]
    UnsupportedVersion { found: u16, readable: RangeInclusive<u16> },
    /// A flag that changes the meaning of the file, unknown here.
    #[error("the packets have the flags {found:#06x}, this build knows {known:#06x}; use a newer build")]
    UnsupportedFlags { found: u16, known: u16 },
    /// A cut beyond the limits.
    #[error(
        "packets of {blocks_per_packet} blocks of {block_bytes} bytes are beyond the limits; the footer is damaged"
    )]
    BadCut { block_bytes: u32, blocks_per_packet: u32 },
    /// The footer contradicts itself or the file's length.
    #[error(
        "the footer says {packets} packets with {content_bytes} bytes, which do not fit together, or not into {found_bytes} bytes; the footer is damaged"
    )]
    CountsDiffer { packets: u64, content_bytes: u64, found_bytes: u64 },
    /// The table's checksum does not fit the table.
    #[error("the table's checksum is {expected:016x}, its bytes give {found:016x}; the table is damaged")]
    TableDamaged { expected: u64, found: u64 },
    /// An entry of the table has impossible numbers.
    #[error(
        "packet {packet} is said to take {stored_bytes} bytes from {offset} on, which it cannot; the table is damaged"
    )]
    EntryDamaged { packet: u64, offset: u64, stored_bytes: u32 },
    /// A codec unknown here.
    #[error(
        "packet {packet} is packed with codec {found}, this build knows 0 to {known_max}; use a newer build"
    )]
    UnsupportedCodec { packet: u64, found: u8, known_max: u8 },
    /// The packet's checksum does not fit its bytes, its place, or its codec.
    #[error("packet {packet} has the checksum {expected:016x}, its bytes give {found:016x}; it is damaged")]
    PacketDamaged { packet: u64, expected: u64, found: u64 },
    /// A packet whose checksum is right does not unpack to its content.
    #[error(
        "packet {packet} does not unpack to {expected_bytes} bytes with {codec}; its writer made a mistake, or it was forged"
    )]
    Undecodable { packet: u64, codec: Codec, expected_bytes: usize },
    /// A block beyond the end.
    #[error("block {block} was requested, there are {blocks}")]
    NoSuchBlock { block: u64, blocks: u64 },
    /// More than a stream can hold.
    #[error(
        "one stream of packets holds at most {packets_max} packets and {bytes_max} bytes; choose larger blocks"
    )]
    Full { packets_max: u64, bytes_max: u64 },
    /// The packets are encrypted, and no key was given.
    #[error("it is encrypted, and no key was given: name the file with the key")]
    KeyMissing,
    /// A key was given for packets that have none.
    #[error(
        "a key was given, but it is neither encrypted nor signed: its writer had no key, or it was exchanged; read it without the key if that is intended"
    )]
    NotEncrypted,
    /// The key is not the one with which the packets were encrypted.
    #[error("wrong key: it is encrypted or signed with another one")]
    WrongKey,
    /// The key is right, and the bytes are not those that were encrypted.
    #[error("{} differs from the content encrypted or signed with this key; it was forged or exchanged", match packet { Some(packet) => format!("packet {packet}"), None => "the footer".to_owned() })]
    Forged { packet: Option<u64> },
}
