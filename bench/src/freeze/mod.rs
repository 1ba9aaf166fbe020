//! Freezing, dumping and thawing a port under the burst load.
//!
//! One process has the measured port; up to eight others send it bursts of 32 messages without pause: over UDP on loopback, over shared memory, or,
//! to a port over AF_XDP, over UDP from the other end of its virtual device. The port's helper thread runs, and the program freezes at random instants of its computing, so a freeze may find the helper at work. The
//! other links of the port belong to peers that have made contact and fallen silent.
//!
//! * freeze: from the call until no thread and no driver of ours can touch port memory;
//! * dump: the port's state as bytes, payload of the program by reference;
//! * thaw: from the call until the first frame can be sent. The first round of progress after it is timed apart;
//! * bytes in flight: payload of messages that the port has sent, or announced, and that has not been acknowledged, counted from the
//!   frozen port itself. As much as a row's name says is announced and never asked for; as much again (at most 8 MiB) is moving;
//! * every 20th freeze is one that copies payload: hints first, then freeze, dump, payload, and as long a plain copy. These are timed
//!   apart and are not among the others.

mod load;
mod port;
mod report;

use drivers::Driver;

use crate::error::BenchError;
use crate::machine::Machine;
use crate::pair::Address;
use crate::progress;
use crate::testbed::{Nic, Program, Testbed, Wire};
use crate::worker::Worker;
pub(crate) use load::{CROWD, SENDER, crowd, send};
pub(crate) use port::{PORT, measure};
pub use report::{FreezeReport, FreezeRow, PAPER_US, Tail};

/// Processes that send bursts.
const SENDERS: usize = 8;

/// Of the row for the dump: links, those of them with unacknowledged frames, and how many frames.
const DUMP_LINKS: usize = 1024;
const DUMP_ACTIVE: usize = 64;

/// Name of that row.
pub const DUMP_ROW: &str = "dump-1024-64x32";

/// Settings of the freeze benchmark.
#[derive(Clone, Debug)]
pub struct FreezeOptions {
    /// NIC kind to measure.
    pub nic: Nic,
    /// How AF_XDP's program is attached.
    pub program: Program,
    /// Freezes per row.
    pub samples: usize,
    /// Links of the port.
    pub links: Vec<usize>,
    /// Bytes in flight.
    pub flights: Vec<u64>,
    /// The row that the bar of the dump is about.
    pub dump_row: bool,
}

impl Default for FreezeOptions {
    fn default() -> FreezeOptions {
        FreezeOptions {
            nic: Nic::Udp,
            program: Program::Native,
            samples: 1000,
            links: vec![1, 8, 64, 256, 1024],
            flights: vec![0, 64 << 10, 1 << 20, 16 << 20, 64 << 20],
            dump_row: true,
        }
    }
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a process, a socket or a message fails.
pub fn run(options: &FreezeOptions) -> Result<FreezeReport, BenchError> {
    let machine = Machine::here();
    let testbed = Testbed::make(options.nic, options.program)?;
    // In flight only grows, as announced messages are not taken back.
    let mut flights = options.flights.clone();
    flights.sort_unstable();
    let progress =
        progress::Steps::new("freeze", options.links.len() * flights.len() + usize::from(options.dump_row));
    let mut rows = Vec::new();
    for &links in &options.links {
        let group = Group { links, silent: 0, samples: options.samples };
        let mut measured = MeasuredPort::make(&group, &testbed)?;
        for &flight_bytes in &flights {
            progress.step(format_args!("{links} links, {flight_bytes} bytes in flight"));
            rows.push(measured.row(format!("links-{links}-flight-{flight_bytes}"), &group, flight_bytes)?);
        }
    }
    if options.dump_row {
        progress.step(format_args!("{DUMP_ROW}"));
        let group = Group { links: DUMP_LINKS, silent: DUMP_ACTIVE, samples: options.samples };
        rows.push(MeasuredPort::make(&group, &testbed)?.row(DUMP_ROW.to_owned(), &group, 0)?);
    }
    Ok(FreezeReport::new(machine, &testbed, rows))
}

/// Rows that one set of processes measures.
struct Group {
    links: usize,
    /// Peers that never answer.
    silent: usize,
    samples: usize,
}

/// A measured port with all its peers.
struct MeasuredPort {
    port: Worker,
    senders: Vec<Worker>,
    /// Not read from.
    _silent: Vec<Box<dyn Driver>>,
}

impl MeasuredPort {
    fn make(group: &Group, testbed: &Testbed) -> Result<MeasuredPort, BenchError> {
        let mut port = testbed.on(0, || Worker::start(PORT))?;
        port.send(&testbed.rail_spec(0, 0))?;
        let address: Address = port.hear()?;
        let a_silent_one = || testbed.rail_spec(0, 1).rail_of_a_peer(Wire::Ours);
        let silent =
            testbed.on(1, || (0..group.silent).map(|_| a_silent_one()).collect::<Result<Vec<_>, _>>())?;
        let senders = group.links.saturating_sub(group.silent).min(SENDERS);
        let contacts = group.links - group.silent - senders;
        let mut rank = 1;
        let mut next_rank = || {
            rank += 1;
            rank - 1
        };
        if contacts > 0 {
            let mut crowd = testbed.on(1, || Worker::start(CROWD))?;
            let specs = (0..contacts).map(|_| testbed.rail_spec(next_rank(), 1)).collect();
            crowd.send(&load::Crowd { specs, port: address.clone() })?;
            crowd.hear::<()>()?;
        }
        let mut peers = port::Peers { contacts, ..port::Peers::default() };
        for rail in &silent {
            peers.silent.push((next_rank(), Address::from(&**rail)));
        }
        let mut workers = Vec::new();
        for _ in 0..senders {
            let rank = next_rank();
            let mut worker = testbed.on(1, || Worker::start(SENDER))?;
            worker.send(&load::Sender { spec: testbed.rail_spec(rank, 1), port: address.clone() })?;
            peers.senders.push((rank, worker.hear()?));
            workers.push(worker);
        }
        port.send(&peers)?;
        port.hear::<()>()?;
        Ok(MeasuredPort { port, senders: workers, _silent: silent })
    }

    fn row(&mut self, name: String, group: &Group, flight_bytes: u64) -> Result<FreezeRow, BenchError> {
        self.port.send(&port::Row { flight_bytes, samples: group.samples })?;
        let figures: port::Figures = self.port.hear()?;
        Ok(FreezeRow::new(name, self.senders.len(), flight_bytes, figures))
    }
}

impl Drop for MeasuredPort {
    fn drop(&mut self) {
        // They send until they are ended.
        for sender in &mut self.senders {
            sender.end_now();
        }
    }
}
