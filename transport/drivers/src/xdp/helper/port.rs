//! The UDP port of a rail. The helper binds it, so that the kernel decides whether it is free; and looks at it while the rail lives, because the rank has the
//! socket too.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::refusal::Refusal;
use crate::error::{Errno, Operation};
use crate::interfaces::addresses;

/// Free ports that are tried: another process may bind one between the question for it and the answer.
const TRIES: usize = 64;

/// The least port that any process may bind, where the kernel does not report another one.
const UNPRIVILEGED_PORT: u16 = 1024;

/// A bound port.
#[derive(Debug)]
pub(super) struct Port {
    socket: Socket,
    address: SocketAddr,
}

impl Port {
    /// Binds the address, of a device; port 0 takes a free one.
    pub(super) fn bind(asked: SocketAddr, device: &str) -> Result<Port, Refusal> {
        if !is_of(asked.ip(), device) {
            return Err(Refusal::Address);
        }
        let least = least_port();
        if asked.port() != 0 && asked.port() < least {
            return Err(Refusal::LowPort { least: least.into() });
        }
        if asked.port() != 0 {
            return bind_to(asked);
        }
        for _ in 0..TRIES {
            // Its port is free; but a socket that was bound to port 0 loses its port with `connect(AF_UNSPEC)`, and one that was bound to a number keeps it.
            let free = bind_to(asked)?.address;
            match bind_to(free) {
                Err(Refusal::Port) => {}
                bound => return bound,
            }
        }
        Err(Refusal::Port)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether frames to the address are still the rail's alone: the socket has it, shares it with no other socket, on no
    /// device only, and the device still has the address. The rank can change all but the last with `setsockopt` and `connect`.
    pub(super) fn is_exclusive(&self, device: &str) -> bool {
        let has_address = self.socket.local_addr().ok().and_then(|own| own.as_socket()) == Some(self.address);
        let shares =
            !matches!((self.socket.reuse_address(), self.socket.reuse_port()), (Ok(false), Ok(false)));
        let on_one_device = !matches!(self.socket.device(), Ok(None));
        has_address && !shares && !on_one_device && is_of(self.address.ip(), device)
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<Port> for OwnedFd {
    fn from(port: Port) -> OwnedFd {
        port.socket.into()
    }
}

fn bind_to(address: SocketAddr) -> Result<Port, Refusal> {
    let failed =
        |operation| move |error: std::io::Error| Refusal::Failed { operation, errno: Errno::from(&error) };
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::UDP));
    let socket = socket.map_err(failed(Operation::OpenSocket))?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(failed(Operation::SetOption))?;
    }
    socket.bind(&SockAddr::from(address)).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => Refusal::Port,
        Some(libc::EADDRNOTAVAIL) => Refusal::Address,
        _ => failed(Operation::Bind)(error),
    })?;
    let bound = socket.local_addr().map_err(failed(Operation::Bind))?.as_socket();
    Ok(Port { socket, address: bound.unwrap_or(address) })
}

/// Whether the address is one of the device's, in the network namespace of this thread.
fn is_of(ip: IpAddr, device: &str) -> bool {
    addresses().into_iter().any(|(on, own)| on == device && own == ip)
}

fn least_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(UNPRIVILEGED_PORT)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// `connect(AF_UNSPEC)`: the socket has no peer any more, and no port that it was given without asking for it.
    fn disconnect(socket: BorrowedFd<'_>) {
        // SAFETY: all-zero bytes are a valid `sockaddr`, of AF_UNSPEC.
        let nobody: libc::sockaddr = unsafe { core::mem::zeroed() };
        let bytes = libc::socklen_t::try_from(size_of_val(&nobody)).expect("few");
        // SAFETY: the address is readable for its size during the call.
        let rc = unsafe { libc::connect(socket.as_raw_fd(), &raw const nobody, bytes) };
        assert_eq!(rc, 0, "the kernel permits it");
    }

    fn here() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn a_port_that_is_not_free_is_refused() {
        let others = UdpSocket::bind(here()).expect("a free port");
        let taken = others.local_addr().expect("bound");
        assert_eq!(Port::bind(taken, "lo").map(|port| port.address), Err(Refusal::Port));
        // One that others may share, among each other.
        let shared = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        shared.set_reuse_address(true).expect("an option");
        shared.bind(&SockAddr::from(SocketAddr::from(([0, 0, 0, 0], 0)))).expect("a free port");
        let port = shared.local_addr().expect("bound").as_socket().expect("an address").port();
        let taken = SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(Port::bind(taken, "lo").map(|port| port.address), Err(Refusal::Port));
        let elsewhere = SocketAddr::from(([192, 0, 2, 1], 0));
        assert_eq!(Port::bind(elsewhere, "lo").map(|port| port.address), Err(Refusal::Address));
        assert_eq!(
            Port::bind(SocketAddr::from(([0, 0, 0, 0], 0)), "lo").map(|port| port.address),
            Err(Refusal::Address)
        );
        assert!(matches!(
            Port::bind(SocketAddr::from(([127, 0, 0, 1], 1)), "lo"),
            Err(Refusal::LowPort { .. })
        ));
    }

    /// The rank has the socket: it cannot let go of the port while the helper steers frames there, so that another user binds it.
    #[test]
    fn a_rank_cannot_free_the_port() {
        for asked in [here(), "[::1]:0".parse().expect("an address")] {
            let port = Port::bind(asked, "lo").expect("a free port");
            let address = port.address();
            assert!(port.is_exclusive("lo"));
            disconnect(port.as_fd());
            assert!(port.is_exclusive("lo"), "{:?}", port.socket.local_addr());
            let taken = UdpSocket::bind(address).map(|_| "bound").expect_err("taken");
            assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
        }
    }

    #[test]
    fn a_port_that_is_shared_is_noticed() {
        let changes: [fn(&Socket); 2] = [
            |socket| socket.set_reuse_address(true).expect("an option"),
            |socket| socket.set_reuse_port(true).expect("an option"),
        ];
        for change in changes {
            let port = Port::bind(here(), "lo").expect("a free port");
            assert!(port.is_exclusive("lo"));
            change(&port.socket.try_clone().expect("a descriptor"));
            assert!(!port.is_exclusive("lo"));
        }
        let port = Port::bind(here(), "lo").expect("a free port");
        assert!(!port.is_exclusive("eth0"), "the device has lost the address");
        if port.socket.bind_device(Some(b"lo")).is_ok() {
            assert!(!port.is_exclusive("lo"));
        }
    }
}
