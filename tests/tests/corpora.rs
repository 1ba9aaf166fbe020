//! Replays the fuzz corpora on a stable toolchain: each file as it is, cut short at every length, and with every bit
//! flipped. The properties are those of the fuzz targets.

#[expect(unreachable_pub, reason = "the file is also the library of the fuzz targets")]
#[path = "../../fuzz/src/lib.rs"]
mod properties;

#[path = "../../ckpt-glue/tests/support/samples.rs"]
mod samples;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use store::image::{ImageSummary, KindSummary, encode_image};
use store::record::ManifestImage;
use store::{
    CheckpointSettings, CommitRecord, Decision, GenerationId, Identity, ImageDigest, JobFile, Manifest,
    Section,
};
use transport::wire::{
    Announce, Body, Contact, Data, Eager, Flags, Frame, Grant, Header, Resync, Stopped, TAG_BYTES,
};
use transport::{Epoch, JobId, Life, LinkIndex, OpId, PortId, Rank, RawAddress, Space};

/// Longer files are replayed as they are: cutting and flipping costs the square of the length.
const DAMAGED_BYTES_MAX: usize = 2048;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target)
}

/// Calls `property` with every file of the corpus; `accepts` tells which of them are whole.
fn replay(target: &str, property: fn(&[u8]), accepts: fn(&[u8]) -> bool) {
    let (mut whole, mut files) = (0, 0);
    for entry in fs::read_dir(corpus(target)).expect("every target has a corpus") {
        let bytes = fs::read(entry.expect("the corpus can be read").path()).expect("the corpus can be read");
        property(&bytes);
        whole += u32::from(accepts(&bytes));
        files += 1;
        if bytes.len() <= DAMAGED_BYTES_MAX {
            damage(&bytes, property);
        }
    }
    assert!(
        whole > 0,
        "{target}: none of {files} files is accepted: the format has changed; write new seeds"
    );
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
    replay("frame", properties::frame, |bytes| Frame::parse(bytes).is_ok());
}

#[test]
fn images() {
    replay("image", properties::image, |bytes| store::image::parse_image(bytes).is_ok());
}

#[test]
fn manifests() {
    replay("manifest", properties::manifest, |bytes| Manifest::parse(bytes).is_ok());
    replay("manifest", properties::manifest, |bytes| CommitRecord::parse(bytes).is_ok());
    replay("manifest", properties::manifest, |bytes| Decision::parse(bytes).is_ok());
}

#[test]
fn job_files() {
    replay("jobfile", properties::jobfile, |bytes| JobFile::parse(bytes).is_ok());
}

#[test]
fn control_messages() {
    let key = ckpt_glue::ControlKey::new(properties::CONTROL_KEY);
    let whole = control_seeds();
    assert!(whole.iter().all(|(_, bytes)| ckpt_glue::control::stream::parse(&key, bytes).is_ok()));
    replay("control", properties::control, |bytes| {
        let key = ckpt_glue::ControlKey::new(properties::CONTROL_KEY);
        ckpt_glue::control::stream::parse(&key, bytes).is_ok()
    });
}

#[test]
fn configurations() {
    replay("config", properties::config, |bytes| ckpt_glue::JobConfig::parse(bytes).is_ok());
}

#[test]
#[ignore = "writes files: call it by name after a format has changed"]
fn write_seeds() {
    let seeds = [("frame", frame_seeds()), ("image", image_seeds()), ("manifest", record_seeds())];
    for (target, files) in seeds.into_iter().chain([
        ("jobfile", job_file_seeds()),
        ("control", control_seeds()),
        ("config", config_seeds()),
    ]) {
        fs::create_dir_all(corpus(target)).expect("the corpus can be written");
        for (name, bytes) in files {
            fs::write(corpus(target).join(name), bytes).expect("the corpus can be written");
        }
    }
}

const JOB: JobId = JobId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
const LIFE: Life = Life { counter: 3, nonce: 0x0123_4567_89ab_cdef };

fn frame_seeds() -> Vec<(String, Vec<u8>)> {
    let op = OpId(0x1234_5678_9abc);
    let envelope = Eager { tag: 7, data: 8, total: 5, space: Space(1) };
    let announce = Announce { operation: op, tag: 7, data: 8, total: 1 << 33, space: Space(0) };
    let bodies: [(&str, Body, &[u8]); 11] = [
        ("ack", Body::Ack, b""),
        ("probe", Body::Probe, b""),
        ("eager", Body::Eager(envelope), b"hello"),
        ("eager-first", Body::Eager(Eager { total: 99, ..envelope }), b"hello"),
        ("more", Body::More, b"world"),
        ("announce", Body::Announce(announce), b""),
        ("grant", Body::Grant(Grant { operation: op, total: 4096 }), b""),
        ("data", Body::Data(Data { operation: op, offset: 1 << 32 }), b"payload"),
        ("close", Body::Close, b""),
        ("stopped", Body::Stopped(Stopped { pause: 2, expected_ns: 5_000_000 }), b""),
        ("resync", Body::Resync(Resync { expected: 17, next: 40, heard: 1 }), b""),
    ];
    let contact = Contact {
        from: PortId(0x1111),
        to: PortId(0x2222),
        link: LinkIndex(9),
        address: RawAddress::new(&[127, 0, 0, 1, 0x39, 0x30]).expect("6 bytes are an address"),
    };
    let mut seeds = Vec::new();
    for (name, body, payload) in bodies {
        seeds.push((name.to_owned(), frame_bytes(body, None, payload)));
        seeds.push((format!("{name}-contact"), frame_bytes(body, Some(contact), payload)));
    }
    seeds
}

fn frame_bytes(body: Body, contact: Option<Contact>, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        kind: body.kind(),
        job: JOB.tag(),
        life: LIFE,
        epoch: Epoch(5),
        link: contact.is_none().then_some(4),
        seq: 100,
        ack: 90,
        transmission: 120,
        echo: 80,
        window_bytes: 65_536,
        selective: 0b1011,
        window_frames: 64,
        flags: if contact.is_some() { Flags::CONTACT } else { Flags::ACK_NOW },
        payload_bytes: u32::try_from(payload.len()).expect("a short payload"),
        tag: [0xa5; TAG_BYTES],
    };
    let mut bytes = vec![0; 512];
    let length = Frame { header, contact, body, head_bytes: 0, payload }.emit(&mut bytes);
    bytes.truncate(length);
    bytes
}

fn image_seeds() -> Vec<(String, Vec<u8>)> {
    let identity = Identity { job: JOB, life: LIFE, epoch: Epoch(5), rank: Rank(2) };
    let section = |kind, id, bytes| Section { id, ..Section::new(kind, 1, bytes) };
    let image = |sections: &[Section<'_>]| encode_image(identity, sections).expect("a small image");
    let regions = [section(store::kinds::SESSION_REGION, 1, b"abc"), section(store::kinds::PORT, 9, b"")];
    vec![
        ("empty".to_owned(), image(&[])),
        ("two-sections".to_owned(), image(&regions)),
        ("exited".to_owned(), image(&[section(store::kinds::EXITED, 0, &[0, 1, 0, 0])])),
        ("aligned".to_owned(), image(&[section(store::kinds::PROCESS_MEMORY, 0x40_0000, &vec![7; 1 << 16])])),
    ]
}

fn record_seeds() -> Vec<(String, Vec<u8>)> {
    let generation = GenerationId { life: LIFE, epoch: Epoch(5) };
    let kinds = vec![
        KindSummary { kind: store::kinds::SESSION_REGION, sections: 4, bytes: 4096 },
        KindSummary { kind: store::kinds::PORT, sections: 1, bytes: 300 },
    ];
    let image = |rank| ManifestImage {
        rank: Rank(rank),
        node: rank % 2,
        file: format!("rank-{rank}.image"),
        summary: ImageSummary {
            digest: ImageDigest(0xabc + u64::from(rank)),
            bytes: 5000,
            kinds: kinds.clone(),
        },
    };
    let manifest = Manifest {
        job: JOB,
        generation,
        taken_unix_ms: 1_700_000_000_000,
        nodes: vec!["node-a".to_owned(), "node b".to_owned()],
        images: (0..3).map(image).collect(),
    };
    let bytes = manifest.emit();
    let images = manifest.images.iter().map(|image| image.summary.digest).collect();
    let commit = CommitRecord { job: JOB, generation, manifest: Manifest::checksum(&bytes), images };
    let decision = |from| Decision { job: JOB, life: LIFE, from }.emit();
    vec![
        ("manifest".to_owned(), bytes),
        ("commit".to_owned(), commit.emit()),
        ("decision-fresh".to_owned(), decision(None)),
        ("decision-restart".to_owned(), decision(Some(generation))),
    ]
}

/// One frame of every kind.
fn control_seeds() -> Vec<(String, Vec<u8>)> {
    let key = ckpt_glue::ControlKey::new(properties::CONTROL_KEY);
    let mut numbers = samples::Numbers::new(&[0x0102_0304_0506_0708, 7, 0xffff_0000_1234_5677]);
    let seed = |message: ckpt_glue::Message| {
        let name = format!("{message:?}");
        let name = name.split([' ', '{']).next().unwrap_or_default().to_owned();
        let mut bytes = Vec::new();
        ckpt_glue::control::stream::emit(&key, 1, &numbers.control(message), &mut bytes);
        (name, bytes)
    };
    samples::Numbers::new(&[0x0102_0304_0506_0708, 7, 0xffff_0000_1234_5677])
        .messages()
        .into_iter()
        .map(seed)
        .collect()
}

fn config_seeds() -> Vec<(String, Vec<u8>)> {
    let full = ckpt_glue::JobConfig::default().emit();
    let short = r#"{"checkpoint": {"every": "1.5s"}, "fault": {"on_fault": "abort"}, "time_limit": "2h"}"#;
    vec![("defaults".to_owned(), full.into_bytes()), ("short".to_owned(), short.as_bytes().to_vec())]
}

fn job_file_seeds() -> Vec<(String, Vec<u8>)> {
    let plain = JobFile {
        job: JOB,
        ranks: 4,
        checkpoint: CheckpointSettings { every_ms: None, keep: 1 },
        directory: b"/tmp".to_vec(),
        command: vec![b"./app".to_vec()],
        environment: Vec::new(),
        settings: BTreeMap::new(),
    };
    let odd = JobFile {
        checkpoint: CheckpointSettings { every_ms: Some(300_000), keep: 3 },
        directory: b"/with space/\xff%\n".to_vec(),
        command: vec![b"./app".to_vec(), Vec::new(), b"--name=a b".to_vec()],
        environment: vec![b"OMP_NUM_THREADS=1".to_vec()],
        settings: BTreeMap::from([("on-fault".to_owned(), "restart".to_owned())]),
        ..plain.clone()
    };
    vec![("plain".to_owned(), plain.emit()), ("odd".to_owned(), odd.emit())]
}
