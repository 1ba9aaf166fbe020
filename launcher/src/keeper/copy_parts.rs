//! The node's part of copies outside the nodes: the images of its ranks, packed by a thread of its own, for which nothing of the job waits.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use copies::{Copies, CopyError, Packed, Report};
use transport::{JobId, Rank};

use super::super::events::Events;
use super::super::flush::wire::PartRequest;
use super::super::flush::{Directories, stand_back, threads};
use super::super::limits::COPY_GRACE;
use super::super::wire::FromKeeper;
use super::super::worker::{Results, Worker};
use super::Source;
use super::{Shell, Site};

/// Time between two words of progress.
const NEWS_EVERY: Duration = Duration::from_secs(1);

/// A message from the thread.
#[derive(Debug)]
enum PartEvent {
    /// There is progress, and so many more bytes have been read.
    Progress {
        number: u64,
        bytes: u64,
    },
    Done {
        number: u64,
        outcome: Result<Vec<Packed>, String>,
    },
}

/// Reports from time to time that there is progress, and how many more bytes it were.
pub(super) struct News {
    untold: Mutex<(Instant, u64)>,
}

impl News {
    pub(super) fn new() -> News {
        News { untold: Mutex::new((Instant::now(), 0)) }
    }

    pub(super) fn add(&self, bytes: u64, report: impl FnOnce(u64)) {
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.1 += bytes;
        if untold.0.elapsed() >= NEWS_EVERY {
            report(untold.1);
            *untold = (Instant::now(), 0);
        }
    }
}

/// The thread that packs.
pub(super) struct CopyParts {
    worker: Worker<(Box<PartRequest>, Arc<AtomicBool>), PartEvent>,
    /// The part that is being written, and whether it is given up.
    under_way: Option<(u64, Arc<AtomicBool>)>,
}

impl CopyParts {
    fn start(site: &Site, events: &mut Events<Source>) -> io::Result<CopyParts> {
        let (path, job) = (site.directory.clone(), site.job);
        let worker = Worker::start(
            "stillwire-copies",
            move |(part, is_given_up): (Box<PartRequest>, Arc<AtomicBool>), results| {
                stand_back();
                let number = part.number;
                let outcome = write(&path, job, &part, is_given_up, results);
                results
                    .report(PartEvent::Done { number, outcome: outcome.map_err(|error| error.to_string()) });
            },
        )?;
        events.watch(worker.wake_fd(), Source::Copies)?;
        Ok(CopyParts { worker, under_way: None })
    }
}

impl Drop for CopyParts {
    /// Gives up the part that is being written. A thread that does not end soon waits for its place, and ends with this process.
    fn drop(&mut self) {
        let Some((_, is_given_up)) = &self.under_way else { return };
        is_given_up.store(true, Ordering::Relaxed);
        let until = Instant::now() + COPY_GRACE;
        while let Some(said) = self.worker.wait_until(until) {
            if matches!(said, PartEvent::Done { .. }) {
                return;
            }
        }
        self.worker.leave();
    }
}

fn write(
    path: &std::path::Path,
    job: JobId,
    part: &PartRequest,
    is_given_up: Arc<AtomicBool>,
    results: &Results<PartEvent>,
) -> Result<Vec<Packed>, CopyError> {
    let target = part.to.open()?;
    let copies = Copies::new(&*target, job, part.to.key());
    let ranks: Vec<Rank> = part.ranks.iter().copied().map(Rank).collect();
    let nodes: Vec<PathBuf> = vec![path.to_owned(); part.manifest.nodes.len()];
    let source = Directories::new(job, nodes, &part.manifest);
    let (news, results, number) = (News::new(), results.clone(), part.number);
    let report = Report::reporting_to(move |bytes| {
        news.add(bytes, |bytes| results.report(PartEvent::Progress { number, bytes }));
        !is_given_up.load(Ordering::Relaxed)
    });
    copies.write_part(&part.request, &part.manifest, &ranks, &source, threads(), &report)
}

impl Shell {
    pub(super) fn on_copy(&mut self, part: Box<PartRequest>) {
        let number = part.number;
        if self.copy_parts.is_none() {
            match CopyParts::start(&self.site, &mut self.events) {
                Ok(copy_parts) => self.copy_parts = Some(copy_parts),
                Err(error) => {
                    let outcome = Err(format!("no thread can be started ({error})"));
                    return self.send_to_launcher(&FromKeeper::CopyDone { number, outcome });
                }
            }
        }
        if let Some(copy_parts) = &mut self.copy_parts {
            if copy_parts.under_way.is_some() {
                let outcome = Err(format!(
                    "its part of an older copy, which was given up, still waits for {}",
                    part.to.shown()
                ));
                return self.send_to_launcher(&FromKeeper::CopyDone { number, outcome });
            }
            let is_given_up = Arc::new(AtomicBool::new(false));
            copy_parts.under_way = Some((number, Arc::clone(&is_given_up)));
            // One at a time: there is room.
            copy_parts.worker.ask((part, is_given_up));
        }
    }

    pub(super) fn on_copy_given_up(&mut self, number: u64) {
        let under_way = self.copy_parts.as_ref().and_then(|copy_parts| copy_parts.under_way.as_ref());
        if let Some((_, is_given_up)) = under_way.filter(|(known, _)| *known == number) {
            is_given_up.store(true, Ordering::Relaxed);
        }
    }

    /// The thread has sent messages.
    pub(super) fn on_copying(&mut self) {
        while let Some(said) = self.copy_parts.as_ref().and_then(|copy_parts| copy_parts.worker.next()) {
            let word = match said {
                PartEvent::Progress { number, bytes } => FromKeeper::Copying { number, bytes },
                PartEvent::Done { number, outcome } => {
                    if let Some(copy_parts) = &mut self.copy_parts {
                        copy_parts.under_way.take_if(|(known, _)| *known == number);
                    }
                    FromKeeper::CopyDone { number, outcome }
                }
            };
            self.send_to_launcher(&word);
        }
    }
}
