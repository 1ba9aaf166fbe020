//! Records are read exactly as they were written, or refused with the reason.

use std::collections::BTreeMap;

use crate::common::{JOB, generation, job_file, life};
use ckpt_glue::protection::seat::JobEnd;
use proptest::prelude::*;
use store::delta::ContentName;
use store::image::{ImageSummary, KindSummary};
use store::packets::KeyUse;
use store::record::{
    BaseCopy, Copied, CopiedFile, CopiedImage, CopiedRank, JobEndRecord, KeyName, ManifestImage, Signature,
    SinceWhole,
};
use store::{
    CheckpointSettings, CommitRecord, Decision, End, ImageDigest, JobFile, Manifest, RecordError,
    checksum::checksum,
};
use transport::{JobId, Rank};

fn commit_record() -> CommitRecord {
    let images = vec![ImageDigest(3), ImageDigest(4)];
    CommitRecord { job: JOB, generation: generation(life(1, 2), 3), manifest: 5, images }
}

fn decision() -> Decision {
    Decision { job: JOB, life: life(2, 9), from: Some(generation(life(1, 2), 3)) }
}

fn job_end() -> JobEndRecord {
    JobEndRecord { job: JOB, end: JobEnd { life: life(2, 9), has_finished: false } }
}

fn end() -> End {
    End { job: JOB, life: life(2, 9), ended_unix_ms: 1 }
}

fn manifest() -> Manifest {
    let kinds = vec![KindSummary { kind: 0x101, sections: 1, bytes: 10 }];
    let summary = ImageSummary { digest: ImageDigest(3), bytes: 200, kinds };
    let image = ManifestImage { rank: Rank(0), node: 0, file: "rank-00000000.image".to_owned(), summary };
    let of = generation(life(1, 2), 3);
    Manifest { job: JOB, generation: of, taken_unix_ms: 1, nodes: vec!["a".to_owned()], images: vec![image] }
}

fn copied() -> Copied {
    let file = |digest| CopiedFile { digest: ImageDigest(digest), bytes: 200, stored_bytes: 90, footer: 7 };
    let (image, content) =
        (|digest| CopiedImage { digest: ImageDigest(digest), bytes: 200 }, ContentName(17));
    Copied {
        job: JOB,
        generation: generation(life(1, 2), 3),
        taken_unix_ms: 1,
        copied_unix_ms: 2,
        key: Some(KeyName { id: 8, usage: KeyUse::Encrypt }),
        manifest: 5,
        upon: Some(BaseCopy { generation: generation(life(1, 2), 2), record: 6 }),
        becomes_base: false,
        since_whole: Some(SinceWhole { copies: 3, bytes: 4000 }),
        job_file: file(2),
        ranks: vec![
            CopiedRank { image: image(3), base: None, content, blocks_bytes: 90, places: file(8) },
            CopiedRank { image: image(4), base: Some(image(5)), content, blocks_bytes: 91, places: file(9) },
        ],
        signature: Some(Signature { salt: [1; 24], manifest: [2; 16], record: [3; 16] }),
    }
}

/// One record of each kind, and its reader's answer to any bytes.
type Reader = fn(&[u8]) -> Result<Vec<u8>, RecordError>;
fn all() -> [(Vec<u8>, Reader); 7] {
    [
        (job_file().emit(), |bytes| JobFile::parse(bytes).map(|record| record.emit())),
        (decision().emit(), |bytes| Decision::parse(bytes).map(|record| record.emit())),
        (manifest().emit(), |bytes| Manifest::parse(bytes).map(|record| record.emit())),
        (commit_record().emit(), |bytes| CommitRecord::parse(bytes).map(|record| record.emit())),
        (end().emit(), |bytes| End::parse(bytes).map(|record| record.emit())),
        (copied().emit(), |bytes| Copied::parse(bytes).map(|record| record.emit())),
        (job_end().emit(), |bytes| JobEndRecord::parse(bytes).map(|record| record.emit())),
    ]
}

/// The record with `from` replaced by `to` and a checksum that fits.
fn forge(record: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = str::from_utf8(record).unwrap();
    let lines = &text[..text.rfind("checksum ").unwrap()];
    assert!(lines.contains(from), "{from} is not in {lines}");
    let lines = lines.replacen(from, to, 1);
    format!("{lines}checksum {:016x}\n", checksum(lines.as_bytes())).into_bytes()
}

#[test]
fn a_record_cut_off_anywhere_is_refused() {
    for (record, read) in all() {
        assert_eq!(read(&record).as_ref(), Ok(&record));
        for length in 0..record.len() {
            let error = read(&record[..length]).expect_err("a cut off record");
            assert!(
                matches!(error, RecordError::NotThisRecord { .. } | RecordError::CutOff { .. }),
                "{length}: {error}"
            );
        }
    }
}

#[test]
fn any_bit_that_flips_in_a_record_is_found() {
    for (record, read) in all() {
        for at in 0..record.len() {
            for bit in 0..8 {
                let mut damaged = record.clone();
                damaged[at] ^= 1 << bit;
                assert!(read(&damaged).is_err(), "byte {at} bit {bit}");
            }
        }
    }
}

#[test]
fn another_kind_of_record_is_named() {
    let records = all();
    for (i, (_, read)) in records.iter().enumerate() {
        for (j, (other, _)) in records.iter().enumerate() {
            assert_eq!(matches!(read(other), Err(RecordError::NotThisRecord { .. })), i != j);
        }
    }
    let error = JobFile::parse(b"hello\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the first line should be `stillwire job VERSION`; this is another kind of file"
    );
}

#[test]
fn a_job_file_without_a_program_is_refused() {
    let file = JobFile { command: Vec::new(), ..job_file() };
    let error = JobFile::parse(&file.emit()).unwrap_err();
    assert!(matches!(error, RecordError::Line { expected: "argument WORD, at least one", .. }), "{error}");
}

#[test]
fn another_version_is_named() {
    for ((record, read), what) in
        all().iter().zip(["job", "decision", "manifest", "commit", "end", "copied", "job-end"])
    {
        let forged = forge(record, &format!("stillwire {what} 1"), &format!("stillwire {what} 2"));
        let error = read(&forged).unwrap_err();
        assert!(
            matches!(&error, RecordError::UnsupportedVersion { what: named, found: 2, .. } if *named == what),
            "{error}"
        );
    }
}

#[test]
fn a_line_that_is_not_in_the_format_is_named() {
    let manifest = manifest().emit();
    let commit = commit_record().emit();
    let job = job_file().emit();
    let copy = copied().emit();
    let cases: [(&[u8], Reader, &str, &str, usize); 27] = [
        (&manifest, all()[2].1, "taken-ms 1", "taken-ms 01", 4),
        (&manifest, all()[2].1, "image 0 0", "image 1 0", 6),
        (&manifest, all()[2].1, "image 0 0", "image 0 1", 6),
        (&manifest, all()[2].1, " rank-00000000.image", " ../rank-00000000.image", 6),
        (&manifest, all()[2].1, " rank-00000000.image", " rank 00000000.image", 6),
        (&manifest, all()[2].1, "holds 00000101", "holds 101", 7),
        (&manifest, all()[2].1, "holds 00000101 1 10\n", "holds 00000101 1 10\nholds 00000100 1 1\n", 8),
        (&commit, all()[3].1, "generation 1.", "generation 1-", 3),
        (&commit, all()[3].1, "image 0000000000000003", "image 3", 5),
        (&commit, all()[3].1, "image 0000000000000003\n", "picture\n", 5),
        (&job, all()[0].1, "ranks 2", "ranks 0", 3),
        (&job, all()[0].1, "ranks 2", "ranks 4294967295", 3),
        (&job, all()[0].1, "keep 1", "keep 0", 5),
        (&job, all()[0].1, "setting on-fault restart\n", "setting b 1\nsetting a 2\n", 12),
        (&copy, all()[5].1, "key 0000000000000008", "key 8", 6),
        (&copy, all()[5].1, "key 0000000000000008", "key None", 6),
        (&copy, all()[5].1, "upon 1.0000000000000002 2 0000000000000006", "upon 1.0000000000000002 2", 8),
        (&copy, all()[5].1, "becomes-base no", "becomes-base 0", 9),
        (&copy, all()[5].1, "since-whole 3 4000", "since-whole 3", 10),
        (&copy, all()[5].1, "since-whole 3 4000", "since-whole 4294967296 4000", 10),
        // A whole one has no base.
        (&copy, all()[5].1, "upon 1.0000000000000002 2 0000000000000006", "upon none", 10),
        (&copy, all()[5].1, "job-file 0000000000000002 200", "job-file 0000000000000002 0200", 11),
        (&copy, all()[5].1, "image 0000000000000003 200", "image 0000000000000003", 12),
        (&copy, all()[5].1, "image 0000000000000003 200", "base 0000000000000003 200", 12),
        (&copy, all()[5].1, " 90\nplaces 0000000000000008", "\nplaces 0000000000000008", 13),
        (&copy, all()[5].1, "places 0000000000000008 200 90", "places 0000000000000008 200", 14),
        (&copy, all()[5].1, "base 0000000000000005 200", "base 0000000000000005 18446744073709551616", 16),
    ];
    for (record, read, from, to, line) in cases {
        let error = read(&forge(record, from, to)).expect_err(to);
        assert!(matches!(error, RecordError::Line { line: named, .. } if named == line), "{to}: {error}");
    }
}

#[test]
fn sums_of_what_a_record_says_do_not_overflow() {
    let mut copied = copied();
    for rank in &mut copied.ranks {
        (rank.image.bytes, rank.blocks_bytes) = (u64::MAX, u64::MAX);
    }
    let copied = Copied::parse(&copied.emit()).unwrap();
    assert_eq!((copied.bytes(), copied.stored_bytes()), (u64::MAX, u64::MAX));
    let mut manifest = manifest();
    manifest.images[0].summary.bytes = u64::MAX;
    manifest.images.push(ManifestImage { rank: Rank(1), ..manifest.images[0].clone() });
    assert_eq!(Manifest::parse(&manifest.emit()).unwrap().image_bytes(), u64::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn a_job_file_holds_any_bytes(
        job: u128,
        ranks in 1..1000u32,
        every_ms: Option<u64>,
        directory: Vec<u8>,
        command in prop::collection::vec(any::<Vec<u8>>(), 1..8),
        environment: Vec<Vec<u8>>,
        settings: BTreeMap<String, String>,
    ) {
        let checkpoint = CheckpointSettings { every_ms, keep: 3 };
        let file = JobFile { job: JobId(job), ranks, checkpoint, directory, command, environment, settings };
        let emitted = file.emit();
        prop_assert!(emitted.is_ascii());
        prop_assert_eq!(JobFile::parse(&emitted), Ok(file));
    }

    #[test]
    fn a_record_that_parses_has_one_spelling(lines in "[ -~\n]{0,200}", which in 0..6usize) {
        let (record, read) = &all()[which];
        let first = record.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let text = format!("{}{lines}", str::from_utf8(&record[..first]).unwrap());
        let forged = format!("{text}checksum {:016x}\n", checksum(text.as_bytes())).into_bytes();
        if let Ok(emitted) = read(&forged) {
            prop_assert_eq!(emitted, forged);
        }
    }
}

/// In a message a manifest and a decision are their records: nothing that a file could not hold is taken from one.
#[test]
fn records_travel_as_they_are_written() {
    let (manifest, decision) = (manifest(), decision());
    let sent = serde_json::to_value(&manifest).expect("bytes");
    assert_eq!(sent, serde_json::json!(manifest.emit()));
    assert_eq!(serde_json::from_value::<Manifest>(sent).expect("a record"), manifest);
    let sent = serde_json::to_value(decision).expect("bytes");
    assert_eq!(sent, serde_json::json!(decision.emit()));
    let mut damaged = decision.emit();
    damaged[20] ^= 1;
    let refused =
        serde_json::from_value::<Decision>(serde_json::json!(damaged)).expect_err("a damaged record");
    assert_eq!(refused.to_string(), Decision::parse(&damaged).expect_err("damaged").to_string());
}
