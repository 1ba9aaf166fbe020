//! Ports that are killed and start again from their dumps.
#![allow(dead_code, reason = "each test uses its part")]

#[path = "../../../../transport/tests/it/world/mod.rs"]
#[allow(clippy::cast_possible_truncation, reason = "test data")]
pub(crate) mod world;

use std::time::Duration;

use nic_freeze::{Payloads, SECTION_VERSION, append_payloads, compare, describe, dump, load};
use transport::port::Census;
use transport::{Epoch, Event, FrozenPort, Life, OpId, PortConfig};
use world::{KEY, Memory, World};

pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) struct User<'a>(pub(crate) &'a Memory);

impl Payloads for User<'_> {
    fn send_payload(&self, op: OpId) -> Option<&[u8]> {
        self.0.sending.get(&op).map(Vec::as_slice)
    }

    fn receive_buffer(&self, op: OpId) -> Option<&[u8]> {
        self.0.posted.get(&op).map(Vec::as_slice)
    }
}

/// The remains of a killed process: its section, and its program's observations.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) section: Vec<u8>,
    pub(crate) census: Census,
    pub(crate) events: Vec<Event>,
    /// Buffers of operations that were over at the cut: the program's own memory.
    pub(crate) done: Memory,
    /// Completions that the port itself still held.
    pub(crate) unpolled: usize,
}

/// The section of a frozen port, user memory included; on the way everything is checked that can be.
pub(crate) fn section(frozen: &FrozenPort, memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0xaa; 17];
    dump(frozen, &mut bytes);
    assert_eq!(compare(SECTION_VERSION, &bytes, frozen), Ok(()));
    append_payloads(frozen, &User(memory), &mut bytes).expect("the memory is this port's");
    assert_eq!(compare(SECTION_VERSION, &bytes, frozen), Ok(()));
    let report = describe(SECTION_VERSION, &bytes).expect("what is written can be described");
    assert_eq!(report.bytes, bytes.len() as u64);
    let census = frozen.census();
    assert_eq!(report.frames.to_be_sent, census.to_be_sent);
    assert_eq!(report.frames.sent_unacknowledged, census.sent_unacknowledged);
    assert_eq!(report.frames.acknowledged, census.acknowledged);
    assert_eq!(report.frames.received_unacknowledged, census.received_unacknowledged);
    assert_eq!(report.frames.delivered_waiting, census.delivered_waiting);
    bytes
}

/// Cuts a node: frozen, raised to `epoch`, dumped, thawed. The rest of the world does not notice.
pub(crate) fn cut(world: &mut World, node: usize, epoch: Epoch) -> Image {
    let mut frozen = world.freeze(node);
    frozen.set_epoch(epoch);
    let memory = world.nodes[node].memory.clone();
    let image = Image {
        section: section(&frozen, &memory),
        census: frozen.census(),
        events: world.nodes[node].events.iter().filter(|event| event.is_completion()).copied().collect(),
        unpolled: frozen.completions().count(),
        done: memory,
    };
    world.thaw(node, frozen);
    image
}

/// A new world in which every node starts from its image.
pub(crate) fn restart(images: &[Image], config: &PortConfig, frame_bytes: usize, life: Life) -> World {
    let mut world = World::new(images.len(), config, frame_bytes);
    for (node, image) in images.iter().enumerate() {
        start(&mut world, node, image, config, frame_bytes, life);
    }
    world
}

/// Puts a port from an image into `node`: in another process, so only the contents of the image are there.
pub(crate) fn start(
    world: &mut World,
    node: usize,
    image: &Image,
    config: &PortConfig,
    frame_bytes: usize,
    life: Life,
) {
    let loaded = load(SECTION_VERSION, &image.section, config.clone(), Some(&KEY))
        .expect("what is written can be read");
    let mut again = Vec::new();
    dump(&loaded.port, &mut again);
    let memory = load(SECTION_VERSION, &again, config.clone(), Some(&KEY)).expect("so can what was read");
    assert_eq!(normal(&memory.port), normal(&loaded.port));
    let mut memory = Memory::default();
    for event in &image.events {
        if let Event::Received { op, .. } = event {
            memory.posted.extend(image.done.posted.get_key_value(op).map(|(op, bytes)| (*op, bytes.clone())));
        }
    }
    memory.sending.extend(loaded.carried.sends);
    memory.posted.extend(loaded.carried.receives.into_iter().map(|receive| (receive.op, receive.filled)));
    world.nodes[node].memory = memory;
    world.nodes[node].events = image.events.clone();
    world.restart(node, loaded.port, life, frame_bytes);
}

/// A state without the names that a loaded port gives anew.
fn normal(port: &FrozenPort) -> transport::port::state::PortState {
    let mut state = port.state();
    for waiting in &mut state.waiting {
        waiting.key = transport::matching::MessageKey(transport::slab::SlabKey::from_bits(0));
    }
    for link in &mut state.links {
        if let Some(open) = &mut link.open
            && let transport::port::state::Target::Waiting(key) = &mut open.target
        {
            *key = transport::matching::MessageKey(transport::slab::SlabKey::from_bits(0));
        }
    }
    state
}

/// How often each message of `tags` was received, and each send was reported, in the whole history of a node.
pub(crate) fn received_once(world: &World, node: usize, tag: u64, bytes: &[u8]) {
    let hits: Vec<_> = world.nodes[node]
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Received { op, tag: found, bytes, sent_bytes, data, .. } if *found == tag => {
                Some((*op, *bytes, *sent_bytes, *data))
            }
            _ => None,
        })
        .collect();
    assert_eq!(hits.len(), 1, "node {node} received message {tag} {} times", hits.len());
    let (op, stored, sent, data) = hits[0];
    assert_eq!((stored, sent, data), (bytes.len() as u64, bytes.len() as u64, tag * 2));
    let empty = Vec::new();
    assert_eq!(world.nodes[node].memory.posted.get(&op).unwrap_or(&empty), bytes, "message {tag}");
}
