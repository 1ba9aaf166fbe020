//! The owners of a device's queues and addresses: the helper's decisions, without effects.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::wire::Refusal;
use crate::limits::XDP_HELPER_RAILS_MAX;
use crate::xdp::Attach;

/// The users that the helper serves, and the devices.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Users; empty: all that can open its socket.
    pub uids: Vec<u32>,
    /// Devices by name; empty: all.
    pub devices: Vec<String>,
}

impl Rules {
    /// Whether this user is served at this device.
    ///
    /// # Errors
    /// [`Refusal::User`], [`Refusal::Device`].
    pub fn permit(&self, uid: u32, device: &str) -> Result<(), Refusal> {
        if !self.uids.is_empty() && !self.uids.contains(&uid) {
            return Err(Refusal::User);
        }
        if !self.devices.is_empty() && !self.devices.iter().any(|served| served == device) {
            return Err(Refusal::Device);
        }
        Ok(())
    }
}

/// The resources of one rail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Held {
    /// The device's number.
    pub(super) interface: u32,
    pub(super) address: SocketAddr,
    pub(super) queues: Vec<u32>,
    pub(super) attach: Attach,
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
}

impl Register {
    /// Which queues a rail at `address` would get: between `least` and `most` of them, those with the least numbers.
    pub(super) fn find(
        &self,
        device: Device,
        address: SocketAddr,
        (least, most): (usize, usize),
        attach: Option<Attach>,
    ) -> Result<Vec<u32>, Refusal> {
        if self.rails.len() >= XDP_HELPER_RAILS_MAX {
            return Err(Refusal::Full);
        }
        if self.rails.values().any(|rail| rail.address == address) {
            return Err(Refusal::Port);
        }
        if attach.is_some_and(|asked| self.attached(device.interface).is_some_and(|found| found != asked)) {
            return Err(Refusal::Attached);
        }
        let taken = |queue: &u32| self.at(device.interface).any(|(_, rail)| rail.queues.contains(queue));
        let free: Vec<u32> = (0..device.queues).filter(|queue| !taken(queue)).collect();
        if free.len() < least {
            let left = u32::try_from(free.len()).unwrap_or(u32::MAX);
            return Err(Refusal::Queues { left, all: device.queues });
        }
        Ok(free.into_iter().take(most).collect())
    }

    /// Rails of a device, with the numbers of their connections.
    pub(super) fn at(&self, interface: u32) -> impl Iterator<Item = (u64, &Held)> {
        self.rails.iter().filter(move |(_, rail)| rail.interface == interface).map(|(at, rail)| (*at, rail))
    }

    /// How the program is attached to a device in use.
    fn attached(&self, interface: u32) -> Option<Attach> {
        self.at(interface).map(|(_, rail)| rail.attach).next()
    }

    pub(super) fn enter(&mut self, connection: u64, held: Held) {
        self.rails.insert(connection, held);
    }

    /// The connection is over: the resources of its rail are free.
    pub(super) fn leave(&mut self, connection: u64) -> Option<Held> {
        self.rails.remove(&connection)
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
        wish: (usize, usize),
    ) -> Result<Vec<u32>, Refusal> {
        let device = Device { interface, queues: 4 };
        let queues = register.find(device, address(port), wish, None)?;
        let held = Held { interface, address: address(port), queues: queues.clone(), attach: Attach::Native };
        register.enter(connection, held);
        Ok(queues)
    }

    #[test]
    fn queues_are_given_once_and_come_back() {
        let mut register = Register::default();
        assert_eq!(take(&mut register, (1, 7, 1), (2, 2)), Ok(vec![0, 1]));
        assert_eq!(take(&mut register, (2, 7, 2), (1, 1)), Ok(vec![2]));
        assert_eq!(take(&mut register, (3, 7, 3), (2, 4)), Err(Refusal::Queues { left: 1, all: 4 }));
        assert_eq!(take(&mut register, (3, 8, 3), (1, 4)), Ok(vec![0, 1, 2, 3]), "another device");
        assert_eq!(take(&mut register, (4, 7, 3), (1, 1)), Err(Refusal::Port));
        register.leave(1);
        assert_eq!(take(&mut register, (5, 7, 5), (1, 4)), Ok(vec![0, 1, 3]));
    }

    #[test]
    fn one_device_has_one_program() {
        let mut register = Register::default();
        take(&mut register, (1, 7, 1), (1, 1)).expect("free");
        let device = Device { interface: 7, queues: 4 };
        let asked = |register: &Register, attach| register.find(device, address(2), (1, 1), attach);
        assert_eq!(asked(&register, Some(Attach::Generic)), Err(Refusal::Attached));
        assert_eq!(asked(&register, Some(Attach::Native)), Ok(vec![1]));
        assert_eq!(asked(&register, None), Ok(vec![1]));
        register.leave(1);
        assert_eq!(asked(&register, Some(Attach::Generic)), Ok(vec![0]));
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
        let all = Rules::default();
        assert_eq!(all.permit(65534, "eth0"), Ok(()));
        let some = Rules { uids: vec![1000], devices: vec!["eth0".to_owned()] };
        assert_eq!(some.permit(1000, "eth0"), Ok(()));
        assert_eq!(some.permit(0, "eth0"), Err(Refusal::User));
        assert_eq!(some.permit(1000, "eth1"), Err(Refusal::Device));
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
            let mut ports: Vec<SocketAddr> = register.rails.values().map(|rail| rail.address).collect();
            let given = ports.len();
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), given, "{register:?}");
        }
        (0..12).for_each(|connection| drop(register.leave(connection)));
        assert_eq!(take(&mut register, (0, 0, 0), (4, 4)), Ok(vec![0, 1, 2, 3]));
    }
}
