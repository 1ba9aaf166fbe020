//! An endpoint that stands still: the gate is held, the NICs have given every buffer back.

use core::ops::Range;
use core::task::Poll;
use core::time::Duration;
use std::os::fd::RawFd;
use std::time::Instant;

use drivers::Driver;
use drivers::sync::MutexGuard;
use nic_freeze::{Freeze, FreezeError, Refused};
use transport::config::CHECKPOINTABLE;
use transport::{FrozenPort, Port, RailIndex, Reach, Restart};

use crate::buffers::BufferTable;
use crate::clock::Clock;
use crate::error::EndpointError;
use crate::gate::{Endpoint, Shared, add_rails};
use crate::inner::{Completion, Inner};

/// Links that are looked at while the gate is held; a waiting thread gets it in between.
const WARMED_AT_A_TIME: usize = 128;

/// Where the time of a freeze went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PauseSplit {
    /// Waiting for the gate: another thread was making progress.
    pub gate: Duration,
    /// Waiting for the NICs to give their buffers back.
    pub drain: Duration,
    /// The whole freeze, until nothing of ours can touch port memory.
    pub freeze: Duration,
}

/// A frozen endpoint. Callers wait at the gate until it is thawed.
pub struct Frozen<'a> {
    /// `None` only inside of `thaw` and `restart`.
    port: Option<FrozenPort>,
    inner: MutexGuard<'a, Inner>,
    shared: &'a Shared,
    split: PauseSplit,
    /// When it was frozen.
    since: transport::Instant,
}

impl Endpoint {
    /// Brings data that a dump will read into the caches, while messages still come and go: a port with a
    /// thousand links is dumped in a third of the time then. It belongs right before [`Endpoint::freeze`],
    /// like [`nic_freeze::make_room`]. The gate is given up between the links.
    pub fn warm(&self) {
        let mut next = Some(0);
        while let Some(first) = next {
            let mut inner = self.shared.lock();
            next = inner.port.warm(first, WARMED_AT_A_TIME);
            // Data that a freeze itself needs comes last, so that it is still in the caches.
            if next.is_none() {
                inner.collect_all();
            }
        }
    }

    /// As [`Frozen::system`], at this moment: a message may have a rail map a peer's memory at the next.
    #[must_use]
    pub fn system(&self) -> (Vec<RawFd>, Vec<Range<usize>>) {
        self.shared.lock().system()
    }

    /// Freezes the endpoint: takes the gate, drains the rails, stops the port. Never waits for a peer.
    ///
    /// # Errors
    /// [`EndpointError::DrainTimeout`] if a NIC keeps a buffer for longer than `deadline`: the endpoint goes
    /// on running. [`EndpointError::Uncheckpointable`] in a build for measuring the cost of checkpoints.
    pub fn freeze(&self, deadline: Duration) -> Result<Frozen<'_>, EndpointError> {
        if !CHECKPOINTABLE {
            return Err(EndpointError::Uncheckpointable);
        }
        let shared: &Shared = &self.shared;
        let asked = Instant::now();
        let mut inner = shared.lock();
        let entered = Instant::now();
        // Completions are reported before the cut or after it, never lost between: from here on it lies in the
        // completions, and not in the port.
        inner.port.catch_up();
        inner.collect_all();
        let port = inner.drain(&shared.clock, deadline)?;
        // A drained rail has completed all that was staged, so no payload is waited for: nothing to do per operation.
        inner.release_held();
        let done = Instant::now();
        let split = PauseSplit { gate: entered - asked, drain: done - entered, freeze: done - asked };
        Ok(Frozen { port: Some(port), inner, shared, split, since: shared.clock.now() })
    }
}

impl Inner {
    fn system(&self) -> (Vec<RawFd>, Vec<Range<usize>>) {
        let rails = || self.rails.iter().flatten();
        (
            rails().flat_map(|driver| driver.descriptors()).collect(),
            rails().flat_map(|driver| driver.device_mappings()).collect(),
        )
    }

    /// Brings the port to a stand. A rail that dies of it is taken out, like one that dies of anything else.
    fn drain(&mut self, clock: &Clock, deadline: Duration) -> Result<FrozenPort, EndpointError> {
        loop {
            let mut now = clock.now();
            let mut freeze = Freeze::quiesce(self.port.take(), self.rails.len(), now, deadline);
            let Refused { port, reason } = loop {
                let rails = &mut self.rails;
                let drain = |rail: RailIndex| match &mut rails[usize::from(rail.0)] {
                    Some(driver) => driver.drain(),
                    None => Ok(Poll::Ready(())),
                };
                match freeze.poll(now, drain) {
                    Ok(Freeze::Frozen(port)) => return Ok(port),
                    Ok(waiting) => freeze = waiting,
                    Err(refused) => break refused,
                }
                core::hint::spin_loop();
                now = clock.now();
            };
            self.port.put(*port);
            match reason {
                FreezeError::Rail { rail, error } if error.is_rail_dead() => {
                    self.rail_failed(usize::from(rail.0), error);
                }
                FreezeError::Rail { rail, error } => {
                    return Err(EndpointError::Driver { rail: rail.0.into(), source: error });
                }
                FreezeError::TooLate { rail, waited } => {
                    return Err(EndpointError::DrainTimeout { rail: rail.0.into(), waited });
                }
            }
        }
    }
}

impl Frozen<'_> {
    /// The port's state.
    #[must_use]
    pub fn port(&self) -> &FrozenPort {
        self.port.as_ref().expect("a frozen endpoint has a port until it is thawed")
    }

    /// The port's state, to raise its epoch.
    pub fn port_mut(&mut self) -> &mut FrozenPort {
        self.port.as_mut().expect("a frozen endpoint has a port until it is thawed")
    }

    /// The user's buffers: not written to now.
    #[must_use]
    pub fn buffers(&self) -> &BufferTable {
        &self.inner.buffers
    }

    /// Completions that the owner has not polled yet. Keep them with a dump of the port, as the port has forgotten
    /// them.
    pub fn take_completions(&mut self) -> Vec<Completion> {
        self.inner.completions.drain(..).collect()
    }

    /// Where the time of the freeze went.
    #[must_use]
    pub fn split(&self) -> PauseSplit {
        self.split
    }

    /// Goes on in the same life, on the same rails. Returns when the first frame can be sent, and how long that took.
    pub fn thaw(mut self) -> Duration {
        let asked = Instant::now();
        self.put_back();
        asked.elapsed()
    }

    /// The rails' resources: descriptors, and mappings. An image of the process holds none of them.
    #[must_use]
    pub fn system(&self) -> (Vec<RawFd>, Vec<Range<usize>>) {
        self.inner.system()
    }

    /// In a process that was restored with this frozen endpoint in its memory: continues in a new life, on
    /// new rails. System resources of the old rails ended with the process that was saved; none of them is
    /// released. Every peer has to be connected anew.
    ///
    /// # Errors
    /// [`EndpointError::Rails`], [`EndpointError::Descriptor`]: the endpoint is of no use then.
    pub fn restart(self, rails: Vec<Box<dyn Driver>>, restart: Restart) -> Result<(), EndpointError> {
        self.go_on(rails, |port, now| port.restart(now, restart))
    }

    /// R13: in a process that was moved with this frozen endpoint in its memory, while its peers run: continues in the same life, on new rails. As
    /// [`Frozen::restart`]; `moves`: how often its rank has moved in this life, with this.
    ///
    /// # Errors
    /// As [`Frozen::restart`].
    pub fn go_on_elsewhere(
        self,
        rails: Vec<Box<dyn Driver>>,
        moves: u32,
        reach: Option<Reach>,
    ) -> Result<(), EndpointError> {
        self.go_on(rails, |port, now| port.go_on_elsewhere(now, moves, reach))
    }

    fn go_on(
        mut self,
        rails: Vec<Box<dyn Driver>>,
        run: impl FnOnce(FrozenPort, transport::Instant) -> Port,
    ) -> Result<(), EndpointError> {
        let Some(frozen) = self.port.take() else { return Ok(()) };
        self.shared.clock.go_on_at(self.since);
        let mut port = run(frozen, self.shared.clock.now());
        let added = add_rails(&mut port, &rails);
        let watched = self.shared.waker.watch(&rails);
        // Dropping them would close descriptors and unmap addresses that have other owners now.
        self.inner.replace_rails(rails).into_iter().for_each(core::mem::forget);
        self.inner.port.put(port);
        added?;
        watched.map_err(EndpointError::Descriptor)
    }

    fn put_back(&mut self) {
        if let Some(frozen) = self.port.take() {
            let now = self.shared.clock.now();
            self.inner.port.put(frozen.thaw(now));
        }
    }
}

impl Drop for Frozen<'_> {
    /// A frozen endpoint thaws when it is dropped: the program must not hang, even if the checkpoint failed.
    fn drop(&mut self) {
        self.put_back();
    }
}

/// Holds a port that can be taken out and put back.
pub(crate) struct PortCell(Option<Port>);

impl PortCell {
    pub(crate) fn new(port: Port) -> PortCell {
        PortCell(Some(port))
    }

    fn take(&mut self) -> Port {
        self.0.take().expect("frozen twice: the gate is held while a port is frozen")
    }

    fn put(&mut self, port: Port) {
        self.0 = Some(port);
    }
}

impl core::ops::Deref for PortCell {
    type Target = Port;
    fn deref(&self) -> &Port {
        if !CHECKPOINTABLE {
            // SAFETY: only `freeze` takes the port out, and in such a build it does nothing but fail.
            return unsafe { self.0.as_ref().unwrap_unchecked() };
        }
        self.0.as_ref().expect("the gate is held while the port is frozen")
    }
}

impl core::ops::DerefMut for PortCell {
    fn deref_mut(&mut self) -> &mut Port {
        if !CHECKPOINTABLE {
            // SAFETY: as above.
            return unsafe { self.0.as_mut().unwrap_unchecked() };
        }
        self.0.as_mut().expect("the gate is held while the port is frozen")
    }
}
