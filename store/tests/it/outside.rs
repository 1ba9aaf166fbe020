//! A section that another process writes into the file of an image.

use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use store::checksum::checksum;
use store::{Directory, GenerationId, JobDirectory, JobFile, Section};
use transport::{Epoch, JobId, Life, Rank};

const PAGES: u32 = store::kinds::PROCESS_MEMORY;

#[test]
fn a_section_written_by_somebody_else_stands_between_the_writers_own() {
    let scratch = tempfile::tempdir().unwrap();
    let file = JobFile {
        job: JobId(3),
        ranks: 1,
        checkpoint: store::CheckpointSettings { every_ms: None, keep: 2 },
        directory: b"/".to_vec(),
        command: vec![b"program".to_vec()],
        environment: Vec::new(),
        settings: std::collections::BTreeMap::new(),
    };
    let mut job =
        JobDirectory::create(Directory::create(scratch.path().join("job")).unwrap(), &file).unwrap();
    let decision = job.start_life(7, None).unwrap();
    let life = Life { counter: decision.life.counter, nonce: decision.life.nonce };
    let generation = GenerationId { life, epoch: Epoch(1) };
    job.begin_generation(generation).unwrap();
    let mut writer = job.begin_image(generation, Rank(0)).unwrap();
    let (before, after) = (vec![1; 100], vec![3; 300_000]);
    writer.section(job.storage(), Section::new(0x8000_0001, 1, &before)).unwrap();
    let offset = writer.begin_outside(job.storage(), PAGES, 1, 0).unwrap();
    assert_eq!(offset % 4096, 0, "pages can be mapped, and written directly");
    let pages: Vec<u8> = (0..5 * 4096u32).map(|i| i.to_le_bytes()[1]).collect();
    let outside = std::fs::File::from(writer.file().as_fd().try_clone_to_owned().unwrap());
    outside.write_all_at(&pages, offset).unwrap();
    writer.end_outside(job.storage(), pages.len() as u64, checksum(&pages)).unwrap();
    writer.section(job.storage(), Section::new(0x8000_0002, 1, &after)).unwrap();
    writer.finish(job.storage()).unwrap();

    let reader = job.open_image(generation, Rank(0)).unwrap();
    reader.verify(job.storage()).unwrap();
    for (number, content) in [(0, &before), (1, &pages), (2, &after)] {
        assert_eq!(&reader.read_section(job.storage(), number).unwrap(), content);
    }
    assert_eq!(reader.entries()[1].offset, offset);
}
