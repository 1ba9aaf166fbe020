//! A rail that goes on over another driver at the same address, under the program that runs: from the kernel's UDP sockets to AF_XDP, and back.

use core::task::Poll;
use core::time::Duration;
use std::time::Instant;

use drivers::{Driver, DriverError, Operation};
use nix::errno::Errno;
use transport::{LinkIndex, RawAddress};

use crate::error::EndpointError;
use crate::gate::Endpoint;
use crate::inner::{Inner, rail_index};

/// How long an address may go on being in use after its driver was dropped. A thread that looks at the socket by `epoll` at that very moment holds it
/// until it is back from the kernel (Linux 6.10), which takes microseconds, or a turn of the scheduler.
const ADDRESS_FREE_MAX: Duration = Duration::from_millis(500);

/// Opens a rail at an address.
pub type OpenAt<'a> = dyn FnMut(&RawAddress) -> Result<Box<dyn Driver>, DriverError> + 'a;

impl Endpoint {
    /// Has `rail` go on over the driver that `open` opens at the rail's address, which is free while it is asked. No peer has to know: what was with
    /// the old NIC, and what comes while there is none, counts as lost, and is sent again (R24). If `open` fails, or its rail is no substitute, `open_again`
    /// opens what was there before; if that fails too, the rail is dead. The gate is held all the while, so what opening takes is a pause of the port.
    ///
    /// # Errors
    /// [`EndpointError::DrainTimeout`] if the NIC keeps a buffer for longer than `deadline`, [`EndpointError::NotHandedOver`], [`EndpointError::NoSubstitute`]: the rail
    /// is what it was. [`EndpointError::Driver`]: it is dead. [`EndpointError::Descriptor`]: it is handed over, and nobody who sleeps hears of its frames.
    pub fn hand_over(
        &self,
        rail: usize,
        deadline: Duration,
        open: &mut OpenAt<'_>,
        open_again: &mut OpenAt<'_>,
    ) -> Result<(), EndpointError> {
        let mut inner = self.shared.lock();
        inner.drain_rail(rail, deadline)?;
        let Some(old) = inner.rails.get_mut(rail).and_then(Option::take) else {
            return Err(EndpointError::NoRail { rail, rails: inner.rails.len() });
        };
        let address = old.local_address();
        let (frame_bytes, had_descriptor) =
            (inner.port.frame_bytes_max(rail_index(rail)), old.fd().is_some());
        drop(old);
        inner.buffers.forget_rail(rail);
        let opened =
            when_free(open, &address).map_err(|source| EndpointError::NotHandedOver { rail, source });
        let opened = opened.and_then(|driver| {
            let (found, at) = (driver.caps().frame_bytes_max, driver.local_address());
            if found >= frame_bytes && at == address {
                return Ok(driver);
            }
            Err(EndpointError::NoSubstitute { rail, frame_bytes, found, is_elsewhere: at != address })
        });
        let (driver, refused) = match opened {
            Ok(driver) => (driver, Ok(())),
            Err(refused) => match when_free(open_again, &address) {
                Ok(driver) => (driver, Err(refused)),
                Err(source) => {
                    inner.rail_failed(rail, dead(source));
                    return Err(EndpointError::Driver { rail, source });
                }
            },
        };
        let watched = self.shared.bell.watch_instead(had_descriptor, driver.as_ref());
        inner.put_rail(rail, driver);
        self.shared.transmit(&mut inner);
        refused.and(watched.map_err(EndpointError::Descriptor))
    }
}

/// Opens a rail at an address that somebody may hold for a moment still.
fn when_free(open: &mut OpenAt<'_>, address: &RawAddress) -> Result<Box<dyn Driver>, DriverError> {
    let started = Instant::now();
    loop {
        match open(address) {
            Err(DriverError::CannotOpen { operation: Operation::Bind, errno })
                if errno.0 == Errno::EADDRINUSE as i32 && started.elapsed() < ADDRESS_FREE_MAX =>
            {
                std::thread::yield_now();
            }
            opened => return opened,
        }
    }
}

/// What becomes of a rail that cannot be opened again, whatever stood in the way.
fn dead(error: DriverError) -> DriverError {
    match error {
        DriverError::CannotOpen { operation, errno } | DriverError::RailDead { operation, errno } => {
            DriverError::RailDead { operation, errno }
        }
        _ => DriverError::RailDead {
            operation: Operation::OpenDevice,
            errno: drivers::Errno(Errno::ENODEV as i32),
        },
    }
}

impl Inner {
    /// Has the NIC give back every buffer.
    fn drain_rail(&mut self, rail: usize, deadline: Duration) -> Result<(), EndpointError> {
        let started = Instant::now();
        while let Some(driver) = self.rails.get_mut(rail).and_then(Option::as_mut) {
            match driver.drain() {
                // What has died is closed, and opened anew: dropping it gives the buffers back, too.
                Err(error) if error.is_rail_dead() => break,
                Ok(Poll::Ready(())) => break,
                Ok(Poll::Pending) if started.elapsed() > deadline => {
                    return Err(EndpointError::DrainTimeout { rail, waited: started.elapsed() });
                }
                Ok(Poll::Pending) => core::hint::spin_loop(),
                Err(source) => return Err(EndpointError::NotHandedOver { rail, source }),
            }
        }
        self.release_held();
        Ok(())
    }

    /// Sends over this driver from here on, to all whose places on the rail are known.
    fn put_rail(&mut self, rail: usize, driver: Box<dyn Driver>) {
        let frame_bytes_max = driver.caps().frame_bytes_max;
        self.rails[rail] = Some(driver);
        self.port.change_rail(rail_index(rail), frame_bytes_max);
        let places: Vec<(LinkIndex, RawAddress)> = self.places_on(rail).collect();
        for (link, address) in places {
            if let Err(error) = self.add_path(link, rail, &address) {
                self.port.clear_path(link, rail_index(rail));
                tracing::warn!(?link, %error, "a peer cannot be reached over the rail any more");
            }
        }
        self.look_everywhere();
    }
}
