//! The thread that writes copies.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

use ckpt_glue::names::NodeIndex;
use copies::{Copies, CopyError, CopyKey, CopyLocation, Packed, Report, Work, Written};
use crossbeam_channel::Receiver;
use protector::ImageRuns;
use store::delta::Rules;
use store::{Directory, ImageReader, JobDirectory, JobFile, Manifest, StoreError};
use transport::{JobId, Rank};

use super::{Copied, CopyEvent, Flush};
use crate::Plan;
use crate::error::LauncherError;
use crate::limits::COPY_THREADS_MAX;
use crate::node_name;
use crate::nodes::NoState;
use crate::storage::unix_ms;
use crate::worker::Results;

/// How far the thread stands back behind the program and its ranks.
const NICE: i32 = 10;

/// Where the images of ranks lie.
#[derive(Clone, Debug)]
pub struct Directories {
    job: JobId,
    /// By node.
    nodes: Vec<PathBuf>,
    /// By rank: its node.
    ranks: Vec<u32>,
}

impl Directories {
    /// Of a generation, as the plan's nodes have it.
    pub(crate) fn of(plan: &Plan, manifest: &Manifest) -> Result<Directories, NoState> {
        let all = (0..manifest.nodes.len()).map(|node| u32::try_from(node).unwrap_or(u32::MAX));
        let of = |node| match &plan.own_directories {
            Some(own) => own.here(NodeIndex(node)),
            None => Ok(plan.directory.clone()),
        };
        Ok(Directories::new(plan.job, all.map(of).collect::<Result<_, _>>()?, manifest))
    }

    /// Each node's images lie in its own of these directories.
    pub fn new(job: JobId, nodes: Vec<PathBuf>, manifest: &Manifest) -> Directories {
        Directories { job, nodes, ranks: manifest.images.iter().map(|image| image.node).collect() }
    }
}

impl copies::Source for Directories {
    type Storage = Directory;

    fn directory(&self, rank: Rank) -> Result<JobDirectory<Directory>, StoreError> {
        let node = self.ranks.get(rank.0 as usize).copied().unwrap_or_default();
        let path = self.nodes.get(node as usize).cloned().unwrap_or_default();
        Ok(JobDirectory::attach(Directory::open(path)?, self.job))
    }

    fn runs(&self, rank: Rank, image: &ImageReader, section: u32) -> Vec<(u64, u64)> {
        // A directory that cannot be opened now is reported when the image is read.
        let directory = self.directory(rank);
        directory
            .map_or_else(|_| Vec::new(), |mut own| ImageRuns::new(own.storage().clone()).of(image, section))
    }
}

/// Images that others have packed, or the reason why not.
pub(super) type Answer = Result<Vec<Packed>, CopyError>;

pub(super) struct Copier {
    job: JobId,
    job_file: JobFile,
    place: CopyLocation,
    keep: u32,
    whole_every: u32,
    key: Option<CopyKey>,
    plan: Plan,
    threads: NonZeroUsize,
    /// Answers of others, if they pack.
    answers: Option<Receiver<Answer>>,
}

/// As many as leave half of the processors alone.
pub(crate) fn threads() -> NonZeroUsize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new((processors / 2).clamp(1, COPY_THREADS_MAX)).unwrap_or(NonZeroUsize::MIN)
}

impl Copier {
    pub(super) fn new(
        flush: &Flush,
        plan: &Plan,
        answers: Option<Receiver<Answer>>,
    ) -> Result<Copier, LauncherError> {
        // A job that is restored from the copy continues with the settings of this run.
        let job_file = match JobFile::parse(&plan.job_file) {
            Ok(file) => file,
            Err(_) => JobDirectory::open(Directory::open(&plan.directory)?)?.1,
        };
        Ok(Copier {
            job: plan.job,
            job_file,
            place: flush.to.clone(),
            keep: flush.keep,
            whole_every: flush.whole_every,
            key: flush.key.clone(),
            plan: plan.clone(),
            threads: threads(),
            answers,
        })
    }

    pub(super) fn copy(&self, manifest: &Manifest, report: &Report, results: &Results<CopyEvent>) -> Copied {
        stand_back();
        let (generation, began) = (manifest.generation, Instant::now());
        match self.try_copy(manifest, report, results) {
            Ok(Written { copied, new_bytes, unremoved, .. }) => Copied::Written {
                generation,
                bytes: copied.bytes(),
                new_bytes,
                took: began.elapsed(),
                unremoved: unremoved.map(|error| error.to_string()),
            },
            Err(error) => Copied::Failed { generation, error: error.to_string() },
        }
    }

    fn try_copy(
        &self,
        manifest: &Manifest,
        report: &Report,
        results: &Results<CopyEvent>,
    ) -> Result<Written, CopyError> {
        let target = self.place.open()?;
        let copies = Copies::new(&*target, self.job, self.key.clone());
        let work = Work {
            job_file: &self.job_file,
            manifest,
            copied_unix_ms: unix_ms(),
            keep: self.keep,
            rules: Rules::default(),
            whole_every: self.whole_every,
            threads: self.threads,
        };
        let Some(answers) = &self.answers else {
            let images = Directories::of(&self.plan, manifest)
                .map_err(|error| CopyError::Part { host: node_name(), problem: error.to_string() })?;
            return copies.write(&work, &images, report);
        };
        copies.write_by_others(&work, report, |order| {
            results.report(CopyEvent::Asks(order, Box::new(manifest.clone())));
            answers.recv().unwrap_or(Err(CopyError::Stopped))
        })
    }
}

/// The threads that this one starts stand back as well.
pub(crate) fn stand_back() {
    // SAFETY: the call takes numbers only. On Linux it is about the calling thread alone; that it may fail harms nothing.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}
