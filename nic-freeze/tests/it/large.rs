//! A message above 4 GiB: no offset, length or count of it fits into 32 bits. Its payload is only named, so no memory holds it;
//! each piece carries its own offset in front.

use std::collections::BTreeMap;
use std::time::Duration;

use nic_freeze::{SECTION_VERSION, dump, load};
use transport::{
    AddressId, Buffers, Epoch, Event, Instant, JobId, JobKey, Life, LinkIndex, OpId, Outgoing, Payload, Port,
    PortConfig, PortId, RailIndex, Rank, RawAddress, Receive, Restart, Space,
};

const BYTES: u64 = 5 << 30;
/// The two processes are killed when so much has arrived.
const KILLED_AT: u64 = (4 << 30) + (300 << 20);
/// Frames as no NIC has them, so that there are only some thousands.
const FRAME_BYTES: usize = 1 << 20;
const FRAME_TIME: Duration = Duration::from_micros(1);
const FRAMES_MAX: u64 = 4 * BYTES / FRAME_BYTES as u64;
const RAIL: RailIndex = RailIndex(0);
const KEY: JobKey = JobKey(*b"a key of 16 byte");

fn config() -> PortConfig {
    let mut config = PortConfig::new(JobId(5).tag());
    config.flight_bytes_max = 64 << 20;
    config
}

fn stamp(offset: u64, bytes: &mut [u8]) {
    let length = bytes.len().min(8);
    bytes[..length].copy_from_slice(&offset.to_le_bytes()[..length]);
}

/// The posted buffer: which of its bytes have been written.
#[derive(Default)]
struct Buffer {
    /// All before this one.
    written: u64,
    /// Pieces behind it: where each begins and ends.
    ahead: BTreeMap<u64, u64>,
    bytes_placed: u64,
}

impl Buffers for Buffer {
    fn place(&mut self, _: OpId, offset: u64, bytes: &[u8]) {
        let mut expected = [0; 8];
        stamp(offset, &mut expected);
        let length = bytes.len().min(8);
        assert_eq!(bytes[..length], expected[..length], "the piece of another offset was put at {offset}");
        let end = offset + bytes.len() as u64;
        assert!(end <= BYTES, "{end}");
        self.bytes_placed += bytes.len() as u64;
        self.ahead.insert(offset, end);
        while let Some(piece) = self.ahead.first_entry().filter(|piece| *piece.key() <= self.written) {
            self.written = self.written.max(piece.remove());
        }
    }
}

struct World {
    ports: [Port; 2],
    buffer: Buffer,
    now: Instant,
    frames: u64,
    offset_max: u64,
    events: Vec<Event>,
}

fn add_rail(port: &mut Port, node: u8) {
    port.add_rail(RawAddress::new(&[node]).expect("short"), FRAME_BYTES);
}

impl World {
    fn new(life: Life) -> World {
        let port = |node: u8| {
            let id = PortId::of_rank(Rank(node.into()), 0);
            let mut port = Port::new(config(), id, life, Epoch(0), Some(&KEY));
            add_rail(&mut port, node);
            port
        };
        let now = Instant::from_nanos(1_000_000);
        World {
            ports: [port(0), port(1)],
            buffer: Buffer::default(),
            now,
            frames: 0,
            offset_max: 0,
            events: vec![],
        }
    }

    /// Hands every frame over at once, until `enough`.
    fn run(&mut self, enough: impl Fn(&World) -> bool) {
        let mut frame = vec![0; FRAME_BYTES];
        while !enough(self) {
            let mut quiet = true;
            for node in 0..2 {
                while let Some(sent) = self.ports[node].poll_transmit(self.now, RAIL, &mut frame) {
                    quiet = false;
                    let mut length = sent.frame_bytes;
                    if let Some(piece) = sent.payload {
                        let bytes = usize::try_from(piece.bytes).expect("a frame");
                        stamp(piece.offset, &mut frame[length..length + bytes]);
                        length += bytes;
                        self.offset_max = self.offset_max.max(piece.offset);
                    }
                    self.now = self.now + FRAME_TIME;
                    self.frames += 1;
                    assert!(self.frames < FRAMES_MAX, "{} bytes are there", self.buffer.written);
                    self.ports[1 - node].handle_frame(self.now, RAIL, &frame[..length], &mut self.buffer);
                    if enough(self) {
                        return;
                    }
                }
                self.collect(node);
            }
            if quiet {
                let due = self.ports.iter().filter_map(Port::poll_timeout).min();
                self.now = self.now.max(due.expect("something is still to come"));
                self.ports.iter_mut().for_each(|port| port.handle_timeout(self.now));
            }
        }
        (0..2).for_each(|node| self.collect(node));
    }

    fn collect(&mut self, node: usize) {
        let port = &mut self.ports[node];
        while let Some(event) = port.poll_event() {
            if let Event::PeerAppeared { link, peer, rail, .. } = event {
                port.set_path(link, rail, AddressId(peer.rank().0));
            }
            self.events.push(event);
        }
    }

    /// Both processes are killed and started again from a dump.
    fn killed_and_restarted(self, life: Life) -> World {
        let now = self.now;
        let mut node = 0;
        let ports = self.ports.map(|port| {
            let mut section = Vec::new();
            dump(&port.freeze(now), &mut section);
            let loaded =
                load(SECTION_VERSION, &section, config(), Some(&KEY)).expect("what is written can be read");
            let mut port = loaded.port.restart(now, Restart::in_life(life));
            add_rail(&mut port, node);
            port.set_path(LinkIndex(0), RAIL, AddressId(u32::from(1 - node)));
            node += 1;
            port
        });
        World { ports, ..self }
    }
}

#[test]
fn a_message_above_4_gib_is_cut_beyond_4_gib_and_arrives_once() {
    let mut world = World::new(Life { counter: 1, nonce: 77 });
    let receive = Receive {
        space: Space(0),
        source: None,
        tag: 9,
        ignore: 0,
        bytes_max: BYTES,
        context: 5,
        multi: None,
    };
    let posted = world.ports[1].post_receive(receive, &mut world.buffer).expect("there is room");
    let link = world.ports[0].connect(PortId::of_rank(Rank(1), 0));
    world.ports[0].set_path(link, RAIL, AddressId(1));
    let outgoing = Outgoing { space: Space(0), tag: 9, data: 0, context: 6, silent: false };
    world.ports[0].send(link, outgoing, Payload::User { bytes: BYTES }).expect("there is room");
    world.run(|world| world.buffer.written > KILLED_AT);

    let mut world = world.killed_and_restarted(Life { counter: 2, nonce: 78 });
    assert!(world.events.iter().all(|event| !event.is_completion()));
    let is_sent = |event: &Event| matches!(event, Event::SendDone { context: 6, .. });
    world.run(|world| world.events.iter().any(is_sent));
    let received: Vec<_> = world
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Received { op, tag, bytes, sent_bytes, .. } => Some((*op, *tag, *bytes, *sent_bytes)),
            _ => None,
        })
        .collect();
    assert_eq!(received, [(posted, 9, BYTES, BYTES)]);
    assert_eq!((world.buffer.written, world.buffer.ahead.len()), (BYTES, 0));
    assert!(world.offset_max > 1 << 32);
    // Bytes acknowledged before the cut do not arrive again.
    assert!(world.buffer.bytes_placed < BYTES + (128 << 20), "{} bytes", world.buffer.bytes_placed);
}
