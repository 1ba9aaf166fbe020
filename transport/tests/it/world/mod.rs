//! Ports, one virtual clock, and a network that obeys the test.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use transport::config::RAILS_MAX;
use transport::port::Census;
use transport::wire::{Frame, write_place};
use transport::{
    AddressId, AuthLevel, Buffers, Epoch, Event, FrozenPort, Instant, JobId, JobKey, Life, LinkIndex, OpId,
    Outgoing, Payload, Port, PortConfig, PortId, Pull, RailIndex, Rank, RawAddress, Receive, Restart, Space,
};

pub(crate) const DELAY: Duration = Duration::from_micros(5);
pub(crate) const KEY: JobKey = JobKey(*b"a key of 16 byte");
pub(crate) const LIFE: Life = Life { counter: 1, nonce: 77 };

/// Where every payload begins, below the operation that it belongs to.
const PLACE: u64 = 0x1000;

/// Buffers of one port: posted receives by operation, payloads of user sends by operation.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    pub(crate) posted: BTreeMap<OpId, Vec<u8>>,
    pub(crate) sending: BTreeMap<OpId, Vec<u8>>,
}

impl Buffers for Memory {
    fn place(&mut self, receive: OpId, offset: u64, bytes: &[u8]) {
        let buffer = self.posted.entry(receive).or_default();
        let end = offset as usize + bytes.len();
        if buffer.len() < end {
            buffer.resize(end, 0);
        }
        buffer[offset as usize..end].copy_from_slice(bytes);
    }
}

pub(crate) struct Node {
    pub(crate) port: Option<Port>,
    pub(crate) memory: Memory,
    pub(crate) events: Vec<Event>,
    pub(crate) frame_bytes: usize,
    /// Frames that came while the port was frozen: the kernel or the NIC has it.
    pub(crate) held: Vec<(u8, Vec<u8>)>,
}

/// The network's treatment of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Deliver,
    Lose,
    Double,
    /// Held back for this long.
    Late(Duration),
}

type Rule = Box<dyn FnMut(usize, usize, &Frame<'_>, u64) -> Fate>;

pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    pub(crate) now: Instant,
    /// (due, to, rail, frame), in order of due time.
    pub(crate) wire: VecDeque<(Instant, usize, u8, Vec<u8>)>,
    pub(crate) fate: Rule,
    pub(crate) log: Vec<String>,
    pub(crate) frames: u64,
    /// Rails of every port.
    pub(crate) rails: u8,
    /// Loses everything.
    pub(crate) dead_rail: Option<u8>,
    /// Peers on the host get the addresses of payloads: see [`World::pull`].
    pub(crate) announces_places: bool,
    /// Frames that left over each rail.
    pub(crate) frames_over: [u64; RAILS_MAX],
}

pub(crate) fn config() -> PortConfig {
    let mut config = PortConfig::new(JobId(5).tag());
    config.auth = AuthLevel::Full;
    config
}

pub(crate) fn port_id(node: usize) -> PortId {
    PortId::of_rank(Rank(node as u32), 0)
}

impl World {
    pub(crate) fn new(nodes: usize, config: &PortConfig, frame_bytes: usize) -> World {
        let nodes = (0..nodes)
            .map(|i| {
                let mut port = Port::new(config.clone(), port_id(i), LIFE, Epoch(0), Some(&KEY));
                port.add_rail(RawAddress::new(&[i as u8]).unwrap(), frame_bytes);
                Node {
                    port: Some(port),
                    memory: Memory::default(),
                    events: Vec::new(),
                    frame_bytes,
                    held: Vec::new(),
                }
            })
            .collect();
        World {
            nodes,
            now: Instant::from_nanos(1_000_000),
            wire: VecDeque::new(),
            fate: Box::new(|_, _, _, _| Fate::Deliver),
            log: Vec::new(),
            frames: 0,
            rails: 1,
            dead_rail: None,
            announces_places: false,
            frames_over: [0; RAILS_MAX],
        }
    }

    /// Two ports with a second rail, which ends at their host.
    pub(crate) fn on_one_host() -> World {
        let mut world = World::new(2, &config(), 1500);
        for i in 0..2 {
            world.port(i).add_rail_within_host(RawAddress::new(&[9, i as u8]).expect("short"), 1500);
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let link = world.link(from, to);
            world.port(from).set_path(link, RailIndex(1), AddressId(to as u32));
        }
        world.rails = 2;
        world
    }

    pub(crate) fn port(&mut self, node: usize) -> &mut Port {
        self.nodes[node].port.as_mut().expect("the port is not frozen")
    }

    pub(crate) fn link(&mut self, from: usize, to: usize) -> LinkIndex {
        let port = self.port(from);
        let link = port.connect(port_id(to));
        port.set_path(link, RailIndex(0), AddressId(to as u32));
        link
    }

    pub(crate) fn send(&mut self, from: usize, to: usize, tag: u64, bytes: &[u8]) -> OpId {
        let link = self.link(from, to);
        let outgoing = Outgoing { space: Space(0), tag, data: tag * 2, context: tag + 1000, silent: false };
        self.port(from).send(link, outgoing, Payload::Copied(bytes)).expect("there is room")
    }

    pub(crate) fn send_user(&mut self, from: usize, to: usize, tag: u64, bytes: Vec<u8>) -> OpId {
        let link = self.link(from, to);
        let outgoing = Outgoing { space: Space(0), tag, data: tag * 2, context: tag + 1000, silent: false };
        let payload = Payload::User { bytes: bytes.len() as u64 };
        let op = self.port(from).send(link, outgoing, payload).expect("there is room");
        self.nodes[from].memory.sending.insert(op, bytes);
        op
    }

    pub(crate) fn receive(
        &mut self,
        at: usize,
        from: Option<usize>,
        tag: Option<u64>,
        bytes_max: u64,
    ) -> OpId {
        let source = from.map(|from| self.link(at, from));
        let receive = Receive {
            space: Space(0),
            source,
            tag: tag.unwrap_or(0),
            ignore: if tag.is_some() { 0 } else { u64::MAX },
            bytes_max,
            context: 5,
            multi: None,
        };
        let node = &mut self.nodes[at];
        node.port.as_mut().unwrap().post_receive(receive, &mut node.memory).expect("there is room")
    }

    /// Takes the port of a node out, frozen and in a state that a port can be in.
    pub(crate) fn freeze(&mut self, node: usize) -> FrozenPort {
        self.collect(node);
        let frozen = self.nodes[node].port.take().expect("it is not frozen yet").freeze(self.now);
        assert_eq!(frozen.check(), Ok(()), "node {node}");
        frozen
    }

    /// Puts a frozen port back, in the same life.
    pub(crate) fn thaw(&mut self, node: usize, frozen: FrozenPort) {
        self.nodes[node].port = Some(frozen.thaw(self.now));
        let held = std::mem::take(&mut self.nodes[node].held);
        self.wire.extend(held.into_iter().map(|(rail, bytes)| (self.now, node, rail, bytes)));
        self.wire.make_contiguous().sort_by_key(|(due, ..)| *due);
    }

    /// Puts a frozen port back in a new life, on a rail with frames of `frame_bytes`, with paths to all that it knows.
    pub(crate) fn restart(&mut self, node: usize, frozen: FrozenPort, life: Life, frame_bytes: usize) {
        let mut port = frozen.restart(self.now, Restart::in_life(life));
        port.add_rail(RawAddress::new(&[node as u8]).unwrap(), frame_bytes);
        for i in 0..port.links() {
            let link = LinkIndex(i as u32);
            let peer = port.peer(link).expect("the link exists").rank();
            port.set_path(link, RailIndex(0), AddressId(peer.0));
        }
        self.nodes[node].port = Some(port);
        self.nodes[node].frame_bytes = frame_bytes;
    }

    /// The census of a freeze now.
    pub(crate) fn census(&mut self, node: usize) -> Census {
        let frozen = self.freeze(node);
        let census = frozen.census();
        // The thaw ends a pause of no length: nothing changes but the news of it.
        self.thaw(node, frozen);
        census
    }

    /// Lets every port send its frames now.
    pub(crate) fn pump(&mut self) {
        for i in 0..self.nodes.len() {
            let Node { port, memory, frame_bytes, .. } = &mut self.nodes[i];
            let Some(port) = port else { continue };
            let mut buffer = vec![0u8; 70_000];
            // The rails take turns; a round in which none has anything ends it.
            let (mut rail, mut quiet) = (0u8, 0);
            while quiet < self.rails {
                rail = (rail + 1) % self.rails;
                let Some(transmit) = port.poll_transmit(self.now, RailIndex(rail), &mut buffer) else {
                    quiet += 1;
                    continue;
                };
                quiet = 0;
                let mut bytes = buffer[..transmit.frame_bytes].to_vec();
                if let Some(announced) = transmit.announced.filter(|_| self.announces_places) {
                    write_place(&mut bytes[announced.body..], announced.op.0 << 32 | PLACE);
                }
                if let Some(piece) = transmit.payload {
                    let source = &memory.sending[&piece.op];
                    let from = piece.offset as usize;
                    let payload = &source[from..from + piece.bytes as usize];
                    if let Some(seal) = transmit.seal {
                        port.authenticator().unwrap().finish(seal, &mut bytes, payload);
                    }
                    bytes.extend_from_slice(payload);
                }
                assert!(bytes.len() <= *frame_bytes, "{} bytes in a frame of {frame_bytes}", bytes.len());
                self.frames += 1;
                self.frames_over[usize::from(rail)] += 1;
                let to = transmit.to.0 as usize;
                let frame = Frame::parse(&bytes).expect("what we write can be read");
                let dead = self.dead_rail == Some(rail);
                let fate = if dead { Fate::Lose } else { (self.fate)(i, to, &frame, self.frames) };
                self.log.push(describe(self.now, i, to, &frame, fate));
                let due = self.now + DELAY;
                match fate {
                    Fate::Lose => {}
                    Fate::Deliver => self.wire.push_back((due, to, rail, bytes)),
                    Fate::Late(by) => self.wire.push_back((due + by, to, rail, bytes)),
                    Fate::Double => {
                        self.wire.push_back((due, to, rail, bytes.clone()));
                        self.wire.push_back((due, to, rail, bytes));
                    }
                }
            }
        }
        self.wire.make_contiguous().sort_by_key(|(due, ..)| *due);
    }

    /// Has a port pull its next piece, if it wants one; `there`: it is available.
    pub(crate) fn pull(&mut self, node: usize, bytes_max: u64, there: bool) -> Option<Pull> {
        let pull = self.port(node).next_pull(bytes_max)?;
        if there {
            let (op, from) = (OpId(pull.place >> 32), (pull.place & 0xffff_ffff) - PLACE);
            let payload = &self.nodes[pull.from.0 as usize].memory.sending[&op];
            let piece = payload[from as usize..(from + pull.bytes) as usize].to_vec();
            self.nodes[node].memory.place(pull.receive, pull.offset, &piece);
        }
        self.port(node).pulled(&pull, there);
        Some(pull)
    }

    pub(crate) fn collect(&mut self, node: usize) {
        let Node { port, events, .. } = &mut self.nodes[node];
        let Some(port) = port else { return };
        while let Some(event) = port.poll_event() {
            if let Event::PeerAppeared { link, peer, rail, .. } = event {
                port.set_path(link, rail, AddressId(peer.rank().0));
            }
            events.push(event);
        }
    }

    /// Advances to the next thing that happens. False if nothing will, before `until`.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
        for i in 0..self.nodes.len() {
            self.collect(i);
        }
        self.pump();
        let due = self.wire.front().map(|(due, ..)| *due);
        let timeout =
            self.nodes.iter().filter_map(|node| node.port.as_ref().and_then(Port::poll_timeout)).min();
        let Some(next) = [due, timeout].into_iter().flatten().min().filter(|next| *next <= until) else {
            self.now = self.now.max(until);
            return false;
        };
        self.now = self.now.max(next);
        while let Some((due, to, rail, _)) = self.wire.front() {
            if *due > self.now {
                break;
            }
            let (to, rail) = (*to, *rail);
            let (_, _, _, bytes) = self.wire.pop_front().unwrap();
            let node = &mut self.nodes[to];
            match node.port.as_mut() {
                Some(port) => port.handle_frame(self.now, RailIndex(rail), &bytes, &mut node.memory),
                None => node.held.push((rail, bytes)),
            }
            self.collect(to);
        }
        for i in 0..self.nodes.len() {
            let now = self.now;
            if let Some(port) = self.nodes[i].port.as_mut() {
                port.handle_timeout(now);
            }
            self.collect(i);
        }
        true
    }

    /// Runs for a while of virtual time.
    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
    }

    pub(crate) fn received(&self, node: usize) -> Vec<(OpId, u64, u64)> {
        self.nodes[node]
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Received { op, tag, bytes, .. } => Some((*op, *tag, *bytes)),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn sends_done(&self, node: usize) -> usize {
        self.nodes[node].events.iter().filter(|event| matches!(event, Event::SendDone { .. })).count()
    }

    /// The transcript so far, and forgets it.
    pub(crate) fn transcript(&mut self) -> String {
        let text = self.log.join("\n");
        self.log.clear();
        text
    }
}

fn describe(now: Instant, from: usize, to: usize, frame: &Frame<'_>, fate: Fate) -> String {
    let name = |i: usize| if i < 26 { char::from(b'a' + i as u8).to_string() } else { format!("n{i}") };
    let header = &frame.header;
    let number = if header.kind.numbered() { format!(" {}", header.seq) } else { String::new() };
    let selective =
        if header.selective == 0 { String::new() } else { format!(" sel {:b}", header.selective) };
    let fate = match fate {
        Fate::Deliver => "",
        Fate::Lose => " LOST",
        Fate::Double => " DOUBLED",
        Fate::Late(_) => " LATE",
    };
    format!(
        "{}us {}>{} {:?}{} {}B ack {}{}{}",
        (now.as_nanos() - 1_000_000) / 1000,
        name(from),
        name(to),
        header.kind,
        number,
        frame.payload.len(),
        header.ack,
        selective,
        fate
    )
}

/// Payload that shows its origin.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (seed as usize * 31 + i * 7 + i / 251) as u8).collect()
}
