//! An image that differs from its written form is refused, with the reason.

use crate::common::JOB;
use proptest::prelude::*;
use store::image::layout::{ENTRY_BYTES, HEADER_BYTES, TRAILER_BYTES, emit_table};
use store::image::{Entry, Exited, Identity, ImageReader, Section, encode_image, parse_image};
use store::{ImageError, ImageWriter, Memory, Storage, StoreError, kinds};
use transport::{Epoch, JobId, Life, Rank};

const IDENTITY: Identity =
    Identity { job: JOB, life: Life { counter: 2, nonce: 0xdead_beef }, epoch: Epoch(3), rank: Rank(1) };

fn small() -> Vec<u8> {
    let sections = [
        Section::new(kinds::PORT, 1, b"a port").with_id(1 << 32),
        Section::new(kinds::SESSION_REGION, 1, &[0xa5; 21]).with_id(7),
        Section::new(kinds::SESSION_STATE, 2, b""),
    ];
    encode_image(IDENTITY, &sections).unwrap()
}

/// Every way of reading a file in full gives the same answer.
fn read(file: &[u8]) -> Result<(), ImageError> {
    let parsed = parse_image(file).map(|_| ());
    let mut disk = Memory::new();
    let mut handle = disk.create("image").unwrap();
    disk.append(&mut handle, file).unwrap();
    let streamed = ImageReader::open(&mut disk, "image").and_then(|reader| {
        reader.verify(&mut disk)?;
        for number in 0..reader.header().sections {
            reader.read_section(&mut disk, number)?;
        }
        Ok(())
    });
    let streamed = streamed.map_err(|error| match error {
        StoreError::Image { path, error } => {
            assert_eq!(path, "image");
            error
        }
        other => panic!("{other}"),
    });
    assert_eq!(parsed, streamed);
    parsed
}

/// The image with a header and a table of one's own making, checksums right.
fn forge(change: impl Fn(&mut Vec<Entry>)) -> Vec<u8> {
    let file = small();
    let mut disk = Memory::new();
    let mut handle = disk.create("image").unwrap();
    disk.append(&mut handle, &file).unwrap();
    let reader = ImageReader::open(&mut disk, "image").unwrap();
    let mut entries = reader.entries().to_vec();
    change(&mut entries);
    let table = emit_table(&entries);
    let mut forged = file[..file.len() - 3 * ENTRY_BYTES - TRAILER_BYTES].to_vec();
    forged.extend_from_slice(&table);
    forged
}

/// The image with changed header bytes and a checksum that fits them.
fn forge_header(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = small();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    let sum = store::checksum::checksum(&file[..56]);
    file[56..64].copy_from_slice(&sum.to_le_bytes());
    file
}

#[test]
fn what_was_written_is_read() {
    let file = small();
    let parsed = parse_image(&file).unwrap();
    assert_eq!(parsed.identity, IDENTITY);
    assert_eq!(parsed.sections[1].bytes, [0xa5; 21]);
    assert_eq!((parsed.sections[0].id, parsed.sections[2].version), (1 << 32, 2));
    assert_eq!(read(&file), Ok(()));
}

#[test]
fn an_image_cut_off_at_any_length_is_refused() {
    let file = small();
    for length in 0..file.len() {
        let error = read(&file[..length]).unwrap_err();
        let found_bytes = length as u64;
        let expected_bytes = file.len() as u64;
        if length < HEADER_BYTES + TRAILER_BYTES {
            assert_eq!(error, ImageError::TooShort { expected_bytes: 72, found_bytes });
        } else {
            assert_eq!(error, ImageError::LengthDiffers { expected_bytes, found_bytes });
        }
        assert!(error.to_string().contains("restart from another generation"), "{error}");
    }
    let mut longer = file.clone();
    longer.push(0);
    assert!(matches!(read(&longer), Err(ImageError::LengthDiffers { .. })));
}

#[test]
fn any_bit_that_flips_is_found() {
    let file = small();
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << bit;
            let error = read(&damaged).expect_err("a flipped bit");
            let of_header = matches!(error, ImageError::NotAnImage { .. } | ImageError::HeaderDamaged { .. });
            assert_eq!(of_header, at < HEADER_BYTES, "byte {at} bit {bit}: {error}");
        }
    }
}

#[test]
fn a_header_of_zeros_is_an_unfinished_image() {
    let mut file = small();
    file[..HEADER_BYTES].fill(0);
    assert_eq!(read(&file), Err(ImageError::HalfWritten));
}

#[test]
fn another_version_is_named() {
    let error = read(&forge_header(4, &2u16.to_le_bytes())).unwrap_err();
    assert_eq!(error, ImageError::UnsupportedVersion { found: 2, readable: 1..=1 });
    assert_eq!(
        error.to_string(),
        "the image has format version 2, this build reads 1 to 1; use a build that reads version 2"
    );
    let error = read(&forge_header(4, &0u16.to_le_bytes())).unwrap_err();
    assert_eq!(error, ImageError::UnsupportedVersion { found: 0, readable: 1..=1 });
}

#[test]
fn an_unknown_flag_or_encoding_is_refused() {
    let error = read(&forge_header(6, &4u16.to_le_bytes())).unwrap_err();
    assert_eq!(error, ImageError::UnsupportedFlags { found: 4, known: 3 });
    let error = read(&forge(|entries| entries[1].encoding = 3)).unwrap_err();
    assert_eq!(error, ImageError::UnsupportedEncoding { section: 1, found: 3, known_max: 1 });
}

#[test]
fn lengths_that_cannot_be_are_refused_before_anything_is_allocated() {
    let too_long = read(&forge_header(48, &u64::MAX.to_le_bytes())).unwrap_err();
    assert!(matches!(too_long, ImageError::TooLong { found_bytes: u64::MAX, .. }));
    let longer = read(&forge_header(48, &(1u64 << 40).to_le_bytes())).unwrap_err();
    assert!(matches!(longer, ImageError::LengthDiffers { .. }));
    for sections in [4, 1 << 20, u32::MAX] {
        let error = read(&forge_header(8, &sections.to_le_bytes())).unwrap_err();
        assert!(
            matches!(error, ImageError::TooManySections { .. } | ImageError::TableDamaged { .. }),
            "{sections}: {error}"
        );
    }
    let short = read(&forge_header(48, &71u64.to_le_bytes())).unwrap_err();
    assert!(matches!(short, ImageError::TooManySections { .. }));
}

#[test]
fn sections_lie_between_header_and_table_in_order() {
    let changes: [fn(&mut Vec<Entry>); 8] = [
        |entries| entries[0].offset = 0,
        |entries| entries[0].offset = u64::MAX,
        |entries| entries[1].stored_bytes = u64::MAX,
        |entries| entries[1].bytes += 1,
        |entries| entries[1].offset += 1 << 12,
        |entries| entries.swap(0, 1),
        |entries| entries[2].offset += 1,
        |entries| (entries[2].stored_bytes, entries[2].bytes) = (1, 1),
    ];
    for (number, change) in changes.iter().enumerate() {
        let error = read(&forge(change)).unwrap_err();
        assert!(matches!(error, ImageError::SectionMisplaced { .. }), "{number}: {error}");
    }
    // Between the last section and the table nothing may lie: it would not be checked.
    let error = read(&forge(|entries| {
        entries[2].offset = entries[1].offset;
        entries[1].stored_bytes = 0;
        entries[1].bytes = 0;
    }));
    assert!(matches!(error, Err(ImageError::SectionMisplaced { section: 3, .. })), "{error:?}");
}

#[test]
fn an_image_of_another_owner_is_refused() {
    let mut disk = Memory::new();
    let mut handle = disk.create("image").unwrap();
    disk.append(&mut handle, &small()).unwrap();
    let reader = ImageReader::open(&mut disk, "image").unwrap();
    assert_eq!(reader.expect(&IDENTITY), Ok(()));
    let other_life = Life { counter: 2, nonce: 1 };
    for (expected, text) in [
        (Identity { job: JobId(9), ..IDENTITY }, "belongs to job 000102030405060708090a0b0c0d0e0f"),
        (Identity { life: other_life, ..IDENTITY }, "belongs to life 2.00000000deadbeef"),
        (Identity { epoch: Epoch(4), ..IDENTITY }, "belongs to epoch 3, epoch 4 was expected"),
        (Identity { rank: Rank(0), ..IDENTITY }, "belongs to rank 1, rank 0 was expected"),
    ] {
        let error = reader.expect(&expected).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let error = reader.expect_digest(store::ImageDigest(1)).unwrap_err();
    assert!(matches!(error, StoreError::Image { error: ImageError::WrongDigest { .. }, .. }));
}

#[test]
fn a_section_is_read_to_where_it_belongs() {
    let mut disk = Memory::new();
    let mut handle = disk.create("image").unwrap();
    disk.append(&mut handle, &small()).unwrap();
    let reader = ImageReader::open(&mut disk, "image").unwrap();
    let number = reader.find(kinds::SESSION_REGION).unwrap();
    let mut region = [0; 21];
    reader.read_section_into(&mut disk, number, &mut region).unwrap();
    assert_eq!(region, [0xa5; 21]);
    let error = reader.read_section_into(&mut disk, number, &mut [0; 20]).unwrap_err();
    assert!(error.to_string().contains("21 bytes, 20 were expected"), "{error}");
    let error = reader.find(kinds::PROCESS).unwrap_err();
    assert!(matches!(
        error,
        StoreError::Image { error: ImageError::SectionMissing { kind: kinds::PROCESS }, .. }
    ));
    let error = reader.read_section(&mut disk, 3).unwrap_err();
    let expected = ImageError::NoSuchSection { section: 3, sections: 3 };
    assert_eq!(error, StoreError::Image { path: "image".to_owned(), error: expected });
}

#[test]
fn a_section_that_rots_after_the_image_was_opened_is_found_when_it_is_read() {
    let mut disk = Memory::new();
    let mut handle = disk.create("image").unwrap();
    disk.append(&mut handle, &small()).unwrap();
    let reader = ImageReader::open(&mut disk, "image").unwrap();
    assert!(disk.damage("image", reader.entries()[1].offset + 3, 1));
    assert!(reader.read_section(&mut disk, 0).is_ok());
    let error = reader.read_section(&mut disk, 1).unwrap_err();
    assert!(matches!(error, StoreError::Image { error: ImageError::SectionDamaged { section: 1, .. }, .. }));
}

#[test]
fn how_a_rank_ended_is_read_back() {
    for status in [0, 3, 255, -9, i32::MIN] {
        let bytes = Exited { status }.emit();
        let section = Exited::section(&bytes);
        assert_eq!(Exited::parse(section.version, section.bytes), Ok(Exited { status }));
    }
    assert!(Exited::parse(1, &[0; 3]).is_err());
    assert!(Exited::parse(2, &[0; 4]).is_err());
}

#[test]
fn large_sections_start_at_a_page() {
    let large = vec![1; 100_000];
    let sections = [Section::new(1, 1, b"x"), Section::new(2, 1, &large), Section::new(3, 1, b"y")];
    let file = encode_image(IDENTITY, &sections).unwrap();
    let mut disk = Memory::new();
    let mut handle = disk.create("image").unwrap();
    disk.append(&mut handle, &file).unwrap();
    let reader = ImageReader::open(&mut disk, "image").unwrap();
    let offsets: Vec<u64> = reader.entries().iter().map(|entry| entry.offset).collect();
    assert_eq!(offsets, [64, 4096, 104_096]);
    assert_eq!(read(&file), Ok(()));
}

fn sections() -> impl Strategy<Value = Vec<(u32, u16, u64, Vec<u8>)>> {
    let lengths = prop_oneof![0..40usize, 4000..4200usize, 65_000..70_000usize];
    let bytes = lengths.prop_flat_map(|length| prop::collection::vec(any::<u8>(), length));
    prop::collection::vec((any::<u32>(), any::<u16>(), any::<u64>(), bytes), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

    #[test]
    fn every_way_of_writing_gives_the_same_file(parts in sections(), pieces in 1..50_000usize, job: u128) {
        let identity = Identity { job: JobId(job), ..IDENTITY };
        let sections: Vec<Section> = parts
            .iter()
            .map(|(kind, version, id, bytes)| Section { kind: *kind, version: *version, id: *id, bytes })
            .collect();
        let file = encode_image(identity, &sections).unwrap();

        let mut disk = Memory::new();
        let mut writer = ImageWriter::begin(&mut disk, "image".to_owned(), identity, None).unwrap();
        for section in &sections {
            let head = Section { bytes: b"", ..*section };
            writer.begin_section(&mut disk, head, section.bytes.len() as u64).unwrap();
            for piece in section.bytes.chunks(pieces) {
                writer.write(&mut disk, piece).unwrap();
            }
            writer.end_section(&mut disk).unwrap();
        }
        let summary = writer.finish(&mut disk).unwrap();
        prop_assert_eq!(disk.read("image", 1 << 30).unwrap(), file.clone());
        prop_assert_eq!(summary.bytes, file.len() as u64);
        prop_assert_eq!(summary.kinds.iter().map(|held| held.sections as usize).sum::<usize>(), sections.len());

        let parsed = parse_image(&file).unwrap();
        prop_assert_eq!(&parsed.sections, &sections);
        prop_assert_eq!((parsed.identity, parsed.digest), (identity, summary.digest));
        let reader = ImageReader::open(&mut disk, "image").unwrap();
        prop_assert_eq!(reader.summary(), summary);
        reader.verify(&mut disk).unwrap();
    }

    #[test]
    fn no_bytes_make_the_reader_panic(mut file in prop::collection::vec(any::<u8>(), 0..400), as_image: bool) {
        if as_image && file.len() >= HEADER_BYTES {
            file[..6].copy_from_slice(b"SWIM\x01\x00");
            file[6..8].fill(0);
            let bytes = file.len() as u64;
            file[48..56].copy_from_slice(&bytes.to_le_bytes());
            let sum = store::checksum::checksum(&file[..56]);
            file[56..64].copy_from_slice(&sum.to_le_bytes());
        }
        let _ = read(&file);
    }
}
