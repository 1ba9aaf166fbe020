//! Files of packets: packed files of copies, deltas and signatures.

use std::io;

use launcher::text;
use serde::Serialize;
use store::delta::{self, DeltaReader, Signature};
use store::limits::RECORD_BYTES_MAX;
use store::packets::layout::{FOOTER_BYTES, FRONT_BYTES, Footer, MAGIC};
use store::packets::{Codec, Key, KeyUse, PacketReader, PacketsError, Source, Unpacker};
use store::storage::Shared;
use store::{Directory, JobFile, StorageError};

use crate::commands::key::KeyArgument;
use crate::commands::say;
use crate::error::CliError;

/// A stream of packets, which follows a front.
#[derive(Debug, Serialize)]
pub(super) struct Packed {
    /// `places` (of a copy), `job`, `delta`, `signature`, or `unknown`: contents of another program, or contents that need a key to be read.
    holds: &'static str,
    encrypted: bool,
    signed: bool,
    block_bytes: u32,
    packet_bytes: u32,
    packets: u64,
    content_bytes: u64,
    stored_bytes: u64,
    /// Packets by how they are stored.
    codecs: Vec<(String, u64)>,
    /// Of a delta.
    delta: Option<Delta>,
    /// Of a signature: blocks, and the name of its content.
    signature: Option<(u64, String)>,
    /// Its damage; `null`: every byte is as it was written.
    damage: Option<String>,
}

#[derive(Debug, Serialize)]
struct Delta {
    number: u64,
    base_number: Option<u64>,
    content: String,
    base: Option<String>,
    becomes_base: bool,
    /// Of the content, and those that this file holds.
    blocks: u64,
    changed_blocks: u64,
    /// Of the content.
    bytes: u64,
    /// Runs of blocks that it holds.
    runs: usize,
}

impl Packed {
    pub(super) fn damage(&self) -> Option<&String> {
        self.damage.as_ref()
    }

    pub(super) fn print(&self) -> io::Result<()> {
        let Packed { holds, packets, packet_bytes, block_bytes, .. } = self;
        let encrypted = match (self.encrypted, self.signed) {
            (true, _) => ", encrypted",
            (_, true) => ", signed",
            _ => "",
        };
        let (content, stored) = (text::bytes(self.content_bytes), text::bytes(self.stored_bytes));
        say!("packed: {holds}{encrypted}; {content} in {stored}")?;
        say!(
            "{packets} packets of {}, blocks of {block_bytes} bytes",
            text::bytes(u64::from(*packet_bytes))
        )?;
        for (codec, packets) in &self.codecs {
            say!("{packets:>9}  {codec}")?;
        }
        if let Some(delta) = &self.delta {
            let Delta { number, content, blocks, changed_blocks, bytes, runs, .. } = delta;
            say!("checkpoint {number}, content {content}: {blocks} blocks, {}", text::bytes(*bytes))?;
            match (&delta.base, delta.base_number) {
                (Some(base), number) => {
                    let number = number.map(|number| format!("checkpoint {number}, ")).unwrap_or_default();
                    say!(
                        "here are {changed_blocks} of them, in {runs} runs; the others are in its base: {number}content {base}"
                    )?;
                }
                (None, _) => say!("all of them are here: it needs no base")?,
            }
            if delta.becomes_base {
                say!("later checkpoints have it as their base")?;
            }
        }
        if let Some((blocks, content)) = &self.signature {
            say!("hashes of {blocks} blocks of content {content}")?;
        }
        Ok(())
    }
}

/// `None`: the file is none of packets.
pub(super) fn inspect(
    storage: &mut Directory<Shared>,
    name: &str,
    key: &KeyArgument,
) -> Result<Option<Packed>, CliError> {
    let source = storage.open_file(name)?;
    let bytes = source.bytes();
    let mut front = [0; 4];
    if bytes < (FRONT_BYTES + FOOTER_BYTES) as u64 || source.read_at(0, &mut front).is_err() || front != MAGIC
    {
        return Ok(None);
    }
    let failed = |error| CliError::Packets { path: name.to_owned(), error };
    let mut trailer = [0; delta::TRAILER_BYTES];
    source.read_at(bytes - delta::TRAILER_BYTES as u64, &mut trailer)?;
    if trailer[..4] == delta::MAGIC {
        return inspect_delta(&source, name, key).map(Some);
    }
    let mut footer = [0; FOOTER_BYTES];
    source.read_at(bytes - FOOTER_BYTES as u64, &mut footer)?;
    let footer = Footer::parse(&footer, bytes).map_err(failed)?;
    // Without its key, the packing can be shown, but not the content.
    let own = if footer.sealed.is_some() { key.key()? } else { None };
    if is_encrypted(&footer) && own.is_none() {
        return Ok(Some(Packed { holds: "unknown", ..shape(&footer, bytes, Vec::new(), None) }));
    }
    let reader = PacketReader::open(&source, own.as_ref()).map_err(failed)?;
    let damage = reader.verify(&source).err();
    if let Some(error @ PacketsError::Storage(_)) = damage {
        return Err(failed(error));
    }
    let mut packed = shape(&footer, bytes, codecs(&reader, &source), damage.map(|error| error.to_string()));
    let head = reader.read_block(&source, &mut Unpacker::new(), 0).unwrap_or_default();
    packed.holds = match head.first_chunk::<4>() {
        Some(mark) if *mark == delta::SIGNATURE_MAGIC => "signature",
        _ if head.starts_with(b"stillwire job ") => "job",
        _ if head.starts_with(b"stillwire content ") => "places",
        _ => "unknown",
    };
    match packed.holds {
        "signature" if packed.damage.is_none() => {
            let signature = Signature::read(&source, own.as_ref());
            let failed = |error| CliError::Delta { path: name.into(), error };
            let signature = signature.map_err(failed)?;
            packed.signature = Some((signature.places().blocks(), signature.name().to_string()));
        }
        "job" if packed.damage.is_none() && packed.content_bytes > RECORD_BYTES_MAX => {
            let (bytes, bytes_max) = (packed.content_bytes, RECORD_BYTES_MAX);
            packed.damage =
                Some(StorageError::TooLong { path: name.to_owned(), bytes, bytes_max }.to_string());
        }
        "job" if packed.damage.is_none() => {
            let mut content = Vec::new();
            reader
                .read_all(&source, |packet| {
                    content.extend_from_slice(packet);
                    Ok(())
                })
                .map_err(failed)?;
            packed.damage = JobFile::parse(&content).err().map(|error| error.to_string());
        }
        _ => {}
    }
    Ok(Some(packed))
}

fn is_encrypted(footer: &Footer) -> bool {
    footer.sealed.is_some_and(|sealed| sealed.usage == KeyUse::Encrypt)
}

fn shape(footer: &Footer, stored_bytes: u64, codecs: Vec<(String, u64)>, damage: Option<String>) -> Packed {
    Packed {
        holds: "unknown",
        encrypted: is_encrypted(footer),
        signed: footer.sealed.is_some() && !is_encrypted(footer),
        block_bytes: footer.cut.block_bytes(),
        packet_bytes: footer.cut.packet_bytes(),
        packets: footer.packets,
        content_bytes: footer.content_bytes,
        stored_bytes,
        codecs,
        delta: None,
        signature: None,
        damage,
    }
}

/// Packets by how they are stored; verification reports damaged entries.
fn codecs(reader: &PacketReader, source: &impl Source) -> Vec<(String, u64)> {
    let mut counts = [0; Codec::ALL.len()];
    for packet in 0..reader.footer().packets {
        if let Ok(entry) = reader.entry(source, packet) {
            counts[entry.codec as usize] += 1;
        }
    }
    let named = Codec::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
    named.map(|(codec, count)| (codec.to_string(), count)).collect()
}

fn inspect_delta(source: &impl Source, name: &str, key: &KeyArgument) -> Result<Packed, CliError> {
    let failed = |error| CliError::Delta { path: name.into(), error };
    let own: Option<Key> = key.key()?;
    let opened = match DeltaReader::open(source, None) {
        Err(error) if error.is_about_key() && own.is_some() => DeltaReader::open(source, own.as_ref()),
        opened => opened,
    };
    let reader = opened.map_err(failed)?;
    let blocks = reader.blocks(source);
    let packets = reader.packets();
    let damage = packets.verify(&blocks).err().map(|error| error.to_string());
    let mut packed = shape(packets.footer(), source.bytes(), codecs(packets, &blocks), damage);
    let facts = reader.facts();
    packed.holds = "delta";
    packed.delta = Some(Delta {
        number: facts.number,
        base_number: facts.base.map(|_| facts.base_number).filter(|_| facts.number > 0),
        content: facts.name.to_string(),
        base: facts.base.map(|base| base.to_string()),
        becomes_base: facts.becomes_base,
        blocks: reader.places().blocks(),
        changed_blocks: reader.changed().blocks(),
        bytes: reader.content_bytes(),
        runs: reader.changed().runs().len(),
    });
    Ok(packed)
}
