//! Reading packets: the footer at once, any packet when it is wanted.

use super::layout::{
    ENTRY_BYTES, Entry, FOOTER_BYTES, FRONT_BYTES, Footer, MAGIC, Sealed, front, packet_checksum,
};
use super::{Key, PacketsError, Sealing, Source, Unpacker};
use crate::checksum::Checksum;
use crate::limits::READ_BUFFER_BYTES;
use crate::seal::{KeyUse, PACKETS, TAG_BYTES};

/// A stream whose footer is read and checked. It does not hold the source; every call must get the one that it was opened with.
#[derive(Clone, Debug)]
pub struct PacketReader {
    footer: Footer,
    stream_bytes: u64,
    sealing: Option<Sealing>,
}

impl PacketReader {
    /// Reads front and footer of packets that take all of `source`. `key`: the packets are encrypted or signed with it.
    /// Signed packets can also be read without it; then nothing is known of who wrote them.
    pub fn open(source: &(impl Source + ?Sized), key: Option<&Key>) -> Result<PacketReader, PacketsError> {
        let stream_bytes = source.bytes();
        let expected_bytes = (FRONT_BYTES + FOOTER_BYTES) as u64;
        if stream_bytes < expected_bytes {
            return Err(PacketsError::TooShort { expected_bytes, found_bytes: stream_bytes });
        }
        let mut found = [0; FRONT_BYTES];
        source.read_at(0, &mut found)?;
        if found[..4] != MAGIC {
            let found = core::array::from_fn(|at| found[at]);
            return Err(PacketsError::NotPackets { expected: MAGIC, found });
        }
        let mut bytes = [0; FOOTER_BYTES];
        source.read_at(stream_bytes - FOOTER_BYTES as u64, &mut bytes)?;
        let footer = Footer::parse(&bytes, stream_bytes)?;
        if found != front() {
            return Err(PacketsError::NotPackets {
                expected: MAGIC,
                found: core::array::from_fn(|at| found[at + 4]),
            });
        }
        let sealing = match (footer.sealed, key) {
            (None, None) => None,
            (None, Some(_)) => return Err(PacketsError::NotEncrypted),
            (Some(Sealed { usage: KeyUse::Encrypt, .. }), None) => return Err(PacketsError::KeyMissing),
            // Its packets can be read, and nobody vouches for them.
            (Some(Sealed { usage: KeyUse::Sign, .. }), None) => None,
            (Some(sealed), Some(key)) => {
                let sealing = Sealing::with(key.clone(), sealed.usage, sealed.salt);
                if sealing.key_check(PACKETS) != sealed.key_check {
                    return Err(PacketsError::WrongKey);
                }
                if sealing.footer_tag(&footer.tagged()) != sealed.footer_tag {
                    return Err(PacketsError::Forged { packet: None });
                }
                Some(sealing)
            }
        };
        Ok(PacketReader { footer, stream_bytes, sealing })
    }

    /// The footer.
    #[must_use]
    pub fn footer(&self) -> &Footer {
        &self.footer
    }

    /// Number of blocks; the last one may be shorter.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.footer.content_bytes.div_ceil(u64::from(self.footer.cut.block_bytes()))
    }

    /// The entry of packet `packet`, checked for where such a packet can lie.
    pub fn entry(&self, source: &(impl Source + ?Sized), packet: u64) -> Result<Entry, PacketsError> {
        let per_packet = u64::from(self.footer.cut.blocks_per_packet());
        if packet >= self.footer.packets {
            return Err(PacketsError::NoSuchBlock {
                block: packet.saturating_mul(per_packet),
                blocks: self.blocks(),
            });
        }
        let mut bytes = [0; ENTRY_BYTES];
        let table = self.footer.table(self.stream_bytes);
        source.read_at(table + packet * ENTRY_BYTES as u64, &mut bytes)?;
        self.parse_entry(packet, &bytes)
    }

    fn parse_entry(&self, packet: u64, bytes: &[u8; ENTRY_BYTES]) -> Result<Entry, PacketsError> {
        let entry = Entry::parse(packet, bytes)?;
        let Entry { offset, stored_bytes, .. } = entry;
        let tag = if self.footer.sealed.is_some() { TAG_BYTES } else { 0 };
        let stored_max = (self.footer.content_of(packet) + tag) as u64;
        let end = offset.checked_add(u64::from(stored_bytes));
        let fits = end.is_some_and(|end| end <= self.footer.table(self.stream_bytes));
        if offset < FRONT_BYTES as u64 || !fits || u64::from(stored_bytes) > stored_max {
            return Err(PacketsError::EntryDamaged { packet, offset, stored_bytes });
        }
        Ok(entry)
    }

    /// The content of packet `packet`, checked; replaces the contents of `into`.
    pub fn read_packet(
        &self,
        source: &(impl Source + ?Sized),
        unpacker: &mut Unpacker,
        packet: u64,
        into: &mut Vec<u8>,
    ) -> Result<(), PacketsError> {
        let entry = self.entry(source, packet)?;
        into.resize(self.footer.content_of(packet), 0);
        let mut stored = core::mem::take(&mut unpacker.stored);
        stored.resize(entry.stored_bytes as usize, 0);
        let read = source.read_at(entry.offset, &mut stored).map_err(PacketsError::from);
        let read = read.and_then(|()| self.unpack(unpacker, packet, &entry, &mut stored, into));
        unpacker.stored = stored;
        read
    }

    /// Checks, decrypts and unpacks the stored bytes of a packet.
    fn unpack(
        &self,
        unpacker: &mut Unpacker,
        packet: u64,
        entry: &Entry,
        stored: &mut [u8],
        into: &mut [u8],
    ) -> Result<(), PacketsError> {
        let (expected, found) = (entry.checksum, packet_checksum(packet, entry.codec, stored));
        if expected != found {
            return Err(PacketsError::PacketDamaged { packet, expected, found });
        }
        let packed = if self.footer.sealed.is_none() {
            &*stored
        } else {
            let forged = PacketsError::Forged { packet: Some(packet) };
            let Some((bytes, tag)) = stored.split_last_chunk_mut::<TAG_BYTES>() else {
                return Err(forged);
            };
            if self.sealing.as_ref().is_some_and(|of| !of.open(packet, &[entry.codec as u8], bytes, tag)) {
                return Err(forged);
            }
            &*bytes
        };
        if unpacker.unpack(entry.codec, packed, into) {
            return Ok(());
        }
        Err(PacketsError::Undecodable { packet, codec: entry.codec, expected_bytes: into.len() })
    }

    /// Block `block`: its packet is read, and no other byte of the content.
    pub fn read_block(
        &self,
        source: &(impl Source + ?Sized),
        unpacker: &mut Unpacker,
        block: u64,
    ) -> Result<Vec<u8>, PacketsError> {
        let blocks = self.blocks();
        if block >= blocks {
            return Err(PacketsError::NoSuchBlock { block, blocks });
        }
        let per_packet = u64::from(self.footer.cut.blocks_per_packet());
        let mut content = Vec::new();
        self.read_packet(source, unpacker, block / per_packet, &mut content)?;
        let block_bytes = self.footer.cut.block_bytes() as usize;
        let place = usize::try_from(block % per_packet).expect("below blocks_per_packet");
        content.drain(..place * block_bytes);
        content.truncate(block_bytes);
        Ok(content)
    }

    /// The whole content, packet by packet.
    pub fn read_all(
        &self,
        source: &(impl Source + ?Sized),
        mut take: impl FnMut(&[u8]) -> Result<(), PacketsError>,
    ) -> Result<(), PacketsError> {
        let mut unpacker = Unpacker::new();
        let mut content = Vec::new();
        for packet in 0..self.footer.packets {
            self.read_packet(source, &mut unpacker, packet, &mut content)?;
            take(&content)?;
        }
        Ok(())
    }

    /// Reads every byte of the stream and checks it; packets are unpacked as well.
    pub fn verify(&self, source: &(impl Source + ?Sized)) -> Result<(), PacketsError> {
        let table = self.footer.table(self.stream_bytes);
        let table_end = self.stream_bytes - FOOTER_BYTES as u64;
        let mut sum = Checksum::new();
        let mut from = FRONT_BYTES as u64;
        let mut buffer = vec![0; READ_BUFFER_BYTES / ENTRY_BYTES * ENTRY_BYTES];
        let mut packet = 0;
        let mut position = table;
        while position < table_end {
            let length =
                usize::try_from(table_end - position).map_or(buffer.len(), |left| left.min(buffer.len()));
            source.read_at(position, &mut buffer[..length])?;
            sum.update(&buffer[..length]);
            let (entries, _) = buffer[..length].as_chunks::<ENTRY_BYTES>();
            for bytes in entries {
                let Entry { offset, stored_bytes, .. } = self.parse_entry(packet, bytes)?;
                if offset != from {
                    return Err(PacketsError::EntryDamaged { packet, offset, stored_bytes });
                }
                from += u64::from(stored_bytes);
                packet += 1;
            }
            position += length as u64;
        }
        let (expected, found) = (self.footer.table_checksum, sum.value());
        if expected != found || from != table {
            return Err(PacketsError::TableDamaged { expected, found });
        }
        self.read_all(source, |_| Ok(()))
    }
}
