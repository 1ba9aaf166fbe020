//! The node's protector: the coordinator's requests to it, and its answers.

use std::io;
use std::os::fd::BorrowedFd;

use ckpt_glue::protection::nodes::Refusal;
use drivers::FAULTS_VARIABLE;
use nix::errno::Errno;
use protector::{Event, Protector, ProtectorError, REQUESTS_MAX, Rail, Request, RequestKind, Settings};
use store::GenerationId;
use store::protect::{Group, ProtectError};
use transport::Rank;

use super::super::super::events::Events;
use super::super::super::limits::PROTECTOR_PATIENCE;
use super::super::super::nodes::wire::{Budget, NodeDone, NodeTask, Rebuilt};
use super::super::Site;
use super::super::Source;

/// A request that has not been answered.
#[derive(Debug)]
struct Open {
    number: u64,
    kind: RequestKind,
    generation: Option<GenerationId>,
}

pub(super) struct NodeProtector {
    protector: Protector,
    /// At most [`REQUESTS_MAX`].
    open: Vec<Open>,
}

impl NodeProtector {
    pub(super) fn start(
        site: &Site,
        group: Group,
        budget: &Budget,
        events: &mut Events<Source>,
    ) -> io::Result<NodeProtector> {
        // The rails of its ranks have the same faults.
        let faults = site.program.variable(FAULTS_VARIABLE);
        let faults = faults.and_then(|text| text.to_string_lossy().parse().ok()).unwrap_or_default();
        let addresses = [site.bind.ip()].into_iter().chain(site.further.iter().copied());
        let rails = addresses.map(|bind| Rail { bind, faults }).collect();
        let settings = Settings {
            job: site.job,
            key: site.key,
            auth: site.auth,
            rails,
            node: site.node.0,
            group,
            directory: site.directory.clone(),
            limits: budget.limits,
            shape: budget.shape,
            patience: PROTECTOR_PATIENCE,
        };
        let protector = Protector::start(settings).map_err(io::Error::other)?;
        events.watch(protector.wake_fd(), Source::Protector)?;
        Ok(NodeProtector { protector, open: Vec::new() })
    }

    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.protector.wake_fd()
    }

    /// Takes a task that is its own; gives back any other one, and a refusal if too many are open.
    pub(super) fn take(&mut self, number: u64, task: NodeTask) -> Result<Option<NodeTask>, Refusal> {
        let (kind, generation, request) = match task {
            NodeTask::Open { life } => (RequestKind::Open, None, Request::Open { life }),
            NodeTask::Meet { life, addresses } => {
                (RequestKind::Meet, None, Request::Meet { life, addresses })
            }
            NodeTask::Protect { generation, from, ranks: (first, end) } => {
                let ranks = (first..end).map(Rank).collect();
                (RequestKind::Protect, Some(generation), Request::Protect { generation, from, ranks })
            }
            NodeTask::Abandon { generation } => {
                (RequestKind::Abandon, Some(generation), Request::Abandon { generation })
            }
            NodeTask::Repair { generation } => {
                (RequestKind::Repair, Some(generation), Request::Repair { generation })
            }
            other => return Ok(Some(other)),
        };
        if !self.protector.send(request) {
            let why = format!("its protector has not answered {REQUESTS_MAX} requests (REQUESTS_MAX)");
            return Err(Refusal { errno: Errno::EBUSY as u32, why });
        }
        self.open.push(Open { number, kind, generation });
        Ok(None)
    }

    /// The next answer, with the number of its question.
    pub(super) fn next(&mut self) -> Option<(u64, Result<NodeDone, Refusal>)> {
        loop {
            let (kind, generation, outcome) = read(self.protector.next()?);
            let is_it = |open: &Open| open.kind == kind && open.generation == generation;
            if let Some(place) = self.open.iter().position(is_it) {
                return Some((self.open.remove(place).number, outcome));
            }
        }
    }
}

fn read(event: Event) -> (RequestKind, Option<GenerationId>, Result<NodeDone, Refusal>) {
    match event {
        Event::Opened { addresses, unusable, .. } => {
            (RequestKind::Open, None, Ok(NodeDone::Opened { addresses, unusable }))
        }
        Event::Met { .. } => (RequestKind::Meet, None, Ok(NodeDone::Done)),
        Event::Protected { generation, statistics } => {
            (RequestKind::Protect, Some(generation), Ok(NodeDone::Protected((&statistics).into())))
        }
        Event::Abandoned { generation, account } => {
            (RequestKind::Abandon, Some(generation), Ok(NodeDone::GivenUp(account)))
        }
        Event::Repaired { generation, repaired, statistics } => {
            let rebuilt = Rebuilt {
                files: repaired.files,
                pages: repaired.pages,
                parity_pages: repaired.parity_pages,
                records: repaired.records,
                received_bytes: statistics.received_bytes,
            };
            (RequestKind::Repair, Some(generation), Ok(NodeDone::Repaired(rebuilt)))
        }
        Event::Failed { request, generation, error } => (request, generation, Err(refusal(&error))),
    }
}

fn refusal(error: &ProtectorError) -> Refusal {
    let errno = match error {
        ProtectorError::Store(error) | ProtectorError::Protect(ProtectError::Store(error)) => error.errno(),
        ProtectorError::Protect(ProtectError::TooManyLost { silent, .. }) if silent.is_empty() => {
            Refusal::BEYOND_REPAIR
        }
        ProtectorError::Silent { .. } | ProtectorError::Stuck { .. } => Errno::ETIMEDOUT as u32,
        _ => Errno::EIO as u32,
    };
    Refusal { errno, why: error.to_string() }
}
