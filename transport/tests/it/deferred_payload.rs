//! Payload that lies somewhere else when its frame is handled: brought straight to its place, or the frame does not count (R11, R18).

use transport::config::AuthLevel;
use transport::{
    AddressId, Buffers, Epoch, Event, Instant, JobId, JobKey, Life, OpId, Outgoing, Payload, Port,
    PortConfig, PortId, RailIndex, Rank, RawAddress, Receive, Space,
};

const RAIL: RailIndex = RailIndex(0);
const FRAME_BYTES: usize = 1000;
const BYTES: usize = 20_000;

fn port(rank: u32, auth: AuthLevel) -> Port {
    let config = PortConfig { auth, ..PortConfig::new(JobId(1).tag()) };
    let life = Life { counter: 1, nonce: 1 };
    let mut port = Port::new(config, PortId::of_rank(Rank(rank), 0), life, Epoch(0), Some(&JobKey([3; 16])));
    port.add_rail(RawAddress::new(&rank.to_le_bytes()).expect("short"), FRAME_BYTES);
    port
}

/// The receiver's memory, and the part of the sender's that the frame at hand names.
struct Memory<'a> {
    buffer: &'a mut Vec<u8>,
    there: &'a [u8],
    /// Whether the payload can be brought now.
    reachable: bool,
    fetches: u32,
}

impl Buffers for Memory<'_> {
    fn place(&mut self, _: OpId, _: u64, _: &[u8]) {
        panic!("the payload is not here");
    }

    fn fetch(&mut self, _: OpId, offset: u64, bytes: usize) -> bool {
        self.fetches += 1;
        let from = usize::try_from(offset).expect("small");
        let place = &mut self.buffer[from..from + bytes];
        if self.reachable {
            place.copy_from_slice(self.there);
        } else {
            place.fill(0xee);
        }
        self.reachable
    }
}

/// Sends one announced message; every frame of `unreachable` (counted from 0) has a payload that is gone when
/// it is handled, and every frame of `lost` is lost. Returns the received payload, and the receiver.
fn pulled(auth: AuthLevel, unreachable: &[u32], lost: &[u32]) -> (Option<Vec<u8>>, Port) {
    let (mut a, mut b) = (port(0, auth), port(1, auth));
    let link = a.connect(PortId::of_rank(Rank(1), 0));
    a.set_path_limited(link, RAIL, AddressId(0), FRAME_BYTES);
    let sent: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
    let mut buffer = vec![0; BYTES];
    let receive = Receive {
        space: Space(0),
        source: None,
        tag: 1,
        ignore: 0,
        bytes_max: 1 << 20,
        context: 0,
        multi: None,
    };
    let mut none = Memory { buffer: &mut buffer, there: &[], reachable: false, fetches: 0 };
    b.post_receive(receive, &mut none).expect("room");
    let outgoing = Outgoing { space: Space(0), tag: 1, data: 0, context: 0, silent: false };
    a.send(link, outgoing, Payload::User { bytes: BYTES as u64 }).expect("room");
    let (mut now, mut frame, mut pieces) = (Instant::ZERO, vec![0; FRAME_BYTES], 0);
    for _ in 0..20_000 {
        now = Instant::from_nanos(now.as_nanos() + 10_000);
        a.handle_timeout(now);
        b.handle_timeout(now);
        while let Some(transmit) = a.poll_transmit(now, RAIL, &mut frame) {
            let head = &frame[..transmit.frame_bytes];
            let Some(piece) = transmit.payload else {
                b.handle_frame(now, RAIL, head, &mut none_of(&mut buffer));
                continue;
            };
            let from = usize::try_from(piece.offset).expect("small");
            let there = &sent[from..from + piece.bytes as usize];
            let reachable = !unreachable.contains(&pieces);
            pieces += 1;
            if lost.contains(&(pieces - 1)) {
                continue;
            }
            let mut memory = Memory { buffer: &mut buffer, there, reachable, fetches: 0 };
            b.handle_head(now, RAIL, head, there.len(), &mut memory);
            assert!(memory.fetches <= 1, "a payload is brought once");
        }
        while let Some(transmit) = b.poll_transmit(now, RAIL, &mut frame) {
            a.handle_frame(now, RAIL, &frame[..transmit.frame_bytes], &mut none_of(&mut Vec::new()));
        }
        while a.poll_event().is_some() {}
        while let Some(event) = b.poll_event() {
            match event {
                Event::PeerAppeared { link, .. } => b.set_path_limited(link, RAIL, AddressId(0), FRAME_BYTES),
                Event::Received { bytes, .. } => {
                    assert_eq!(bytes, BYTES as u64);
                    assert!(buffer == sent, "what counts is what was sent");
                    return (Some(buffer), b);
                }
                _ => {}
            }
        }
    }
    (None, b)
}

fn none_of(buffer: &mut Vec<u8>) -> Memory<'_> {
    Memory { buffer, there: &[], reachable: false, fetches: 0 }
}

#[test]
fn a_payload_is_brought_to_its_place() {
    let (received, b) = pulled(AuthLevel::Header, &[], &[]);
    assert!(received.is_some());
    assert_eq!(b.counters().dropped_not_fetched, 0);
    assert_eq!(b.counters().dropped_malformed, 0);
}

/// R11: bytes read from a payload that its sender has taken back are not counted, in their turn or out of it,
/// and are retransmitted.
#[test]
fn a_payload_that_is_gone_does_not_count_and_comes_again() {
    for (unreachable, lost) in [(&[0][..], &[][..]), (&[3, 4, 9], &[]), (&[5, 6, 24], &[2])] {
        let (received, b) = pulled(AuthLevel::Header, unreachable, lost);
        assert!(received.is_some(), "{unreachable:?} {lost:?}");
        assert!(b.counters().dropped_not_fetched > 0, "{unreachable:?} {lost:?}: {:?}", b.counters());
    }
}

/// R21: a tag over payload cannot be checked before the payload is here.
#[test]
fn at_level_full_a_head_alone_has_a_wrong_tag() {
    let (received, b) = pulled(AuthLevel::Full, &[], &[]);
    assert!(received.is_none());
    assert!(b.counters().dropped_tag > 0);
}

#[test]
fn only_pieces_of_bulk_may_come_apart() {
    let mut b = port(1, AuthLevel::Off);
    let mut a = port(0, AuthLevel::Off);
    let link = a.connect(PortId::of_rank(Rank(1), 0));
    a.set_path_limited(link, RAIL, AddressId(0), FRAME_BYTES);
    let outgoing = Outgoing { space: Space(0), tag: 1, data: 0, context: 0, silent: false };
    a.send(link, outgoing, Payload::Copied(&[7; 10])).expect("room");
    let mut frame = vec![0; FRAME_BYTES];
    let now = Instant::from_nanos(1);
    let bytes = a.poll_transmit(now, RAIL, &mut frame).expect("a message").frame_bytes;
    b.handle_head(now, RAIL, &frame[..bytes - 10], 10, &mut none_of(&mut Vec::new()));
    b.handle_head(now, RAIL, &frame[..bytes], 0, &mut none_of(&mut Vec::new()));
    b.handle_head(now, RAIL, &frame[..20], 10, &mut none_of(&mut Vec::new()));
    b.handle_head(now, RAIL, &frame[..bytes - 10], usize::MAX, &mut none_of(&mut Vec::new()));
    assert_eq!(b.counters().dropped_malformed, 4);
    assert_eq!(b.counters().frames_counted, 0);
}
