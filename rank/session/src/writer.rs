//! Writes images while the program runs on.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ckpt_glue::control::{CutStatistics, Message, NoImageReason, Reason};
use ckpt_glue::participant::Input;
use store::image::ImageSummary;
use store::storage::{DirectoryFile, Limit};
use store::{Directory, GenerationId, ImageWriter, JobDirectory, Section, Storage, StoreError};
use transport::{Epoch, Rank};

use crate::agent::{Agent, Identity};
use crate::capture::nanos;
use crate::limits::WRITE_PIECE_BYTES;

/// Images that wait for the writer: one is being written when another cut comes, which cancels the first.
const QUEUE_MAX: usize = 4;

/// A section with its content.
pub(crate) struct OwnedSection {
    pub(crate) kind: u32,
    pub(crate) version: u16,
    pub(crate) id: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The capture of a cut.
pub(crate) struct Image {
    pub(crate) epoch: Epoch,
    pub(crate) sections: Vec<OwnedSection>,
    pub(crate) statistics: CutStatistics,
    /// When the program went on.
    pub(crate) cut: Instant,
}

#[derive(Default)]
struct Queue {
    images: Mutex<VecDeque<Image>>,
    filled: Condvar,
    /// Images of this epoch and older ones are not wanted any more.
    cancelled: AtomicU32,
}

/// Where cuts put their images.
#[derive(Clone, Default)]
pub(crate) struct ImageQueue(Arc<Queue>);

impl ImageQueue {
    /// False if the queue is full.
    pub(crate) fn push(&self, image: Image) -> bool {
        let mut images = self.0.images.lock().unwrap_or_else(PoisonError::into_inner);
        if images.len() >= QUEUE_MAX {
            return false;
        }
        images.push_back(image);
        self.0.filled.notify_one();
        true
    }

    /// Images of `epoch` are not wanted any more.
    pub(crate) fn cancel(&self, epoch: Epoch) {
        let _images = self.0.images.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.cancelled.fetch_max(epoch.0, Ordering::AcqRel);
        self.0.filled.notify_one();
    }

    /// Waits so long, unless images of `epoch` are not wanted any more.
    fn rest(&self, epoch: Epoch, time: Duration) {
        let until = Instant::now() + time;
        let mut images = self.0.images.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_cancelled(epoch) {
                return;
            }
            images = self.0.filled.wait_timeout(images, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn next(&self) -> Image {
        let mut images = self.0.images.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match images.pop_front() {
                Some(image) => return image,
                None => images = self.0.filled.wait(images).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn is_cancelled(&self, epoch: Epoch) -> bool {
        self.0.cancelled.load(Ordering::Acquire) >= epoch.0
    }
}

/// Starts the writer's thread.
pub(crate) fn start(
    queue: ImageQueue,
    agent: Arc<Agent>,
    mut directory: JobDirectory<Directory>,
    disk_bytes_per_s: Option<u64>,
) -> std::io::Result<()> {
    let mut limit = disk_bytes_per_s.map(Limit::new);
    let run = move || loop {
        let Image { epoch, sections, mut statistics, cut } = queue.next();
        if queue.is_cancelled(epoch) {
            continue;
        }
        let Identity { life, rank, .. } = *agent.identity();
        let place = (GenerationId { life, epoch }, rank);
        let written = write(&mut directory, &queue, place, &sections, limit.as_mut(), begin_write_back);
        let input = match written {
            Ok(Some(summary)) => {
                statistics.write_ns = nanos(cut.elapsed());
                let (digest, bytes) = (summary.digest, summary.bytes);
                Input::Captured { epoch, digest, bytes, statistics }
            }
            // Cancelled; no answer is expected.
            Ok(None) => continue,
            Err(error) => {
                agent.send(Message::Unsaved { reason: Reason::new(&error) });
                Input::CaptureFailed { epoch, reason: NoImageReason::WriteFailed { errno: error.errno() } }
            }
        };
        agent.handle(input, None);
    };
    std::thread::Builder::new().name("stillwire-images".into()).spawn(run).map(drop)
}

/// Has the kernel begin to write the written part of the file to the disk.
fn begin_write_back(writer: &ImageWriter<DirectoryFile>) {
    let file = writer.file().as_fd().as_raw_fd();
    // SAFETY: no memory is touched.
    let begun = unsafe { nix::libc::sync_file_range(file, 0, 0, nix::libc::SYNC_FILE_RANGE_WRITE) };
    // It is only a hint: failures are reported when the file is made durable.
    let _ = begun;
}

/// `None` if the image was cancelled meanwhile. Nothing is left then, nor after an error. Below a limit `piece_written` follows each piece.
fn write<S: Storage>(
    directory: &mut JobDirectory<S>,
    queue: &ImageQueue,
    (generation, rank): (GenerationId, Rank),
    sections: &[OwnedSection],
    limit: Option<&mut Limit>,
    piece_written: impl Fn(&ImageWriter<S::File>),
) -> Result<Option<ImageSummary>, StoreError> {
    directory.begin_generation(generation)?;
    let mut writer = directory.begin_image(generation, rank)?;
    let storage = directory.storage();
    match fill(&mut writer, storage, queue, generation.epoch, sections, limit, piece_written) {
        Ok(true) => writer.finish(storage).map(Some),
        Ok(false) => writer.abandon(storage).map(|()| None),
        Err(error) => {
            // The first error is the informative one.
            let _ = writer.abandon(storage);
            Err(error)
        }
    }
}

/// Writes the sections. False if the image was cancelled meanwhile.
fn fill<S: Storage>(
    writer: &mut ImageWriter<S::File>,
    storage: &mut S,
    queue: &ImageQueue,
    epoch: Epoch,
    sections: &[OwnedSection],
    mut limit: Option<&mut Limit>,
    piece_written: impl Fn(&ImageWriter<S::File>),
) -> Result<bool, StoreError> {
    let piece_bytes = limit.as_ref().and_then(|limit| usize::try_from(limit.piece_bytes()).ok());
    let piece_bytes = piece_bytes.map_or(WRITE_PIECE_BYTES, |bytes| bytes.min(WRITE_PIECE_BYTES));
    for OwnedSection { kind, version, id, bytes } in sections {
        let head = Section { kind: *kind, version: *version, id: *id, bytes: &[] };
        writer.begin_section(storage, head, bytes.len() as u64)?;
        for piece in bytes.chunks(piece_bytes) {
            if queue.is_cancelled(epoch) {
                return Ok(false);
            }
            writer.write(storage, piece)?;
            if let Some(limit) = &mut limit {
                piece_written(writer);
                queue.rest(epoch, limit.wait(piece.len() as u64));
            }
        }
        writer.end_section(storage)?;
    }
    Ok(!queue.is_cancelled(epoch))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;

    use store::{CheckpointSettings, JobFile, Memory, StorageError};
    use transport::{JobId, Life};

    use super::*;

    const PLACE: (GenerationId, Rank) =
        (GenerationId { life: Life { counter: 1, nonce: 7 }, epoch: Epoch(3) }, Rank(0));

    fn job() -> JobDirectory<Memory> {
        let file = JobFile {
            job: JobId(1),
            ranks: 1,
            checkpoint: CheckpointSettings { every_ms: None, keep: 1 },
            directory: b"/".to_vec(),
            command: vec![b"./app".to_vec()],
            environment: Vec::new(),
            settings: Default::default(),
        };
        let mut directory = JobDirectory::create(Memory::new(), &file).expect("a job");
        let nonce = PLACE.0.life.nonce;
        assert_eq!(directory.start_life(nonce, None).expect("a life").life, PLACE.0.life);
        directory
    }

    fn sections(bytes: usize) -> Vec<OwnedSection> {
        (1..=2).map(|id| OwnedSection { kind: 0x100, version: 1, id, bytes: vec![1; bytes] }).collect()
    }

    /// The number of files in the folder of the image.
    fn found(directory: &mut JobDirectory<Memory>) -> usize {
        let folder = store::job::folder(PLACE.0);
        directory.storage().list(&folder).expect("the folder of the generation").len()
    }

    #[test]
    fn what_cannot_be_written_is_reported_at_once_however_slowly_it_would_be_written() {
        let mut directory = job();
        directory.storage().set_capacity_bytes(Some(4096));
        let (to, from) = mpsc::channel();
        // The writes after the error would take longer than the test waits.
        std::thread::spawn(move || {
            let (queue, mut limit) = (ImageQueue::default(), Limit::new(1));
            let sections = sections(1 << 20);
            let written = write(&mut directory, &queue, PLACE, &sections, Some(&mut limit), |_| ());
            to.send((written, found(&mut directory)))
        });
        let (written, left) = from.recv_timeout(Duration::from_secs(20)).expect("an answer");
        let error = written.expect_err("there is no room");
        assert!(matches!(error, StoreError::Storage(StorageError::NoSpace { .. })), "{error}");
        assert_eq!(left, 0, "nothing is left");
    }

    #[test]
    fn what_is_cancelled_behind_its_last_piece_is_not_published() {
        let (mut directory, queue) = (job(), ImageQueue::default());
        // Two sections of a piece each: the second one is the last.
        let (mut limit, pieces) = (Limit::new(1 << 30), Cell::new(0));
        let cancel = |_: &ImageWriter<_>| {
            pieces.set(pieces.get() + 1);
            if pieces.get() == 2 {
                queue.cancel(PLACE.0.epoch);
            }
        };
        let written = write(&mut directory, &queue, PLACE, &sections(1000), Some(&mut limit), cancel);
        assert_eq!((written, pieces.get(), found(&mut directory)), (Ok(None), 2, 0));
    }

    #[test]
    fn below_a_limit_every_piece_is_small_and_sent_on() {
        let (mut directory, queue) = (job(), ImageQueue::default());
        let mut pieces = |epoch, limit: Option<&mut Limit>| {
            let (pieces, place) = (Cell::new(0), (GenerationId { epoch: Epoch(epoch), ..PLACE.0 }, PLACE.1));
            let count = |_: &ImageWriter<_>| pieces.set(pieces.get() + 1);
            let summary = write(&mut directory, &queue, place, &sections(1 << 20), limit, count);
            assert!(summary.expect("room").expect("nobody cancels it").bytes > 2 << 20);
            pieces.get()
        };
        assert_eq!(pieces(1, None), 0, "nothing holds it back");
        let mut limit = Limit::new(5 << 20);
        assert_eq!((limit.piece_bytes(), pieces(2, Some(&mut limit))), (512 << 10, 4));
    }
}
