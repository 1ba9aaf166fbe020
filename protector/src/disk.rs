//! A node's directory with a limit, and with counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use store::storage::{DirectoryEntry, DirectoryFile};
use store::{Directory, Storage, StorageError};

use crate::bucket::Bucket;
use crate::work::{UNENDING, Work};

/// What goes through the disk of one node, whichever thread asks.
pub(crate) struct Meter {
    bucket: Option<Bucket>,
    read: AtomicU64,
    written: AtomicU64,
    nanoseconds: AtomicU64,
}

/// What has gone through so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Gone {
    pub(crate) read: u64,
    pub(crate) written: u64,
    pub(crate) seconds: f64,
}

impl Meter {
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Meter {
        Meter {
            bucket: bytes_per_s.map(Bucket::new),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        }
    }

    pub(crate) fn gone(&self) -> Gone {
        Gone {
            read: self.read.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            seconds: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)).as_secs_f64(),
        }
    }
}

/// A directory as a protector uses it: what is read and written waits for a limit.
#[derive(Clone)]
pub struct Disk {
    directory: Directory,
    meter: Arc<Meter>,
    /// Of the thread that has this one.
    work: Arc<Work>,
    /// Time in this one.
    spent: Duration,
}

impl Disk {
    /// A directory with a limit of its own, on what is read and written together.
    #[must_use]
    pub fn limited(directory: Directory, bytes_per_s: Option<u64>) -> Disk {
        let work = Arc::new(Work::default());
        work.begin(UNENDING);
        Disk::new(directory, Arc::new(Meter::new(bytes_per_s)), work)
    }

    pub(crate) fn new(directory: Directory, meter: Arc<Meter>, work: Arc<Work>) -> Disk {
        Disk { directory, meter, work, spent: Duration::ZERO }
    }

    /// Time that was spent by whoever has this one.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// Does something with so many bytes, as soon as the limit lets it. What is ended is refused.
    fn metered<R>(
        &mut self,
        read: usize,
        written: usize,
        act: impl FnOnce(&mut Directory) -> Result<R, StorageError>,
    ) -> Result<R, StorageError> {
        let started = Instant::now();
        let bytes = read + written;
        if let Some(bucket) = self.meter.bucket.as_ref().filter(|_| bytes > 0) {
            self.work.rest(bucket.take(bytes as u64));
        }
        if self.work.is_ended() {
            return Err(StorageError::Ended);
        }
        let result = act(&mut self.directory);
        let spent = started.elapsed();
        self.spent += spent;
        let nanoseconds = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.meter.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        self.meter.read.fetch_add(read as u64, Ordering::Relaxed);
        self.meter.written.fetch_add(written as u64, Ordering::Relaxed);
        result
    }
}

impl Storage for Disk {
    type File = DirectoryFile;

    fn create_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.metered(0, 0, |directory| directory.create_directory(path))
    }
    fn create(&mut self, path: &str) -> Result<DirectoryFile, StorageError> {
        self.metered(0, 0, |directory| directory.create(path))
    }
    fn reopen(&mut self, path: &str) -> Result<DirectoryFile, StorageError> {
        self.metered(0, 0, |directory| directory.reopen(path))
    }
    fn append(&mut self, file: &mut DirectoryFile, bytes: &[u8]) -> Result<(), StorageError> {
        self.metered(0, bytes.len(), |directory| directory.append(file, bytes))
    }
    fn overwrite(&mut self, file: &mut DirectoryFile, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.metered(0, bytes.len(), |directory| directory.overwrite(file, offset, bytes))
    }
    fn sync_file(&mut self, file: &mut DirectoryFile) -> Result<(), StorageError> {
        self.metered(0, 0, |directory| directory.sync_file(file))
    }
    fn sync_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.metered(0, 0, |directory| directory.sync_directory(path))
    }
    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.metered(0, 0, |directory| directory.rename(from, to))
    }
    fn publish(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.metered(0, 0, |directory| directory.publish(from, to))
    }
    fn remove_file(&mut self, path: &str) -> Result<(), StorageError> {
        self.metered(0, 0, |directory| directory.remove_file(path))
    }
    fn remove_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.metered(0, 0, |directory| directory.remove_directory(path))
    }
    fn length(&mut self, path: &str) -> Result<u64, StorageError> {
        self.metered(0, 0, |directory| directory.length(path))
    }
    fn read_range(&mut self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.metered(into.len(), 0, |directory| directory.read_range(path, offset, into))
    }
    fn list(&mut self, path: &str) -> Result<Vec<DirectoryEntry>, StorageError> {
        self.metered(0, 0, |directory| directory.list(path))
    }
    fn free_bytes(&mut self) -> Result<Option<u64>, StorageError> {
        self.metered(0, 0, Storage::free_bytes)
    }
}
