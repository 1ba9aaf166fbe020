//! Long operations report progress, and end at once on request: so a waiting caller can distinguish a slow copy from
//! one that hangs.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use copies::{Copies, CopyError, Entry, Folder, Report, Target, Writing};
use store::packets::Source;
use store::{JobDirectory, Storage as _, StorageError};

use crate::common::{Disk, JOB, Job, One};

/// A place that notes the report's answer at each request.
struct Noting {
    place: Folder<Disk>,
    report: Arc<Report>,
    steps: Mutex<Vec<u64>>,
}

impl Noting {
    fn note(&self) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(self.report.steps());
    }
}

struct NotingFile<'a, T: ?Sized>(Box<T>, &'a Noting);

impl Writing for NotingFile<'_, dyn Writing + '_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.1.note();
        self.0.put(bytes)
    }
    fn finish(self: Box<Self>) -> Result<(), StorageError> {
        self.1.note();
        self.0.finish()
    }
}

impl Source for NotingFile<'_, dyn Source + '_> {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.1.note();
        self.0.read_at(offset, into)
    }
}

impl Target for Noting {
    fn create(&self, path: &str, bytes_max: u64) -> Result<Box<dyn Writing + '_>, StorageError> {
        self.note();
        Ok(Box::new(NotingFile(self.place.create(path, bytes_max)?, self)))
    }
    fn open(&self, path: &str) -> Result<Box<dyn Source + '_>, StorageError> {
        self.note();
        Ok(Box::new(NotingFile(self.place.open(path)?, self)))
    }
    fn list(&self, folder: &str) -> Result<Vec<Entry>, StorageError> {
        self.note();
        self.place.list(folder)
    }
    fn top(&self) -> Result<Vec<String>, StorageError> {
        self.place.top()
    }
    fn remove(&self, path: &str) -> Result<(), StorageError> {
        self.note();
        self.place.remove(path)
    }
    fn shown(&self, path: &str) -> String {
        self.place.shown(path)
    }
}

#[test]
fn every_answer_of_the_place_is_progress() {
    let mut job = Job::new();
    let disk = Disk::default();
    for epoch in 1..=3 {
        let id = job.checkpoint(epoch);
        let report = Arc::new(Report::default());
        let place = Noting { place: disk.target(), report: Arc::clone(&report), steps: Mutex::default() };
        // Older ones are removed as well.
        job.copy_with(&place, id, None, 1, &report).unwrap();
        let steps = place.steps.into_inner().unwrap();
        assert!(steps.len() > 30, "{steps:?}");
        // A caller that looks between two questions sees that the first one was answered.
        assert!(steps.is_sorted_by(|before, after| before < after), "{steps:?}");
    }
}

#[test]
fn bytes_of_images_count_once_however_often_they_are_read() {
    let mut job = Job::new();
    let disk = Disk::default();
    for epoch in 1..=3 {
        let id = job.checkpoint(epoch);
        let report = Report::default();
        let written = job.copy_with(&disk.target(), id, None, 4, &report).unwrap();
        assert_eq!(report.bytes(), written.copied.bytes());
    }
}

/// Says yes so often, then no.
fn so_often(times: u64) -> (Report, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    (Report::reporting_to(move |_| counted.fetch_add(1, Ordering::Relaxed) < times), asked)
}

// At any point, also while it reads the files that are there already.
#[test]
fn a_fetch_ends_where_somebody_wants_it_to_and_leaves_whole_files_alone() {
    let mut job = Job::new();
    let id = [1, 2].map(|epoch| job.checkpoint(epoch))[1];
    let disk = Disk::default();
    let target = disk.target();
    job.copy(&target, id, None, 2).unwrap();
    let copies = Copies::new(&target, JOB, None);
    let copied = copies.list().unwrap().newest().unwrap().clone();
    let fetch = |directory: &JobDirectory<Disk>, report: &Report| {
        let images = One(directory.clone());
        copies.fetch(&copied, &mut directory.clone(), &images, NonZeroUsize::MIN, report)
    };
    let whole = JobDirectory::create(Disk::default(), &crate::common::job_file()).unwrap();
    let (report, asked) = so_often(u64::MAX);
    assert_eq!(fetch(&whole, &report).unwrap(), 3);
    let while_brought = asked.load(Ordering::Relaxed);
    let (report, asked) = so_often(u64::MAX);
    assert_eq!(fetch(&whole, &report).unwrap(), 0);
    let while_looked_at = asked.load(Ordering::Relaxed);
    // Three files, each of a head, sections and a table.
    assert!(while_looked_at >= 9, "{while_looked_at}");
    for times in 0..while_looked_at {
        let (report, asked) = so_often(times);
        assert!(matches!(fetch(&whole, &report), Err(CopyError::Stopped)), "after {times}");
        assert_eq!(asked.load(Ordering::Relaxed), times + 1, "it goes on after it was told to end");
    }
    assert_eq!(fetch(&whole, &Report::default()).unwrap(), 0);
    for times in 0..while_brought {
        let directory = JobDirectory::create(Disk::default(), &crate::common::job_file()).unwrap();
        let (report, _) = so_often(times);
        let stopped = fetch(&directory, &report);
        let mut storage = directory.clone();
        let names = storage.storage().list(&store::job::folder(id)).unwrap_or_default();
        assert!(names.iter().all(|entry| !entry.name.ends_with(".tmp")), "{names:?}");
        match stopped {
            Err(CopyError::Stopped) => {}
            // The place had given its last answer, and all was there.
            Ok(_) => assert!(times + 8 > while_brought, "{times} of {while_brought}"),
            Err(error) => panic!("{error}"),
        }
        crate::common::restore_into(&copies, &copied, directory).unwrap();
    }
}
