//! Images that need another one below them: their bases stay as long as they do, and faults of bases are reported.

use std::path::PathBuf;

use crate::common::{JOB, RANKS, generation, job_file, memory, request};
use store::image::Base;
use store::job::Depth;
use store::{
    Directory, GenerationId, ImageClaim, ImageError, JobDirectory, Section, StorageError, StoreError, kinds,
};
use transport::{Life, Rank};

struct Job {
    directory: JobDirectory<Directory>,
    life: Life,
    root: PathBuf,
    _scratch: tempfile::TempDir,
}

fn job() -> Job {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().join("job");
    let mut directory = JobDirectory::create(Directory::create(&root).unwrap(), &job_file()).unwrap();
    let life = directory.start_life(0xaaaa, None).unwrap().life;
    Job { directory, life, root, _scratch: scratch }
}

impl Job {
    fn file(&self, id: GenerationId, name: &str) -> PathBuf {
        let image = self.root.join(self.directory.image_path(id, Rank(0)));
        image.with_file_name(name)
    }

    /// Commits a generation of whole images, or of deltas on top of `bases`.
    fn checkpoint(
        &mut self,
        id: GenerationId,
        bases: Option<&[Base]>,
        last: Option<GenerationId>,
    ) -> Vec<Base> {
        let directory = &mut self.directory;
        directory.begin_generation(id).unwrap();
        let (mut claims, mut written) = (Vec::new(), Vec::new());
        for rank in (0..RANKS).map(Rank) {
            let content = memory(id, rank);
            let base = bases.map(|bases| bases[rank.0 as usize]);
            let named = base.map(|base| base.emit());
            let mut sections = vec![Section::new(kinds::PROCESS_MEMORY, 1, &content)];
            sections.extend(named.as_ref().map(Base::section));
            if let Some(base) = &base {
                directory.link_base(id, rank, base, last).unwrap();
            }
            let summary = directory.write_image(id, rank, &sections).unwrap();
            claims.push(ImageClaim { rank, node: 0, digest: summary.digest, bytes: summary.bytes });
            written.push(Base { generation: id, digest: summary.digest });
        }
        directory.commit(&request(id, claims)).unwrap();
        written
    }

    fn damages(&mut self, id: GenerationId, depth: Depth) -> Vec<StoreError> {
        self.directory.verify(id, depth).unwrap().into_iter().map(|damage| damage.error).collect()
    }
}

#[test]
fn a_base_goes_with_the_last_generation_that_needs_it() {
    let mut job = job();
    let [first, second, third, fourth] = [1, 2, 3, 4].map(|epoch| generation(job.life, epoch));
    let bases = job.checkpoint(first, None, None);
    job.checkpoint(second, Some(&bases), None);
    let content = std::fs::read(job.file(first, "rank-00000000.image")).unwrap();
    let report = job.directory.collect(job.life, 1, &[]).unwrap();
    assert_eq!((report.kept, report.removed), (vec![second], vec![first]));
    assert_eq!(job.damages(second, Depth::Everything), []);
    assert_eq!(std::fs::read(job.file(second, "rank-00000000.base")).unwrap(), content);
    // Its first name is gone; the last delta has one.
    let gone = job.directory.link_base(third, Rank(0), &bases[0], None).unwrap_err();
    assert!(matches!(gone, StorageError::NotFound { .. }), "{gone}");
    job.checkpoint(third, Some(&bases), Some(second));
    let opened = job.directory.open_committed_image(third, Rank(1)).unwrap();
    assert!(opened.header().is_delta);
    let base = job.directory.open_base(third, Rank(1), &opened).unwrap().expect("it has one");
    let expected = memory(first, Rank(1));
    assert_eq!(base.read_section(job.directory.storage(), 0).unwrap(), expected);
    job.checkpoint(fourth, None, None);
    job.directory.collect(job.life, 1, &[]).unwrap();
    assert!(!job.file(third, "rank-00000000.base").exists());
    assert_eq!(job.damages(fourth, Depth::Everything), []);
    let opened = job.directory.open_committed_image(fourth, Rank(0)).unwrap();
    assert!(
        !opened.header().is_delta && job.directory.open_base(fourth, Rank(0), &opened).unwrap().is_none()
    );
}

#[test]
fn a_base_that_is_missing_damaged_or_another_is_reported_and_an_older_generation_is_found() {
    type Damaging = fn(&Job, GenerationId);
    let other = |job: &Job, id| {
        std::fs::remove_file(job.file(id, "rank-00000000.base")).unwrap();
        let image = job.file(id, "rank-00000000.image");
        std::fs::copy(image, job.file(id, "rank-00000000.base")).unwrap();
    };
    let rotten = |job: &Job, id| {
        // A copy first: the older generation has the same file.
        let path = job.file(id, "rank-00000000.base");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[100] ^= 1;
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
    };
    let missing = |job: &Job, id| std::fs::remove_file(job.file(id, "rank-00000000.base")).unwrap();
    type Expected = fn(&StoreError) -> bool;
    let cases: [(Damaging, Depth, Expected); 3] = [
        (missing, Depth::Tables, |error| matches!(error, StoreError::Storage(StorageError::NotFound { .. }))),
        (other, Depth::Tables, |error| {
            matches!(error, StoreError::Image { error: ImageError::WrongEpoch { .. }, .. })
        }),
        (rotten, Depth::Everything, |error| {
            matches!(error, StoreError::Image { error: ImageError::SectionDamaged { .. }, .. })
        }),
    ];
    for (damage, depth, is_expected) in cases {
        let mut job = job();
        let [first, second] = [1, 2].map(|epoch| generation(job.life, epoch));
        let bases = job.checkpoint(first, None, None);
        job.checkpoint(second, Some(&bases), None);
        damage(&job, second);
        let damages = job.damages(second, depth);
        assert!(damages.len() == 1 && is_expected(&damages[0]), "{damages:?}");
        assert!(damages[0].to_string().contains("rank-00000000.base"), "{}", damages[0]);
        let found = job.directory.newest_restorable(depth).unwrap();
        assert_eq!(found.manifest.map(|manifest| manifest.generation), Some(first));
        assert_eq!(found.refused.len(), 1);
    }
}

#[test]
fn a_delta_on_top_of_a_delta_is_refused() {
    let mut job = job();
    let [first, second, third] = [1, 2, 3].map(|epoch| generation(job.life, epoch));
    let bases = job.checkpoint(first, None, None);
    let deltas = job.checkpoint(second, Some(&bases), None);
    job.checkpoint(third, Some(&deltas), None);
    let damages = job.damages(third, Depth::Tables);
    let is_delta =
        |error: &StoreError| matches!(error, StoreError::Image { error: ImageError::BaseIsDelta, .. });
    assert!(damages.len() == RANKS as usize && damages.iter().all(is_delta), "{damages:?}");
}

/// The flag in the header and the section have to agree: an older build reads the flag alone.
#[test]
fn an_image_that_names_a_base_says_so_in_its_header() {
    use store::image::{Header, layout::HEADER_BYTES, parse_image};
    let identity = store::Identity {
        job: JOB,
        life: Life { counter: 1, nonce: 2 },
        epoch: transport::Epoch(3),
        rank: Rank(0),
    };
    let base = Base { generation: identity.generation(), digest: store::ImageDigest(5) }.emit();
    let image = store::image::encode_image(identity, &[Base::section(&base)]).unwrap();
    parse_image(&image).unwrap();
    let head: &[u8; HEADER_BYTES] = image.first_chunk().unwrap();
    let header = Header::parse(head).unwrap();
    assert!(header.is_delta);
    let mut without = image.clone();
    without[..HEADER_BYTES].copy_from_slice(&Header { is_delta: false, ..header }.emit());
    assert_eq!(parse_image(&without), Err(ImageError::BaseDiffers { names_base: true }));
    let mut whole = store::image::encode_image(identity, &[Section::new(kinds::PORT, 1, b"port")]).unwrap();
    let header = Header::parse(whole.first_chunk().unwrap()).unwrap();
    whole[..HEADER_BYTES].copy_from_slice(&Header { is_delta: true, ..header }.emit());
    assert_eq!(parse_image(&whole), Err(ImageError::BaseDiffers { names_base: false }));
}
