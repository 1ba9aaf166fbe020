//! Encrypted images: read with their key alone, whole or not without it, and not to be put together from parts of others.

use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use crate::common::JOB;
use proptest::prelude::*;
use store::checksum::checksum;
use store::image::layout::{ENCODING_PLAIN, ENTRY_BYTES, HEADER_BYTES, TRAILER_BYTES, emit_table};
use store::image::seal::{SEAL_BYTES, is_secret};
use store::image::{
    Base, Entry, Exited, Header, Identity, ImageKey, ImageReader, encode_encrypted_image, encode_image,
    parse_image,
};
use store::job::{Depth, ImageClaim};
use store::protect::Piece;
use store::{Directory, GenerationId, ImageDigest, ImageError, ImageWriter, JobDirectory, Key, Memory};
use store::{Section, Storage, StoreError, kinds};
use transport::{Epoch, Life, Rank};

const IDENTITY: Identity =
    Identity { job: JOB, life: Life { counter: 2, nonce: 0xdead_beef }, epoch: Epoch(3), rank: Rank(1) };
const KEY: Key = Key([7; 32]);
const OTHER: Key = Key([8; 32]);
const SALT: [u8; 24] = [9; 24];

fn region() -> Vec<u8> {
    (0..3 * 4096 + 100u32).map(|at| (at / 7 % 251).to_le_bytes()[0]).collect()
}

/// A port, a region of four pages, another of one, an empty section, and sections that are not encrypted.
fn image(salt: [u8; 24]) -> Vec<u8> {
    let (region, state) = (region(), [0xa5; 4096]);
    let base = Base { generation: IDENTITY.generation(), digest: ImageDigest(5) }.emit();
    let sections = [
        Section::new(kinds::PORT, 1, b"a port with a message that is nobody's business").with_id(1 << 32),
        Section::new(kinds::SESSION_REGION, 1, &region).with_id(7),
        Section::new(kinds::SESSION_REGION, 1, &state).with_id(8),
        Section::new(kinds::SESSION_STATE, 2, b""),
        Base::section(&base),
    ];
    encode_encrypted_image(IDENTITY, &sections, KEY, salt).unwrap()
}

fn disk(file: &[u8]) -> Memory {
    let mut disk = Memory::new();
    let mut handle = disk.create("image").unwrap();
    disk.append(&mut handle, file).unwrap();
    disk
}

fn cause(error: StoreError) -> ImageError {
    match error {
        StoreError::Image { path, error } => {
            assert_eq!(path, "image", "the file is named");
            error
        }
        other => panic!("{other}"),
    }
}

/// The contents of all sections, read with a key.
fn read(file: &[u8], key: &Key) -> Result<Vec<Vec<u8>>, ImageError> {
    let mut disk = disk(file);
    let contents = ImageReader::open(&mut disk, "image").and_then(|mut reader| {
        reader.verify(&mut disk)?;
        reader.unlock(&mut disk, key)?;
        let all = (0..reader.header().sections).map(|number| reader.read_section(&mut disk, number));
        let all = all.collect::<Result<Vec<_>, _>>();
        assert_eq!(
            reader.verify(&mut disk).err(),
            all.as_ref().err().cloned(),
            "whoever only looks finds the same"
        );
        all
    });
    contents.map_err(cause)
}

fn refusal(file: &[u8]) -> ImageError {
    read(file, &KEY).map(drop).unwrap_err()
}

type Change = fn(&mut Header, &mut Vec<(Entry, Vec<u8>)>);

/// Header, sections and their stored bytes, changed without the key, with all checksums corrected.
fn forge(file: &[u8], change: impl FnOnce(&mut Header, &mut Vec<(Entry, Vec<u8>)>)) -> Vec<u8> {
    let mut disk = disk(file);
    let reader = ImageReader::open(&mut disk, "image").unwrap();
    let stored = |entry: &Entry| {
        let from = usize::try_from(entry.offset).unwrap();
        file[from..from + usize::try_from(entry.stored_bytes).unwrap()].to_vec()
    };
    let mut sections: Vec<_> = reader.entries().iter().map(|entry| (*entry, stored(entry))).collect();
    let mut header = *reader.header();
    change(&mut header, &mut sections);
    let mut forged = vec![0; HEADER_BYTES];
    for (entry, bytes) in &mut sections {
        forged.resize(forged.len().next_multiple_of(8), 0);
        entry.offset = forged.len() as u64;
        (entry.bytes, entry.stored_bytes, entry.checksum) =
            (bytes.len() as u64, bytes.len() as u64, checksum(bytes));
        forged.extend_from_slice(bytes);
    }
    let entries: Vec<Entry> = sections.iter().map(|(entry, _)| *entry).collect();
    forged.extend_from_slice(&emit_table(&entries));
    header.sections = u32::try_from(entries.len()).unwrap();
    header.total_bytes = forged.len() as u64;
    forged[..HEADER_BYTES].copy_from_slice(&header.emit());
    forged
}

#[test]
fn only_the_key_reads_what_everybody_can_verify() {
    let file = image(SALT);
    let parsed = parse_image(&file).unwrap();
    assert!(parsed.is_encrypted && parsed.sections.len() == 6);
    let contents = read(&file, &KEY).unwrap();
    assert_eq!((contents[1].clone(), contents[2].clone()), (region(), vec![0xa5; 4096]));
    assert_eq!(contents[5].len(), SEAL_BYTES + 7 * 16, "one tag a page");

    assert_eq!(read(&file, &OTHER), Err(ImageError::OtherKey));
    let mut disk = disk(&file);
    let reader = ImageReader::open(&mut disk, "image").unwrap();
    for (number, entry) in (0..).zip(reader.entries()) {
        let read = reader.read_section(&mut disk, number).map_err(cause);
        assert_eq!(entry.is_encrypted(), is_secret(entry.kind));
        if entry.is_encrypted() {
            assert_eq!(read, Err(ImageError::NoKey), "{}", entry.kind);
        } else {
            assert_eq!(read.as_ref(), Ok(&contents[number as usize]));
        }
    }
    assert!(reader.base(&mut disk).unwrap().is_some(), "what an image needs below it is known without a key");
    for words in [ImageError::NoKey, ImageError::OtherKey].map(|error| error.to_string()) {
        assert!(words.contains("--key-file") && words.contains("STILLWIRE_KEY"), "{words}");
    }
    // A plain image does not pass for an encrypted one.
    let plain = encode_image(IDENTITY, &[Exited::section(&Exited { status: 0 }.emit())]).unwrap();
    assert_eq!(read(&plain, &KEY), Err(ImageError::NotEncrypted));
}

#[test]
fn encrypted_bytes_are_as_many_lie_where_plain_ones_would_and_say_nothing() {
    let (region, base) = (vec![0x5a; 70_000], vec![1; 24]);
    let sections = [
        Section::new(kinds::PORT, 1, b"port"),
        Section::new(kinds::PROCESS_MEMORY, 2, &region),
        Section::new(kinds::BASE, 1, &base),
    ];
    let plain = encode_image(IDENTITY, &sections).unwrap();
    let encrypted = encode_encrypted_image(IDENTITY, &sections, KEY, SALT).unwrap();
    let other_salt = encode_encrypted_image(IDENTITY, &sections, KEY, [10; 24]).unwrap();
    let mut disks = [disk(&plain), disk(&encrypted)];
    let [plain_reader, reader] = disks.each_mut().map(|disk| ImageReader::open(disk, "image").unwrap());
    let place = |entry: &Entry| (entry.kind, entry.id, entry.offset, entry.stored_bytes, entry.bytes);
    let places: Vec<_> = reader.entries().iter().map(place).collect();
    assert_eq!(places[..3], plain_reader.entries().iter().map(place).collect::<Vec<_>>()[..]);
    // Parity finds each page where it was.
    let pieces = |reader: &ImageReader| Piece::of_image("image", reader, |_| vec![(1000, 17)]);
    assert_eq!(pieces(&plain_reader)[..3], pieces(&reader)[..3]);

    // All these pages hold the same: no two of them look alike, nor do those of another image.
    let pages = |file: &[u8]| -> Vec<Vec<u8>> {
        let from = usize::try_from(places[1].2).unwrap();
        file[from..from + 16 * 4096].chunks(4096).map(<[u8]>::to_vec).collect()
    };
    let mut all = [pages(&encrypted), pages(&other_salt)].concat();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 32);
    let run = [0x5a; 8];
    assert!(plain.windows(8).any(|window| window == run));
    assert!(!encrypted.windows(8).any(|window| window == run));
}

#[test]
fn any_bit_that_flips_is_found_without_a_key() {
    let file = image(SALT);
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(parse_image(&damaged).is_err(), "byte {at}");
        let mut disk = disk(&damaged);
        let verified = ImageReader::open(&mut disk, "image").and_then(|reader| reader.verify(&mut disk));
        assert!(verified.is_err(), "byte {at}");
    }
}

#[test]
fn nobody_without_the_key_changes_an_image_unnoticed() {
    let file = image(SALT);
    let (here, elsewhere) = (image(SALT), image([10; 24]));
    assert!(forge(&file, |_, _| ()) == file, "whoever changes nothing forges nothing");

    // Bytes of pages, each with the table as it was.
    let in_place = |change: fn(&mut [u8])| {
        let mut disk = disk(&file);
        let mut entries = ImageReader::open(&mut disk, "image").unwrap().entries().to_vec();
        let mut forged = file.clone();
        let from = usize::try_from(entries[1].offset).unwrap();
        let content = &mut forged[from..from + 3 * 4096 + 100];
        change(content);
        entries[1].checksum = checksum(content);
        let table = forged.len() - entries.len() * ENTRY_BYTES - TRAILER_BYTES;
        forged.truncate(table);
        forged.extend_from_slice(&emit_table(&entries));
        parse_image(&forged).expect("whoever has no key finds nothing");
        forged
    };
    // The checksum of the section is in the table, whose tag cannot be forged.
    assert_eq!(refusal(&in_place(|bytes| bytes[5000] ^= 1)), ImageError::TableForged);
    let swapped = in_place(|bytes| {
        let (one, two) = bytes[..2 * 4096].split_at_mut(4096);
        one.swap_with_slice(two);
    });
    assert_eq!(refusal(&swapped), ImageError::TableForged);

    // Sections left out, exchanged, cut off, passed for others; another rank's; another image's seal.
    let changes: [Change; 4] = [
        |_, sections| sections.swap(1, 2),
        |_, sections| {
            let ids = (sections[2].0.id, sections[1].0.id);
            (sections[1].0.id, sections[2].0.id) = ids;
        },
        |header, _| header.identity.rank = Rank(0),
        |header, _| header.identity.epoch = Epoch(4),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let forged = forge(&file, change);
        parse_image(&forged).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(refusal(&forged), ImageError::TableForged, "{number}");
    }
    let lengths: [Change; 3] = [
        |_, sections| drop(sections.remove(2)),
        |_, sections| sections[1].1.truncate(2 * 4096),
        |_, sections| sections[5].1.truncate(SEAL_BYTES + 6 * 16),
    ];
    for (number, change) in lengths.into_iter().enumerate() {
        let forged = forge(&file, change);
        let refused = parse_image(&forged);
        assert!(matches!(refused, Err(ImageError::SealLengthDiffers { .. })), "{number}: {refused:?}");
    }
    // The seal of another image with the same content: its salt is another, and so is every tag.
    let other_seal =
        |file: &[u8]| file[file.len() - 6 * ENTRY_BYTES - TRAILER_BYTES - SEAL_BYTES - 112..].to_vec();
    assert_ne!(other_seal(&here)[..24], other_seal(&elsewhere)[..24]);
    let seal = other_seal(&elsewhere)[..SEAL_BYTES + 112].to_vec();
    let mut disk = disk(&file);
    let mut entries = ImageReader::open(&mut disk, "image").unwrap().entries().to_vec();
    entries[5].checksum = checksum(&seal);
    let mut mixed = file[..usize::try_from(entries[5].offset).unwrap()].to_vec();
    mixed.extend_from_slice(&seal);
    mixed.extend_from_slice(&emit_table(&entries));
    parse_image(&mixed).unwrap();
    assert_eq!(refusal(&mixed), ImageError::TableForged);
}

// An attacker who can read a section can look for other bytes with its checksum, which is no tag.
#[test]
fn what_everybody_may_read_is_not_changed_without_the_key() {
    let mut base = [1; 24];
    // A word of XXH3's secret: with it there the last eight bytes count for nothing.
    base[8..16].copy_from_slice(&[0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb]);
    let mut other = base;
    other[16..].fill(2);
    assert_eq!(checksum(&base), checksum(&other));
    let file = encode_encrypted_image(IDENTITY, &[Base::section(&base)], KEY, SALT).unwrap();
    let forged = forge(&file, |_, sections| sections[0].1 = other.to_vec());
    parse_image(&forged).expect("whoever has no key finds nothing");
    assert_eq!(refusal(&forged), ImageError::PageForged { section: 0, page: 0 });
    let mut disk = disk(&forged);
    let mut reader = ImageReader::open(&mut disk, "image").unwrap();
    reader.unlock(&mut disk, &KEY).unwrap();
    let refused = reader.base(&mut disk).map_err(cause);
    assert_eq!(refused, Err(ImageError::PageForged { section: 0, page: 0 }));
}

// An attacker who has changed images has changed the records that name them, too.
#[test]
fn a_generation_is_judged_with_the_key_where_it_is_known() {
    let id = crate::common::generation(crate::common::life(1, 7), 1);
    let mut job = JobDirectory::create(Memory::new(), &crate::common::job_file()).unwrap();
    job.start_life(7, None).unwrap();
    job.begin_generation(id).unwrap();
    let sections = [Section::new(kinds::PORT, 1, b"port")];
    let identity = |rank| Identity { job: JOB, life: id.life, epoch: id.epoch, rank };
    let encrypted = encode_encrypted_image(identity(Rank(0)), &sections, KEY, SALT).unwrap();
    let forged = forge(&encrypted, |_, sections| sections[0].0.id = 1);
    let plain = encode_image(identity(Rank(1)), &sections).unwrap();
    let mut claims = Vec::new();
    for (rank, file) in [(Rank(0), &forged), (Rank(1), &plain)] {
        let path = format!("{}/rank-{:08}.image", store::job::folder(id), rank.0);
        let mut handle = job.storage().create(&path).unwrap();
        job.storage().append(&mut handle, file).unwrap();
        let summary = ImageReader::open(job.storage(), &path).unwrap().summary();
        claims.push(ImageClaim { rank, node: 0, digest: summary.digest, bytes: summary.bytes });
    }
    job.commit(&crate::common::request(id, claims)).unwrap();
    assert_eq!(job.verify(id, Depth::Everything).unwrap(), []);
    let mut job = job.encrypted(Some(ImageKey { key: KEY, salt: random_salt }));
    let damages = job.verify(id, Depth::Everything).unwrap().into_iter();
    let causes: Vec<_> = damages
        .map(|damage| match damage.error {
            StoreError::Image { error, .. } => error,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(causes, [ImageError::TableForged, ImageError::NotEncrypted]);
}

#[test]
fn a_page_is_read_in_its_own_place_alone() {
    // Two pages of one section, two sections, two salts: tags travel with pages, and the table is the forger's.
    let pages = [0x11; 4096 * 2];
    let sections =
        [Section::new(kinds::PROCESS_MEMORY, 2, &pages), Section::new(kinds::SESSION_REGION, 1, &pages)];
    let file = encode_encrypted_image(IDENTITY, &sections, KEY, SALT).unwrap();
    let mut disk = disk(&file);
    let mut reader = ImageReader::open(&mut disk, "image").unwrap();
    let offsets: Vec<u64> = reader.entries().iter().map(|entry| entry.offset).collect();
    // Unlocked before the file is changed: then each page is checked by its tag.
    reader.unlock(&mut disk, &KEY).unwrap();
    let mut page = [0; 4096];
    for (section, number) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        reader.read_pages(&mut disk, section, number, &mut page).unwrap();
        assert_eq!(page, [0x11; 4096]);
        let from = usize::try_from(offsets[section as usize] + number * 4096).unwrap();
        for other in offsets[..2].iter().flat_map(|offset| [*offset, offset + 4096]) {
            let mut moved = file.clone();
            moved.copy_within(usize::try_from(other).unwrap()..usize::try_from(other).unwrap() + 4096, from);
            let mut moved = self::disk(&moved);
            let read = reader.read_pages(&mut moved, section, number, &mut page).map_err(cause);
            let expected = ImageError::PageForged { section, page: number };
            assert_eq!(read, if other == from as u64 { Ok(()) } else { Err(expected) });
        }
    }
    let beyond = reader.read_pages(&mut disk, 0, 1, &mut [0; 8192]).map_err(cause);
    assert!(matches!(beyond, Err(ImageError::SectionLengthDiffers { .. })));
}

#[test]
fn header_table_and_seal_must_agree_about_encryption() {
    let file = image(SALT);
    let refused = |change: Change| parse_image(&forge(&file, change)).unwrap_err();
    assert_eq!(refused(|header, _| header.is_encrypted = false), ImageError::SealDiffers { has_seal: true });
    let sealless = refused(|_, sections| drop(sections.pop()));
    assert_eq!(sealless, ImageError::SealDiffers { has_seal: false });
    let not_last = refused(|_, sections| sections.swap(4, 5));
    assert_eq!(not_last, ImageError::SealDiffers { has_seal: false });
    let twice = refused(|_, sections| sections.insert(0, sections[5].clone()));
    assert_eq!(twice, ImageError::SealDiffers { has_seal: true });
    let newer = refused(|_, sections| sections[5].0.version = 2);
    assert_eq!(newer, ImageError::SealVersion { id: 0, found: 2, known: 1 });
    let other = refused(|_, sections| sections[5].0.id = 1);
    assert_eq!(other, ImageError::SealVersion { id: 1, found: 1, known: 1 });
    let open = refused(|_, sections| sections[1].0.encoding = ENCODING_PLAIN);
    assert_eq!(open, ImageError::NotSecret { section: 1, kind: kinds::SESSION_REGION });
}

fn random_salt() -> Option<[u8; 24]> {
    use std::io::Read as _;
    let mut salt = [0; 24];
    std::fs::File::open("/dev/urandom").ok()?.read_exact(&mut salt).ok().map(|()| salt)
}

#[test]
fn pages_that_somebody_else_encrypts_have_their_tags_taken_away() {
    let scratch = tempfile::tempdir().unwrap();
    let storage = Directory::create(scratch.path().join("job")).unwrap();
    let key = ImageKey { key: KEY, salt: random_salt };
    let mut job = JobDirectory::create(storage, &crate::common::job_file()).unwrap().encrypted(Some(key));
    let decision = job.start_life(7, None).unwrap();
    let generation = GenerationId { life: decision.life, epoch: Epoch(1) };
    job.begin_generation(generation).unwrap();
    let mut writer = job.begin_image(generation, Rank(0)).unwrap();
    writer.section(job.storage(), Section::new(kinds::PORT, 1, &[1; 100])).unwrap();
    let offset = writer.begin_outside(job.storage(), kinds::PROCESS_MEMORY, 1, 0).unwrap();
    let plain: Vec<u8> = (0..5 * 4096u32).map(|at| at.to_le_bytes()[1]).collect();
    let (mut pages, seal) = (plain.clone(), writer.section_seal().unwrap());
    let tags: Vec<u8> =
        (0..).zip(pages.chunks_mut(4096)).flat_map(|(number, page)| seal.seal(number, page)).collect();
    let outside = std::fs::File::from(writer.file().as_fd().try_clone_to_owned().unwrap());
    outside.write_all_at(&[pages.as_slice(), &tags].concat(), offset).unwrap();
    writer.end_outside(job.storage(), pages.len() as u64, checksum(&pages)).unwrap();
    writer.section(job.storage(), Section::new(kinds::PROCESS, 1, b"")).unwrap();
    let summary = writer.finish(job.storage()).unwrap();

    let reader = job.open_image(generation, Rank(0)).unwrap();
    reader.verify(job.storage()).unwrap();
    assert_eq!(reader.read_section(job.storage(), 1).unwrap(), plain);
    assert_eq!((reader.entries()[1].offset, reader.digest()), (offset, summary.digest));

    let mut without = JobDirectory::attach(job.storage().clone(), crate::common::JOB);
    assert!(without.open_image(generation, Rank(0)).is_ok(), "whether it is whole needs no key");
    let other = Some(ImageKey { key: OTHER, salt: random_salt });
    let refused = without.encrypted(other).open_image(generation, Rank(0)).unwrap_err();
    assert!(matches!(refused, StoreError::Image { error: ImageError::OtherKey, .. }), "{refused}");
}

#[test]
fn an_image_that_is_written_again_has_a_salt_of_its_own() {
    let mut disk = Memory::new();
    let key = ImageKey { key: KEY, salt: random_salt };
    let mut files = Vec::new();
    for path in ["one", "two"] {
        let mut writer = ImageWriter::begin(&mut disk, path.to_owned(), IDENTITY, Some(&key)).unwrap();
        writer.section(&mut disk, Section::new(kinds::SESSION_REGION, 1, &[0; 4096])).unwrap();
        writer.finish(&mut disk).unwrap();
        files.push(disk.read(path, 1 << 20).unwrap());
    }
    assert_ne!(files[0][64..64 + 4096], files[1][64..64 + 4096]);
    let none = ImageKey { key: KEY, salt: || None };
    let refused = ImageWriter::begin(&mut disk, "image".to_owned(), IDENTITY, Some(&none)).map(drop);
    assert_eq!(refused.map_err(cause), Err(ImageError::NoSalt));
    assert!(disk.length("image.tmp").is_err(), "nothing was begun");
}

fn sections() -> impl Strategy<Value = Vec<(u32, u64, Vec<u8>)>> {
    let kind =
        prop::sample::select(vec![kinds::PORT, kinds::SESSION_REGION, kinds::PROCESS_PLACES, 0x8000_0001]);
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        prop::collection::vec(any::<u8>(), 0..90_000)
    ];
    prop::collection::vec((kind, any::<u64>(), bytes), 0..5)
}

fn salt_of_the_property() -> Option<[u8; 24]> {
    Some(SALT)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 48 }))]

    #[test]
    fn what_is_encrypted_in_any_pieces_is_read(parts in sections(), pieces in 1..50_000usize) {
        let sections: Vec<Section> =
            parts.iter().map(|(kind, id, bytes)| Section::new(*kind, 1, bytes).with_id(*id)).collect();
        let file = encode_encrypted_image(IDENTITY, &sections, KEY, SALT).unwrap();
        let mut disk = Memory::new();
        let key = ImageKey { key: KEY, salt: salt_of_the_property };
        let mut writer = ImageWriter::begin(&mut disk, "image".to_owned(), IDENTITY, Some(&key)).unwrap();
        for section in &sections {
            let head = Section { bytes: b"", ..*section };
            writer.begin_section(&mut disk, head, section.bytes.len() as u64).unwrap();
            for piece in section.bytes.chunks(pieces) {
                writer.write(&mut disk, piece).unwrap();
            }
            writer.end_section(&mut disk).unwrap();
        }
        writer.finish(&mut disk).unwrap();
        prop_assert_eq!(disk.read("image", 1 << 30).unwrap(), file.clone());
        let contents = read(&file, &KEY).unwrap();
        prop_assert_eq!(contents.len(), sections.len() + 1);
        for (section, content) in sections.iter().zip(&contents) {
            prop_assert_eq!(section.bytes, content);
        }
    }
}
