//! The keepers as the job's machine sees them: their leases, their silence, and nodes that do not answer (R30 to R32).

use transport::Instant;

use super::super::books::Leases;
use super::Job;
use crate::control::{FaultReport, Message, NO_LIFE, Watch};
use crate::names::{NodeIndex, Party};
use crate::recovery::{self, Phase};

impl Job {
    pub(super) fn watch_keepers(&mut self, now: Instant) {
        let root = self.settings.layout.root();
        let is_silent = |leases: &mut Leases| now >= leases.root_heard + leases.watch.silence();
        if self.leases.take_if(is_silent).is_some() {
            self.absent.is_silent(root);
            self.on_report(now, FaultReport::KeeperSilent { node: root });
        }
    }

    /// The keeper at the top of the tree asks for a lease.
    pub(super) fn on_heartbeat(&mut self, now: Instant, keepers: u32, asked_ns: u64) {
        let Some(leases) = &mut self.leases else { return };
        leases.root_heard = now;
        let left_ns = leases.watch.lease_ns;
        // Without a majority another coordinator may decide: our ranks stop when their leases run out.
        if keepers >= self.settings.layout.majority() {
            self.absent.granted(now + leases.watch.silence());
            self.broadcast(Message::Lease { asked_ns, left_ns });
        }
    }

    /// R32: nodes that do not answer the fence.
    pub(super) fn watch_absent(&mut self, now: Instant) {
        if self.recovery.phase() != Phase::Fencing {
            return;
        }
        for node in self.absent.due(now) {
            self.recovery.handle(now, recovery::Input::NodeLost { node });
        }
    }

    /// How keepers watch each other, if they do.
    pub(super) fn watch(&self) -> Option<Watch> {
        let watches = self.settings.layout.nodes() > 1 || self.settings.is_remote;
        watches.then(|| self.settings.config.keeper.watch())
    }

    pub(super) fn send_fence(&mut self, node: NodeIndex) {
        let life = self.recovery.life().unwrap_or(NO_LIFE);
        let (counter, first) = self.fence;
        self.send_as(life, Party::Keeper(node), Message::Fence { counter, first });
    }
}
