//! Helpers of the store's tests: a job of two ranks whose every image has a content that only its place decides.

#![allow(dead_code, reason = "each test file uses its part")]

mod random;

use std::collections::BTreeMap;

use store::job::{CommitRequest, ImageClaim, JobDirectory};
use store::{CheckpointSettings, GenerationId, JobFile, Section, Storage, StoreError, kinds};
use transport::{Epoch, JobId, Life, Rank};

pub(crate) use random::Random;

pub(crate) const RANKS: u32 = 2;
pub(crate) const JOB: JobId = JobId(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);

pub(crate) fn job_file() -> JobFile {
    JobFile {
        job: JOB,
        ranks: RANKS,
        checkpoint: CheckpointSettings { every_ms: Some(300_000), keep: 1 },
        directory: b"/scratch/with space".to_vec(),
        command: vec![b"./app".to_vec(), b"--name".to_vec(), vec![0xff, b'%', b'\n']],
        environment: vec![b"OMP_NUM_THREADS=1".to_vec()],
        settings: BTreeMap::from([("on-fault".to_owned(), "restart".to_owned())]),
    }
}

pub(crate) fn life(counter: u32, nonce: u64) -> Life {
    Life { counter, nonce }
}

pub(crate) fn generation(of_life: Life, epoch: u32) -> GenerationId {
    GenerationId { life: of_life, epoch: Epoch(epoch) }
}

/// The memory of rank `rank` at this cut: several hundred bytes that no other cut has.
pub(crate) fn memory(id: GenerationId, rank: Rank) -> Vec<u8> {
    let seed =
        u64::from(id.life.counter) << 40 ^ id.life.nonce ^ u64::from(id.epoch.0) << 8 ^ u64::from(rank.0);
    let mut random = Random::new(seed);
    let bytes = 200 + random.below(300);
    (0..bytes).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
}

pub(crate) fn write_images<S: Storage>(
    directory: &mut JobDirectory<S>,
    id: GenerationId,
) -> Result<Vec<ImageClaim>, StoreError> {
    let mut claims = Vec::new();
    for rank in (0..RANKS).map(Rank) {
        let content = memory(id, rank);
        let sections = [
            Section::new(kinds::PORT, 1, b"port"),
            Section::new(kinds::SESSION_REGION, 1, &content).with_id(7),
        ];
        let summary = directory.write_image(id, rank, &sections)?;
        claims.push(ImageClaim { rank, node: 0, digest: summary.digest, bytes: summary.bytes });
    }
    Ok(claims)
}

pub(crate) fn request(id: GenerationId, images: Vec<ImageClaim>) -> CommitRequest {
    CommitRequest {
        generation: id,
        ranks: RANKS,
        taken_unix_ms: 1_700_000_000_000,
        nodes: vec!["node one".to_owned()],
        images,
    }
}

/// One checkpoint from beginning to commit.
pub(crate) fn checkpoint<S: Storage>(
    directory: &mut JobDirectory<S>,
    id: GenerationId,
) -> Result<(), StoreError> {
    directory.begin_generation(id)?;
    let claims = write_images(directory, id)?;
    directory.commit(&request(id, claims)).map(|_| ())
}

/// Restores every rank of a committed generation and compares it with the saved content.
pub(crate) fn restore<S: Storage>(
    directory: &mut JobDirectory<S>,
    id: GenerationId,
) -> Result<(), StoreError> {
    for rank in (0..RANKS).map(Rank) {
        let reader = directory.open_committed_image(id, rank)?;
        let number = reader.find(kinds::SESSION_REGION)?;
        let content = reader.read_section(directory.storage(), number)?;
        assert_eq!(content, memory(id, rank), "rank {rank} of {id} is not what was saved");
    }
    Ok(())
}
