//! Switching faults from outside while the driver is inside a port.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transport::RawAddress;

use super::spec::Faults;

/// Handle to a [`FaultDriver`](super::FaultDriver). A switched setting takes effect with the driver's next
/// call.
#[derive(Clone, Default)]
pub struct FaultSwitch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    killed: AtomicBool,
    deaf: AtomicBool,
    has_black_outs: AtomicBool,
    has_faults: AtomicBool,
    lost_total: AtomicU64,
    slow: Mutex<Slow>,
}

#[derive(Default)]
struct Slow {
    black_outs: BTreeSet<Vec<u8>>,
    faults: Option<Faults>,
}

impl FaultSwitch {
    /// From now on every call fails as a dead rail.
    pub fn kill(&self) {
        self.0.killed.store(true, Ordering::Release);
    }

    /// Loses everything that is received, or stops doing so.
    pub fn set_deaf(&self, deaf: bool) {
        self.0.deaf.store(deaf, Ordering::Release);
    }

    /// Loses everything that is sent to `peer`, or stops doing so.
    pub fn set_blacked_out(&self, peer: &RawAddress, blacked_out: bool) {
        let mut slow = self.slow();
        if blacked_out {
            slow.black_outs.insert(peer.as_bytes().to_vec());
        } else {
            slow.black_outs.remove(peer.as_bytes());
        }
        self.0.has_black_outs.store(!slow.black_outs.is_empty(), Ordering::Release);
    }

    /// Other faults from now on; the random sequence starts again from their seed.
    pub fn set_faults(&self, faults: Faults) {
        self.slow().faults = Some(faults);
        self.0.has_faults.store(true, Ordering::Release);
    }

    /// Frames that have been lost on purpose so far, in either direction.
    #[must_use]
    pub fn lost_total(&self) -> u64 {
        self.0.lost_total.load(Ordering::Relaxed)
    }

    pub(super) fn report_lost(&self, lost_total: u64) {
        self.0.lost_total.store(lost_total, Ordering::Relaxed);
    }

    fn slow(&self) -> MutexGuard<'_, Slow> {
        self.0.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_killed(&self) -> bool {
        self.0.killed.load(Ordering::Acquire)
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.0.deaf.load(Ordering::Acquire)
    }

    pub(super) fn has_black_outs(&self) -> bool {
        self.0.has_black_outs.load(Ordering::Acquire)
    }

    pub(super) fn is_blacked_out(&self, peer: &RawAddress) -> bool {
        self.slow().black_outs.contains(peer.as_bytes())
    }

    pub(super) fn take_faults(&self) -> Option<Faults> {
        if !self.0.has_faults.load(Ordering::Acquire) {
            return None;
        }
        let mut slow = self.slow();
        self.0.has_faults.store(false, Ordering::Release);
        slow.faults.take()
    }
}
