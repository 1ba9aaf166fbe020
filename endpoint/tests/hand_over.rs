//! A rail that goes on over another driver at its address, under verified traffic (R24), and what happens when that driver is not to be had.

mod support;

use std::time::{Duration, Instant};

use drivers::udp::{UdpAddress, UdpConfig, UdpDriver};
use drivers::{Driver, DriverError, Errno, Operation};
use endpoint::{Completion, Endpoint, EndpointConfig, EndpointError};
use support::{End, id};
use transport::{Epoch, JobId, JobKey, Life, Port, PortConfig, RawAddress};

const KEY: JobKey = JobKey([6; 16]);
const LIMIT: Duration = Duration::from_secs(20);
const DRAIN: Duration = Duration::from_secs(1);
/// Bytes of messages, in turn.
const LENGTHS: [u64; 6] = [8, 5000, 300_000, 70_000, 1400, 0];

fn open_at(address: &RawAddress, frame_bytes_max: usize) -> Result<Box<dyn Driver>, DriverError> {
    let at = UdpAddress::try_from(address).expect("a rail over UDP").0;
    let config = UdpConfig { frame_bytes_max, ..UdpConfig::new(at) };
    Ok(Box::new(UdpDriver::open(&config)?))
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
        let ends = [0, 1].map(|rank| {
            let life = Life { counter: 1, nonce: 7 };
            let port = Port::new(PortConfig::new(JobId(5).tag()), id(rank), life, Epoch(0), Some(&KEY));
            let here = RawAddress::from(UdpAddress("127.0.0.1:0".parse().expect("an address")));
            let rails = vec![open_at(&here, 9000).expect("a socket")];
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
            let handed = end.hand_over(0, DRAIN, &mut open, &mut |address| open_at(address, 9200));
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
    let refused =
        pair.ends[0].endpoint.hand_over(0, DRAIN, &mut refuse, &mut |address| open_at(address, 9000));
    let words = refused.expect_err("it cannot be opened").to_string();
    assert!(
        words.starts_with("rail 0 goes on as it was: cannot open the rail: binding to a queue"),
        "{words}"
    );
    pair.settle();
    let shorter = |address: &RawAddress| open_at(address, 1400);
    let refused =
        pair.ends[0].endpoint.hand_over(0, DRAIN, &mut { shorter }, &mut |address| open_at(address, 9000));
    let words = refused.expect_err("frames keep their length").to_string();
    assert!(words.contains("takes frames of 1400 bytes and this one has sent up to 9000"), "{words}");
    let elsewhere = |_: &RawAddress| {
        open_at(&RawAddress::from(UdpAddress("127.0.0.2:0".parse().expect("an address"))), 9000)
    };
    let refused =
        pair.ends[0].endpoint.hand_over(0, DRAIN, &mut { elsewhere }, &mut |address| open_at(address, 9000));
    assert!(refused.expect_err("peers know one address").to_string().contains("it is at another address"));
    let none = pair.ends[0].endpoint.hand_over(3, DRAIN, &mut refuse, &mut refuse);
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
    let lost = pair.ends[0].endpoint.hand_over(0, DRAIN, &mut refuse, &mut refuse);
    assert!(matches!(lost, Err(EndpointError::Driver { rail: 0, .. })), "{lost:?}");
    pair.poll();
    assert_eq!(pair.dead, 1);
    assert_eq!(pair.ends[0].endpoint.frames_by_rail(), [0]);
}

#[test]
fn a_rail_whose_rights_are_gone_is_dead_and_told() {
    let mut pair = Pair::new(false);
    pair.send();
    pair.settle();
    let unpermitted = |_: &RawAddress| Err(DriverError::CapabilityMissing { missing: "CAP_NET_RAW" });
    let lost = pair.ends[0].endpoint.hand_over(0, DRAIN, &mut refuse, &mut { unpermitted });
    assert!(
        matches!(lost, Err(EndpointError::Driver { source: DriverError::CapabilityMissing { .. }, .. })),
        "{lost:?}"
    );
    pair.poll();
    assert_eq!(pair.dead, 1);
}
