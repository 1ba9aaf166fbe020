//! The fuzz targets' corpora as an ordinary test. A file whose name begins with `ok-` must be accepted, all others
//! must be refused; none may panic.
//!
//! `STILLWIRE_WRITE_GOLDEN=1 cargo test -p stillwire-store --test corpus` writes the seeds that are missing.

mod common;
#[path = "../corpus/properties.rs"]
mod properties;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::{JOB, Random, generation, job_file, life};
use store::checksum::checksum;
use store::image::{Identity, Section, encode_image};
use store::{CommitRecord, Decision, ImageDigest};
use transport::{Epoch, Rank};

type Seeds = BTreeMap<&'static str, Vec<u8>>;

fn replay(target: &str, seeds: &Seeds, accepts: fn(&[u8]) -> bool) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    if std::env::var_os("STILLWIRE_WRITE_GOLDEN").is_some() {
        for (name, bytes) in seeds.iter().filter(|(name, _)| !folder.join(name).exists()) {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
    }
    let mut replayed = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        assert_eq!(accepts(&bytes), name.starts_with("ok-"), "{target}/{name}");
        // And a few mutations of each, the same in every run.
        let mut random = Random::new(checksum(&bytes));
        for _ in 0..200 {
            let mut mutated = bytes.clone();
            for _ in 0..=random.below(4) {
                if mutated.is_empty() {
                    break;
                }
                let at = usize::try_from(random.below(mutated.len() as u64)).unwrap();
                match random.below(4) {
                    0 => mutated[at] ^= 1 << random.below(8),
                    1 => mutated[at] = u8::try_from(random.below(256)).unwrap(),
                    2 => drop(mutated.remove(at)),
                    _ => mutated.insert(at, b'0'),
                }
            }
            accepts(&mutated);
        }
        replayed += 1;
    }
    assert!(replayed >= seeds.len(), "{replayed} files in {}", folder.display());
}

#[test]
fn images() {
    let identity = Identity { job: JOB, life: life(1, 2), epoch: Epoch(3), rank: Rank(0) };
    let small =
        [Section::new(0x101, 1, &[7; 13]), Section::new(0x201, 2, b"port"), Section::new(0x102, 1, b"")];
    let small = encode_image(identity, &small).unwrap();
    let head = |at: usize, bytes: &[u8]| {
        let mut file = small.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        let sum = checksum(&file[..56]).to_le_bytes();
        file[56..64].copy_from_slice(&sum);
        file
    };
    let mut unfinished = small.clone();
    unfinished[..64].fill(0);
    let seeds = Seeds::from([
        ("ok-no-sections", encode_image(identity, &[]).unwrap()),
        ("ok-small", small.clone()),
        ("ok-exited", encode_image(identity, &[Section::new(0x401, 1, &[0; 4])]).unwrap()),
        ("bad-empty", vec![]),
        ("bad-cut-off", small[..100].to_vec()),
        ("bad-unfinished", unfinished),
        ("bad-version", head(4, &9u16.to_le_bytes())),
        ("bad-flags", head(6, &1u16.to_le_bytes())),
        ("bad-sections", head(8, &u32::MAX.to_le_bytes())),
        ("bad-length", head(48, &u64::MAX.to_le_bytes())),
    ]);
    replay("image", &seeds, properties::image);
}

#[test]
fn records() {
    let of = generation(life(1, 2), 3);
    let images = vec![ImageDigest(1), ImageDigest(2)];
    let commit = CommitRecord { job: JOB, generation: of, manifest: 5, images }.emit();
    let decision = Decision { job: JOB, life: life(2, 9), from: Some(of) }.emit();
    let manifest = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/v1.manifest")).unwrap();
    let seeds = Seeds::from([
        ("ok-commit", commit.clone()),
        ("ok-decision", decision),
        ("ok-first-decision", Decision { job: JOB, life: life(1, 9), from: None }.emit()),
        ("ok-job", job_file().emit()),
        ("ok-manifest", manifest.clone()),
        ("bad-empty", vec![]),
        ("bad-cut-off", commit[..commit.len() - 5].to_vec()),
        ("bad-checksum", [&manifest[..manifest.len() - 2], b"g\n"].concat()),
        ("bad-other-file", b"hello, world\n".to_vec()),
    ]);
    replay("manifest", &seeds, properties::manifest);
}
