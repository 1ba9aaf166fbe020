//! The process with the measured port.

use std::hint::black_box;
use std::time::{Duration, Instant};

use endpoint::{BufferTable, Completion, Endpoint, Frozen, ReceiveBuffer, SendBuffer};
use nic_freeze::{Payloads, append_payloads, dump, make_room};
use serde::{Deserialize, Serialize};
use transport::port::state::SentBody;
use transport::{FrozenPort, LinkIndex, OpId, Receive};

use super::load::{BURST, BURST_MESSAGE_BYTES, CONTACT, HELD, MOVING, MOVING_BYTES_MAX};
use super::report::Tail;
use crate::error::BenchError;
use crate::pair::{self, Address, Auth, Watchdog};
use crate::testbed::{RailSpec, Wire};
use crate::worker::Parent;

pub(crate) const PORT: &str = "freeze-port";

/// One freeze in so many copies payload.
const COPY_EVERY: usize = 20;

/// A pause that is announced to peers.
const HINTED: Duration = Duration::from_millis(2);

/// A driver that keeps buffers for longer than this is broken.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// The longest time that the program polls between two freezes, and then computes: long enough for the helper to notice
/// that no thread polls, and to take over.
const POLLING: Duration = Duration::from_micros(200);
const COMPUTING_MAX_US: u64 = 4000;

/// After this time a peer that has fallen silent counts as idle (`SLOW_AFTER`), and no longer as one that may be sending.
const SETTLING: Duration = Duration::from_millis(1100);

/// Freezes before those that count.
const WARM_UP: usize = 50;

/// Buffers that take the bursts, and their length.
const BURST_BUFFERS: usize = 2;
const BURST_BUFFER_BYTES: usize = 256 << 10;

/// Bytes that move at one time, at most, and messages that a row's bytes in flight are split into.
const MOVING_MAX: u64 = 8 << 20;
const PIECES: u64 = 64;
const PIECE_BYTES_MIN: u64 = 8 << 10;

const FRAMES_TO_SILENT: usize = 32;
const SILENT_FRAME_BYTES: usize = 64;

/// Contexts of operations.
const CONTEXT_BURST: u64 = 1;
const CONTEXT_CONTACT: u64 = 2;
const CONTEXT_MOVING: u64 = 3;
const CONTEXT_HELD: u64 = 4;

/// The port's peers, by rank and address.
#[derive(Serialize, Deserialize, Default)]
pub(super) struct Peers {
    pub(super) senders: Vec<(u32, Address)>,
    /// They never answer.
    pub(super) silent: Vec<(u32, Address)>,
    /// How many have made contact already.
    pub(super) contacts: usize,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) flight_bytes: u64,
    pub(super) samples: usize,
}

/// The results of one row. Times in microseconds.
#[derive(Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) links: usize,
    pub(super) samples: usize,
    pub(super) flight_bytes_counted: u64,
    pub(super) burst_messages: u64,
    pub(super) dump_bytes: usize,
    pub(super) freeze: Tail,
    pub(super) gate: Tail,
    pub(super) dump: Tail,
    pub(super) thaw: Tail,
    pub(super) first_round: Tail,
    pub(super) hints: Tail,
    pub(super) room: Tail,
    pub(super) warm: Tail,
    pub(super) payload_bytes: usize,
    pub(super) payload_copy: Option<Tail>,
    pub(super) memcpy: Option<Tail>,
    /// Median of each copy's speed to that of the plain copy beside it.
    pub(super) copy_ratio: Option<f64>,
}

/// Sets up the port, then measures row after row.
pub(crate) fn measure(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(spec) = parent.hear::<RailSpec>()? else { return Ok(()) };
    let endpoint = pair::open_on(spec.rail(Wire::Ours)?, spec.rank, Auth::Header)?;
    parent.send(&Address::of(&endpoint))?;
    let Some(peers) = parent.hear::<Peers>()? else { return Ok(()) };
    let mut program = Program::start(endpoint, &peers)?;
    parent.send(&())?;
    while let Some(row) = parent.hear::<Row>()? {
        parent.send(&program.row(&row)?)?;
    }
    Ok(())
}

/// The program that owns the port.
struct Program {
    endpoint: Endpoint,
    senders: Vec<LinkIndex>,
    /// The next receiver.
    turn: usize,
    contacts: usize,
    burst_messages: u64,
    held_bytes: u64,
    /// Payload for messages that move.
    spare: Vec<Vec<u8>>,
    moving: usize,
    random: u64,
    section: Vec<u8>,
    copy: Vec<u8>,
}

impl Program {
    fn start(endpoint: Endpoint, peers: &Peers) -> Result<Program, BenchError> {
        let connect =
            |(rank, address): &(u32, Address)| endpoint.connect(pair::port_id(*rank), &[address.raw()]);
        let senders = peers.senders.iter().map(connect).collect::<Result<_, _>>()?;
        let silent: Vec<LinkIndex> = peers.silent.iter().map(connect).collect::<Result<_, _>>()?;
        let mut program = Program {
            senders,
            turn: 0,
            contacts: 0,
            burst_messages: 0,
            held_bytes: 0,
            spare: Vec::new(),
            moving: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            section: Vec::new(),
            copy: Vec::new(),
            endpoint,
        };
        for _ in 0..BURST_BUFFERS {
            program.post_burst(vec![0; BURST_BUFFER_BYTES])?;
        }
        for _ in 0..peers.contacts {
            let buffer = ReceiveBuffer::Owned(vec![0; 8]);
            program.endpoint.post_receive(pair::receive(CONTACT, 8, CONTEXT_CONTACT), buffer)?;
        }
        let watchdog = Watchdog::new("the messages of peers that made contact");
        while program.contacts < peers.contacts {
            program.poll(POLLING)?;
            watchdog.check_now()?;
        }
        for link in silent {
            for _ in 0..FRAMES_TO_SILENT {
                let payload = SendBuffer::Copied(&[7; SILENT_FRAME_BYTES]);
                program.endpoint.send(link, pair::reported(BURST, 0), payload)?;
            }
        }
        program.poll(SETTLING)?;
        Ok(program)
    }

    fn post_burst(&mut self, buffer: Vec<u8>) -> Result<(), BenchError> {
        let receive = Receive {
            multi: Some(BURST_MESSAGE_BYTES as u64),
            ..pair::receive(BURST, BURST_BUFFER_BYTES as u64, CONTEXT_BURST)
        };
        self.endpoint.post_receive(receive, ReceiveBuffer::Owned(buffer))?;
        Ok(())
    }

    /// Looks after messages for `time`.
    fn poll(&mut self, time: Duration) -> Result<(), BenchError> {
        let until = Instant::now() + time;
        loop {
            if let Some(completion) = self.endpoint.poll() {
                self.note(completion)?;
            }
            // Where peers send faster than this process can take, something is always there.
            if Instant::now() >= until {
                return self.send_moving();
            }
        }
    }

    fn note(&mut self, completion: Completion) -> Result<(), BenchError> {
        match completion {
            Completion::Received { context: CONTEXT_BURST, buffer, .. } => {
                self.burst_messages += 1;
                if let Some(buffer) = buffer {
                    self.post_burst(buffer)?;
                }
            }
            Completion::Received { context: CONTEXT_CONTACT, .. } => self.contacts += 1,
            Completion::SendDone { context: CONTEXT_MOVING, buffer: Some(buffer), .. } => {
                self.moving -= 1;
                self.spare.push(buffer);
            }
            _ => {}
        }
        Ok(())
    }

    fn next_sender(&mut self) -> LinkIndex {
        self.turn = (self.turn + 1) % self.senders.len();
        self.senders[self.turn]
    }

    fn send_moving(&mut self) -> Result<(), BenchError> {
        while let Some(buffer) = self.spare.pop() {
            let link = self.next_sender();
            self.endpoint.send(link, pair::reported(MOVING, CONTEXT_MOVING), SendBuffer::Owned(buffer))?;
            self.moving += 1;
        }
        Ok(())
    }

    /// Announces as much as is missing to `flight_bytes`, and sets up as much again to move.
    fn fill(&mut self, flight_bytes: u64) -> Result<(), BenchError> {
        let pieces = |bytes: u64| {
            let piece = (bytes / PIECES).clamp(PIECE_BYTES_MIN, MOVING_BYTES_MAX as u64);
            (bytes.div_ceil(piece), usize::try_from(piece).unwrap_or(MOVING_BYTES_MAX))
        };
        let (held, held_bytes) = pieces(flight_bytes.saturating_sub(self.held_bytes));
        for _ in 0..held {
            let link = self.next_sender();
            let payload = SendBuffer::Owned(vec![7; held_bytes]);
            self.endpoint.send(link, pair::reported(HELD, CONTEXT_HELD), payload)?;
        }
        self.held_bytes += held * held_bytes as u64;
        let mut watchdog = Watchdog::new("messages of the row before to be received");
        let (moving, moving_bytes) = pieces(flight_bytes.min(MOVING_MAX));
        while self.moving > 0 {
            if let Some(completion) = self.endpoint.poll() {
                self.note(completion)?;
            }
            watchdog.check()?;
        }
        self.spare = (0..moving).map(|_| vec![7; moving_bytes]).collect();
        self.send_moving()
    }

    /// Computes for a random time, in which the program does not touch the port.
    fn compute(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let until = Instant::now() + Duration::from_micros(self.random % COMPUTING_MAX_US);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }

    fn row(&mut self, row: &Row) -> Result<Figures, BenchError> {
        self.fill(row.flight_bytes)?;
        self.take(WARM_UP.min(row.samples))?;
        let before = self.burst_messages;
        let mut samples = self.take(row.samples)?;
        let flights = &mut samples.flights;
        flights.sort_unstable();
        let tail = |micros: &Vec<f64>| Tail::of(micros);
        let some = |micros: &Vec<f64>| (!micros.is_empty()).then(|| Tail::of(micros));
        Ok(Figures {
            links: self.endpoint.with_port(transport::Port::links),
            samples: samples.freeze.len(),
            flight_bytes_counted: flights.get(flights.len() / 2).copied().unwrap_or(0),
            burst_messages: self.burst_messages - before,
            dump_bytes: samples.dump_bytes,
            freeze: tail(&samples.freeze),
            gate: tail(&samples.gate),
            dump: tail(&samples.dump),
            thaw: tail(&samples.thaw),
            first_round: tail(&samples.first_round),
            hints: tail(&samples.hints),
            room: tail(&samples.room),
            warm: tail(&samples.warm),
            payload_bytes: samples.payload_bytes,
            payload_copy: some(&samples.payload_copy),
            memcpy: some(&samples.memcpy),
            copy_ratio: some(&samples.copy_ratio).map(|tail| tail.p50),
        })
    }

    /// So many freezes that count, and those that copy payload between them.
    fn take(&mut self, freezes: usize) -> Result<Samples, BenchError> {
        let mut samples = Samples::default();
        for i in 1.. {
            if samples.freeze.len() == freezes {
                break;
            }
            self.poll(POLLING)?;
            self.compute();
            if i % COPY_EVERY == 0 {
                self.copying(&mut samples)?;
            } else {
                self.plain(&mut samples)?;
            }
        }
        Ok(samples)
    }

    /// One freeze, dump and thaw.
    fn plain(&mut self, samples: &mut Samples) -> Result<(), BenchError> {
        let asked = Instant::now();
        make_room(&mut self.section, samples.dump_bytes);
        samples.room.push(micros(asked.elapsed()));
        let asked = Instant::now();
        self.endpoint.warm();
        samples.warm.push(micros(asked.elapsed()));
        let asked = Instant::now();
        let frozen = self.endpoint.freeze(DRAIN_MAX)?;
        let froze = Instant::now();
        dump(frozen.port(), &mut self.section);
        let dumped = Instant::now();
        samples.freeze.push(micros(froze - asked));
        samples.gate.push(micros(frozen.split().gate));
        samples.dump.push(micros(dumped - froze));
        samples.dump_bytes = black_box(&self.section).len();
        samples.flights.push(in_flight(frozen.port()));
        let asked = Instant::now();
        frozen.thaw();
        let thawed = Instant::now();
        self.endpoint.progress();
        samples.thaw.push(micros(thawed - asked));
        samples.first_round.push(micros(thawed.elapsed()));
        Ok(())
    }

    /// One freeze with the payload copied, as a native job's checkpoint does it, and a plain copy of as much.
    fn copying(&mut self, samples: &mut Samples) -> Result<(), BenchError> {
        let asked = Instant::now();
        self.endpoint.announce_pause(HINTED);
        samples.hints.push(micros(asked.elapsed()));
        let frozen = self.endpoint.freeze(DRAIN_MAX)?;
        let plain_first = samples.hints.len().is_multiple_of(2);
        let mut plain = plain_first.then(|| plain_copy(&frozen, &mut self.copy));
        dump(frozen.port(), &mut self.section);
        let section_bytes = self.section.len();
        let started = Instant::now();
        append_payloads(frozen.port(), &Memory(frozen.buffers()), &mut self.section)?;
        let copied = micros(started.elapsed());
        let bytes = self.section.len() - section_bytes;
        let plain = *plain.get_or_insert_with(|| plain_copy(&frozen, &mut self.copy));
        frozen.thaw();
        if bytes > 0 {
            samples.payload_bytes = bytes;
            samples.payload_copy.push(copied);
            samples.memcpy.push(plain);
            samples.copy_ratio.push(plain / copied);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Samples {
    flights: Vec<u64>,
    freeze: Vec<f64>,
    gate: Vec<f64>,
    dump: Vec<f64>,
    thaw: Vec<f64>,
    first_round: Vec<f64>,
    hints: Vec<f64>,
    room: Vec<f64>,
    warm: Vec<f64>,
    payload_copy: Vec<f64>,
    memcpy: Vec<f64>,
    copy_ratio: Vec<f64>,
    dump_bytes: usize,
    payload_bytes: usize,
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The payloads of sends, as the dump wants them. Contents of receive buffers are not in flight.
struct Memory<'a>(&'a BufferTable);

impl Payloads for Memory<'_> {
    fn send_payload(&self, op: OpId) -> Option<&[u8]> {
        self.0.send_payload(op)
    }

    fn receive_buffer(&self, _op: OpId) -> Option<&[u8]> {
        None
    }
}

/// Microseconds that a plain copy of all payloads of sends takes.
fn plain_copy(frozen: &Frozen<'_>, to: &mut Vec<u8>) -> f64 {
    let sends = frozen.port().sends();
    let started = Instant::now();
    to.clear();
    for send in sends {
        to.extend_from_slice(frozen.buffers().send_payload(send.envelope.op).unwrap_or(&[]));
    }
    black_box(to);
    micros(started.elapsed())
}

/// Payload that the port has sent or announced, and that has not been acknowledged.
fn in_flight(port: &FrozenPort) -> u64 {
    let named: u64 =
        port.sends().iter().map(|send| send.granted.unwrap_or(send.envelope.total) - send.acked).sum();
    let mut copied = 0;
    for queues in port.links().filter_map(|link| link.queues()) {
        let sent =
            queues.sent().filter(|sent| matches!(sent.body, SentBody::Eager { .. } | SentBody::More { .. }));
        copied += sent.map(|sent| u64::from(sent.payload_bytes)).sum::<u64>();
    }
    named + copied
}
