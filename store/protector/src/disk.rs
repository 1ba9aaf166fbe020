//! A node's directory with a limit, and with counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use store::storage::{DirectoryEntry, DirectoryFile};
use store::{Directory, Storage, StorageError};

use crate::bucket::Bucket;
use crate::work::{UNENDING, Work};

/// Reads and writes of one node's disk, by all threads.
pub(crate) struct Meter {
    bucket: Option<Bucket>,
    read: AtomicU64,
    written: AtomicU64,
    busy: Mutex<Busy>,
}

/// For how long at least one thread was in a call: threads at the same instant count once.
struct Busy {
    /// How many are now.
    inside: u32,
    /// Since when there is one, if there is.
    since: Instant,
    before: Duration,
}

impl Busy {
    fn new(now: Instant) -> Busy {
        Busy { inside: 0, since: now, before: Duration::ZERO }
    }

    fn enter(&mut self, now: Instant) {
        if self.inside == 0 {
            self.since = now;
        }
        self.inside += 1;
    }

    fn leave(&mut self, now: Instant) {
        self.before = self.so_far(now);
        // Threads that stay inside count from here on.
        self.since = self.since.max(now);
        self.inside -= 1;
    }

    fn so_far(&self, now: Instant) -> Duration {
        let now = if self.inside > 0 { now.saturating_duration_since(self.since) } else { Duration::ZERO };
        self.before + now
    }
}

/// The bytes so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct DiskUsage {
    pub(crate) read: u64,
    pub(crate) written: u64,
    /// In which some thread was reading or writing, or waited for that.
    pub(crate) seconds: f64,
}

impl Meter {
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Meter {
        Meter {
            bucket: bytes_per_s.map(Bucket::new),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            busy: Mutex::new(Busy::new(Instant::now())),
        }
    }

    fn busy(&self) -> MutexGuard<'_, Busy> {
        // Nothing that can panic runs while it is held.
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn gone(&self) -> DiskUsage {
        DiskUsage {
            read: self.read.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            seconds: self.busy().so_far(Instant::now()).as_secs_f64(),
        }
    }
}

/// Whether a limit does not count, now.
type Lifted = Arc<dyn Fn() -> bool + Send + Sync>;

/// A directory as a protector uses it: its reads and writes wait for a limit.
#[derive(Clone)]
pub struct Disk {
    directory: Directory,
    meter: Arc<Meter>,
    lifted: Option<Lifted>,
    /// Of the thread that has this one.
    work: Arc<Work>,
    /// Time in this one.
    spent: Duration,
}

impl Disk {
    /// A directory with a limit of its own, on reads and writes together.
    #[must_use]
    pub fn limited(directory: Directory, bytes_per_s: Option<u64>) -> Disk {
        let work = Arc::new(Work::default());
        work.begin(UNENDING);
        Disk::new(directory, Arc::new(Meter::new(bytes_per_s)), work)
    }

    pub(crate) fn new(directory: Directory, meter: Arc<Meter>, work: Arc<Work>) -> Disk {
        Disk { directory, meter, lifted: None, work, spent: Duration::ZERO }
    }

    /// The same; while `lifted` says so, which is asked before each wait, there is no limit.
    #[must_use]
    pub fn unless(self, lifted: impl Fn() -> bool + Send + Sync + 'static) -> Disk {
        Disk { lifted: Some(Arc::new(lifted)), ..self }
    }

    /// Time that the owner of this one spent.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// Does something with so many bytes, as soon as the limit lets it. Refused if the thread's work is ended.
    fn metered<R>(
        &mut self,
        read: usize,
        written: usize,
        act: impl FnOnce(&mut Directory) -> Result<R, StorageError>,
    ) -> Result<R, StorageError> {
        let started = Instant::now();
        self.meter.busy().enter(started);
        let result = self.act_when_let(read + written, act);
        let ended = Instant::now();
        self.meter.busy().leave(ended);
        self.spent += ended.saturating_duration_since(started);
        if !matches!(result, Err(StorageError::Ended)) {
            self.meter.read.fetch_add(read as u64, Ordering::Relaxed);
            self.meter.written.fetch_add(written as u64, Ordering::Relaxed);
        }
        result
    }

    fn act_when_let<R>(
        &mut self,
        bytes: usize,
        act: impl FnOnce(&mut Directory) -> Result<R, StorageError>,
    ) -> Result<R, StorageError> {
        let is_lifted = self.lifted.as_ref().is_some_and(|lifted| lifted());
        if let Some(bucket) = self.meter.bucket.as_ref().filter(|_| bytes > 0 && !is_lifted) {
            self.work.rest(bucket.take(bytes as u64));
        }
        if self.work.is_ended() {
            return Err(StorageError::Ended);
        }
        if self.directory.is_removed() {
            // The node has lost it, and has got another one in its place.
            self.directory = Directory::open(self.directory.root())?;
        }
        act(&mut self.directory)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_two_threads_wait_counts_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut busy = Busy::new(start);
        busy.enter(at(1));
        busy.enter(at(2));
        // A call that is not over counts so far.
        assert_eq!(busy.so_far(at(3)), Duration::from_secs(2));
        busy.leave(at(4));
        busy.leave(at(6));
        assert_eq!(busy.so_far(at(9)), Duration::from_secs(5));
        busy.enter(at(10));
        busy.enter(at(10));
        // Another thread may have looked at the time earlier, and be here later.
        busy.leave(at(13));
        busy.leave(at(12));
        assert_eq!(busy.so_far(at(20)), Duration::from_secs(8));
    }

    #[test]
    fn a_limit_that_is_lifted_is_not_waited_for() {
        use std::sync::atomic::AtomicBool;

        let folder = tempfile::tempdir().expect("a folder");
        let directory = Directory::create(folder.path()).expect("a directory");
        let lifted = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&lifted);
        let mut disk = Disk::limited(directory, Some(1)).unless(move || asked.load(Ordering::Relaxed));
        let mut file = disk.create("file").expect("a file");
        // At the limit it would take days.
        disk.append(&mut file, &[1; 1 << 20]).expect("room");
        lifted.store(false, Ordering::Relaxed);
        let started = Instant::now();
        disk.append(&mut file, &[1; 1]).expect("room");
        let limited = started.elapsed();
        assert!(limited >= Duration::from_millis(900), "{limited:?}");
    }

    #[test]
    fn two_threads_below_one_limit_wait_no_longer_than_it_takes() {
        const BYTES: usize = 1 << 20;
        let folder = tempfile::tempdir().expect("a folder");
        let directory = Directory::create(folder.path()).expect("a directory");
        let meter = Arc::new(Meter::new(Some(10 * BYTES as u64)));
        let started = Instant::now();
        std::thread::scope(|threads| {
            for name in ["a", "b"] {
                let work = Arc::new(Work::default());
                work.begin(UNENDING);
                let mut disk = Disk::new(directory.clone(), Arc::clone(&meter), work);
                threads.spawn(move || {
                    let mut file = disk.create(name).expect("a file");
                    disk.append(&mut file, &[1; BYTES]).expect("room");
                });
            }
        });
        let (took, gone) = (started.elapsed().as_secs_f64(), meter.gone());
        assert_eq!(gone.written, 2 * BYTES as u64);
        assert!(gone.seconds > 0.18 && gone.seconds <= took, "{} of {took} s", gone.seconds);
    }
}
