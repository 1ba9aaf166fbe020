//! Packets and deltas.

use store::checksum::checksum;
use store::delta::{Chain, Layer, Signature, TRAILER_BYTES};
use store::packets::layout::{ENTRY_BYTES, FOOTER_BYTES, FRONT_BYTES};
use store::packets::{Compression, PacketReader, PacketWriter, Unpacker};

/// More than any file of the corpus unpacks to; a fuzzer finds packets of zeros that unpack to much more.
const CONTENT_BYTES_MAX: u64 = 1 << 24;

/// A stream of packets, as it is and with its checksums put right. A stream that can be read packet by packet
/// is packed again, and is the same.
pub fn packets(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), summed(bytes)] {
        let Ok(reader) = PacketReader::open(&bytes[..], None) else { continue };
        let footer = reader.footer();
        if footer.content_bytes > CONTENT_BYTES_MAX {
            continue;
        }
        let mut content = Vec::new();
        let read = reader.read_all(&bytes[..], |packet| {
            content.extend_from_slice(packet);
            Ok(())
        });
        let verified = reader.verify(&bytes[..]);
        assert!(read.is_ok() || verified.is_err(), "what is verified can be read");
        if read.is_err() {
            continue;
        }
        assert_eq!(content.len() as u64, footer.content_bytes);
        let block = reader.read_block(&bytes[..], &mut Unpacker::new(), 0);
        assert_eq!(block.ok().as_deref(), content.chunks(footer.cut.block_bytes() as usize).next());
        let mut again = Vec::new();
        let mut writer =
            PacketWriter::begin(&mut again, footer.cut, Compression::Auto, None).expect("memory");
        writer.write(&mut again, &content).expect("memory");
        writer.finish(&mut again).expect("it was a stream already");
        let again_reader = PacketReader::open(&again[..], None).expect("what is written can be read");
        assert_eq!(again_reader.verify(&again[..]), Ok(()));
    }
}

/// A delta, as it is and with its checksums put right, and the contents of a signature.
pub fn delta(bytes: &[u8]) {
    if let Ok(signature) = Signature::parse(bytes) {
        assert!(signature.emit() == bytes, "{signature:?}");
    }
    one_delta(bytes);
    if let Some(mended) = mended(bytes) {
        one_delta(&mended);
    }
}

/// The delta with all checksums put right, if its trailer gives the places of its parts.
fn mended(bytes: &[u8]) -> Option<Vec<u8>> {
    let (parts, trailer) = bytes.split_at_checked(bytes.len().checked_sub(TRAILER_BYTES)?)?;
    let blocks = u64::from_le_bytes(core::array::from_fn(|n| trailer[8 + n]));
    let (blocks, index) = parts.split_at_checked(usize::try_from(blocks).ok()?)?;
    let mut mended = [summed(blocks), summed(index), trailer.to_vec()].concat();
    let at = mended.len() - TRAILER_BYTES;
    mended[at + 16..at + 24].copy_from_slice(&(index.len() as u64).to_le_bytes());
    let sum = checksum(&mended[at..at + 24]);
    mended[at + 24..].copy_from_slice(&sum.to_le_bytes());
    Some(mended)
}

fn one_delta(bytes: &[u8]) {
    let Ok(layer) = Layer::open(bytes, None) else { return };
    let places = layer.delta.places().clone();
    if layer.delta.content_bytes() > CONTENT_BYTES_MAX {
        return;
    }
    let full = layer.delta.facts().base.is_none();
    let Ok(chain) = Chain::new(vec![layer], (!full).then_some(&[][..])) else { return };
    let restored = chain.restore(core::num::NonZeroUsize::MIN, |_, _| Ok(()));
    let first = places.nth(0).map(|place| chain.read_block(&mut Unpacker::new(), place));
    assert!(restored.is_err() || first.is_none_or(|first| first.is_ok()), "what can be restored can be read");
}

/// The stream with the checksums of its packets, its table and its footer put right, as far as there are any.
fn summed(bytes: &[u8]) -> Vec<u8> {
    let mut stream = bytes.to_vec();
    let Some(footer) = stream.len().checked_sub(FOOTER_BYTES).filter(|footer| *footer >= FRONT_BYTES) else {
        return stream;
    };
    let word = |stream: &[u8], at: usize| u64::from_le_bytes(core::array::from_fn(|n| stream[at + n]));
    let packets = word(&stream, footer + 16);
    let table = usize::try_from(packets).ok().and_then(|packets| packets.checked_mul(ENTRY_BYTES));
    let Some(table) = table.and_then(|bytes| footer.checked_sub(bytes)) else { return stream };
    for (packet, entry) in (0u64..).zip((table..footer).step_by(ENTRY_BYTES)) {
        let offset = usize::try_from(word(&stream, entry)).unwrap_or(usize::MAX);
        let length = usize::try_from(word(&stream, entry + 8) & 0xffff_ffff).unwrap_or(usize::MAX);
        let Some(stored) = offset.checked_add(length).and_then(|end| stream.get(offset..end)) else {
            continue;
        };
        let mut head = [0; 24];
        head[..8].copy_from_slice(&packet.to_le_bytes());
        head[8] = stream[entry + 12];
        head[16..].copy_from_slice(&(length as u64).to_le_bytes());
        let sum = checksum(&[&head, stored].concat());
        stream[entry + 16..entry + 24].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = checksum(&stream[table..footer]);
    stream[footer + 32..footer + 40].copy_from_slice(&sum.to_le_bytes());
    let end = stream.len() - 8;
    let sum = checksum(&stream[footer..end]);
    stream[end..].copy_from_slice(&sum.to_le_bytes());
    stream
}
