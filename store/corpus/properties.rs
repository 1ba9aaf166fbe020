//! What must hold for any bytes that claim to be an image or a record. Shared by the fuzz targets and by the test that
//! replays their corpora.

use store::checksum::checksum;
use store::image::layout::{ENTRY_BYTES, HEADER_BYTES, Header, TRAILER_BYTES, emit_table, parse_table};
use store::image::{encode_image, parse_image};
use store::{CommitRecord, Decision, ImageReader, JobFile, Manifest, Memory, Storage};

/// Nothing panics; both readers agree; what is accepted is emitted again. True if the image is accepted as it is.
pub(crate) fn image(bytes: &[u8]) -> bool {
    let accepted = image_as_it_is(bytes);
    // A mutation would hardly ever have the right checksums: what lies behind them is reached by mending them.
    image_as_it_is(&with_checksums(bytes));
    accepted
}

fn image_as_it_is(bytes: &[u8]) -> bool {
    let parsed = parse_image(bytes);
    let mut disk = Memory::new();
    let mut file = disk.create("image").unwrap();
    disk.append(&mut file, bytes).unwrap();
    let streamed = ImageReader::open(&mut disk, "image").and_then(|reader| {
        reader.verify(&mut disk)?;
        Ok(reader)
    });
    assert_eq!(parsed.is_ok(), streamed.is_ok(), "{parsed:?} {streamed:?}");
    let (Ok(parsed), Ok(reader)) = (parsed, streamed) else { return false };
    assert_eq!(parsed.digest, reader.digest());
    let again = encode_image(parsed.identity, &parsed.sections).unwrap();
    assert_eq!(parse_image(&again).unwrap().sections, parsed.sections);
    let head = bytes.first_chunk::<HEADER_BYTES>().unwrap();
    let header = Header::parse(head).unwrap();
    assert_eq!(header.emit(), *head);
    let table = &bytes[usize::try_from(header.table_offset()).unwrap()..];
    assert_eq!(emit_table(&parse_table(&header, table).unwrap()), table);
    true
}

/// The bytes with magic, version, length and the checksums of header, table and sections put right.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut file = bytes.to_vec();
    if file.len() < HEADER_BYTES + TRAILER_BYTES {
        return file;
    }
    let room = (file.len() - HEADER_BYTES - TRAILER_BYTES) / ENTRY_BYTES;
    let sections = usize::from(file[8]) % (room + 1);
    file[..8].copy_from_slice(b"SWIM\x01\x00\x00\x00");
    file[8..12].copy_from_slice(&u32::try_from(sections).unwrap().to_le_bytes());
    let total = file.len() as u64;
    file[48..56].copy_from_slice(&total.to_le_bytes());
    let sum = checksum(&file[..56]).to_le_bytes();
    file[56..64].copy_from_slice(&sum);
    let trailer = file.len() - TRAILER_BYTES;
    let table = trailer - sections * ENTRY_BYTES;
    for at in (table..trailer).step_by(ENTRY_BYTES) {
        let number = |from: usize| u64::from_le_bytes(file[at + from..at + from + 8].try_into().unwrap());
        let (offset, length) = (usize::try_from(number(16)), usize::try_from(number(24)));
        let range = offset.ok().zip(length.ok()).and_then(|(at, length)| Some(at..at.checked_add(length)?));
        if let Some(section) = range.and_then(|range| file.get(range)) {
            let sum = checksum(section).to_le_bytes();
            file[at + 40..at + 48].copy_from_slice(&sum);
        }
    }
    let sum = checksum(&file[table..trailer]).to_le_bytes();
    file[trailer..].copy_from_slice(&sum);
    file
}

/// Nothing panics; what is accepted is emitted as the same bytes. True if a record of any kind is accepted as it is.
pub(crate) fn manifest(bytes: &[u8]) -> bool {
    let accepted = records_as_they_are(bytes);
    let lines = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = &bytes[..lines];
    let mut mended = lines.to_vec();
    mended.extend_from_slice(format!("checksum {:016x}\n", checksum(lines)).as_bytes());
    records_as_they_are(&mended);
    accepted
}

fn records_as_they_are(bytes: &[u8]) -> bool {
    let emitted = [
        Manifest::parse(bytes).map(|record| record.emit()),
        CommitRecord::parse(bytes).map(|record| record.emit()),
        Decision::parse(bytes).map(|record| record.emit()),
        JobFile::parse(bytes).map(|record| record.emit()),
    ];
    let mut accepted = 0;
    for emitted in emitted.into_iter().flatten() {
        assert_eq!(emitted, bytes);
        accepted += 1;
    }
    assert!(accepted <= 1, "one file is one kind of record");
    accepted == 1
}
