//! Writes images while the program runs on.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ckpt_glue::control::{CutStatistics, NoImageReason};
use ckpt_glue::names::ImageDigest;
use ckpt_glue::participant::Input;
use store::storage::Bucket;
use store::{Directory, GenerationId, JobDirectory, Section, StoreError};
use transport::Epoch;

use crate::agent::Agent;
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

/// What a cut has captured.
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

/// What the writer may write in a second.
struct Limit {
    bucket: Bucket,
    since: Instant,
}

impl Limit {
    fn new(bytes_per_s: u64) -> Limit {
        Limit { bucket: Bucket::new(bytes_per_s, Duration::ZERO), since: Instant::now() }
    }

    /// So many bytes have been written: how long to wait before the next ones.
    fn wait(&mut self, bytes: u64) -> Duration {
        self.bucket.take(self.since.elapsed(), bytes)
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
        let image = queue.next();
        let epoch = image.epoch;
        if queue.is_cancelled(epoch) {
            continue;
        }
        let input = match write(&mut directory, &queue, &agent, limit.as_mut(), image) {
            Ok(Some(input)) => input,
            // Cancelled; nobody waits for an answer.
            Ok(None) => continue,
            Err(error) => {
                eprintln!(
                    "stillwire: rank {}: image of epoch {epoch} not written: {error}",
                    agent.identity().rank
                );
                Input::CaptureFailed { epoch, reason: NoImageReason::WriteFailed { errno: error.errno() } }
            }
        };
        agent.handle(input, None);
    };
    std::thread::Builder::new().name("stillwire-images".into()).spawn(run).map(drop)
}

/// `None` if the image was cancelled meanwhile; nothing is left of it then.
fn write(
    directory: &mut JobDirectory<Directory>,
    queue: &ImageQueue,
    agent: &Agent,
    mut limit: Option<&mut Limit>,
    image: Image,
) -> Result<Option<Input>, StoreError> {
    let Image { epoch, sections, mut statistics, cut } = image;
    let identity = agent.identity();
    let generation = GenerationId { life: identity.life, epoch };
    directory.begin_generation(generation)?;
    let mut writer = directory.begin_image(generation, identity.rank)?;
    for section in &sections {
        let OwnedSection { kind, version, id, bytes } = section;
        let head = Section { kind: *kind, version: *version, id: *id, bytes: &[] };
        let mut done = writer.begin_section(directory.storage(), head, bytes.len() as u64);
        for piece in bytes.chunks(WRITE_PIECE_BYTES) {
            if queue.is_cancelled(epoch) {
                writer.abandon(directory.storage())?;
                return Ok(None);
            }
            done = done.and_then(|()| writer.write(directory.storage(), piece));
            if let Some(limit) = &mut limit {
                queue.rest(epoch, limit.wait(piece.len() as u64));
            }
        }
        if let Err(error) = done.and_then(|()| writer.end_section(directory.storage())) {
            // The first error is the one that tells.
            let _ = writer.abandon(directory.storage());
            return Err(error);
        }
    }
    let summary = writer.finish(directory.storage())?;
    statistics.write_ns = nanos(cut.elapsed());
    let (digest, bytes) = (ImageDigest(summary.digest.0), summary.bytes);
    Ok(Some(Input::Captured { epoch, digest, bytes, statistics }))
}
