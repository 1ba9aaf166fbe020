//! The procedure.
//!
//! ```text
//!             quiesce             every rail drained
//!  Running ------------> Quiescing ------------> Frozen
//!     ^                      |                     |
//!     +----------------------+   thaw, restart     |
//!     |   drain failed, or took too long           |
//!     +--------------------------------------------+
//! ```
//!
//! Frozen means: no thread and no NIC of ours can touch the port's memory. The only thing that is waited for is that the
//! port's own NICs give their buffers back; the machine has no input by which a peer could delay it.

use alloc::boxed::Box;
use core::task::Poll;
use core::time::Duration;

use transport::config::RAILS_MAX;
use transport::{AddressId, FrozenPort, Instant, Life, Port, PortId, RailIndex, RawAddress, Restart};

/// A port between running and frozen.
#[derive(Debug)]
pub enum Freeze {
    /// It sends and receives.
    Running(Port),
    /// Its NICs are giving their buffers back; no thread may make progress on it meanwhile.
    Quiescing(Quiescing),
    /// It stands still.
    Frozen(FrozenPort),
}

/// A port whose NICs are being drained.
#[derive(Debug)]
pub struct Quiescing {
    port: Port,
    since: Instant,
    until: Instant,
    /// Rails that still hold buffers.
    waits_for: RailSet,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RailSet(u8);

const _: () = assert!(RAILS_MAX <= 8, "a set of rails is eight bits");

impl RailSet {
    fn first(count: usize) -> RailSet {
        RailSet(u8::try_from((1u16 << count.min(RAILS_MAX)) - 1).unwrap_or(u8::MAX))
    }

    fn iter(self) -> impl Iterator<Item = RailIndex> {
        (0..8u8).filter(move |rail| self.0 & 1 << rail != 0).map(RailIndex)
    }

    fn remove(&mut self, rail: RailIndex) {
        self.0 &= !(1 << rail.0);
    }
}

/// Why a port was not frozen. `E` is the driver's error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FreezeError<E> {
    /// A NIC cannot report that its buffers are ours again.
    #[error("rail {} failed while it gave its buffers back: take the rail out and freeze again", rail.0)]
    Rail {
        /// The rail.
        rail: RailIndex,
        /// Its driver's error.
        error: E,
    },
    /// A NIC took too long.
    #[error("rail {} still held buffers after {waited:?}: take the rail out, or allow more time", rail.0)]
    TooLate {
        /// The first rail that still holds buffers.
        rail: RailIndex,
        /// How long it was waited for.
        waited: Duration,
    },
}

/// A freeze that was rolled back: the port runs on as if nothing had been asked.
#[derive(Debug)]
pub struct Refused<E> {
    /// The running port.
    pub port: Box<Port>,
    /// Why.
    pub reason: FreezeError<E>,
}

impl Freeze {
    /// Begins to freeze: from now on no thread makes progress on the port, while its `rails` NICs give their buffers
    /// back within `limit`. A port with no rail is frozen at once.
    #[must_use]
    pub fn quiesce(port: Port, rails: usize, now: Instant, limit: Duration) -> Freeze {
        let waits_for = RailSet::first(rails);
        if waits_for == RailSet(0) {
            return Freeze::Frozen(port.freeze(now));
        }
        Freeze::Quiescing(Quiescing { port, since: now, until: now + limit, waits_for })
    }

    /// Asks the rails that still hold buffers, through `drain`, and freezes the port when none does. Call it
    /// until it is no longer [`Freeze::Quiescing`]. Running and frozen ports are returned unchanged.
    ///
    /// # Errors
    /// [`Refused`], with the port running again, when a driver fails or the time is up.
    pub fn poll<E>(
        self,
        now: Instant,
        mut drain: impl FnMut(RailIndex) -> Result<Poll<()>, E>,
    ) -> Result<Freeze, Refused<E>> {
        let Freeze::Quiescing(mut quiescing) = self else { return Ok(self) };
        for rail in quiescing.waits_for.iter() {
            match drain(rail) {
                Ok(Poll::Ready(())) => quiescing.waits_for.remove(rail),
                Ok(Poll::Pending) => {}
                Err(error) => {
                    return Err(Refused {
                        port: Box::new(quiescing.port),
                        reason: FreezeError::Rail { rail, error },
                    });
                }
            }
        }
        match quiescing.waits_for.iter().next() {
            None => Ok(Freeze::Frozen(quiescing.port.freeze(now))),
            Some(rail) if now >= quiescing.until => Err(Refused {
                reason: FreezeError::TooLate { rail, waited: now - quiescing.since },
                port: Box::new(quiescing.port),
            }),
            Some(_) => Ok(Freeze::Quiescing(quiescing)),
        }
    }
}

impl Quiescing {
    /// When the port runs on if it could not be frozen.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    /// The rails that still hold buffers.
    pub fn waits_for(&self) -> impl Iterator<Item = RailIndex> {
        self.waits_for.iter()
    }
}

/// A rail under a restarted port: any driver, also another kind than before the freeze.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rail {
    /// The port's address on it.
    pub address: RawAddress,
    /// Bytes of its largest frame.
    pub frame_bytes_max: usize,
}

/// Starts a frozen or loaded port in a new life, on new rails, with its peers at new addresses. Peers that are not named
/// are heard of by their own first frames, or by [`Port::set_path`] later.
#[must_use]
pub fn restart(
    port: FrozenPort,
    now: Instant,
    life: Life,
    rails: &[Rail],
    peers: impl IntoIterator<Item = (PortId, RailIndex, AddressId)>,
) -> Port {
    let mut port = port.restart(now, Restart::in_life(life));
    for rail in rails {
        port.add_rail(rail.address, rail.frame_bytes_max);
    }
    for (peer, rail, address) in peers {
        let link = port.connect(peer);
        port.set_path(link, rail, address);
    }
    port
}
