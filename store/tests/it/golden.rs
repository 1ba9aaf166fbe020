//! Files written by version 1 stay readable: an unannounced change of format fails here.
//!
//! After a change that is meant, raise the version, keep the old file, and add the new one:
//! `STILLWIRE_WRITE_GOLDEN=1 cargo test -p stillwire-store --test it golden` writes files that are missing.

use std::path::PathBuf;

use crate::common::{JOB, generation, job_file, life};
use store::delta::ContentName;
use store::image::layout::VERSION;
use store::image::{Identity, ImageSummary, KindSummary, Section, encode_image, parse_image};
use store::packets::{Key, KeyUse};
use store::record::{
    BaseCopy, Copied, CopiedFile, CopiedImage, CopiedRank, KeyName, ManifestImage, SinceWhole,
};
use store::{CommitRecord, Decision, End, ImageDigest, JobFile, Manifest, kinds};
use transport::{Epoch, Rank};

fn golden(name: &str, now: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if !path.exists() && std::env::var_os("STILLWIRE_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, now).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_image_of_version_1_is_read_and_still_written() {
    let identity = Identity { job: JOB, life: life(2, 0xdead_beef), epoch: Epoch(3), rank: Rank(1) };
    let region: Vec<u8> = (0..=255).collect();
    let sections = [
        Section::new(kinds::PORT, 1, b"not really a port").with_id(1 << 32),
        Section::new(kinds::SESSION_REGION, 1, &region).with_id(7),
        Section::new(kinds::SESSION_STATE, 1, b""),
    ];
    let now = encode_image(identity, &sections).unwrap();
    let then = golden("v1.image", &now);
    let parsed = parse_image(&then).unwrap();
    assert_eq!((parsed.identity, parsed.sections.as_slice()), (identity, sections.as_slice()));
    assert_eq!(parsed.digest.to_string(), "065e65a47fe2a1be");
    assert_eq!(VERSION, 1, "a new version needs a golden file of its own");
    assert_eq!(now, then, "the bytes changed, the version did not");
}

#[test]
fn the_records_of_version_1_are_read_and_still_written() {
    let from = generation(life(1, 0x0123_4567_89ab_cdef), 3);
    let decision = Decision { job: JOB, life: life(2, 0xdead_beef), from: Some(from) };
    let then = golden("v1.decision", &decision.emit());
    assert_eq!(Decision::parse(&then), Ok(decision));
    assert_eq!(decision.emit(), then);

    let first = Decision { from: None, ..decision };
    let then = golden("v1.decision-first", &first.emit());
    assert_eq!(Decision::parse(&then), Ok(first));
    assert_eq!(first.emit(), then);

    let end = End { job: JOB, life: life(2, 0xdead_beef), ended_unix_ms: 1_795_249_799_999 };
    let then = golden("v1.end", &end.emit());
    assert_eq!(End::parse(&then), Ok(end));
    assert_eq!(end.emit(), then);

    let then = golden("v1.job", &job_file().emit());
    assert_eq!(JobFile::parse(&then), Ok(job_file()));
    assert_eq!(job_file().emit(), then);

    let manifest = manifest();
    let then = golden("v1.manifest", &manifest.emit());
    assert_eq!(Manifest::parse(&then).as_ref(), Ok(&manifest));
    assert_eq!(manifest.emit(), then);

    let images = manifest.images.iter().map(|image| image.summary.digest).collect();
    let manifest_sum = Manifest::checksum(&then);
    let commit = CommitRecord { job: JOB, generation: manifest.generation, manifest: manifest_sum, images };
    let then = golden("v1.commit", &commit.emit());
    assert_eq!(CommitRecord::parse(&then).as_ref(), Ok(&commit));
    assert_eq!(commit.emit(), then);

    let file = |digest| CopiedFile { digest: ImageDigest(digest), bytes: 5000, stored_bytes: 900, footer: 7 };
    let image = |digest| CopiedImage { digest: ImageDigest(digest), bytes: 6000 };
    let rank = CopiedRank {
        image: image(0),
        base: None,
        content: ContentName(0xc0_ffee),
        blocks_bytes: 4711,
        places: file(0xface),
    };
    let copied = Copied {
        job: JOB,
        generation: manifest.generation,
        taken_unix_ms: manifest.taken_unix_ms,
        copied_unix_ms: 1_795_249_899_999,
        key: Some(KeyName { id: 0x0123_4567_89ab_cdef, usage: KeyUse::Encrypt }),
        manifest: manifest_sum,
        upon: Some(BaseCopy { generation: generation(life(2, 0xdead_beef), 3), record: 0xfeed }),
        becomes_base: true,
        since_whole: None,
        job_file: file(0x5eed),
        ranks: vec![
            CopiedRank { image: image(0xabc), base: Some(image(0xabb)), ..rank },
            CopiedRank { image: image(0xdef), base: None, ..rank },
        ],
        signature: None,
    };
    let then = golden("v1.copied", &copied.emit());
    assert_eq!(Copied::parse(&then).as_ref(), Ok(&copied));
    assert_eq!(copied.emit(), then);
    let since_whole = Some(SinceWhole { copies: 5, bytes: 70_000 });
    let copied = Copied { since_whole, ..copied };
    let then = golden("v1.copied-since", &copied.emit());
    assert_eq!(Copied::parse(&then).as_ref(), Ok(&copied));
    assert_eq!(copied.emit(), then);
    let key = Key([7; 32]);
    let name = KeyName { id: key.id(), usage: KeyUse::Sign };
    let mut copied = Copied { key: Some(name), ..copied };
    copied.sign(&key, [5; 24], &manifest.emit());
    let then = golden("v1.copied-signed", &copied.emit());
    assert_eq!(Copied::parse(&then).as_ref(), Ok(&copied));
    assert_eq!(copied.emit(), then);
    assert!(copied.is_signed(&key) && copied.is_manifest_signed(&key, &manifest.emit()));
}

fn manifest() -> Manifest {
    let kinds = vec![
        KindSummary { kind: 0x101, sections: 2, bytes: 1 << 30 },
        KindSummary { kind: 0x201, sections: 1, bytes: 99 },
    ];
    let image = |rank, digest| ManifestImage {
        rank: Rank(rank),
        node: rank,
        file: format!("rank-{rank:08}.image"),
        summary: ImageSummary { digest: ImageDigest(digest), bytes: (1 << 30) + 4096, kinds: kinds.clone() },
    };
    Manifest {
        job: JOB,
        generation: generation(life(2, 0xdead_beef), 4),
        taken_unix_ms: 1_700_000_000_123,
        nodes: vec!["alpha".to_owned(), "beta with space".to_owned()],
        images: vec![image(0, 1), image(1, u64::MAX)],
    }
}
