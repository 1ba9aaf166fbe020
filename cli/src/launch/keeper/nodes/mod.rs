//! The node's directory of its own, as the keeper's shell sees it: what the coordinator asks for is done by a thread, and answered when it is done.

mod disk;
mod protecting;

use std::io;
use std::os::fd::AsFd as _;

use nix::errno::Errno;
use nix::sys::epoll::Epoll;

use super::super::nodes::wire::{NodeTask, Refusal, WirePlace};
use super::super::watch;
use super::super::wire::FromKeeper;
use super::super::worker::Worker;
use super::{Shell, Site};
use disk::{Disk, Said};
use protecting::NodeProtector;

/// Who works in the directory.
pub(super) struct OwnDirectory {
    worker: Worker<(u64, NodeTask), Said>,
    /// Tasks of the thread that are not done.
    open: usize,
    /// The task that removes what is not kept, and folds parity of what is.
    collecting: Option<u64>,
    /// The node is in a group.
    protector: Option<NodeProtector>,
}

impl OwnDirectory {
    pub(super) fn start(
        site: &Site,
        place: &WirePlace,
        epoll: &Epoll,
        (of_disk, of_protector): (u64, u64),
    ) -> io::Result<OwnDirectory> {
        let mut disk = Disk::new(site, place.clone());
        let worker = Worker::start("stillwire-disk", move |(number, task), results| {
            disk.perform(number, task, results);
        })?;
        watch(epoll, worker.bell().as_fd(), of_disk)?;
        let start = |group| NodeProtector::start(site, group, &place.budget, epoll, of_protector);
        Ok(OwnDirectory {
            worker,
            open: 0,
            collecting: None,
            protector: place.group().map(start).transpose()?,
        })
    }
}

impl Shell {
    pub(super) fn on_node_task(&mut self, number: u64, task: NodeTask) {
        let Some(own) = &mut self.own else { return };
        if matches!(task, NodeTask::Settle { .. }) {
            // Nothing is protected any more: what was under way is given up.
            own.protector = None;
        }
        match task {
            NodeTask::Collect { .. } => own.collecting = Some(number),
            // R27: while parity is folded, nothing is protected. Who asks has given up waiting for it.
            NodeTask::Protect { .. } if own.collecting.is_some() => {
                let why = "what is not kept is still being removed".to_owned();
                let outcome = Err(Refusal { errno: Errno::EBUSY as u32, why });
                return self.tell(&FromKeeper::NodeDone { number, outcome });
            }
            _ => {}
        }
        let task = match &mut own.protector {
            Some(protector) => protector.take(number, task),
            None => Some(task),
        };
        if let Some(task) = task {
            own.open += 1;
            own.worker.ask((number, task));
        }
    }

    /// The protector has something to say.
    pub(super) fn on_protector(&mut self) {
        while let Some((number, outcome)) =
            self.own.as_mut().and_then(|own| own.protector.as_mut()).and_then(NodeProtector::next)
        {
            self.tell(&FromKeeper::NodeDone { number, outcome });
        }
    }

    /// The thread has something to say.
    pub(super) fn on_disk(&mut self) {
        while let Some(said) = self.own.as_ref().and_then(|own| own.worker.next()) {
            self.on_said(said);
        }
    }

    fn on_said(&mut self, said: Said) {
        match said {
            Said::Busy { number, bytes } => self.tell(&FromKeeper::NodeBusy { number, bytes }),
            Said::Done { number, outcome } => {
                if let Some(own) = &mut self.own {
                    own.open -= 1;
                    own.collecting.take_if(|collecting| *collecting == number);
                }
                self.tell(&FromKeeper::NodeDone { number, outcome });
            }
        }
    }

    /// Waits for what is still being done when the job is over.
    pub(super) fn leave_disk(&mut self) {
        while self.own.as_ref().is_some_and(|own| own.open > 0) {
            let Some(said) = self.own.as_ref().and_then(|own| own.worker.wait()) else { return };
            self.on_said(said);
        }
    }
}
