//! Devices of several queues.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use drivers::Driver as _;
use drivers::xdp::{Attach, XdpConfig, XdpDriver};

use crate::xdp::bridged::{Bridged, Host, bridged, ip, wait_until_up};
use crate::xdp::{conforms_with, is_intact, numbers};

const QUEUES: u32 = 4;

fn several(bridge: &mut Bridged) {
    bridge.queues = QUEUES;
}

#[test]
fn a_device_of_several_queues_conforms_natively() {
    conforms_with("a_device_of_several_queues_conforms_natively", Attach::Native, false, None, several);
}

#[test]
fn a_device_of_several_queues_conforms_generically() {
    conforms_with("a_device_of_several_queues_conforms_generically", Attach::Generic, true, None, several);
}

/// Sockets from which the kernel sends: it spreads them over the queues of the device by their ports.
const SENDERS: usize = 64;

/// Has each sender send its number until that has come. Returns how many came around the kernel, and how many
/// through it.
fn spread(senders: &[UdpSocket], rail: &mut XdpDriver, to: SocketAddr) -> (u64, u64) {
    let (before, direct_before) = (rail.counters().frames_received, rail.direct_frames().0);
    for (number, sender) in (0u8..).zip(senders) {
        let (mut came, start) = (false, Instant::now());
        while !came {
            assert!(start.elapsed() < Duration::from_secs(20), "what sender {number} says does not come");
            sender.send_to(&[number], to).expect("a network");
            rail.wait(Duration::from_millis(50)).expect("a live rail");
            let mut hear = |frame: &[u8]| came |= frame == [number];
            while rail.receive(64, &mut hear).expect("a live rail") > 0 {}
        }
    }
    let direct = rail.direct_frames().0 - direct_before;
    (direct, rail.counters().frames_received - before - direct)
}

/// A pair of devices between two hosts: a bridge would put frames of one queue into another.
fn pair(from: &Host, at: &Host) {
    let there = at.run(|_| nix::unistd::gettid());
    from.run(move |_| {
        let size = format!("numrxqueues {QUEUES} numtxqueues {QUEUES}");
        let made_with = format!("link add eth1 {size} type veth peer name eth1 {size} netns {there}");
        ip(&made_with).expect("a device");
    });
    for (host, address) in [(from, "addr add 10.8.0.1/24 dev eth1"), (at, "addr add 10.8.0.2/24 dev eth1")] {
        host.ip(address);
        host.ip("link set eth1 up");
    }
    for host in [from, at] {
        host.run(|_| wait_until_up("eth1"));
    }
}

#[test]
fn what_comes_by_any_queue_is_received() {
    for attach in [Attach::Native, Attach::Generic] {
        bridged("what_comes_by_any_queue_is_received", attach, false, None, |mut bridge| {
            let (from, at) = (bridge.host(), bridge.host());
            pair(&from, &at);
            let senders: Vec<UdpSocket> = from
                .run(|_| (0..SENDERS).map(|_| UdpSocket::bind("10.8.0.1:0").expect("a free port")).collect());
            // With one queue less than the device has, frames of the last one go through the kernel. (Attached
            // generically, the program never sees that queue: such a device then forgets its number.)
            let without_last = (attach == Attach::Native).then_some((3, false));
            for (queues, all) in [(1, false), (4, true)].into_iter().chain(without_last) {
                let rail = at.run(move |config| {
                    let bind = "10.8.0.2:0".parse().expect("an address");
                    let interface = "eth1".to_owned();
                    let queues_max = Some(queues);
                    XdpDriver::open(&XdpConfig { interface, bind, queues_max, ..config.clone() })
                });
                let mut rail = rail.expect("rights and a device");
                assert_eq!(rail.queues(), queues);
                let address = drivers::udp::UdpAddress::try_from(&rail.local_address()).expect("its own");
                let (direct, through_kernel) = spread(&senders, &mut rail, address.0);
                assert!(direct > 0, "{queues} queues");
                assert_eq!(through_kernel == 0, all, "{queues} queues: {direct} and {through_kernel}");
            }
        });
    }
}

#[test]
fn frames_leave_by_whatever_queue_is_in_front() {
    bridged("frames_leave_by_whatever_queue_is_in_front", Attach::Native, false, None, |mut bridge| {
        several(&mut bridge);
        let (host_a, host_b) = (bridge.host(), bridge.host());
        let senders: Vec<UdpSocket> = host_b
            .run(|config| (0..SENDERS).map(|_| UdpSocket::bind(config.bind).expect("a free port")).collect());
        let (mut a, mut b) = (host_a.open(), host_b.open());
        let address = drivers::udp::UdpAddress::try_from(&a.local_address()).expect("its own");
        for sender in &senders {
            // Has a take from another queue, which it sends by from then on.
            spread(core::slice::from_ref(sender), &mut a, address.0);
            let to = a.resolve(&b.local_address()).expect("on the same bridge");
            for _ in 0..8 {
                a.lease().expect("free chunks")[..4].copy_from_slice(b"here");
                a.commit(to, 4, drivers::Payload::EMPTY);
            }
            a.flush().expect("a live rail");
            let (mut came, start) = (0, Instant::now());
            while came < 8 {
                assert!(start.elapsed() < Duration::from_secs(20), "{came} of 8 came");
                b.wait(Duration::from_millis(50)).expect("a live rail");
                came += b.receive(64, &mut |frame| assert_eq!(frame, b"here")).expect("a live rail");
                a.receive(64, &mut |_| ()).expect("a live rail");
            }
            assert_eq!(a.drain().expect("a live rail"), core::task::Poll::Ready(()));
        }
        let came = numbers(&mut a, &mut b);
        assert!(came.iter().all(|frame| is_intact(frame)));
        assert!(a.direct_frames().1 > 8 * SENDERS as u64 / 2, "they went through the kernel");
    });
}
