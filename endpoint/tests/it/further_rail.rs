//! R29: a port that goes on at another address, by a rail beside the one it has, under verified traffic.

use std::time::{Duration, Instant};

use crate::support::{End, id};
use drivers::Driver;
use drivers::fault::{FaultDriver, FaultSwitch, Faults};
use drivers::udp::{UdpConfig, UdpDriver};
use endpoint::{Completion, Endpoint, EndpointConfig, EndpointError};
use transport::config::RAILS_MAX;
use transport::{Epoch, JobId, JobKey, Life, Port, PortConfig, RawAddress};

const KEY: JobKey = JobKey([6; 16]);
const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of messages, in turn.
const LENGTHS: [u64; 6] = [8, 5000, 300_000, 70_000, 1400, 0];

fn open(frame_bytes_max: usize) -> FaultDriver<UdpDriver> {
    let here = "127.0.0.1:0".parse().expect("an address");
    let config = UdpConfig { frame_bytes_max, ..UdpConfig::new(here) };
    FaultDriver::new(UdpDriver::open(&config).expect("a socket"), Faults::NONE)
}

/// Two ends of this process; the first sends.
struct Pair {
    ends: [End; 2],
    /// Of the rails that the ends have now.
    switches: [FaultSwitch; 2],
    rails: [usize; 2],
    dead: u32,
}

impl Pair {
    fn new(helper: bool) -> Pair {
        let opened = [0, 1].map(|rank| {
            let life = Life { counter: 1, nonce: 7 };
            let port = Port::new(PortConfig::new(JobId(5).tag()), id(rank), life, Epoch(0), Some(&KEY));
            let rail = open(9000);
            let switch = rail.switch();
            let config = EndpointConfig { helper, ..EndpointConfig::default() };
            (Endpoint::open(port, vec![Box::new(rail)], config).expect("an endpoint"), switch)
        });
        let [(a, first), (b, second)] = opened;
        let link = a.connect(id(1), &b.addresses()).expect("reachable");
        b.connect(id(0), &a.addresses()).expect("reachable");
        let ends = [End::new(0, a, link, LENGTHS), End::new(1, b, link, LENGTHS)];
        Pair { ends, switches: [first, second], rails: [0; 2], dead: 0 }
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

    fn poll_until(&mut self, what: &str, met: impl Fn(&Pair) -> bool) {
        let started = Instant::now();
        while !met(self) {
            self.poll();
            let state = self.ends.each_ref().map(|end| (end.sent, end.done, end.received));
            assert!(started.elapsed() < LIMIT, "{what}: {state:?} sent, done, received");
        }
    }

    fn settle(&mut self) {
        self.poll_until("all arrives", |pair| {
            pair.ends[1].received == pair.ends[0].sent && pair.ends[0].done == pair.ends[0].sent
        });
    }

    /// A further rail on each end, which knows its peer there.
    fn add(&mut self, frame_bytes_max: usize) -> [usize; 2] {
        let opened = [0, 1].map(|_| open(frame_bytes_max));
        self.switches = opened.each_ref().map(FaultDriver::switch);
        let places = opened.each_ref().map(Driver::local_address);
        let mut opened = opened.into_iter();
        let new = self
            .ends
            .each_ref()
            .map(|end| end.endpoint.add_rail(Box::new(opened.next().expect("two"))).expect("there is room"));
        for (at, end) in self.ends.iter().enumerate() {
            let peer = id(u32::try_from(1 - at).expect("small"));
            assert_eq!(end.endpoint.unreached(new[at]), [peer]);
            end.endpoint.reach(peer, new[at], &places[1 - at]).expect("a way");
            assert_eq!(end.endpoint.unreached(new[at]), []);
        }
        new
    }

    /// Both ends go on over a further rail; the one that they had is closed when nothing needs it.
    fn change(&mut self, frame_bytes_max: usize) {
        let new = self.add(frame_bytes_max);
        let old = self.rails;
        self.poll_until("no frame needs the old rail", |pair| {
            (0..2).all(|i| pair.ends[i].endpoint.needs_rail(old[i]) == 0)
        });
        for (end, old) in self.ends.iter().zip(old) {
            end.endpoint.remove_rail(old);
        }
        self.rails = new;
    }
}

#[test]
fn nothing_is_lost_or_doubled_by_many_changes_of_address() {
    for helper in [false, true] {
        let mut pair = Pair::new(helper);
        for turn in 0..300_u64 {
            (0..=turn % 4).for_each(|_| pair.send());
            (0..turn % 7).for_each(|_| pair.poll());
            let before = pair.ends[0].endpoint.addresses();
            // Longer and shorter frames by turns: a shorter rail waits for the longer one's frames.
            pair.change([9000, 1400, 60_000, 2000][usize::try_from(turn % 4).expect("small")]);
            let after = pair.ends[0].endpoint.addresses();
            assert!(
                after.len() <= 2 && before.iter().all(|at| *at == RawAddress::NONE || !after.contains(at))
            );
            if turn % 10 == 9 {
                pair.settle();
            }
        }
        pair.settle();
        assert_eq!(pair.dead, 0);
    }
}

/// R29: a number stands for certain bytes, so a frame that only the old rail takes has to arrive over that.
#[test]
fn a_frame_that_only_the_old_rail_takes_keeps_it() {
    let mut pair = Pair::new(false);
    // The second one is a frame of some 5,000 bytes, which no receiver takes yet.
    (0..2).for_each(|_| pair.send());
    pair.add(1400);
    let needed = pair.ends[0].endpoint.needs_rail(0);
    assert!((5000..5200).contains(&needed), "{needed}");
    pair.settle();
    assert_eq!(pair.ends[0].endpoint.needs_rail(0), 0);
    // Both rails take frames that are cut from now on.
    pair.send();
    assert_eq!(pair.ends[0].endpoint.needs_rail(0), 0);
    pair.settle();
}

/// R29: a rail that is taken back before anybody has closed anything leaves a port as it was.
#[test]
fn a_further_rail_that_is_taken_back_leaves_all_as_it_was() {
    let mut pair = Pair::new(true);
    for _ in 0..20 {
        (0..4).for_each(|_| pair.send());
        let new = pair.add(1400);
        (0..3).for_each(|_| pair.send());
        for (end, new) in pair.ends.iter().zip(new) {
            end.endpoint.remove_rail(new);
        }
    }
    pair.settle();
    let frames = pair.ends[0].endpoint.frames_by_rail();
    assert!(frames[0] > 0 && frames[1..] == [0], "{frames:?}");
}

/// The rail that died is taken away like one that works, and its number given to another one.
#[test]
fn a_port_whose_rail_has_died_goes_on_at_another_address() {
    let mut pair = Pair::new(false);
    for round in 1..=5 {
        (0..6).for_each(|_| pair.send());
        pair.switches[0].kill();
        pair.poll_until("its death is noticed", |pair| pair.dead == round);
        assert!(pair.ends[0].endpoint.is_rail_dead(pair.rails[0]));
        pair.send();
        pair.change(9000);
        let (rail, address) = pair.ends[0].endpoint.rail_to_others().expect("the new one");
        assert_eq!(rail, pair.rails[0]);
        assert!(pair.ends[0].endpoint.addresses().contains(&address));
        pair.settle();
    }
}

#[test]
fn there_is_room_for_so_many_rails() {
    let pair = Pair::new(false);
    let endpoint = &pair.ends[0].endpoint;
    for rail in 1..RAILS_MAX {
        assert_eq!(endpoint.add_rail(Box::new(open(9000))).expect("room"), rail);
    }
    let full = endpoint.add_rail(Box::new(open(9000)));
    assert!(matches!(full, Err(EndpointError::Rails { .. })), "{full:?}");
    endpoint.remove_rail(2);
    assert_eq!(endpoint.add_rail(Box::new(open(9000))).expect("room again"), 2);
}

/// A sleeper outside of the gate knows no rails.
#[test]
fn who_sleeps_is_woken_by_the_new_rail_alone() {
    let mut pair = Pair::new(false);
    pair.send();
    pair.settle();
    pair.change(9000);
    pair.change(9000);
    let sleeper = pair.ends[1].endpoint.clone();
    let slept = std::thread::spawn(move || {
        let started = Instant::now();
        (sleeper.wait(LIMIT), started.elapsed())
    });
    std::thread::sleep(Duration::from_millis(30));
    pair.send();
    let (woken, took) = slept.join().expect("no panic");
    assert!(woken && took < LIMIT / 2, "{took:?}");
    pair.settle();
}
