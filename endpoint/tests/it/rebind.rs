//! A port frozen over one kind of NIC continues over another, at other addresses, in a new life: memory,
//! shared memory and UDP sockets, with a message in each of the five states in which a cut can find it (R5,
//! R7, R10). Also freezes while NICs misbehave.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use drivers::Driver;
use drivers::fault::{FaultDriver, FaultSwitch, Faults, Rate};
use drivers::mem::Hub;
use drivers::shm::{ShmConfig, ShmDriver};
use drivers::udp::{UdpConfig, UdpDriver};
use endpoint::{Completion, Endpoint, EndpointConfig, EndpointError, ReceiveBuffer, SendBuffer};
use transport::port::Census;
use transport::{
    Epoch, JobId, JobKey, Life, LinkIndex, Outgoing, Port, PortConfig, PortId, Rank, Receive, Restart, Space,
};

const KEY: JobKey = JobKey([6; 16]);
const LIMIT: Duration = Duration::from_secs(20);
const NO_BUFFER: Faults = Faults { starve: Rate::percent(100), ..Faults::NONE };
const LOSE_ALL: Faults = Faults { loss: Rate::percent(100), ..Faults::NONE };

/// One frame; several, copied; announced and pulled.
const SIZES: [usize; 3] = [600, 8000, 300_000];

/// Kinds of NICs, with frames of different lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Mem,
    Udp,
    Shm,
    /// Payload goes in frames.
    ShmInFrames,
    /// At another address of this host.
    UdpElsewhere,
}

impl Kind {
    /// A rail for each of the two ports.
    fn rails(self) -> [Box<dyn Driver>; 2] {
        let udp = |last: u8, frame_bytes_max: usize| {
            let bind = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 0);
            let config = UdpConfig { frame_bytes_max, ..UdpConfig::new(bind) };
            Box::new(UdpDriver::open(&config).expect("a socket")) as Box<dyn Driver>
        };
        let shm = |pull: bool| {
            let config = ShmConfig { pull, ..ShmConfig::default() };
            Box::new(ShmDriver::open(&config).expect("memory")) as Box<dyn Driver>
        };
        match self {
            Kind::Mem => {
                let hub = Hub::with_bounds(1024, 1400);
                [(); 2].map(|()| Box::new(hub.open().expect("a queue")) as Box<dyn Driver>)
            }
            Kind::Shm => [(); 2].map(|()| shm(true)),
            Kind::ShmInFrames => [(); 2].map(|()| shm(false)),
            Kind::Udp => [(); 2].map(|()| udp(1, 9000)),
            Kind::UdpElsewhere => [(); 2].map(|()| udp(2, 700)),
        }
    }
}

fn id(rank: u32) -> PortId {
    PortId::of_rank(Rank(rank), 0)
}

fn config() -> PortConfig {
    PortConfig::new(JobId(5).tag())
}

/// No helper: only the test acts.
fn by_hand() -> EndpointConfig {
    EndpointConfig { helper: false, ..EndpointConfig::default() }
}

fn fresh(rank: u32, rails: Vec<Box<dyn Driver>>) -> Endpoint {
    let port = Port::new(config(), id(rank), Life { counter: 1, nonce: 7 }, Epoch(0), Some(&KEY));
    Endpoint::open(port, rails, by_hand()).expect("an endpoint")
}

/// Two ends and their program's observations.
struct Pair {
    ends: [Endpoint; 2],
    links: [LinkIndex; 2],
    payload: Vec<u8>,
    sent: u32,
    received: u32,
    behind: u32,
}

impl Pair {
    fn new(ends: [Endpoint; 2], payload: Vec<u8>) -> Pair {
        let links = [0, 1].map(|me: usize| {
            let peer = id(u32::try_from(1 - me).expect("small"));
            ends[me].connect(peer, &ends[1 - me].addresses()).expect("reachable")
        });
        Pair { ends, links, payload, sent: 0, received: 0, behind: 0 }
    }

    fn send(&self, tag: u64, bytes: &[u8]) {
        let outgoing = Outgoing { space: Space(0), tag, data: 0, context: tag, silent: false };
        let buffer = if bytes.len() <= self.ends[0].copied_bytes_max() {
            SendBuffer::Copied(bytes)
        } else {
            SendBuffer::Owned(bytes.to_vec())
        };
        self.ends[0].send(self.links[0], outgoing, buffer).expect("there is room");
    }

    fn post(&self, tag: u64) {
        let bytes_max = 1 << 20;
        let receive =
            Receive { space: Space(0), source: None, tag, ignore: 0, bytes_max, context: tag, multi: None };
        let buffer = ReceiveBuffer::Owned(vec![0; 1 << 20]);
        self.ends[1].post_receive(receive, buffer).expect("there is room");
    }

    /// Counts and checks a completion, as the program would.
    fn note(&mut self, completion: Completion) {
        match completion {
            Completion::SendDone { context: 1, .. } => self.sent += 1,
            Completion::Received { tag: 1, bytes, buffer, .. } => {
                assert_eq!(bytes, self.payload.len() as u64);
                assert_eq!(buffer.expect("handed over")[..self.payload.len()], self.payload[..]);
                self.received += 1;
            }
            Completion::Received { tag: 2, .. } => {
                // A pulled payload may take longer than copied messages behind it.
                let copied = self.payload.len() <= self.ends[0].copied_bytes_max();
                assert!(self.received == 1 || !copied, "in order");
                self.behind += 1;
            }
            Completion::Report(event) => panic!("{event:?}"),
            _ => {}
        }
    }

    fn step(&mut self, end: usize) {
        while let Some(completion) = self.ends[end].poll() {
            self.note(completion);
        }
    }

    fn run_until(&mut self, what: &str, mut met: impl FnMut(&Pair) -> bool) {
        let started = Instant::now();
        while !met(self) {
            (0..2).for_each(|end| self.step(end));
            assert!(started.elapsed() < LIMIT, "{what}: not in time");
        }
    }

    fn run_for(&mut self, time: Duration) {
        let started = Instant::now();
        self.run_until("time", |_| started.elapsed() >= time);
    }

    fn counted(&self, end: usize) -> u64 {
        self.ends[end].with_port(|port| port.counters().frames_counted)
    }

    fn settled(&self) -> bool {
        self.ends.iter().all(|end| end.with_port(Port::is_settled))
    }

    /// Cuts both ends: sections, and a census of states.
    fn cut(&mut self) -> [(Vec<u8>, Census); 2] {
        [0, 1].map(|end| {
            let endpoint = self.ends[end].clone();
            let mut frozen = endpoint.freeze(Duration::from_secs(1)).expect("nothing is held");
            frozen.port_mut().set_epoch(Epoch(1));
            for completion in frozen.take_completions() {
                self.note(completion);
            }
            let mut section = Vec::new();
            nic_freeze::dump(frozen.port(), &mut section);
            nic_freeze::append_payloads(frozen.port(), frozen.buffers(), &mut section).expect("its memory");
            (section, frozen.port().census())
        })
    }
}

/// Brings a message into its state over `before`.
fn bring_about(state: u32, before: Kind, bytes: usize) -> Pair {
    let mut switches: Vec<FaultSwitch> = Vec::new();
    let mut rank = 0;
    // A payload that is pulled is never received and not acknowledged: its sender is informed by a numbered frame.
    let before = if state == 4 && before == Kind::Shm { Kind::ShmInFrames } else { before };
    let ends = before.rails().map(|rail| {
        let rail = FaultDriver::new(rail, Faults::NONE);
        switches.push(rail.switch());
        rank += 1;
        fresh(rank - 1, vec![Box::new(rail)])
    });
    let mut pair = Pair::new(ends, (0..=250).cycle().take(bytes).collect());
    let payload = pair.payload.clone();
    match state {
        1 => switches[0].set_faults(NO_BUFFER),
        2 => switches[0].set_faults(LOSE_ALL),
        _ => {}
    }
    if state != 5 {
        pair.post(1);
    }
    pair.send(1, &payload);
    match state {
        1 | 2 => pair.step(0),
        3 => pair.run_until("everything is acknowledged", |pair| pair.sent == 1 && pair.received == 1),
        4 => {
            let started = Instant::now();
            // An announced message must be granted before it can arrive.
            while payload.len() > pair.ends[1].copied_bytes_max() && pair.counted(0) == 0 {
                pair.step(1);
                pair.step(0);
                assert!(started.elapsed() < LIMIT, "no CTS comes");
            }
            switches[1].set_faults(NO_BUFFER);
            let before = pair.counted(1);
            // One look at a time, and before the sender's: a later round would send the acknowledgement, and so would a frame that comes
            // twice, for a buffer that was leased before can still be filled.
            loop {
                if let Some(completion) = pair.ends[1].poll() {
                    pair.note(completion);
                }
                if pair.counted(1) > before {
                    break;
                }
                pair.step(0);
                assert!(started.elapsed() < LIMIT, "no frame comes");
            }
        }
        _ => {
            pair.run_until("it waits for a receive", |pair| {
                pair.ends[1].with_port(|port| port.counters().messages_unexpected > 0)
            });
            pair.run_until("it is acknowledged", |pair| {
                pair.ends[0].with_port(|port| port.counters().frames_sent > 0) && pair.settled_but_granted()
            });
        }
    }
    pair
}

impl Pair {
    /// Nothing that was sent is unacknowledged; an announced payload waits for its CTS.
    fn settled_but_granted(&self) -> bool {
        let frozen = self.ends[0].freeze(Duration::from_secs(1)).expect("nothing is held");
        frozen.port().census().sent_unacknowledged == 0
    }
}

fn rebound(state: u32, before: Kind, after: Kind, bytes: usize) {
    let case = format!("state {state}, {before:?} to {after:?}, {bytes} bytes");
    let mut old = bring_about(state, before, bytes);
    let cut = old.cut();
    let census = [cut[0].1, cut[1].1];
    let there = match state {
        1 => census[0].to_be_sent > 0 && census[0].sent_unacknowledged == 0,
        2 => census[0].sent_unacknowledged > 0 && census[1] == Census::default(),
        3 => census[0].acknowledged > 0 && census[0].sent_unacknowledged == 0,
        4 => census[1].received_unacknowledged > 0 && census[0].sent_unacknowledged > 0,
        _ => census[1].delivered_waiting == 1 && census[0].sent_unacknowledged == 0,
    };
    assert!(there, "{case}: {census:?}");
    let (sent, received, payload) = (old.sent, old.received, old.payload.clone());
    let addresses: Vec<_> = old.ends.iter().map(Endpoint::addresses).collect();
    drop(old);
    let mut rank = 0;
    let ends = after.rails().map(|rail| {
        let section = &cut[rank].0;
        rank += 1;
        let loaded = nic_freeze::load(nic_freeze::SECTION_VERSION, section, config(), Some(&KEY));
        let loaded = loaded.expect("a whole section");
        let restart = Restart::in_life(Life { counter: 2, nonce: 8 });
        Endpoint::restart(loaded.port, loaded.carried, vec![rail], restart, by_hand()).expect("an endpoint")
    });
    let mut pair = Pair { sent, received, ..Pair::new(ends, payload) };
    let moved: Vec<_> = pair.ends.iter().map(Endpoint::addresses).collect();
    assert_ne!(addresses, moved, "{case}: the ports have moved");
    if state == 5 {
        pair.post(1);
    }
    pair.post(2);
    pair.send(2, b"behind it");
    pair.run_until(&case, |pair| pair.received == 1 && pair.sent == 1 && pair.behind == 1 && pair.settled());
    // A second copy of a message would arrive now.
    pair.run_for(Duration::from_millis(5));
    assert_eq!((pair.sent, pair.received, pair.behind), (1, 1, 1), "{case}: not once");
}

fn every_way(state: u32) {
    let ways = [
        (Kind::Mem, Kind::Udp),
        (Kind::Udp, Kind::Mem),
        (Kind::Udp, Kind::UdpElsewhere),
        (Kind::Udp, Kind::Shm),
        (Kind::Shm, Kind::Udp),
        (Kind::Shm, Kind::Shm),
    ];
    for (before, after) in ways {
        SIZES.into_iter().for_each(|bytes| rebound(state, before, after, bytes));
    }
}

#[test]
fn state_1_to_be_sent() {
    every_way(1);
}

#[test]
fn state_2_sent_not_acknowledged() {
    every_way(2);
}

#[test]
fn state_3_acknowledged() {
    every_way(3);
}

#[test]
fn state_4_received_not_acknowledged() {
    every_way(4);
}

#[test]
fn state_5_delivered_and_waiting() {
    every_way(5);
}

#[test]
fn a_nic_that_keeps_its_buffers_ends_the_freeze_and_nothing_else() {
    let [a, b] = Kind::Udp.rails();
    let late = FaultDriver::new(a, Faults { late: Rate::percent(100), ..Faults::NONE });
    let switch = late.switch();
    let mut pair = Pair::new([fresh(0, vec![Box::new(late)]), fresh(1, vec![b])], vec![5; 600]);
    pair.post(1);
    let payload = pair.payload.clone();
    pair.send(1, &payload);
    let Err(error) = pair.ends[0].freeze(Duration::ZERO).map(drop) else { panic!("a frame is still held") };
    assert!(matches!(error, EndpointError::DrainTimeout { rail: 0, .. }), "{error}");
    assert!(error.to_string().contains("the port keeps running"), "{error}");
    switch.set_faults(Faults::NONE);
    pair.run_until("the message", |pair| pair.received == 1 && pair.sent == 1);
    drop(pair.ends[0].freeze(Duration::from_secs(1)).expect("now it gives them back"));
}

#[test]
fn a_rail_that_dies_of_the_freeze_is_taken_out_and_reported() {
    let mut switches = Vec::new();
    let mut pairs = [Kind::Udp.rails(), Kind::Udp.rails()].into_iter().map(|[a, b]| {
        let rail = FaultDriver::new(a, Faults::NONE);
        switches.push(rail.switch());
        (Box::new(rail) as Box<dyn Driver>, b)
    });
    let (first, second) = (pairs.next().expect("two"), pairs.next().expect("two"));
    drop(pairs);
    let ends = [fresh(0, vec![first.0, second.0]), fresh(1, vec![first.1, second.1])];
    let mut pair = Pair::new(ends, vec![5; 300_000]);
    switches[0].kill();
    let mut frozen = pair.ends[0].freeze(Duration::from_secs(1)).expect("the other rail is well");
    let dead: Vec<u8> = frozen
        .take_completions()
        .into_iter()
        .filter_map(|completion| match completion {
            Completion::RailDead { rail, reason } if reason.is_rail_dead() => Some(rail.0),
            _ => None,
        })
        .collect();
    assert_eq!(dead, [0]);
    frozen.thaw();
    pair.post(1);
    let payload = pair.payload.clone();
    pair.send(1, &payload);
    pair.run_until("the message, over the other rail", |pair| pair.received == 1 && pair.sent == 1);
}
