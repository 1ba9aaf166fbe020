//! A job of two ranks, one of which is saved by deltas, over a storage that several hands hold.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};

use copies::{Copies, CopyError, CopyKey, Folder, Report, Source, Target, Work, Written};
use store::delta::Rules;
use store::image::Base;
use store::job::{CommitRequest, Depth};
use store::storage::DirectoryEntry;
use store::{
    CheckpointSettings, GenerationId, ImageClaim, ImageReader, JobDirectory, JobFile, Memory, Section,
    Storage, StorageError, StoreError, kinds,
};
use transport::{Epoch, JobId, Life, Rank};

/// The disk's error for a sector that it cannot read.
pub(crate) const EIO: i32 = 5;

pub(crate) const RANKS: u32 = 2;
pub(crate) const JOB: JobId = JobId(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);

/// One disk for all who have a clone of it.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    memory: Arc<Mutex<Memory>>,
    /// A file that is there, and whose bytes the disk does not give.
    unreadable: Arc<Mutex<Option<String>>>,
}

impl Disk {
    pub(crate) fn hold(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }

    /// Another disk with the same content.
    pub(crate) fn twin(&self) -> Disk {
        Disk { memory: Arc::new(Mutex::new(self.hold().clone())), unreadable: Arc::default() }
    }

    pub(crate) fn make_unreadable(&self, path: &str) {
        *self.unreadable.lock().unwrap() = Some(path.to_owned());
    }

    pub(crate) fn target(&self) -> Folder<Disk> {
        Folder::new(self.clone(), "shared".to_owned())
    }
}

impl Storage for Disk {
    type File = <Memory as Storage>::File;

    fn create_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.hold().create_directory(path)
    }
    fn create(&mut self, path: &str) -> Result<Self::File, StorageError> {
        self.hold().create(path)
    }
    fn reopen(&mut self, path: &str) -> Result<Self::File, StorageError> {
        self.hold().reopen(path)
    }
    fn append(&mut self, file: &mut Self::File, bytes: &[u8]) -> Result<(), StorageError> {
        self.hold().append(file, bytes)
    }
    fn overwrite(&mut self, file: &mut Self::File, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.hold().overwrite(file, offset, bytes)
    }
    fn sync_file(&mut self, file: &mut Self::File) -> Result<(), StorageError> {
        self.hold().sync_file(file)
    }
    fn sync_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.hold().sync_directory(path)
    }
    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.hold().rename(from, to)
    }
    fn publish(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.hold().publish(from, to)
    }
    fn remove_file(&mut self, path: &str) -> Result<(), StorageError> {
        self.hold().remove_file(path)
    }
    fn remove_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.hold().remove_directory(path)
    }
    fn length(&mut self, path: &str) -> Result<u64, StorageError> {
        self.hold().length(path)
    }
    fn read_range(&mut self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        if self.unreadable.lock().unwrap().as_deref() == Some(path) {
            let (operation, path) = (store::storage::Operation::Read, path.to_owned());
            return Err(StorageError::Io { operation, path, errno: EIO });
        }
        self.hold().read_range(path, offset, into)
    }
    fn list(&mut self, path: &str) -> Result<Vec<DirectoryEntry>, StorageError> {
        self.hold().list(path)
    }
    fn free_bytes(&mut self) -> Result<Option<u64>, StorageError> {
        self.hold().free_bytes()
    }
}

/// A small generator (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }
}

pub(crate) fn job_file() -> JobFile {
    JobFile {
        job: JOB,
        ranks: RANKS,
        checkpoint: CheckpointSettings { every_ms: None, keep: 8 },
        directory: b"/scratch".to_vec(),
        command: vec![b"./app".to_vec()],
        environment: vec![b"SECRET=hush".to_vec()],
        settings: BTreeMap::new(),
    }
}

/// The memory of a rank at this cut: more than a packet that no other cut has, and as much that every cut has and that
/// is compressible.
pub(crate) fn memory(id: GenerationId, rank: Rank) -> Vec<u8> {
    let mut random =
        Random(u64::from(id.epoch.0) << 32 | u64::from(id.life.counter) << 8 | u64::from(rank.0) | 1 << 60);
    let noise: Vec<u8> = (0..70_000).map(|_| random.below(256).to_le_bytes()[0]).collect();
    let counted: Vec<u8> = (0..20_000u32).flat_map(|at| (at / 7).to_le_bytes()).collect();
    [noise, counted].concat()
}

/// The job's directory, in which each checkpoint but the first has a delta of rank 1.
pub(crate) struct Job {
    pub(crate) directory: JobDirectory<Disk>,
    pub(crate) life: Life,
    base: Option<Base>,
}

impl Job {
    pub(crate) fn new() -> Job {
        let mut directory = JobDirectory::create(Disk::default(), &job_file()).unwrap();
        let life = directory.start_life(0xaaaa, None).unwrap().life;
        Job { directory, life, base: None }
    }

    pub(crate) fn id(&self, epoch: u32) -> GenerationId {
        GenerationId { life: self.life, epoch: Epoch(epoch) }
    }

    pub(crate) fn checkpoint(&mut self, epoch: u32) -> GenerationId {
        let id = self.id(epoch);
        self.directory.begin_generation(id).unwrap();
        let mut claims = Vec::new();
        for rank in (0..RANKS).map(Rank) {
            let content = memory(id, rank);
            let base = self.base.filter(|_| rank.0 == 1);
            let named = base.map(|base| base.emit());
            let mut sections = vec![Section::new(kinds::PROCESS_MEMORY, 1, &content)];
            sections.extend(named.as_ref().map(Base::section));
            if let Some(base) = base {
                let from = self.directory.image_path(base.generation, rank);
                let bytes = self.directory.storage().read(&from, u64::MAX).unwrap();
                let mut file = self.directory.storage().create(&base_path(id)).unwrap();
                self.directory.storage().append(&mut file, &bytes).unwrap();
            }
            let summary = self.directory.write_image(id, rank, &sections).unwrap();
            claims.push(ImageClaim { rank, node: 0, digest: summary.digest, bytes: summary.bytes });
            if rank.0 == 1 && self.base.is_none() {
                self.base = Some(Base { generation: id, digest: summary.digest });
            }
        }
        let (ranks, nodes) = (RANKS, vec!["one".to_owned()]);
        let request =
            CommitRequest { generation: id, ranks, taken_unix_ms: 1_700_000_000_000, nodes, images: claims };
        self.directory.commit(&request).unwrap();
        id
    }

    /// Copies a generation, rank by rank.
    pub(crate) fn copy(
        &self,
        to: &dyn Target,
        id: GenerationId,
        key: Option<CopyKey>,
        keep: u32,
    ) -> Result<Written, CopyError> {
        self.copy_with(to, id, key, keep, &Report::default())
    }

    pub(crate) fn copy_with(
        &self,
        to: &dyn Target,
        id: GenerationId,
        key: Option<CopyKey>,
        keep: u32,
        report: &Report,
    ) -> Result<Written, CopyError> {
        let manifest = self.directory.clone().manifest(id)?;
        let work = Work {
            job_file: &job_file(),
            manifest: &manifest,
            copied_unix_ms: 1_700_000_001_000,
            keep,
            rules: Rules::default(),
            whole_every: u32::MAX,
            threads: NonZeroUsize::MIN,
        };
        Copies::new(to, JOB, key).write(&work, self, report)
    }
}

impl Source for Job {
    type Storage = Disk;

    fn directory(&self, _: Rank) -> Result<JobDirectory<Disk>, StoreError> {
        Ok(self.directory.clone())
    }

    fn runs(&self, _: Rank, _: &ImageReader, _: u32) -> Vec<(u64, u64)> {
        Vec::new()
    }
}

/// A directory that has, or gets, everything.
pub(crate) struct One(pub(crate) JobDirectory<Disk>);

impl Source for One {
    type Storage = Disk;

    fn directory(&self, _: Rank) -> Result<JobDirectory<Disk>, StoreError> {
        Ok(self.0.clone())
    }

    fn runs(&self, _: Rank, _: &ImageReader, _: u32) -> Vec<(u64, u64)> {
        Vec::new()
    }
}

/// Brings a copy into a directory.
pub(crate) fn fetch(
    copies: &Copies<'_>,
    copied: &store::record::Copied,
    directory: &JobDirectory<Disk>,
) -> Result<u32, CopyError> {
    let images = One(directory.clone());
    copies.fetch(copied, &mut directory.clone(), &images, NonZeroUsize::MIN, &Report::default())
}

pub(crate) fn base_path(id: GenerationId) -> String {
    format!("{}/rank-00000001.base", store::job::folder(id))
}

/// Brings the newest copy into an empty directory, and compares every rank with its saved content.
pub(crate) fn restore_newest(
    from: &dyn Target,
    key: Option<CopyKey>,
) -> Result<Option<GenerationId>, CopyError> {
    let copies = Copies::new(from, JOB, key);
    let listed = copies.list()?;
    if let Some((_, error)) = listed.damaged.first() {
        return Err(error.clone());
    }
    let Some(newest) = listed.newest() else { return Ok(None) };
    assert_eq!(copies.verify(&listed.copies, NonZeroUsize::MIN, &|_| ())?, []);
    let disk = Disk::default();
    let directory = JobDirectory::create(disk, &copies.job_file(newest)?)?;
    restore_into(&copies, newest, directory)?;
    Ok(Some(newest.generation))
}

pub(crate) fn restore_into(
    copies: &Copies<'_>,
    copied: &store::record::Copied,
    mut directory: JobDirectory<Disk>,
) -> Result<(), CopyError> {
    fetch(copies, copied, &directory)?;
    let id = copied.generation;
    // Everything that was taken over is durable.
    directory.storage().hold().crash_losing_all();
    assert_eq!(directory.verify(id, Depth::Everything)?, []);
    for rank in (0..RANKS).map(Rank) {
        let image = directory.open_committed_image(id, rank)?;
        assert_eq!(image.read_section(directory.storage(), 0)?, memory(id, rank), "rank {rank} of {id}");
        let base = directory.open_base(id, rank, &image)?;
        assert_eq!(base.is_some(), rank.0 == 1 && id.epoch.0 > 1);
        if let (Some(base), Some(of)) = (base, image.base(directory.storage())?) {
            assert_eq!(base.read_section(directory.storage(), 0)?, memory(of.generation, rank));
        }
    }
    let from = directory.start_life(0xbbbb, Some(id))?;
    assert!(from.life.counter > id.life.counter);
    Ok(())
}
