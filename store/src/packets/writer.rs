//! Packing: one pass, nothing is written twice.

use super::codec::Packer;
use super::layout::{Entry, Footer, Sealed, front, packet_checksum};
use super::{Codec, Compression, Cut, PacketsError, Sealing, Sink};
use crate::checksum::checksum;
use crate::limits::{CONTENT_BYTES_MAX, PACKETS_MAX};
use crate::seal::PACKETS;

/// Takes a content piece by piece, and gives packets to a sink. Has one packet in memory, and 24 bytes for each one written.
pub struct PacketWriter {
    cut: Cut,
    packer: Packer,
    sealing: Option<Sealing>,
    buffer: Vec<u8>,
    sealed: Vec<u8>,
    table: Vec<u8>,
    position: u64,
    content_bytes: u64,
    packets: u64,
    by_codec: [u64; Codec::ALL.len()],
}

/// The written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketsSummary {
    /// Bytes of the content.
    pub content_bytes: u64,
    /// Bytes of the stream.
    pub stored_bytes: u64,
    /// Packets, by the number of their codec.
    pub by_codec: [u64; Codec::ALL.len()],
}

impl PacketWriter {
    /// Begins a stream.
    pub fn begin(
        sink: &mut impl Sink,
        cut: Cut,
        compression: Compression,
        sealing: Option<Sealing>,
    ) -> Result<PacketWriter, PacketsError> {
        sink.put(&front())?;
        Ok(PacketWriter {
            cut,
            packer: Packer::new(compression),
            sealing,
            buffer: Vec::new(),
            sealed: Vec::new(),
            table: Vec::new(),
            position: front().len() as u64,
            content_bytes: 0,
            packets: 0,
            by_codec: [0; Codec::ALL.len()],
        })
    }

    /// Adds to the content.
    pub fn write(&mut self, sink: &mut impl Sink, mut bytes: &[u8]) -> Result<(), PacketsError> {
        let packet_bytes = self.cut.packet_bytes() as usize;
        while !bytes.is_empty() {
            if self.buffer.is_empty()
                && let Some((packet, rest)) = bytes.split_at_checked(packet_bytes)
            {
                self.packet(sink, packet)?;
                bytes = rest;
                continue;
            }
            let (head, rest) = bytes.split_at(bytes.len().min(packet_bytes - self.buffer.len()));
            self.buffer.extend_from_slice(head);
            bytes = rest;
            if self.buffer.len() == packet_bytes {
                self.flush(sink)?;
            }
        }
        Ok(())
    }

    /// Bytes of the content so far.
    #[must_use]
    pub fn content_bytes(&self) -> u64 {
        self.content_bytes + self.buffer.len() as u64
    }

    /// Writes the rest of the content, the table and the footer.
    pub fn finish(mut self, sink: &mut impl Sink) -> Result<PacketsSummary, PacketsError> {
        if !self.buffer.is_empty() {
            self.flush(sink)?;
        }
        sink.put(&self.table)?;
        let mut footer = Footer {
            cut: self.cut,
            packets: self.packets,
            content_bytes: self.content_bytes,
            table_checksum: checksum(&self.table),
            sealed: None,
        };
        if let Some(sealing) = &self.sealing {
            let sealed = Sealed {
                usage: sealing.usage(),
                salt: sealing.salt(),
                key_check: sealing.key_check(PACKETS),
                footer_tag: [0; 16],
            };
            footer.sealed = Some(sealed);
            footer.sealed = Some(Sealed { footer_tag: sealing.footer_tag(&footer.tagged()), ..sealed });
        }
        let footer = footer.emit();
        sink.put(&footer)?;
        Ok(PacketsSummary {
            content_bytes: self.content_bytes,
            stored_bytes: self.position + (self.table.len() + footer.len()) as u64,
            by_codec: self.by_codec,
        })
    }

    fn flush(&mut self, sink: &mut impl Sink) -> Result<(), PacketsError> {
        let mut buffer = core::mem::take(&mut self.buffer);
        let written = self.packet(sink, &buffer);
        buffer.clear();
        self.buffer = buffer;
        written
    }

    fn packet(&mut self, sink: &mut impl Sink, content: &[u8]) -> Result<(), PacketsError> {
        let number = self.packets;
        if number >= PACKETS_MAX || self.content_bytes + content.len() as u64 > CONTENT_BYTES_MAX {
            return Err(PacketsError::Full { packets_max: PACKETS_MAX, bytes_max: CONTENT_BYTES_MAX });
        }
        let (codec, packed) = self.packer.pack(content);
        let stored = match &self.sealing {
            None => packed,
            Some(sealing) => {
                self.sealed.clear();
                self.sealed.extend_from_slice(packed);
                let tag = sealing.seal(number, &[codec as u8], &mut self.sealed);
                self.sealed.extend_from_slice(&tag);
                &self.sealed
            }
        };
        let stored_bytes = u32::try_from(stored.len()).expect("at most PACKET_BYTES_MAX and a tag");
        let entry = Entry {
            offset: self.position,
            stored_bytes,
            codec,
            checksum: packet_checksum(number, codec, stored),
        };
        sink.put(stored)?;
        self.table.extend_from_slice(&entry.emit());
        self.position += u64::from(stored_bytes);
        self.content_bytes += content.len() as u64;
        self.packets += 1;
        self.by_codec[codec as usize] += 1;
        Ok(())
    }
}
