//! A port from a damaged dump: refused, or a port that works. No bytes cause a panic.

use nic_freeze::{SECTION_VERSION, compare, describe, dump as write, load};
use transport::wire::{Body, Flags, Frame, Header, Resync, TAG_BYTES};
use transport::{
    AddressId, AuthLevel, Buffers, FrozenPort, Instant, JobId, Life, OpId, Port, PortConfig, RailIndex,
    RawAddress, Restart,
};

const JOB: JobId = JobId(1);
const NEXT_LIFE: Life = Life { counter: 9, nonce: 10 };
const FRAME_BYTES: usize = 400;
/// Frames that a port may want to send at one instant: every link its window and a few more.
const FRAMES_AT_ONCE_MAX: usize = 1 << 16;

/// Remembers nothing.
struct Nowhere;

impl Buffers for Nowhere {
    fn place(&mut self, _: OpId, _: u64, _: &[u8]) {}
}

/// The configuration under which dumps are loaded.
#[must_use]
pub fn dump_config() -> PortConfig {
    PortConfig {
        auth: AuthLevel::Off,
        link_copied_bytes_max: 1 << 16,
        unexpected_entries_max: 1 << 12,
        posted_max: 1 << 12,
        ..PortConfig::new(JOB.tag())
    }
}

/// A port section.
pub fn dump(bytes: &[u8]) {
    let described = describe(SECTION_VERSION, bytes);
    let Ok(loaded) = load(SECTION_VERSION, bytes, dump_config(), None) else { return };
    assert!(described.is_ok(), "what can be loaded can be described");
    assert_eq!(loaded.port.check(), Ok(()));
    let mut again = Vec::new();
    write(&loaded.port, &mut again);
    assert_eq!(compare(SECTION_VERSION, &again, &loaded.port), Ok(()));
    let twin =
        load(SECTION_VERSION, &again, dump_config(), None).expect("what was loaded can be dumped and loaded");
    assert_eq!(loaded.claimed.len(), twin.claimed.len());
    live(loaded.port);
}

/// Lets the port live with peers that have counted some of its messages.
fn live(frozen: FrozenPort) {
    let state = frozen.state();
    let mut port = frozen.restart(Instant::ZERO, Restart::in_life(NEXT_LIFE));
    let rail = port.add_rail(RawAddress::NONE, FRAME_BYTES);
    for (i, link) in (0..port.links()).map(|i| (i, transport::LinkIndex(u32::try_from(i).unwrap_or(0)))) {
        port.set_path(link, rail, AddressId(u32::try_from(i).unwrap_or(0)));
    }
    let mut now = Instant::ZERO;
    talk(&mut port, now);
    for (i, link) in state.links.iter().enumerate() {
        let held = link.sent.len() as u64;
        let expected = link.next - held + (i as u64 * 7 + link.next) % (held + 1);
        let resync = Resync { expected, next: link.expected, heard: 1 };
        let header = Header {
            kind: transport::wire::Kind::Resync,
            job: state.job,
            life: NEXT_LIFE,
            epoch: state.epoch,
            link: u32::try_from(i).ok(),
            seq: low(link.expected),
            ack: low(expected),
            transmission: 1,
            echo: 0,
            window_bytes: 1 << 14,
            selective: 0,
            window_frames: 64,
            flags: Flags::empty(),
            payload_bytes: 0,
            tag: [0; TAG_BYTES],
        };
        let frame = Frame { header, contact: None, body: Body::Resync(resync), head_bytes: 0, payload: &[] };
        let mut bytes = [0; FRAME_BYTES];
        let length = frame.emit(&mut bytes);
        port.handle_frame(now, RailIndex(0), &bytes[..length], &mut Nowhere);
        now = now + core::time::Duration::from_micros(10);
        talk(&mut port, now);
    }
    now = now + core::time::Duration::from_millis(50);
    port.handle_timeout(now);
    talk(&mut port, now);
    assert_eq!(port.freeze(now).check(), Ok(()));
}

fn talk(port: &mut Port, now: Instant) {
    let mut frame = [0; FRAME_BYTES];
    let mut sent = 0;
    while let Some(transmit) = port.poll_transmit(now, RailIndex(0), &mut frame) {
        let payload = transmit.payload.map_or(0, |payload| payload.bytes as usize);
        assert!(transmit.frame_bytes + payload <= FRAME_BYTES, "{transmit:?}");
        sent += 1;
        assert!(sent < FRAMES_AT_ONCE_MAX, "the port does not stop sending");
    }
    while port.poll_event().is_some() {}
}

fn low(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0)
}
