//! A place whose every answer counts as progress: so a waiting caller can distinguish a slow copy from one that hangs.

use store::StorageError;
use store::packets;

use crate::target::{Entry, Target, Writing};
use crate::write::Report;

/// A place, and the receiver of its progress.
pub(crate) struct ProgressTarget<'a> {
    place: &'a dyn Target,
    report: &'a Report,
}

impl<'a> ProgressTarget<'a> {
    pub(crate) fn new(place: &'a dyn Target, report: &'a Report) -> ProgressTarget<'a> {
        ProgressTarget { place, report }
    }

    fn answered<T>(&self, answer: T) -> T {
        step(self.report);
        answer
    }
}

/// A request to end is honoured between blocks, and not here: the place is put in order first.
fn step(report: &Report) {
    let _ = report.add(0);
}

impl Target for ProgressTarget<'_> {
    fn create(&self, path: &str, bytes_max: u64) -> Result<Box<dyn Writing + '_>, StorageError> {
        let writing = self.answered(self.place.create(path, bytes_max))?;
        Ok(Box::new(ProgressWriting { writing, report: self.report }))
    }

    fn open(&self, path: &str) -> Result<Box<dyn packets::Source + '_>, StorageError> {
        let source = self.answered(self.place.open(path))?;
        Ok(Box::new(ProgressSource { source, report: self.report }))
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, StorageError> {
        self.answered(self.place.list(folder))
    }

    fn top(&self) -> Result<Vec<String>, StorageError> {
        self.answered(self.place.top())
    }

    fn remove(&self, path: &str) -> Result<(), StorageError> {
        self.answered(self.place.remove(path))
    }

    fn shown(&self, path: &str) -> String {
        self.place.shown(path)
    }
}

struct ProgressWriting<'a> {
    writing: Box<dyn Writing + 'a>,
    report: &'a Report,
}

impl Writing for ProgressWriting<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.writing.put(bytes)?;
        step(self.report);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), StorageError> {
        self.writing.finish()?;
        step(self.report);
        Ok(())
    }
}

struct ProgressSource<'a> {
    source: Box<dyn packets::Source + 'a>,
    report: &'a Report,
}

impl packets::Source for ProgressSource<'_> {
    fn bytes(&self) -> u64 {
        self.source.bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.source.read_at(offset, into)?;
        step(self.report);
        Ok(())
    }
}
