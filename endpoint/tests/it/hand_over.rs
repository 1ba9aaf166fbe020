//! A rail that goes on over another driver at its address, under verified traffic (R24), and the behaviour when that
//! driver is not available.

use core::cell::Cell;
use core::task::Poll;
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use crate::support::{End, id};
use drivers::udp::{UdpAddress, UdpConfig, UdpDriver};
use drivers::{Armed, Caps, Counters, Driver, DriverError, Errno, Operation, Path, Payload, Wake};
use endpoint::{Completion, Endpoint, EndpointConfig, EndpointError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use transport::{AddressId, Epoch, JobId, JobKey, Life, Port, PortConfig, RawAddress};

const KEY: JobKey = JobKey([6; 16]);
const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of messages, in turn.
const LENGTHS: [u64; 6] = [8, 5000, 300_000, 70_000, 1400, 0];

fn open_at(address: &RawAddress, frame_bytes_max: usize) -> Result<Box<dyn Driver>, DriverError> {
    let at = UdpAddress::try_from(address).expect("a rail over UDP").0;
    let config = UdpConfig { frame_bytes_max, ..UdpConfig::new(at) };
    Ok(Box::new(UdpDriver::open(&config)?))
}

fn here() -> RawAddress {
    RawAddress::from(UdpAddress("127.0.0.1:0".parse().expect("an address")))
}

fn refuse(_: &RawAddress) -> Result<Box<dyn Driver>, DriverError> {
    Err(DriverError::CannotOpen {
        operation: Operation::BindQueue,
        errno: Errno(nix::errno::Errno::EBUSY as i32),
    })
}

/// Two ends of this process; the first sends.
struct Pair {
    ends: [End; 2],
    dead: u32,
}

impl Pair {
    fn new(helper: bool) -> Pair {
        Pair::with_rails(helper, 1)
    }

    fn with_rails(helper: bool, rails: usize) -> Pair {
        let ends = [0, 1].map(|rank| {
            let life = Life { counter: 1, nonce: 7 };
            let port = Port::new(PortConfig::new(JobId(5).tag()), id(rank), life, Epoch(0), Some(&KEY));
            let rails = (0..rails).map(|_| open_at(&here(), 9000).expect("a socket")).collect();
            let config = EndpointConfig { helper, ..EndpointConfig::default() };
            Endpoint::open(port, rails, config).expect("an endpoint")
        });
        let link = ends[0].connect(id(1), &ends[1].addresses()).expect("reachable");
        ends[1].connect(id(0), &ends[0].addresses()).expect("reachable");
        let [a, b] = ends;
        Pair { ends: [End::new(0, a, link, LENGTHS), End::new(1, b, link, LENGTHS)], dead: 0 }
    }

    fn send(&mut self) {
        self.ends[1].post(self.ends[0].sent);
        self.ends[0].send();
    }

    fn poll(&mut self) {
        for end in &mut self.ends {
            match end.look() {
                Some(Completion::RailDead { .. }) => self.dead += 1,
                None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
    }

    fn settle(&mut self) {
        let started = Instant::now();
        while self.ends[1].received < self.ends[0].sent || self.ends[0].done < self.ends[0].sent {
            self.poll();
            let state = self.ends.each_ref().map(|end| (end.sent, end.done, end.received));
            assert!(started.elapsed() < LIMIT, "{state:?} sent, done, received");
        }
    }
}

#[test]
fn nothing_is_lost_or_doubled_by_a_thousand_handovers() {
    for helper in [false, true] {
        let mut pair = Pair::new(helper);
        for turn in 0..1000 {
            pair.send();
            for _ in 0..turn % 7 {
                pair.poll();
            }
            // Another socket each time, which may be longer than it has to.
            let frame_bytes_max = 9000 + turn % 3 * 100;
            let end = &pair.ends[turn % 2].endpoint;
            let before = end.addresses();
            let mut open = |address: &RawAddress| open_at(address, frame_bytes_max);
            let handed = end.hand_over(0, &mut open, &mut |address| open_at(address, 9200));
            match handed {
                Ok(()) => {}
                Err(EndpointError::NoSubstitute { .. }) if frame_bytes_max < 9200 => {}
                Err(error) => panic!("handover {turn}: {error}"),
            }
            assert_eq!(end.addresses(), before);
            if turn % 10 == 9 {
                pair.settle();
            }
        }
        pair.settle();
        assert_eq!((pair.ends[1].received, pair.dead), (pair.ends[0].sent, 0));
    }
}

#[test]
fn a_rail_goes_on_as_it_was_where_no_other_driver_takes_it_over() {
    let mut pair = Pair::new(false);
    pair.send();
    let refused = pair.ends[0].endpoint.hand_over(0, &mut refuse, &mut |address| open_at(address, 9000));
    let words = refused.expect_err("it cannot be opened").to_string();
    assert!(words.starts_with("rail 0 is unchanged: cannot open the rail: binding to a queue"), "{words}");
    pair.settle();
    let elsewhere = |_: &RawAddress| open_at(&here(), 9000);
    let refused =
        pair.ends[0].endpoint.hand_over(0, &mut { elsewhere }, &mut |address| open_at(address, 9000));
    assert!(refused.expect_err("peers know one address").to_string().contains("is at another address"));
    let none = pair.ends[0].endpoint.hand_over(3, &mut refuse, &mut refuse);
    assert!(matches!(none, Err(EndpointError::NoRail { rail: 3, rails: 1 })), "{none:?}");
    (0..12).for_each(|_| pair.send());
    pair.settle();
    assert_eq!(pair.dead, 0);
}

#[test]
fn a_rail_that_nobody_opens_again_is_dead() {
    let mut pair = Pair::new(false);
    pair.send();
    pair.settle();
    let lost = pair.ends[0].endpoint.hand_over(0, &mut refuse, &mut refuse);
    assert!(matches!(lost, Err(EndpointError::Driver { rail: 0, .. })), "{lost:?}");
    pair.poll();
    assert_eq!(pair.dead, 1);
    assert_eq!(pair.ends[0].endpoint.frames_by_rail(), [0]);
}

#[test]
fn a_rail_whose_rights_are_gone_is_dead_and_reported() {
    let mut pair = Pair::new(false);
    pair.send();
    pair.settle();
    let unpermitted = |_: &RawAddress| Err(DriverError::CapabilityMissing { missing: "CAP_NET_RAW" });
    let lost = pair.ends[0].endpoint.hand_over(0, &mut refuse, &mut { unpermitted });
    assert!(
        matches!(lost, Err(EndpointError::Driver { source: DriverError::CapabilityMissing { .. }, .. })),
        "{lost:?}"
    );
    pair.poll();
    assert_eq!(pair.dead, 1);
}

/// A socket that keeps an address from being bound.
fn hold(address: &RawAddress) -> UdpSocket {
    UdpSocket::bind(UdpAddress::try_from(address).expect("a rail over UDP").0).expect("it is free")
}

#[test]
fn an_address_that_is_held_for_a_moment_is_waited_for() {
    let mut pair = Pair::new(false);
    pair.send();
    let (mut holder, mut tries) = (None, 0);
    let mut open = |address: &RawAddress| {
        tries += 1;
        match tries {
            1 => holder = Some(hold(address)),
            4 => holder = None,
            _ => {}
        }
        open_at(address, 9000)
    };
    pair.ends[0].endpoint.hand_over(0, &mut open, &mut refuse).expect("it is free again");
    assert_eq!(tries, 4);
    pair.settle();
}

#[test]
fn an_address_that_is_held_for_ever_is_given_up() {
    let mut pair = Pair::new(false);
    pair.send();
    let holder = Cell::new(None);
    let mut open = |address: &RawAddress| {
        let held = holder.take().unwrap_or_else(|| hold(address));
        holder.set(Some(held));
        open_at(address, 9000)
    };
    let mut open_again = |address: &RawAddress| {
        drop(holder.take());
        open_at(address, 9000)
    };
    let refused = pair.ends[0].endpoint.hand_over(0, &mut open, &mut open_again).expect_err("it is held");
    let in_use = Errno(nix::errno::Errno::EADDRINUSE as i32);
    let expected = DriverError::CannotOpen { operation: Operation::Bind, errno: in_use };
    assert!(
        matches!(refused, EndpointError::NotHandedOver { rail: 0, source } if source == expected),
        "{refused}"
    );
    pair.settle();
    assert_eq!(pair.dead, 0);
}

#[test]
fn a_rail_with_longer_frames_is_used_to_its_length() {
    let mut pair = Pair::new(false);
    let frames = |pair: &Pair| pair.ends[0].endpoint.with_port(|port| port.counters().frames_sent);
    let of_six = |pair: &mut Pair| {
        let before = frames(pair);
        (0..6).for_each(|_| pair.send());
        pair.settle();
        frames(pair) - before
    };
    let (first, short) = (of_six(&mut pair), of_six(&mut pair));
    for end in &pair.ends {
        let mut open = |address: &RawAddress| open_at(address, 60_000);
        end.endpoint.hand_over(0, &mut open, &mut refuse).expect("longer is no fault");
    }
    let long = of_six(&mut pair);
    // 370,000 bytes of payload take 41 frames of 9,000 bytes, or 7 of 60,000.
    assert!(first >= 41 && short >= 41 && long < 41, "{first}, {short} and {long} frames");
}

#[test]
fn a_rail_with_shorter_frames_takes_over_when_no_longer_ones_are_on_their_way() {
    let mut pair = Pair::new(false);
    // The second one is a frame of some 5,000 bytes, which no receiver takes yet.
    (0..2).for_each(|_| pair.send());
    let shorter = |pair: &Pair| {
        let mut open = |address: &RawAddress| open_at(address, 1400);
        pair.ends[0].endpoint.hand_over(0, &mut open, &mut |address| open_at(address, 9000))
    };
    let refused = shorter(&pair).expect_err("frames keep their length");
    let EndpointError::NoSubstitute { rail: 0, frame_bytes: 5000..5200, found: 1400, is_elsewhere: false } =
        refused
    else {
        panic!("{refused}")
    };
    assert!(refused.to_string().starts_with("rail 0 is unchanged: frames of up to 5"), "{refused}");
    pair.settle();
    shorter(&pair).expect("all has arrived");
    (0..12).for_each(|_| pair.send());
    pair.settle();
}

#[test]
fn frames_that_another_rail_takes_keep_no_rail_from_being_shorter() {
    let mut pair = Pair::with_rails(false, 2);
    (0..2).for_each(|_| pair.send());
    let mut open = |address: &RawAddress| open_at(address, 1400);
    pair.ends[0].endpoint.hand_over(0, &mut open, &mut refuse).expect("the other rail has longer ones");
    pair.settle();
}

/// A sleeper outside of the gate knows no rails: its descriptor has to follow.
#[test]
fn who_sleeps_on_the_descriptor_hears_of_frames_of_the_new_driver() {
    let mut pair = Pair::new(false);
    pair.send();
    pair.settle();
    let endpoint = pair.ends[1].endpoint.clone();
    let descriptor = endpoint.descriptor().expect("a descriptor");
    let started = Instant::now();
    while !endpoint.prepare_sleep() {
        pair.poll();
        assert!(started.elapsed() < LIMIT, "frames go on coming");
    }
    let readable =
        |limit: PollTimeout| poll(&mut [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)], limit);
    assert_eq!(readable(PollTimeout::ZERO), Ok(0), "all is quiet");
    let mut open = |address: &RawAddress| open_at(address, 9000);
    endpoint.hand_over(0, &mut open, &mut refuse).expect("a socket");
    pair.send();
    assert_eq!(readable(PollTimeout::from(20_000u16)), Ok(1), "no frame has been heard of within 20 s");
    pair.settle();
}

/// A rail that finds no peer.
struct Blind(Box<dyn Driver>);

impl Driver for Blind {
    fn caps(&self) -> &Caps {
        self.0.caps()
    }
    fn counters(&self) -> &Counters {
        self.0.counters()
    }
    fn local_address(&self) -> RawAddress {
        self.0.local_address()
    }
    fn resolve(&mut self, _: &RawAddress) -> Result<AddressId, DriverError> {
        let errno = Errno(nix::errno::Errno::ENETUNREACH as i32);
        Err(DriverError::Transient { operation: Operation::AskRoutes, errno })
    }
    fn forget(&mut self, address: AddressId) {
        self.0.forget(address);
    }
    fn path(&self, to: AddressId) -> Option<Path> {
        self.0.path(to)
    }
    fn lease(&mut self) -> Option<&mut [u8]> {
        self.0.lease()
    }
    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) {
        self.0.commit(to, frame_bytes, payload);
    }
    fn flush(&mut self) -> Result<usize, DriverError> {
        self.0.flush()
    }
    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        self.0.receive(frames_max, each)
    }
    fn staged_total(&self) -> u64 {
        self.0.staged_total()
    }
    fn completed_total(&self) -> u64 {
        self.0.completed_total()
    }
    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        self.0.drain()
    }
    fn arm(&mut self) -> Result<Armed, DriverError> {
        self.0.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
    fn wait(&mut self, timeout: Duration) -> Result<Wake, DriverError> {
        self.0.wait(timeout)
    }
}

#[test]
fn a_peer_that_the_new_driver_does_not_reach_is_reached_over_another_rail() {
    let mut pair = Pair::with_rails(false, 2);
    (0..6).for_each(|_| pair.send());
    let mut open = |address: &RawAddress| -> Result<Box<dyn Driver>, DriverError> {
        Ok(Box::new(Blind(open_at(address, 9000)?)))
    };
    pair.ends[0].endpoint.hand_over(0, &mut open, &mut refuse).expect("a socket");
    (0..6).for_each(|_| pair.send());
    pair.settle();
    let frames = pair.ends[0].endpoint.frames_by_rail();
    assert!(frames[0] == 0 && frames[1] > 0, "{frames:?} over the two rails");
}
