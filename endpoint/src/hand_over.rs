//! A rail that goes on over another driver at the same address, under the program that runs: from the kernel's UDP sockets to AF_XDP, and back.

use core::time::Duration;
use std::time::Instant;

use drivers::udp::UdpAddress;
use drivers::{Driver, DriverError, Operation};
use nix::errno::Errno;
use transport::{LinkIndex, RawAddress};

use crate::error::EndpointError;
use crate::gate::{Endpoint, Shared};
use crate::inner::{Inner, rail_index};

/// How long an address may go on being in use after its driver was dropped. A thread that looks at the socket by `epoll` at that very moment holds it
/// until it is back from the kernel (Linux 6.10), which takes microseconds, or a turn of the scheduler.
const ADDRESS_FREE_MAX: Duration = Duration::from_millis(500);

/// Opens a rail at an address.
pub type OpenAt<'a> = dyn FnMut(&RawAddress) -> Result<Box<dyn Driver>, DriverError> + 'a;

impl Endpoint {
    /// Has `rail` continue over the driver that `open` opens at the rail's address, which is free while
    /// `open` runs. No peer has to know: frames with the old NIC, and those that arrive while there is none,
    /// count as lost, and are retransmitted (R24). If `open` fails, or its rail is no substitute,
    /// `open_again` opens the previous one; if that fails too, the rail is dead. A rail that has died already
    /// comes back to life like that. The gate is held all the while, so the time of opening is a pause of the
    /// port.
    ///
    /// # Errors
    /// [`EndpointError::NotHandedOver`], [`EndpointError::NoSubstitute`]: the rail is unchanged.
    /// [`EndpointError::NoRail`]: there is none. [`EndpointError::Driver`]: it is dead. [`EndpointError::Descriptor`]:
    /// it is handed over, and its frames do not wake sleepers.
    pub fn hand_over(
        &self,
        rail: usize,
        open: &mut OpenAt<'_>,
        open_again: &mut OpenAt<'_>,
    ) -> Result<(), EndpointError> {
        let mut inner = self.shared.lock();
        let Some(address) = inner.port.rail_address(rail_index(rail)) else {
            return Err(EndpointError::NoRail { rail, rails: inner.rails.len() });
        };
        // It gives every buffer back by that.
        let was_dead = inner.rails[rail].take().is_none();
        inner.buffers.forget_rail(rail);
        let (driver, refused) = match inner.substitute(rail, &address, open) {
            Ok(driver) => (driver, Ok(())),
            Err(refused) => match when_free(open_again, &address) {
                Ok(driver) => (driver, Err(refused)),
                Err(source) => {
                    if !was_dead {
                        inner.rail_failed(rail, dead(source));
                        self.shared.waker.wake();
                    }
                    return Err(EndpointError::Driver { rail, source });
                }
            },
        };
        refused.and(self.shared.go_on_over(&mut inner, rail, driver))
    }
}

impl Endpoint {
    /// The rail over which other hosts are reached, and its address. It may be dead.
    #[must_use]
    pub fn rail_to_others(&self) -> Option<(usize, RawAddress)> {
        let inner = self.shared.lock();
        let mut others = (0..inner.rails.len()).filter(|i| !inner.port.is_within_host(rail_index(*i)));
        // One that was taken away is nowhere.
        others.find_map(|rail| {
            let address = inner.port.rail_address(rail_index(rail)).filter(|at| *at != RawAddress::NONE)?;
            Some((rail, address))
        })
    }

    /// Whether a rail is dead.
    #[must_use]
    pub fn is_rail_dead(&self, rail: usize) -> bool {
        self.shared.lock().rails.get(rail).is_some_and(Option::is_none)
    }

    /// Whether a rail has lost the helper that steered frames to it since this was last asked: it continues, and frames
    /// pass through the kernel.
    #[must_use]
    pub fn take_lost_helper(&self) -> bool {
        self.shared.lock().lost_helper.take().is_some()
    }

    /// Has `notify` called whenever a rail dies ([`Endpoint::is_rail_dead`]) or has lost its helper
    /// ([`Endpoint::take_lost_helper`]): under the gate, so it must neither block nor use the endpoint. The first one
    /// stays.
    pub fn on_rail_news(&self, notify: impl Fn() + Send + 'static) {
        self.shared.lock().on_rail_news.get_or_insert(Box::new(notify));
    }
}

impl Shared {
    /// A rail goes on over this driver.
    fn go_on_over(
        &self,
        inner: &mut Inner,
        rail: usize,
        driver: Box<dyn Driver>,
    ) -> Result<(), EndpointError> {
        inner.put_rail(rail, driver);
        let watched = self.waker.watch_another(&inner.rails, rail);
        self.transmit(inner);
        // A sleeper has armed another driver.
        inner.arm();
        self.waker.wake();
        watched.map_err(EndpointError::Descriptor)
    }
}

/// Opens a rail at an address that may still be held for a moment.
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

/// The error of a rail that cannot be opened again, for any reason.
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

/// Where an address is: a device's MTU, which stands in it too, may have been changed since.
fn place(address: &RawAddress) -> Result<UdpAddress, RawAddress> {
    UdpAddress::try_from(address).map_err(|_| *address)
}

impl Inner {
    /// The driver that `open` opens, if the rail can continue over it.
    fn substitute(
        &self,
        rail: usize,
        address: &RawAddress,
        open: &mut OpenAt<'_>,
    ) -> Result<Box<dyn Driver>, EndpointError> {
        let opened = when_free(open, address);
        let driver = opened.map_err(|source| EndpointError::NotHandedOver { rail, source })?;
        let (found, frame_bytes) =
            (driver.caps().frame_bytes_max, self.port.longest_on_its_way(rail_index(rail)));
        let is_elsewhere = place(&driver.local_address()) != place(address);
        if found < frame_bytes || is_elsewhere {
            return Err(EndpointError::NoSubstitute { rail, frame_bytes, found, is_elsewhere });
        }
        Ok(driver)
    }

    /// Sends over this driver from here on, to all whose places on the rail are known.
    fn put_rail(&mut self, rail: usize, driver: Box<dyn Driver>) {
        let frame_bytes_max = driver.caps().frame_bytes_max;
        self.rails[rail] = Some(driver);
        self.lost_helper.take_if(|lost| *lost == rail);
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
