//! A port that a peer lies to: for any frames, no panic, no byte outside of a posted buffer, no endless answer.

use transport::wire::Frame;
use transport::{
    AddressId, AuthLevel, Buffers, Epoch, Instant, JobId, Life, OpId, Outgoing, Payload, Port, PortConfig,
    PortId, RawAddress, Receive, Space,
};

const JOB: JobId = JobId(1);
const LIFE: Life = Life { counter: 1, nonce: 2 };
/// The port under test.
pub const OWN: PortId = PortId(0x1111);
/// The peer that it knows from the start.
pub const PEER: PortId = PortId(0x2222);
const FRAME_BYTES: usize = 1472;
const RECEIVE_BYTES: u64 = 64;
/// Frames that a port may want to send at one instant: its window on each link, and as many again for answers.
const FRAMES_AT_ONCE_MAX: usize = 4096;

/// Remembers nothing, and checks that the port stays inside of posted buffers.
struct Checked;

impl Buffers for Checked {
    fn place(&mut self, receive: OpId, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(
            end.is_some_and(|end| end <= RECEIVE_BYTES),
            "{} bytes at {offset} of receive {receive:?}, which has {RECEIVE_BYTES}",
            bytes.len()
        );
    }
}

/// Frames of a peer in a row, each behind its length as 16 bits, a millisecond apart.
pub fn port(bytes: &[u8]) {
    let mut port = opened();
    let (mut rest, mut now) = (bytes, Instant::from_nanos(0));
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(tail.len());
        let (frame, tail) = tail.split_at(length);
        rest = tail;
        port.handle_frame(now, transport::RailIndex(0), &in_our_life(frame), &mut Checked);
        now = now + core::time::Duration::from_millis(1);
        port.handle_timeout(now);
        answer(&mut port, now);
    }
    let promised = port.links() * port.config().link_window_bytes as usize;
    assert!(port.unexpected_bytes() <= port.config().unexpected_bytes_max + promised);
    assert!(port.reorder_bytes() <= port.config().reorder_bytes_max);
    let later = now + core::time::Duration::from_secs(1);
    let mut port = port.freeze(now).thaw(later);
    answer(&mut port, later);
}

fn answer(port: &mut Port, now: Instant) {
    let mut frame = [0; FRAME_BYTES];
    let mut sent = 0;
    while let Some(transmit) = port.poll_transmit(now, transport::RailIndex(0), &mut frame) {
        let payload = transmit.payload.map_or(0, |payload| payload.bytes as usize);
        assert!(transmit.frame_bytes + payload <= FRAME_BYTES, "{transmit:?}");
        sent += 1;
        assert!(sent < FRAMES_AT_ONCE_MAX, "the answer does not end");
    }
    while port.poll_event().is_some() {}
}

/// A port with two receives posted, and a short and a long message on their way to a peer.
fn opened() -> Port {
    let config = PortConfig {
        auth: AuthLevel::Off,
        unexpected_bytes_max: 1 << 16,
        reorder_bytes_max: 1 << 16,
        unexpected_entries_max: 64,
        posted_max: 64,
        ..PortConfig::new(JOB.tag())
    };
    let mut port = Port::new(config, OWN, LIFE, Epoch(1), None);
    let rail = port.add_rail(RawAddress::new(&[1]).expect("a byte is an address"), FRAME_BYTES);
    let link = port.connect(PEER);
    port.set_path(link, rail, AddressId(0));
    for (ignore, multi) in [(u64::MAX, None), (0, Some(16))] {
        let receive = Receive {
            space: Space(0),
            source: None,
            tag: 7,
            ignore,
            bytes_max: RECEIVE_BYTES,
            context: 0,
            multi,
        };
        port.post_receive(receive, &mut Checked).expect("there is room");
    }
    for payload in [Payload::Copied(b"short"), Payload::User { bytes: 100_000 }] {
        let outgoing = Outgoing { space: Space(0), tag: 1, data: 2, context: 3, silent: false };
        port.send(link, outgoing, payload).expect("there is room");
    }
    port
}

/// The frame with our job and life, if it is one: a stranger cannot guess them, but a peer that has gone mad
/// knows them.
fn in_our_life(bytes: &[u8]) -> Vec<u8> {
    let Ok(mut frame) = Frame::parse(bytes) else { return bytes.to_vec() };
    (frame.header.job, frame.header.life) = (JOB.tag(), LIFE);
    let mut again = vec![0; bytes.len()];
    frame.emit(&mut again);
    again
}
