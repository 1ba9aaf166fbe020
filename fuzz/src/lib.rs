//! Properties for any bytes: a parser never panics, and accepted input is written back as the same bytes.
//!
//! Each function is one fuzz target. Ordinary tests (`tests/tests/corpora`) include this file and call the same
//! functions with every file of the corpora, and with each of them damaged in all simple ways.

mod delta;
mod dump;
mod port;
mod process;
mod protector;

use store::Storage as _;
use store::image::layout;

pub use self::process::process;
pub use self::protector::protector;
pub use delta::{delta, packets};
pub use dump::{dump, dump_config};
pub use port::{OWN, PEER, port};

/// A frame, as it comes from a stranger.
pub fn frame(bytes: &[u8]) {
    if let Ok(frame) = transport::wire::Frame::parse(bytes) {
        let mut again = vec![0; bytes.len()];
        let written = frame.emit(&mut again);
        assert_eq!((written, again.as_slice()), (bytes.len(), bytes), "{frame:?}");
    }
}

/// A datagram with several frames, as it comes from a stranger. None of them is a pack, and its rest can be kept
/// between two looks.
pub fn pack(bytes: &[u8]) {
    use drivers::pack::{Frames, is_pack, whole};
    let Some(mut frames) = Frames::of(bytes) else { return };
    assert_eq!(whole(frames), bytes);
    let again: Vec<&[u8]> = frames.collect();
    assert!(is_pack(bytes) && again.len() >= 2 && !again.iter().copied().any(is_pack));
    for left in (0..again.len()).rev() {
        assert_eq!(frames.next(), Some(again[again.len() - 1 - left]));
        frames = Frames::again(frames.rest());
        assert_eq!(frames.count(), left);
    }
}

/// A captured rail. Packets read from it are written back with the same meaning: options of others are not
/// kept.
pub fn capture(bytes: &[u8]) {
    use drivers::capture::pcapng;
    let Ok(capture) = pcapng::read(bytes) else { return };
    let mut again = Vec::new();
    pcapng::emit_head(capture.name, &mut again);
    capture.packets.iter().for_each(|packet| pcapng::emit_packet(packet, &mut again));
    let read = pcapng::read(&again).map(|again| (again.name, again.packets, again.damage));
    assert_eq!(read, Ok((capture.name, capture.packets, None)));
}

/// With which the encrypted image of the corpus is encrypted.
pub const IMAGE_KEY: store::Key = store::Key([7; 32]);

/// An image file. Both readers agree about it; header and table are written back as the same bytes, the
/// sections as the same sections (how far apart they lie is the writer's choice). Of an encrypted one the key
/// reads the sections for which it has a tag.
pub fn image(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), summed(bytes)] {
        let parsed = store::image::parse_image(&bytes);
        let mut disk = store::Memory::new();
        let mut file = disk.create("image").expect("an empty disk");
        disk.append(&mut file, &bytes).expect("a disk without bound");
        let reader = store::ImageReader::open(&mut disk, "image")
            .and_then(|reader| reader.verify(&mut disk).map(|()| reader));
        assert_eq!(parsed.is_ok(), reader.is_ok(), "{parsed:?} {reader:?}");
        let (Ok(image), Ok(mut reader)) = (parsed, reader) else { continue };
        assert_eq!(image.digest, reader.digest());
        assert_eq!(reader.header().emit(), bytes[..layout::HEADER_BYTES]);
        let table = layout::emit_table(reader.entries());
        assert_eq!(table, bytes[bytes.len() - table.len()..]);
        assert_eq!(image.is_encrypted, reader.header().is_encrypted);
        if image.is_encrypted {
            if reader.unlock(&mut disk, &IMAGE_KEY).is_ok() {
                (0..reader.header().sections).for_each(|number| {
                    let read = reader.read_section(&mut disk, number).map(drop);
                    let forged = |error: &_| {
                        use store::{ImageError::PageForged, StoreError::Image};
                        matches!(error, Image { error: PageForged { .. }, .. })
                    };
                    assert!(read.as_ref().err().is_none_or(forged), "{read:?}");
                });
            }
            continue;
        }
        let again =
            store::image::encode_image(image.identity, &image.sections).expect("it was an image already");
        assert_eq!(store::image::parse_image(&again).map(|again| again.sections), Ok(image.sections));
    }
}

/// The image with magic, version, length and all checksums put right, for the same reason as in [`sealed`].
fn summed(bytes: &[u8]) -> Vec<u8> {
    let mut file = bytes.to_vec();
    let Some(room) = file.len().checked_sub(layout::HEADER_BYTES + layout::TRAILER_BYTES) else {
        return file;
    };
    let sections = usize::from(file[8]) % (room / layout::ENTRY_BYTES + 1);
    let flags = file[6] & layout::FLAGS_KNOWN.to_le_bytes()[0];
    file[..12].copy_from_slice(&[b'S', b'W', b'I', b'M', 1, 0, flags, 0, 0, 0, 0, 0]);
    file[8..12].copy_from_slice(&u32::try_from(sections).unwrap_or(0).to_le_bytes());
    let total_bytes = file.len() as u64;
    file[48..56].copy_from_slice(&total_bytes.to_le_bytes());
    let sum = store::checksum::checksum(&file[..56]);
    file[56..64].copy_from_slice(&sum.to_le_bytes());
    let trailer = file.len() - layout::TRAILER_BYTES;
    let table = trailer - sections * layout::ENTRY_BYTES;
    for at in (table..trailer).step_by(layout::ENTRY_BYTES) {
        let number = |from: usize| {
            let digits = file[at + from..at + from + 8].iter().rev();
            digits.fold(0usize, |number, byte| number << 8 | usize::from(*byte))
        };
        let (start, length) = (number(16), number(24));
        let section = start.checked_add(length).and_then(|end| file.get(start..end));
        if let Some(sum) = section.map(store::checksum::checksum) {
            file[at + 40..at + 48].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let sum = store::checksum::checksum(&file[table..trailer]);
    file[trailer..].copy_from_slice(&sum.to_le_bytes());
    file
}

/// The small records beside the images: manifest, commit record, decision, end; and that of a copy.
pub fn manifest(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), sealed(bytes)] {
        if let Ok(manifest) = store::Manifest::parse(&bytes) {
            same(&manifest.emit(), &bytes);
        }
        if let Ok(record) = store::CommitRecord::parse(&bytes) {
            same(&record.emit(), &bytes);
        }
        if let Ok(decision) = store::Decision::parse(&bytes) {
            same(&decision.emit(), &bytes);
        }
        if let Ok(end) = store::End::parse(&bytes) {
            same(&end.emit(), &bytes);
        }
        if let Ok(seats) = store::record::Seats::parse(&bytes) {
            same(&seats.emit(), &bytes);
        }
        if let Ok(end) = store::record::JobEndRecord::parse(&bytes) {
            same(&end.emit(), &bytes);
        }
        if let Ok(content) = store::record::Content::parse(&bytes) {
            same(&content.emit(), &bytes);
        }
        if let Ok(copied) = store::record::Copied::parse(&bytes) {
            same(&copied.emit(), &bytes);
            assert!(copied.stored_bytes() >= copied.job_file.stored_bytes, "{copied:?}");
        }
    }
}

/// The job file: the record in the job's directory, and the JSON that a person writes.
pub fn jobfile(bytes: &[u8]) {
    if let Ok(config) = ckpt_glue::JobConfig::parse(bytes) {
        let again = ckpt_glue::JobConfig::parse(config.emit().as_bytes());
        assert_eq!(again.as_ref(), Ok(&config), "JSON has many spellings, but one meaning");
    }
    for bytes in [bytes.to_vec(), sealed(bytes)] {
        if let Ok(file) = store::JobFile::parse(&bytes) {
            same(&file.emit(), &bytes);
        }
    }
}

/// A scenario of the simulator. The written text may be shorter (plain settings, comments), but it means the
/// same.
pub fn scenario(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    let Ok(scenario) = sim::scenario::parse(text) else { return };
    let written = scenario.write();
    assert_eq!(sim::scenario::parse(&written).as_ref(), Ok(&scenario), "{written}");
}

/// The key under which control frames are fuzzed.
pub const CONTROL_KEY: [u8; 16] = [7; 16];

/// A control frame, as it comes from a stranger, and as it would come from a sender with the job's key; and a stream of
/// them, which comes in pieces.
pub fn control(bytes: &[u8]) {
    const HEAD_BYTES: usize = 72;
    let key = ckpt_glue::ControlKey::new(&CONTROL_KEY);
    let mut known = bytes.to_vec();
    if (HEAD_BYTES..ckpt_glue::limits::CONTROL_BYTES_MAX).contains(&known.len()) {
        ckpt_glue::control::stream::seal(&key, &mut known);
    }
    for frame in [bytes, &known] {
        let Ok((number, control)) = ckpt_glue::control::stream::parse(&key, frame) else { continue };
        let mut again = Vec::new();
        ckpt_glue::control::stream::emit(&key, number, &control, &mut again);
        assert!(again == frame, "{control:?}");
    }
    if let Ok(record) = ckpt_glue::control::ExitedRecord::parse(bytes) {
        assert!(record.emit() == bytes, "{record:?}");
    }
    if let Ok(state) = ckpt_glue::pmi::RankState::parse(bytes) {
        // Where one part ends and the next begins is the writer's affair.
        assert!(ckpt_glue::pmi::RankState::parse(&state.emit()).as_ref() == Ok(&state), "{state:?}");
    }
    let mut reader = ckpt_glue::ControlReader::new(key);
    for piece in known.chunks(known.len() / 2 + 1) {
        reader.feed(piece);
        while let Ok(Some(_)) = reader.next() {}
    }
}

/// The record with its last line replaced by the checksum of the others: a fuzzer never guesses a checksum, and the
/// code behind it must be tried too.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let kept = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut sealed = bytes[..kept].to_vec();
    sealed.extend_from_slice(
        format!("checksum {:016x}\n", store::checksum::checksum(&bytes[..kept])).as_bytes(),
    );
    sealed
}

fn same(written: &[u8], read: &[u8]) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(written == read, "read:\n{}\nwritten:\n{}", text(read), text(written));
}
