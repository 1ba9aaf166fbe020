//! Faults that only a process inside can cause: writing nonsense, and taking over rings of dead processes.

use core::sync::atomic::Ordering;

use super::barrier::REFUSED;
use super::layout::{
    ACTIVE, ENTRY_OWNER, ENTRY_TAKEN, RING_BYTES, RINGS_MAX, SLOTS, SlotWord, entry, slot_at,
};
use super::segment::Outbox;
use super::{QUIET_LOOKS, QUIET_RINGS, ShmConfig, ShmDriver};
use crate::driver::Driver;
use crate::payload::Payload;

fn open() -> ShmDriver {
    ShmDriver::open(&ShmConfig::default()).expect("memory and /proc")
}

/// Marsaglia's xorshift: the same nonsense each time.
struct Nonsense(u64);

impl Nonsense {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }
}

#[test]
fn a_sender_that_writes_nonsense_is_only_counted() {
    let mut b = open();
    let outbox = Outbox::open(&b.inbox.place).expect("our own");
    let ring = outbox.map_ring(0).expect("memory");
    outbox.front.u64(ACTIVE).store(1, Ordering::SeqCst);
    let mut nonsense = Nonsense(0x5eed);
    let longest = b.caps().frame_bytes_max;
    let (mut frames, mut number) = (0u64, 0u64);
    for _ in 0..50_000 {
        let slot = slot_at(number);
        for field in (8..40).step_by(4) {
            // Small numbers pass more checks than large ones.
            let bits = nonsense.below(33);
            let value = u32::try_from(nonsense.next() & ((1u64 << bits) - 1)).unwrap_or(u32::MAX);
            ring.u32(slot + field).store(value, Ordering::Relaxed);
        }
        outbox.front.u64(entry(0, nonsense.below(12) * 8)).store(nonsense.next(), Ordering::Relaxed);
        let good = SlotWord { kind: super::layout::Kind::Inline, first: false, bytes: 0 }.encode(number)
            & 0xffff_ffff;
        let kind = nonsense.next() % 5;
        let word = good | kind << 32 | (nonsense.next() & 1) << 40 | (nonsense.next() % 260) << 48;
        ring.u64(slot).store(word, Ordering::Release);
        b.receive(1, &mut |frame| {
            assert!(frame.len() <= longest);
            frames += 1;
        })
        .expect("a peer's nonsense is no error of ours");
        number += 1;
    }
    let counters = b.counters();
    assert_eq!(counters.frames_received, frames);
    assert!(frames > 0 && counters.lost_malformed > 0 && counters.lost_not_fetched > 0, "{counters:?}");
    assert_eq!(frames + counters.lost_malformed + counters.lost_not_fetched, number);
}

#[test]
fn a_ring_full_of_nonsense_ends_a_call_after_one_lap() {
    let mut b = open();
    let outbox = Outbox::open(&b.inbox.place).expect("our own");
    let ring = outbox.map_ring(3).expect("memory");
    outbox.front.u64(ACTIVE).store(1 << 3, Ordering::SeqCst);
    for number in 0..SLOTS as u64 {
        ring.u64(slot_at(number)).store(1 | 9 << 32, Ordering::Release);
    }
    assert_eq!(b.receive(1, &mut |_| panic!("nobody meant a frame")), Ok(0));
    assert_eq!(b.counters().lost_malformed, SLOTS as u64);
    // Bits of unclaimed rings cost a mapping each, and no more.
    outbox.front.u64(ACTIVE + 8).store(u64::MAX, Ordering::SeqCst);
    assert_eq!(b.receive(1, &mut |_| ()), Ok(0));
}

#[test]
fn a_receiver_that_writes_nonsense_loses_its_own_frames_only() {
    let (mut a, b, mut c) = (open(), open(), open());
    let to = a.resolve(&b.local_address()).expect("this host");
    let to_c = a.resolve(&c.local_address()).expect("this host");
    let mut nonsense = Nonsense(0xbad);
    for round in 0..2000usize {
        let taken = b.inbox.front.u64(entry(nonsense.below(2), ENTRY_TAKEN));
        taken.store(nonsense.next() >> nonsense.below(64), Ordering::Relaxed);
        for _ in 0..8 {
            a.lease().expect("all is completed").fill(1);
            a.commit(to, nonsense.below(2000), Payload::EMPTY);
        }
        a.lease().expect("all is completed")[..8].copy_from_slice(&round.to_le_bytes());
        a.commit(to_c, 8, Payload::EMPTY);
        a.flush().expect("a live rail");
        let mut came = Vec::new();
        c.receive(1, &mut |frame| came = frame.to_vec()).expect("a live rail");
        assert_eq!(came, round.to_le_bytes());
        if round % 100 == 0 {
            // A new claim starts from the receiver's count of taken frames.
            a.forget(to);
            assert_eq!(a.resolve(&b.local_address()).map(|_| ()), Ok(()));
        }
    }
}

#[test]
fn rings_of_dead_senders_are_taken_over_and_of_living_ones_are_not() {
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("this host");
    let owner = |ring| b.inbox.front.u64(entry(ring, ENTRY_OWNER));
    let (alive, dead) = (b.inbox.place.owner.short(), 0x7fff_ffff_0000_0001);
    for ring in 0..RINGS_MAX {
        owner(ring).store(alive, Ordering::Relaxed);
    }
    let send = |a: &mut ShmDriver| {
        a.lease().expect("all is completed")[0] = 9;
        a.commit(to, 1, Payload::EMPTY);
        a.flush().expect("a live rail")
    };
    assert_eq!(send(&mut a), 0, "every ring has a living owner");
    assert_eq!(a.counters().lost_receiver_full, 1);
    owner(77).store(dead, Ordering::Relaxed);
    let sent = (0..2000).map(|_| send(&mut a)).position(|sent| sent == 1);
    assert!(sent.is_some(), "the dead one's ring was not taken over");
    assert_eq!(owner(77).load(Ordering::Relaxed), alive, "claimed by this process");
    assert_eq!(b.receive(1, &mut |frame| assert_eq!(frame, [9])), Ok(1));
}

#[test]
fn a_new_sender_goes_on_behind_what_the_last_one_left() {
    let mut b = open();
    for sender in 0..20u8 {
        let mut a = open();
        let to = a.resolve(&b.local_address()).expect("this host");
        for part in 0..30u8 {
            a.lease().expect("room")[..1000].fill(sender ^ part);
            // Data that does not fit a slot has to wait until the last sender's data has been taken.
            let long = part % 2 == 1 && sender % 5 == 0;
            a.commit(to, if long { 1000 } else { 100 }, Payload::EMPTY);
        }
        assert_eq!(a.flush(), Ok(30));
        drop(a);
        assert_eq!(b.inbox.front.u64(entry(0, ENTRY_OWNER)).load(Ordering::Relaxed), 0, "given back");
        if sender % 5 == 4 {
            let mut came = 0u8;
            while b
                .receive(7, &mut |frame| {
                    let (sender, part) = (sender - 4 + came / 30, came % 30);
                    assert!(frame.iter().all(|byte| *byte == sender ^ part), "frame {part} of {sender}");
                    came += 1;
                })
                .expect("a live rail")
                > 0
            {}
            assert_eq!(came, 150);
        }
    }
}

#[test]
fn mappings_are_reported_and_are_the_segment_only() {
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("this host");
    assert_eq!((a.device_mappings().len(), b.device_mappings().len()), (1, 1), "idle peers cost nothing");
    a.lease().expect("room")[0] = 1;
    a.commit(to, 1, Payload::EMPTY);
    a.flush().expect("a live rail");
    b.receive(1, &mut |_| ()).expect("a live rail");
    assert_eq!((a.device_mappings().len(), b.device_mappings().len()), (3, 2));
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    for range in a.device_mappings().into_iter().chain(b.device_mappings()) {
        assert!(range.len() <= RING_BYTES);
        let line = format!("{:x}-{:x} ", range.start, range.end);
        // Neighbouring mappings of one file are one line.
        let found = maps.lines().filter(|line| line.contains("/memfd:stillwire")).any(|found| {
            let (from, to) =
                found.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
            let number = |text| usize::from_str_radix(text, 16).expect("hex");
            number(from) <= range.start && range.end <= number(to)
        });
        assert!(found, "{line} is no mapping of a segment");
    }
}

#[test]
fn a_quiet_ring_is_looked_at_on_where_its_sender_cannot_be_met() {
    const SENDERS: usize = QUIET_RINGS + 2;
    for refused in [true, false] {
        let mut b = open();
        let mut senders: Vec<ShmDriver> = (0..SENDERS).map(|_| open()).collect();
        for a in &mut senders {
            let to = a.resolve(&b.local_address()).expect("this host");
            a.lease().expect("room")[0] = 1;
            a.commit(to, 1, Payload::EMPTY);
            a.flush().expect("a live rail");
        }
        assert_eq!(b.receive(SENDERS, &mut |_| ()), Ok(SENDERS));
        REFUSED.set(refused);
        for _ in 0..(2 + SENDERS) * QUIET_LOOKS as usize {
            b.receive(1, &mut |_| ()).expect("a live rail");
        }
        REFUSED.set(false);
        let looked_at = b.active.len();
        // Without the barrier of a kernel that has none, senders make their own, and nothing can be refused.
        let can_refuse = refused && super::barrier::everywhere();
        assert_eq!(looked_at, if can_refuse { SENDERS } else { QUIET_RINGS }, "refused: {refused}");
    }
}

#[test]
fn the_descriptors_of_a_rail_are_reported() {
    let (mut a, b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("this host");
    a.lease().expect("room")[0] = 1;
    a.commit(to, 1, Payload::EMPTY);
    a.flush().expect("a living rail");
    let behind = |driver: &ShmDriver| -> Vec<String> {
        let link = |number| std::fs::read_link(format!("/proc/self/fd/{number}")).expect("open");
        driver.descriptors().into_iter().map(|number| link(number).to_string_lossy().into_owned()).collect()
    };
    let kinds = |links: Vec<String>| {
        let of = |start: &str| links.iter().filter(|link| link.starts_with(start)).count();
        (of("/memfd:stillwire"), of("pipe:"), links.len())
    };
    assert_eq!(kinds(behind(&b)), (1, 2, 3), "its segment, and both ends of its bell");
    assert_eq!(kinds(behind(&a)), (2, 2, 4), "the peer's segment besides");
}
