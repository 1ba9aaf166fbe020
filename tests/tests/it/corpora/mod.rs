//! Replays the fuzz corpora on a stable toolchain: each file as it is, cut short at every length, with every bit
//! flipped, and with many random damages, the same in every run. The properties are those of the fuzz targets.

#[expect(unreachable_pub, reason = "the file is also the library of the fuzz targets")]
#[path = "../../../../fuzz/src/lib.rs"]
mod properties;

mod delta_seeds;
mod dump_seeds;
mod process_seeds;
mod protector_seeds;
mod seeds;

use std::fs;
use std::path::{Path, PathBuf};

use ckpt_glue::control::stream;
use ckpt_glue::{ControlKey, JobConfig};
use store::record::{Content, Copied, Seats};
use store::{CommitRecord, Decision, End, JobFile, Manifest};
use transport::wire::Frame;

/// Longer files are replayed as they are: cutting and flipping costs the square of the length.
const DAMAGED_BYTES_MAX: usize = 2048;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target)
}

/// Tells whether the bytes are a whole one of its kind.
type Accepts = fn(&[u8]) -> bool;

/// Calls `property` with every file of the corpus; each of `kinds` must accept at least one of them.
fn replay(target: &str, property: fn(&[u8]), kinds: &[Accepts]) {
    let mut whole = vec![0; kinds.len()];
    for entry in fs::read_dir(corpus(target)).expect("every target has a corpus") {
        let bytes = fs::read(entry.expect("the corpus can be read").path()).expect("the corpus can be read");
        property(&bytes);
        for (accepts, whole) in kinds.iter().zip(&mut whole) {
            *whole += u32::from(accepts(&bytes));
        }
        if bytes.len() <= DAMAGED_BYTES_MAX {
            damage(&bytes, property);
            damage_at_random(&bytes, property);
        }
    }
    assert!(
        !whole.contains(&0),
        "{target}: {whole:?} files are accepted; after a change of format write new seeds"
    );
}

/// Random damages of each file.
const RANDOM_DAMAGES: u32 = 20_000;

/// SplitMix64: the same numbers in every run and on every machine.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).expect("it is below a usize")
    }
}

/// Up to four changes: a byte that parsers like, a piece taken out, doubled, or moved.
fn damage_at_random(bytes: &[u8], property: fn(&[u8])) {
    const LIKED: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b' ', b'9'];
    let mut numbers = Numbers(bytes.len() as u64);
    for _ in 0..RANDOM_DAMAGES {
        let mut damaged = bytes.to_vec();
        for _ in 0..=numbers.below(4) {
            if damaged.is_empty() {
                break;
            }
            let (at, to) = (numbers.below(damaged.len()), numbers.below(damaged.len()));
            let end = (at + 1 + numbers.below(16)).min(damaged.len());
            let piece = damaged[at..end].to_vec();
            match numbers.below(4) {
                0 => damaged[at] = LIKED[numbers.below(LIKED.len())],
                1 => drop(damaged.drain(at..end)),
                2 => drop(damaged.splice(to..to, piece)),
                _ => damaged[at..end].rotate_left(1),
            }
        }
        property(&damaged);
    }
}

fn damage(bytes: &[u8], property: fn(&[u8])) {
    for length in 0..bytes.len() {
        property(&bytes[..length]);
    }
    let mut damaged = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        property(&damaged);
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn frames() {
    replay("frame", properties::frame, &[|bytes| Frame::parse(bytes).is_ok()]);
}

#[test]
fn captures_parse_or_are_refused() {
    let has_frames = |bytes: &[u8]| {
        drivers::capture::pcapng::read(bytes)
            .is_ok_and(|capture| capture.damage.is_none() && capture.packets.len() > 2)
    };
    replay("capture", properties::capture, &[has_frames]);
}

#[test]
fn frames_to_a_port() {
    // A conversation is whole when nothing is left of it behind its last frame.
    replay(
        "port",
        properties::port,
        &[|bytes| {
            let mut rest = bytes;
            while let Some((length, tail)) = rest.split_first_chunk::<2>() {
                let length = usize::from(u16::from_le_bytes(*length));
                let Some(tail) = tail.get(length..) else { return false };
                rest = tail;
            }
            rest.is_empty()
        }],
    );
}

#[test]
fn port_sections() {
    let loads: Accepts =
        |bytes| nic_freeze::load(nic_freeze::SECTION_VERSION, bytes, properties::dump_config(), None).is_ok();
    replay("dump", properties::dump, &[loads]);
}

#[test]
fn images() {
    replay("image", properties::image, &[|bytes| store::image::parse_image(bytes).is_ok()]);
}

#[test]
fn packets() {
    let opens: Accepts = |bytes| store::packets::PacketReader::open(bytes, None).is_ok();
    replay("packets", properties::packets, &[opens]);
}

#[test]
fn deltas() {
    replay(
        "delta",
        properties::delta,
        &[
            |bytes| store::delta::DeltaReader::open(bytes, None).is_ok(),
            |bytes| store::delta::Signature::parse(bytes).is_ok(),
        ],
    );
}

#[test]
fn manifests() {
    replay(
        "manifest",
        properties::manifest,
        &[
            |bytes| Manifest::parse(bytes).is_ok(),
            |bytes| CommitRecord::parse(bytes).is_ok(),
            |bytes| Decision::parse(bytes).is_ok(),
            |bytes| End::parse(bytes).is_ok(),
            |bytes| Seats::parse(bytes).is_ok(),
            |bytes| Copied::parse(bytes).is_ok(),
            |bytes| Content::parse(bytes).is_ok(),
        ],
    );
}

#[test]
fn job_files() {
    replay(
        "jobfile",
        properties::jobfile,
        &[|bytes| JobFile::parse(bytes).is_ok(), |bytes| JobConfig::parse(bytes).is_ok()],
    );
}

#[test]
fn control_frames() {
    replay(
        "control",
        properties::control,
        &[
            |bytes| stream::parse(&ControlKey::new(&properties::CONTROL_KEY), bytes).is_ok(),
            |bytes| ckpt_glue::control::ExitedRecord::parse(bytes).is_ok(),
            |bytes| ckpt_glue::pmi::RankState::parse(bytes).is_ok(),
        ],
    );
}

#[test]
fn process_sections() {
    replay(
        "process",
        properties::process,
        &[
            |bytes| process::state::ProcessState::decode(process::state::VERSION, bytes).is_ok(),
            |bytes| process::state::Files::decode(process::state::VERSION, bytes).is_ok(),
            |bytes| process::state::Unchanged::decode(process::state::VERSION, bytes).is_ok(),
        ],
    );
}

#[test]
fn packs() {
    let several: Accepts = |bytes| drivers::pack::Frames::of(bytes).is_some();
    replay("pack", properties::pack, &[several]);
}

#[test]
fn scenarios() {
    let parses: Accepts =
        |bytes| core::str::from_utf8(bytes).is_ok_and(|text| sim::scenario::parse(text).is_ok());
    replay("scenario", properties::scenario, &[parses]);
}

#[test]
fn messages_of_protectors() {
    let kinds: [Accepts; 2] = [
        |bytes| protector::message::Message::parse(bytes).is_ok(),
        |bytes| protector::message::Strips::parse(bytes).is_ok(),
    ];
    replay("protector", properties::protector, &kinds);
}

#[test]
fn every_target_has_a_corpus_and_is_replayed_here() {
    let folder = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz").join(name);
    let names = |path: PathBuf| {
        let entries = fs::read_dir(path).expect("fuzz/ is part of the tree");
        let stem = |path: PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
        let mut names: Vec<_> = entries.map(|entry| stem(entry.expect("it can be read").path())).collect();
        names.sort();
        names
    };
    let targets = names(folder("fuzz_targets"));
    assert_eq!(targets, names(folder("corpus")));
    let source: String = include_str!("mod.rs").split_whitespace().collect();
    for target in targets {
        let replayed = source.contains(&format!("replay(\"{target}\""));
        assert!(replayed, "{target} is not replayed by a test");
    }
}

#[test]
#[ignore = "writes files: call it by name after a format has changed"]
fn write_seeds() {
    for (target, files) in seeds::all() {
        fs::create_dir_all(corpus(target)).expect("the corpus can be written");
        for (name, bytes) in files {
            fs::write(corpus(target).join(name), bytes).expect("the corpus can be written");
        }
    }
}
