//! Where each field of a stream of packets lies. For people: `docs/reference/image-format.md`; a test compares the two.

use core::mem::{offset_of, size_of};
use core::ops::RangeInclusive;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Codec, Cut, PacketsError};
use crate::checksum::{Checksum, checksum};
use crate::image::layout::Field;
use crate::limits::{CONTENT_BYTES_MAX, PACKETS_MAX};
use crate::seal::{KeyUse, SALT_BYTES, TAG_BYTES};

/// The first bytes of a stream, and of its footer.
pub const MAGIC: [u8; 4] = *b"SWPK";
/// The version that this build writes.
pub const VERSION: u16 = 1;
/// The versions that this build reads.
pub const READABLE: RangeInclusive<u16> = 1..=VERSION;
/// The packets are encrypted.
pub const FLAG_ENCRYPTED: u16 = 1;
/// The packets are signed, and can be read without the key.
pub const FLAG_SIGNED: u16 = 2;
/// The flags that this build knows. Flags change the meaning of the file, so an unknown one is refused.
pub const FLAGS_KNOWN: u16 = FLAG_ENCRYPTED | FLAG_SIGNED;

/// Bytes before the first packet.
pub const FRONT_BYTES: usize = 8;
/// Bytes of one entry of the table.
pub const ENTRY_BYTES: usize = size_of::<EntryBytes>();
/// Bytes of the footer, which ends the stream.
pub const FOOTER_BYTES: usize = size_of::<FooterBytes>();

const _: () = assert!(ENTRY_BYTES == 24 && FOOTER_BYTES == 104);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryBytes {
    offset: U64,
    stored_bytes: U32,
    codec: u8,
    zeros: [u8; 3],
    checksum: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FooterBytes {
    magic: [u8; 4],
    version: U16,
    flags: U16,
    block_bytes: U32,
    blocks_per_packet: U32,
    packets: U64,
    content_bytes: U64,
    table_checksum: U64,
    salt: [u8; SALT_BYTES],
    key_check: [u8; TAG_BYTES],
    footer_tag: [u8; TAG_BYTES],
    checksum: U64,
}

macro_rules! fields {
    ($of:ty: $($name:ident $bytes:literal),+) => {
        &[$(Field { name: stringify!($name), offset: offset_of!($of, $name), bytes: $bytes }),+]
    };
}

/// The fields of a table's entry, in order and without gaps.
pub const ENTRY_FIELDS: &[Field] =
    fields!(EntryBytes: offset 8, stored_bytes 4, codec 1, zeros 3, checksum 8);

/// The footer's fields, in order and without gaps.
pub const FOOTER_FIELDS: &[Field] = fields!(FooterBytes: magic 4, version 2, flags 2, block_bytes 4, blocks_per_packet 4, packets 8,
    content_bytes 8, table_checksum 8, salt 24, key_check 16, footer_tag 16, checksum 8);

/// The first bytes of a stream.
#[must_use]
pub fn front() -> [u8; FRONT_BYTES] {
    let mut front = [0; FRONT_BYTES];
    front[..4].copy_from_slice(&MAGIC);
    front[4..6].copy_from_slice(&VERSION.to_le_bytes());
    front
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// How the content is cut.
    pub cut: Cut,
    /// Number of packets.
    pub packets: u64,
    /// Bytes of the content.
    pub content_bytes: u64,
    /// Of the table.
    pub table_checksum: u64,
    /// How it is encrypted or signed, if it is.
    pub sealed: Option<Sealed>,
}

/// A stream's encryption, or its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// What the key does to it.
    pub usage: KeyUse,
    /// Makes nonces unlike those of any other stream.
    pub salt: [u8; SALT_BYTES],
    /// By which a wrong key is known.
    pub key_check: [u8; TAG_BYTES],
    /// Over the fields of the footer before it.
    pub footer_tag: [u8; TAG_BYTES],
}

impl Footer {
    /// Reads the footer of a stream of `stream_bytes`: magic, checksum, version, flags, cut, counts.
    pub fn parse(bytes: &[u8; FOOTER_BYTES], stream_bytes: u64) -> Result<Footer, PacketsError> {
        let fields: &FooterBytes = zerocopy::transmute_ref!(bytes);
        if fields.magic != MAGIC {
            return Err(PacketsError::NotPackets { expected: MAGIC, found: fields.magic });
        }
        let (expected, found) =
            (fields.checksum.get(), checksum(&bytes[..offset_of!(FooterBytes, checksum)]));
        if expected != found {
            return Err(PacketsError::FooterDamaged { expected, found });
        }
        let version = fields.version.get();
        if !READABLE.contains(&version) {
            return Err(PacketsError::UnsupportedVersion { found: version, readable: READABLE });
        }
        let flags = fields.flags.get();
        if flags & !FLAGS_KNOWN != 0 {
            return Err(PacketsError::UnsupportedFlags { found: flags, known: FLAGS_KNOWN });
        }
        let (block_bytes, blocks_per_packet) = (fields.block_bytes.get(), fields.blocks_per_packet.get());
        let Some(cut) = Cut::new(block_bytes, blocks_per_packet) else {
            return Err(PacketsError::BadCut { block_bytes, blocks_per_packet });
        };
        let usage = match flags {
            FLAG_ENCRYPTED => Some(KeyUse::Encrypt),
            FLAG_SIGNED => Some(KeyUse::Sign),
            0 => None,
            // Both at once.
            _ => return Err(PacketsError::UnsupportedFlags { found: flags, known: FLAGS_KNOWN }),
        };
        let sealed = Sealed {
            usage: usage.unwrap_or(Sealed::NONE.usage),
            salt: fields.salt,
            key_check: fields.key_check,
            footer_tag: fields.footer_tag,
        };
        let footer = Footer {
            cut,
            packets: fields.packets.get(),
            content_bytes: fields.content_bytes.get(),
            table_checksum: fields.table_checksum.get(),
            sealed: usage.map(|_| sealed),
        };
        let unused = (usage.is_some() || sealed == Sealed::NONE).then_some(());
        unused.and(footer.table_offset(stream_bytes)).ok_or(PacketsError::CountsDiffer {
            packets: footer.packets,
            content_bytes: footer.content_bytes,
            found_bytes: stream_bytes,
        })?;
        Ok(footer)
    }

    /// The footer's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; FOOTER_BYTES] {
        let sealed = self.sealed.unwrap_or(Sealed::NONE);
        let mut bytes: [u8; FOOTER_BYTES] = zerocopy::transmute!(FooterBytes {
            magic: MAGIC,
            version: U16::new(VERSION),
            flags: U16::new(match self.sealed.map(|sealed| sealed.usage) {
                Some(KeyUse::Encrypt) => FLAG_ENCRYPTED,
                Some(KeyUse::Sign) => FLAG_SIGNED,
                None => 0,
            }),
            block_bytes: U32::new(self.cut.block_bytes()),
            blocks_per_packet: U32::new(self.cut.blocks_per_packet()),
            packets: U64::new(self.packets),
            content_bytes: U64::new(self.content_bytes),
            table_checksum: U64::new(self.table_checksum),
            salt: sealed.salt,
            key_check: sealed.key_check,
            footer_tag: sealed.footer_tag,
            checksum: U64::new(0),
        });
        let at = offset_of!(FooterBytes, checksum);
        let sum = checksum(&bytes[..at]);
        bytes[at..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The bytes that the footer's tag covers.
    #[must_use]
    pub fn tagged(&self) -> [u8; offset_of!(FooterBytes, footer_tag)] {
        let bytes = self.emit();
        core::array::from_fn(|at| bytes[at])
    }

    /// Bytes of the content of packet `packet`, which must be one of the stream.
    #[must_use]
    pub fn content_of(&self, packet: u64) -> usize {
        let packet_bytes = u64::from(self.cut.packet_bytes());
        let left = self.content_bytes.saturating_sub(packet.saturating_mul(packet_bytes));
        usize::try_from(left.min(packet_bytes)).expect("at most PACKET_BYTES_MAX")
    }

    /// Where the table begins in a stream of so many bytes; `None` if this footer cannot end such a stream.
    fn table_offset(&self, stream_bytes: u64) -> Option<u64> {
        let full = self.content_bytes.div_ceil(u64::from(self.cut.packet_bytes()));
        let fits =
            self.packets == full && self.packets <= PACKETS_MAX && self.content_bytes <= CONTENT_BYTES_MAX;
        let table_and_footer = self.packets * (fits.then_some(ENTRY_BYTES)? as u64) + FOOTER_BYTES as u64;
        stream_bytes.checked_sub(table_and_footer).filter(|offset| *offset >= FRONT_BYTES as u64)
    }

    /// Where the table begins in a stream that this footer was read from.
    pub(super) fn table(&self, stream_bytes: u64) -> u64 {
        self.table_offset(stream_bytes).expect("checked when the footer was read")
    }
}

impl Sealed {
    const NONE: Sealed = Sealed {
        usage: KeyUse::Encrypt,
        salt: [0; SALT_BYTES],
        key_check: [0; TAG_BYTES],
        footer_tag: [0; TAG_BYTES],
    };
}

/// One packet as the table describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it begins in the stream.
    pub offset: u64,
    /// Bytes that it takes there.
    pub stored_bytes: u32,
    /// How it is stored.
    pub codec: Codec,
    /// Of place, codec, length and stored bytes.
    pub checksum: u64,
}

impl Entry {
    /// Reads the entry of packet `packet`; the caller has to check its offset and length.
    pub(super) fn parse(packet: u64, bytes: &[u8; ENTRY_BYTES]) -> Result<Entry, PacketsError> {
        let fields: &EntryBytes = zerocopy::transmute_ref!(bytes);
        let (offset, stored_bytes) = (fields.offset.get(), fields.stored_bytes.get());
        if fields.zeros != [0; 3] {
            return Err(PacketsError::EntryDamaged { packet, offset, stored_bytes });
        }
        let known_max = Codec::Gzip as u8;
        let codec = Codec::of(fields.codec);
        let codec = codec.ok_or(PacketsError::UnsupportedCodec { packet, found: fields.codec, known_max })?;
        Ok(Entry { offset, stored_bytes, codec, checksum: fields.checksum.get() })
    }

    pub(super) fn emit(&self) -> [u8; ENTRY_BYTES] {
        zerocopy::transmute!(EntryBytes {
            offset: U64::new(self.offset),
            stored_bytes: U32::new(self.stored_bytes),
            codec: self.codec as u8,
            zeros: [0; 3],
            checksum: U64::new(self.checksum),
        })
    }
}

/// The checksum of a packet: of its number, its codec and its length too, so that it is right in one place only.
pub(super) fn packet_checksum(packet: u64, codec: Codec, stored: &[u8]) -> u64 {
    let mut sum = Checksum::new();
    let mut head = [0; 24];
    head[..8].copy_from_slice(&packet.to_le_bytes());
    head[8] = codec as u8;
    head[16..].copy_from_slice(&(stored.len() as u64).to_le_bytes());
    sum.update(&head);
    sum.update(stored);
    sum.value()
}
