//! The owners of a device's queues and addresses: the helper's decisions, without effects.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use super::refusal::{Queues, Refusal};
use crate::limits::{XDP_BUSY_PATIENCE, XDP_HELPER_RAILS_MAX};

/// The users that the helper serves, and the devices.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Users; empty: all that can open its socket.
    pub uids: Vec<u32>,
    /// Devices by name; no others.
    pub devices: Vec<String>,
}

impl Rules {
    /// Whether this user is served.
    ///
    /// # Errors
    /// [`Refusal::User`].
    pub fn permit_user(&self, uid: u32) -> Result<(), Refusal> {
        let is_served = self.uids.is_empty() || self.uids.contains(&uid);
        if is_served { Ok(()) } else { Err(Refusal::User) }
    }

    /// Whether users are served at this device.
    ///
    /// # Errors
    /// [`Refusal::Device`].
    pub fn permit_device(&self, device: &str) -> Result<(), Refusal> {
        let is_served = self.devices.iter().any(|served| served == device);
        if is_served { Ok(()) } else { Err(Refusal::Device) }
    }
}

/// The resources of one rail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Held {
    /// The device's number.
    pub(super) interface: u32,
    pub(super) address: SocketAddr,
    pub(super) queues: Vec<u32>,
}

/// A device, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    pub(super) interface: u32,
    /// How many queues it has.
    pub(super) queues: u32,
}

/// Rails by the number of their connection.
#[derive(Default, Debug)]
pub(super) struct Register {
    rails: BTreeMap<u64, Held>,
    /// Queues of devices whose sockets were closed here: the kernel lets go of such a queue some time later.
    released: BTreeMap<(u32, u32), Instant>,
}

impl Register {
    /// The queues that a rail could get, at least so many, in the order of their numbers. Others than rails may have some of them.
    pub(super) fn free(&self, device: Device, least: usize) -> Result<Vec<u32>, Refusal> {
        if self.rails.len() >= XDP_HELPER_RAILS_MAX {
            return Err(Refusal::Full);
        }
        let taken = |queue: &u32| self.at(device.interface).any(|(_, rail)| rail.queues.contains(queue));
        let free: Vec<u32> = (0..device.queues).filter(|queue| !taken(queue)).collect();
        if free.len() < least {
            let left = u32::try_from(free.len()).unwrap_or(u32::MAX);
            return Err(Refusal::Queues { left, all: device.queues, elsewhere: Queues::default() });
        }
        Ok(free)
    }

    /// Rails of a device, with the numbers of their connections.
    pub(super) fn at(&self, interface: u32) -> impl Iterator<Item = (u64, &Held)> {
        self.rails.iter().filter(move |(_, rail)| rail.interface == interface).map(|(at, rail)| (*at, rail))
    }

    pub(super) fn enter(&mut self, connection: u64, held: Held) {
        self.rails.insert(connection, held);
    }

    /// The connection is over: the resources of its rail are free.
    pub(super) fn leave(&mut self, connection: u64) -> Option<Held> {
        let held = self.rails.remove(&connection)?;
        self.release(held.interface, &held.queues, Instant::now());
        Some(held)
    }

    /// Sockets that were bound to these queues are closed.
    pub(super) fn release(&mut self, interface: u32, queues: &[u32], now: Instant) {
        self.released.retain(|_, at| now.saturating_duration_since(*at) < XDP_BUSY_PATIENCE);
        self.released.extend(queues.iter().map(|queue| ((interface, *queue), now)));
    }

    /// Of queues that turned out to be held, those that other processes hold.
    pub(super) fn elsewhere(&self, interface: u32, held: &[u32], now: Instant) -> Queues {
        let is_ours = |queue: &u32| {
            let at = self.released.get(&(interface, *queue));
            at.is_some_and(|at| now.saturating_duration_since(*at) < XDP_BUSY_PATIENCE)
        };
        held.iter().copied().filter(|queue| !is_ours(queue)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    /// Takes the free queues, as the helper does.
    fn take(
        register: &mut Register,
        (connection, interface, port): (u64, u32, u16),
        (least, most): (usize, usize),
    ) -> Result<Vec<u32>, Refusal> {
        let device = Device { interface, queues: 4 };
        let mut queues = register.free(device, least)?;
        queues.truncate(most);
        let held = Held { interface, address: address(port), queues: queues.clone() };
        register.enter(connection, held);
        Ok(queues)
    }

    #[test]
    fn queues_are_given_once_and_come_back() {
        let mut register = Register::default();
        assert_eq!(take(&mut register, (1, 7, 1), (2, 2)), Ok(vec![0, 1]));
        assert_eq!(take(&mut register, (2, 7, 2), (1, 1)), Ok(vec![2]));
        let refused = Refusal::Queues { left: 1, all: 4, elsewhere: Queues::default() };
        assert_eq!(take(&mut register, (3, 7, 3), (2, 4)), Err(refused));
        assert_eq!(take(&mut register, (3, 8, 3), (1, 4)), Ok(vec![0, 1, 2, 3]), "another device");
        register.leave(1);
        assert_eq!(take(&mut register, (5, 7, 5), (1, 4)), Ok(vec![0, 1, 3]));
    }

    #[test]
    fn queues_that_were_just_released_are_held_by_nobody_else() {
        let mut register = Register::default();
        let now = Instant::now();
        register.release(7, &[1, 2], now);
        assert_eq!(register.elsewhere(7, &[0, 1], now), [0].into_iter().collect());
        assert_eq!(register.elsewhere(8, &[1], now), [1].into_iter().collect(), "another device");
        let later = now + XDP_BUSY_PATIENCE;
        assert_eq!(register.elsewhere(7, &[0, 1], later), [0, 1].into_iter().collect());
    }

    #[test]
    fn there_is_a_most_of_rails() {
        let mut register = Register::default();
        for rail in 0..XDP_HELPER_RAILS_MAX {
            let number = u32::try_from(rail).expect("few");
            let port = u16::try_from(rail).expect("few");
            take(&mut register, (rail as u64, number, port), (1, 1)).expect("free");
        }
        assert_eq!(take(&mut register, (u64::MAX, u32::MAX, u16::MAX), (1, 1)), Err(Refusal::Full));
    }

    #[test]
    fn rules_name_users_and_devices() {
        let all = Rules { uids: Vec::new(), devices: vec!["eth0".to_owned()] };
        assert_eq!(all.permit_user(65534), Ok(()));
        let some = Rules { uids: vec![1000], ..all };
        assert_eq!(some.permit_user(1000), Ok(()));
        assert_eq!(some.permit_user(0), Err(Refusal::User));
        assert_eq!(some.permit_device("eth0"), Ok(()));
        assert_eq!(some.permit_device("eth1"), Err(Refusal::Device));
        assert_eq!(Rules::default().permit_device("eth0"), Err(Refusal::Device), "none is named");
    }

    /// Under requests and returns in any order, nothing has two owners, and nothing is lost.
    #[test]
    fn nothing_has_two_owners() {
        let mut register = Register::default();
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..20_000 {
            let (connection, least) = (next(12), usize::try_from(next(4)).expect("small") + 1);
            if register.leave(connection).is_none() {
                let interface = u32::try_from(next(2)).expect("small");
                let port = u16::try_from(next(8)).expect("small");
                let _ = take(&mut register, (connection, interface, port), (least, 4));
            }
            for interface in 0..2 {
                let mut queues: Vec<u32> =
                    register.at(interface).flat_map(|(_, rail)| rail.queues.clone()).collect();
                let given = queues.len();
                queues.sort_unstable();
                queues.dedup();
                assert_eq!(queues.len(), given, "{register:?}");
            }
        }
        (0..12).for_each(|connection| drop(register.leave(connection)));
        assert_eq!(take(&mut register, (0, 0, 0), (4, 4)), Ok(vec![0, 1, 2, 3]));
    }
}
