//! Two ports that move from one kind of NIC to another, life after life, with messages in flight. The report times each part of a move.
//!
//! Both ports live in this process, at the two ends of a pair of virtual devices in two network namespaces. Before each move both have sent messages
//! that are not received; one of these is announced but not yet requested. Then, for each of the two:
//!
//! * freeze and dump, with the payload that the port holds, as a native job's checkpoint has it;
//! * close: the old NIC's descriptors and memory are given back to the kernel;
//! * open: the new NIC. Both are the kernel's time, and grow with the memory and the queues of a NIC, not with the port;
//! * thaw: the dump becomes a port in a new life, on the new NIC, that knows where its peer is: from then on it can send.
//!
//! After that every message has to arrive, unchanged, before the next move.

use std::fmt;
use std::time::{Duration, Instant};

use drivers::Driver;
use endpoint::{Completion, Endpoint, EndpointConfig, ReceiveBuffer, SendBuffer};
use serde::Serialize;
use transport::config::AuthLevel;
use transport::{Epoch, LinkIndex, Restart};

use crate::error::BenchError;
use crate::freeze::{PAPER_US, Tail};
use crate::machine::Machine;
use crate::pair::{self, Watchdog};
use crate::progress::Steps;
use crate::report::{self, Bar};
use crate::testbed::{Nic, Program, RailSpec, Testbed, Wire};

/// A thaw on another driver.
const THAW_US_MAX: f64 = 5_000.0;
/// Longest wait for the old driver.
const DRAIN: Duration = Duration::from_secs(1);
/// Messages of each side before each move, and their bytes: the last one is announced.
const MESSAGES: [usize; 9] = [8, 8, 64, 64, 512, 1024, 1024, 8, 256 << 10];

/// Settings of the benchmark of moves.
#[derive(Clone, Copy, Debug)]
pub struct MovesOptions {
    /// How the program of AF_XDP is attached.
    pub program: Program,
    /// Moves of each ordered pair of kinds.
    pub moves: usize,
}

impl Default for MovesOptions {
    fn default() -> MovesOptions {
        MovesOptions { program: Program::Native, moves: 50 }
    }
}

/// From one kind of NIC to another, or to a new one of the same kind. Microseconds, of both ports.
#[derive(Clone, Serialize, Debug)]
pub struct MoveRow {
    /// Where the ports were frozen.
    pub from: Nic,
    /// Where they were thawed.
    pub to: Nic,
    /// Moved ports.
    pub samples: usize,
    /// Until no driver can touch the port.
    pub freeze_us: Tail,
    /// State and payload as bytes.
    pub dump_us: Tail,
    /// Bytes of the last dump.
    pub dump_bytes: usize,
    /// The kernel's: the old NIC is given back.
    pub close_us: Tail,
    /// The kernel's: opening the new NIC.
    pub open_us: Tail,
    /// From bytes to a port that can send.
    pub thaw_us: Tail,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct MovesReport {
    /// "moves".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Device under AF_XDP; `None` without AF_XDP.
    pub device: Option<String>,
    /// Every ordered pair.
    pub rows: Vec<MoveRow>,
    /// Messages that were checked.
    pub messages: u64,
    /// Freeze, dump and thaw of a port in Myrinet MX, microseconds (Huo, Ma, Sun 2006).
    pub paper_us: [f64; 3],
    /// The bar of the thaw.
    pub bars: Vec<Bar>,
}

impl fmt::Display for MovesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(
            f,
            "moves of ports from one kind of NIC to another, us (median, p99); {}; close and open are the kernel's; {} messages checked",
            self.device.as_deref().unwrap_or("no AF_XDP"),
            self.messages
        )?;
        writeln!(
            f,
            "{:>12} {:>7} {:>16} {:>16} {:>16} {:>18} {:>16}",
            "", "moves", "freeze", "dump", "thaw", "close", "open"
        )?;
        for row in &self.rows {
            let show = |of: &Tail| format!("{:.1} {:.1}", of.p50, of.p99);
            writeln!(
                f,
                "{:>12} {:>7} {:>16} {:>16} {:>16} {:>18} {:>16}",
                format!("{} to {}", row.from.name(), row.to.name()),
                row.samples,
                show(&row.freeze_us),
                show(&row.dump_us),
                show(&row.thaw_us),
                show(&row.close_us),
                show(&row.open_us)
            )?;
        }
        let [freeze, dump, thaw] = self.paper_us;
        writeln!(f, "Myrinet MX, 2006, in the NIC: freeze {freeze}, dump {dump}, thaw {thaw}")?;
        report::show(f, &self.bars)
    }
}

/// NIC kinds available between two network namespaces. Software RDMA devices serve only the first namespace.
const KINDS: [Nic; 3] = [Nic::Udp, Nic::Shm, Nic::Xdp];

/// Measures.
///
/// # Errors
/// [`BenchError`] if a namespace, a NIC, or a message fails.
pub fn run(options: &MovesOptions) -> Result<MovesReport, BenchError> {
    let machine = Machine::here();
    let testbed = Testbed::make(Nic::Xdp, options.program)?;
    let kinds = &KINDS;
    let mut rows: Vec<(Nic, Nic, Samples)> = Vec::new();
    let mut pair = PortPair::new(&testbed, kinds[0])?;
    let steps = Steps::new("moves", options.moves);
    for _ in 0..options.moves {
        steps.step(format_args!("from each kind of NIC to each"));
        for (from, to) in round(kinds) {
            let row = match rows.iter().position(|row| (row.0, row.1) == (from, to)) {
                Some(row) => row,
                None => {
                    rows.push((from, to, Samples::default()));
                    rows.len() - 1
                }
            };
            pair.go(to, &mut rows[row].2)?;
        }
    }
    let messages = pair.sides.iter().map(|side| side.received).sum();
    let rows: Vec<MoveRow> = rows.into_iter().map(|(from, to, samples)| samples.row(from, to)).collect();
    let slowest = rows.iter().filter(|row| row.from != row.to).map(|row| row.thaw_us.p99);
    let bars = vec![Bar::below("thaw on another driver, p99, us", slowest.fold(0.0, f64::max), THAW_US_MAX)];
    Ok(MovesReport {
        bench: "moves",
        machine,
        device: testbed.device(),
        rows,
        messages,
        paper_us: PAPER_US,
        bars,
    })
}

/// A way from the first kind back to it that has each ordered pair once, those of a kind with itself included.
fn round(kinds: &[Nic]) -> Vec<(Nic, Nic)> {
    let mut left: Vec<(Nic, Nic)> =
        kinds.iter().flat_map(|from| kinds.iter().map(|to| (*from, *to))).collect();
    // Hierholzer: every kind is left as often as it is reached, so the way closes.
    let (mut stack, mut way) = (vec![kinds[0]], Vec::new());
    while let Some(at) = stack.last().copied() {
        match left.iter().position(|pair| pair.0 == at) {
            Some(next) => stack.push(left.remove(next).1),
            None => way.extend(stack.pop()),
        }
    }
    way.reverse();
    way.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

#[derive(Default)]
struct Samples {
    freeze: Vec<f64>,
    dump: Vec<f64>,
    dump_bytes: usize,
    close: Vec<f64>,
    open: Vec<f64>,
    thaw: Vec<f64>,
}

impl Samples {
    fn row(self, from: Nic, to: Nic) -> MoveRow {
        MoveRow {
            from,
            to,
            samples: self.thaw.len(),
            freeze_us: Tail::of(&self.freeze),
            dump_us: Tail::of(&self.dump),
            dump_bytes: self.dump_bytes,
            close_us: Tail::of(&self.close),
            open_us: Tail::of(&self.open),
            thaw_us: Tail::of(&self.thaw),
        }
    }
}

fn timed<T>(samples: &mut Vec<f64>, act: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = act();
    samples.push(started.elapsed().as_secs_f64() * 1e6);
    result
}

/// Progress is made by calls alone.
fn by_hand() -> EndpointConfig {
    EndpointConfig { helper: false, ..EndpointConfig::default() }
}

struct Side {
    rank: u32,
    endpoint: Option<Endpoint>,
    link: LinkIndex,
    sent: u64,
    posted: u64,
    received: u64,
    done: u64,
}

impl Side {
    fn endpoint(&self) -> Result<&Endpoint, BenchError> {
        self.endpoint.as_ref().ok_or(BenchError::Unmoved { rank: self.rank })
    }

    fn bytes_of(tag: u64) -> usize {
        MESSAGES[usize::try_from(tag % MESSAGES.len() as u64).unwrap_or(0)]
    }

    fn payload(rank: u32, tag: u64) -> Vec<u8> {
        let first = tag.wrapping_mul(31).wrapping_add(u64::from(rank));
        (0..Side::bytes_of(tag) as u64).map(|at| first.wrapping_add(at).to_le_bytes()[0]).collect()
    }

    fn send(&mut self) -> Result<(), BenchError> {
        let payload = SendBuffer::Owned(Side::payload(self.rank, self.sent));
        self.endpoint()?.send(self.link, pair::reported(self.sent, self.sent), payload)?;
        self.sent += 1;
        Ok(())
    }

    fn post(&mut self) -> Result<(), BenchError> {
        let bytes = Side::bytes_of(self.posted);
        let buffer = ReceiveBuffer::Owned(vec![0; bytes]);
        self.endpoint()?.post_receive(pair::receive(self.posted, bytes as u64, self.posted), buffer)?;
        self.posted += 1;
        Ok(())
    }

    fn note(&mut self, completion: Completion) -> Result<(), BenchError> {
        match completion {
            Completion::Received { tag, buffer, .. } => {
                if buffer.as_deref() != Some(&Side::payload(1 - self.rank, tag)) {
                    return Err(BenchError::Altered { tag });
                }
                self.received += 1;
            }
            Completion::SendDone { .. } => self.done += 1,
            _ => {}
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), BenchError> {
        match self.endpoint()?.poll() {
            Some(completion) => self.note(completion),
            None => Ok(()),
        }
    }
}

/// The two ports and where they are.
struct PortPair<'a> {
    testbed: &'a Testbed,
    sides: [Side; 2],
    life: u32,
}

impl PortPair<'_> {
    fn new(testbed: &Testbed, nic: Nic) -> Result<PortPair<'_>, BenchError> {
        let side = |rank| {
            let port = pair::port_with(rank, AuthLevel::Header);
            let rails = vec![open(testbed, rank, nic)?];
            let endpoint = Some(Endpoint::open(port, rails, by_hand())?);
            Ok::<Side, BenchError>(Side {
                rank,
                endpoint,
                link: LinkIndex(0),
                sent: 0,
                posted: 0,
                received: 0,
                done: 0,
            })
        };
        let mut pair = PortPair { testbed, sides: [side(0)?, side(1)?], life: 1 };
        let addresses = [pair.sides[0].endpoint()?.addresses(), pair.sides[1].endpoint()?.addresses()];
        for (side, other) in pair.sides.iter_mut().zip([&addresses[1], &addresses[0]]) {
            side.link = testbed
                .on(side.rank, || Ok(side.endpoint()?.connect(pair::port_id(1 - side.rank), other)?))?;
        }
        Ok(pair)
    }

    /// Moves both ports, with messages on their way, and waits until all have come.
    fn go(&mut self, to: Nic, samples: &mut Samples) -> Result<(), BenchError> {
        for i in 0..MESSAGES.len() {
            for side in &mut self.sides {
                side.send()?;
                if i % 2 == 0 {
                    side.post()?;
                }
                side.poll()?;
            }
        }
        self.life += 1;
        let mut sections = [Vec::new(), Vec::new()];
        for (side, section) in self.sides.iter_mut().zip(&mut sections) {
            cut(side, self.life, section, samples)?;
        }
        samples.dump_bytes = sections[0].len();
        let testbed = self.testbed;
        let mut opened = Vec::new();
        for side in &self.sides {
            opened.push(timed(&mut samples.open, || open(testbed, side.rank, to))?);
        }
        let addresses = [opened[0].local_address(), opened[1].local_address()];
        for ((side, section), (rail, other)) in
            self.sides.iter_mut().zip(&sections).zip(opened.into_iter().zip([addresses[1], addresses[0]]))
        {
            let restart = Restart::in_life(pair::life(self.life));
            testbed.on(side.rank, || {
                timed(&mut samples.thaw, || {
                    let config = pair::config(AuthLevel::Header);
                    let loaded =
                        nic_freeze::load(nic_freeze::SECTION_VERSION, section, config, Some(&pair::KEY))
                            .map_err(|error| BenchError::Restore(error.to_string()))?;
                    let endpoint =
                        Endpoint::restart(loaded.port, loaded.carried, vec![rail], restart, by_hand())?;
                    side.link = endpoint.connect(pair::port_id(1 - side.rank), &[other])?;
                    side.endpoint = Some(endpoint);
                    Ok(())
                })
            })?;
        }
        self.settle()
    }

    fn settle(&mut self) -> Result<(), BenchError> {
        for side in &mut self.sides {
            while side.posted < side.sent {
                side.post()?;
            }
        }
        let mut watchdog = Watchdog::new("the messages of a move");
        let sent = self.sides[0].sent;
        while self.sides.iter().any(|side| side.received < sent || side.done < sent) {
            self.sides.iter_mut().try_for_each(Side::poll)?;
            watchdog.check()?;
        }
        Ok(())
    }
}

/// A NIC of this kind at one end of the devices.
fn open(testbed: &Testbed, rank: u32, nic: Nic) -> Result<Box<dyn Driver>, BenchError> {
    let spec: RailSpec = testbed.rail_spec(rank, rank);
    testbed.on(rank, || match nic {
        Nic::Udp => spec.udp_rail(),
        Nic::Shm => RailSpec::shm_rail(),
        Nic::Xdp | Nic::Verbs => spec.rail(Wire::Ours),
    })
}

/// Freezes the port, writes it down, and closes it.
fn cut(side: &mut Side, life: u32, section: &mut Vec<u8>, samples: &mut Samples) -> Result<(), BenchError> {
    let endpoint = side.endpoint.take().ok_or(BenchError::Unmoved { rank: side.rank })?;
    let mut frozen = timed(&mut samples.freeze, || endpoint.freeze(DRAIN))?;
    frozen.port_mut().set_epoch(Epoch(life));
    let completions = frozen.take_completions();
    timed(&mut samples.dump, || {
        nic_freeze::dump(frozen.port(), section);
        nic_freeze::append_payloads(frozen.port(), frozen.buffers(), section)
    })?;
    let closing = Instant::now();
    drop(frozen);
    drop(endpoint);
    samples.close.push(closing.elapsed().as_secs_f64() * 1e6);
    completions.into_iter().try_for_each(|completion| side.note(completion))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_every_ordered_pair_once_and_ends_where_it_began() {
        let way = round(&KINDS);
        assert_eq!(way.len(), 9);
        assert!(way.windows(2).all(|pair| pair[0].1 == pair[1].0));
        assert_eq!((way[0].0, way[8].1), (Nic::Udp, Nic::Udp));
        for from in KINDS {
            assert!(KINDS.iter().all(|to| way.contains(&(from, *to))));
        }
    }
}
