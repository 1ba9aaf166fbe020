//! The node's directory of its own, as the keeper's shell sees it: a thread carries out the coordinator's requests, and the answer follows when it is
//! done.

mod disk;
mod node_protector;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use ckpt_glue::protection::nodes::Refusal;
use nix::errno::Errno;

use super::super::events::Events;
use super::super::limits::COPY_GRACE;
use super::super::nodes::wire::{Membership, NodeTask};
use super::super::wire::FromKeeper;
use super::super::worker::Worker;
use super::Source;
use super::{Shell, Site};
use disk::{Disk, DiskEvent};
use node_protector::NodeProtector;

/// A task for the thread.
struct NodeWork {
    number: u64,
    task: NodeTask,
    /// Its threads end before the task begins: they may still read and write.
    ended: Option<NodeProtector>,
}

/// The thread that works in the directory.
pub(super) struct OwnDirectory {
    worker: Worker<NodeWork, DiskEvent>,
    /// Tasks of the thread that are not done: more than one, and somebody waits for the first.
    open: Arc<AtomicUsize>,
    collecting: Collecting,
    /// The task that brings images from a copy.
    fetching: Option<u64>,
    /// That one ends, soon.
    is_over: Arc<AtomicBool>,
    /// The node is in a group.
    protector: Option<NodeProtector>,
}

/// The task that removes old generations, and folds parity of the kept ones.
#[derive(Debug, Default)]
struct Collecting(Option<u64>);

impl Collecting {
    /// R27: while parity is folded, nothing is protected, and nothing rebuilt. The coordinator has given up waiting for it.
    fn admit(&mut self, number: u64, task: &NodeTask) -> Result<(), Refusal> {
        match task {
            NodeTask::Collect { .. } => self.0 = Some(number),
            NodeTask::Protect { .. } | NodeTask::Repair { .. } if self.0.is_some() => {
                let why = "what is not kept is still being removed".to_owned();
                return Err(Refusal { errno: Errno::EBUSY as u32, why });
            }
            _ => {}
        }
        Ok(())
    }

    fn done(&mut self, number: u64) {
        self.0.take_if(|collecting| *collecting == number);
    }
}

impl OwnDirectory {
    pub(super) fn start(
        site: &Site,
        membership: &Membership,
        events: &mut Events<Source>,
    ) -> io::Result<OwnDirectory> {
        let is_over = Arc::new(AtomicBool::new(false));
        let open = Arc::new(AtomicUsize::new(0));
        let mut disk = Disk::new(site, membership.clone(), Arc::clone(&is_over), Arc::clone(&open));
        let worker = Worker::start("stillwire-disk", move |NodeWork { number, task, ended }, results| {
            drop(ended);
            disk.perform(number, task, results);
        })?;
        events.watch(worker.wake_fd(), Source::Disk)?;
        let start = |group| NodeProtector::start(site, group, &membership.budget, events);
        Ok(OwnDirectory {
            worker,
            open,
            collecting: Collecting::default(),
            fetching: None,
            is_over,
            protector: membership.group().map(start).transpose()?,
        })
    }
}

impl Shell {
    pub(super) fn on_node_task(&mut self, number: u64, task: NodeTask) {
        if matches!(task, NodeTask::JobEnd(_)) {
            self.guard.set_successor(None);
        }
        match self.lock.keep(number, task) {
            Ok(Some(task)) => self.begin_node_task(number, task),
            Ok(None) => {}
            Err(refusal) => {
                self.send_to_launcher(&FromKeeper::NodeDone { number, outcome: Err(refusal) });
            }
        }
    }

    pub(super) fn begin_node_task(&mut self, number: u64, task: NodeTask) {
        let Some(own) = &mut self.own else { return };
        let mut ended = None;
        if matches!(task, NodeTask::Settle { .. }) {
            // The protector is dropped by the thread alone: its own threads may hang at the same disk.
            if let Err(full) = own.worker.has_room() {
                let outcome = Err(Refusal { errno: Errno::EBUSY as u32, why: full.to_string() });
                return self.send_to_launcher(&FromKeeper::NodeDone { number, outcome });
            }
            // Nothing is protected or brought any more: work that was under way is given up.
            ended = own.protector.take();
            if let Some(protector) = &ended {
                self.events.take_out(protector.wake_fd());
            }
            own.is_over.store(true, Ordering::Relaxed);
        }
        if let NodeTask::Fetch { .. } = &task {
            own.fetching = Some(number);
        }
        if let Err(refusal) = own.collecting.admit(number, &task) {
            return self.send_to_launcher(&FromKeeper::NodeDone { number, outcome: Err(refusal) });
        }
        let task = match &mut own.protector {
            Some(protector) => match protector.take(number, task) {
                Ok(task) => task,
                Err(refusal) => {
                    return self.send_to_launcher(&FromKeeper::NodeDone { number, outcome: Err(refusal) });
                }
            },
            None => Some(task),
        };
        if let Some(task) = task {
            own.open.fetch_add(1, Ordering::Relaxed);
            if let Err(full) = own.worker.try_ask(NodeWork { number, task, ended }) {
                own.open.fetch_sub(1, Ordering::Relaxed);
                own.collecting.done(number);
                own.fetching.take_if(|fetching| *fetching == number);
                let outcome = Err(Refusal { errno: Errno::EBUSY as u32, why: full.to_string() });
                self.send_to_launcher(&FromKeeper::NodeDone { number, outcome });
            }
        }
    }

    /// The protector has sent messages.
    pub(super) fn on_protector(&mut self) {
        while let Some((number, outcome)) =
            self.own.as_mut().and_then(|own| own.protector.as_mut()).and_then(NodeProtector::next)
        {
            self.send_to_launcher(&FromKeeper::NodeDone { number, outcome });
        }
    }

    /// The thread has sent messages.
    pub(super) fn on_disk(&mut self) {
        while let Some(said) = self.own.as_ref().and_then(|own| own.worker.next()) {
            self.on_disk_event(said);
        }
    }

    fn on_disk_event(&mut self, said: DiskEvent) {
        match said {
            DiskEvent::Busy { number, bytes } => {
                self.send_to_launcher(&FromKeeper::NodeBusy { number, bytes })
            }
            DiskEvent::Done { number, outcome } => {
                if let Some(own) = &mut self.own {
                    own.open.fetch_sub(1, Ordering::Relaxed);
                    own.collecting.done(number);
                    own.fetching.take_if(|fetching| *fetching == number);
                }
                self.send_to_launcher(&FromKeeper::NodeDone { number, outcome });
            }
        }
    }

    /// Waits for work that is still being done when the job is over; not for a place of copies that does not answer.
    pub(super) fn leave_disk(&mut self) {
        let until = Instant::now() + COPY_GRACE;
        while let Some(own) = self.own.as_mut().filter(|own| own.open.load(Ordering::Relaxed) > 0) {
            own.is_over.store(true, Ordering::Relaxed);
            let said = if own.fetching.is_some() { own.worker.wait_until(until) } else { own.worker.wait() };
            match said {
                Some(said) => self.on_disk_event(said),
                None => return own.worker.leave(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ckpt_glue::names::GenerationId;
    use transport::{Epoch, Life};

    use super::*;

    // R27
    #[test]
    fn while_parity_is_folded_nothing_is_protected_or_rebuilt() {
        let life = Life { counter: 1, nonce: 2 };
        let generation = GenerationId { life, epoch: Epoch(3) };
        let collect = NodeTask::Collect { life, keep: 1, kept: Vec::new() };
        let parity =
            [NodeTask::Protect { generation, from: None, ranks: (0, 1) }, NodeTask::Repair { generation }];
        let mut collecting = Collecting::default();
        for task in &parity {
            collecting.admit(1, task).expect("nothing is removed yet");
        }
        collecting.admit(2, &collect).expect("it is not in its own way");
        let refused = |collecting: &mut Collecting| {
            parity.each_ref().map(|task| collecting.admit(3, task).map_err(|refusal| refusal.errno))
        };
        assert_eq!(refused(&mut collecting), [Err(Errno::EBUSY as u32); 2]);
        collecting.admit(3, &NodeTask::Abandon { generation }).expect("that touches nothing that is kept");
        // Something else is done.
        collecting.done(1);
        assert_eq!(refused(&mut collecting), [Err(Errno::EBUSY as u32); 2]);
        collecting.done(2);
        assert_eq!(refused(&mut collecting), [Ok(()); 2]);
    }
}
