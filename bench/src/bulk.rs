//! One-way stream of large messages, against a TCP stream over the same path, or devices like it.
//!
//! Two processes. Ours: rendezvous messages from and into handed-over buffers, a few outstanding, with header and with full
//! authentication, helper threads running. TCP: the same buffers written and read with as large calls as there are, once with
//! a spinning and once with a sleeping reader. Beside other NICs than UDP sockets, ours over those, with header authentication. Beside AF_XDP its rings alone: as many
//! bytes in frames that are as long as the device takes, a window of them under way, each copied in and out. A run ends when its sender knows that everything has
//! arrived. Runs alternate.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use drivers::xdp::bare::{BareAddress, BareXdp};
use endpoint::{Completion, Endpoint, ReceiveBuffer, SendBuffer};
use serde::{Deserialize, Serialize};
use transport::LinkIndex;

use crate::error::BenchError;
use crate::machine::{self, Machine};
use crate::pair::{self, Address, Auth, Watchdog};
use crate::progress::Steps;
use crate::rate::{BATCH, receive_bare, send_bare};
use crate::statistics::{Summary, paired_ratios};
use crate::testbed::{MTU, Nic, Program, RailSpec, Testbed, Wire};
use crate::worker::{Parent, Worker};

pub(crate) const ROLE: &str = "bulk";

/// The bar of the design, with header authentication against the faster TCP reader.
pub const RATIO_MIN: f64 = 1.0;

/// Messages under way at one time, and buffers that each side uses in turn.
pub(crate) const DEPTH: usize = 4;

/// Settings of the bulk benchmark.
#[derive(Clone, Debug)]
pub struct BulkOptions {
    /// NIC kind to measure.
    pub nic: Nic,
    /// How AF_XDP's program is attached.
    pub program: Program,
    /// Runs of each kind, per message size.
    pub runs: usize,
    /// Sizes of message, bytes.
    pub sizes: Vec<usize>,
    /// Bytes of one run, rounded up to whole messages.
    pub run_bytes: usize,
    /// Of the devices that are made for AF_XDP.
    pub mtu: u32,
}

impl Default for BulkOptions {
    fn default() -> BulkOptions {
        BulkOptions {
            nic: Nic::Udp,
            program: Program::Native,
            runs: 15,
            sizes: vec![1 << 20, 4 << 20, 16 << 20, 64 << 20],
            run_bytes: 256 << 20,
            mtu: MTU,
        }
    }
}

/// Results for one message size.
#[derive(Clone, Serialize, Debug)]
pub struct BulkRow {
    /// Size of the messages.
    pub message_bytes: usize,
    /// Ours with header authentication, 10^9 bytes per second, median of the runs.
    pub gbytes_per_s: f64,
    /// Ours with full authentication.
    pub full_gbytes_per_s: f64,
    /// TCP, reader spinning.
    pub tcp_gbytes_per_s: f64,
    /// TCP, reader sleeping.
    pub tcp_blocking_gbytes_per_s: f64,
    /// Ours over UDP, where that is a baseline.
    pub udp_gbytes_per_s: Option<f64>,
    /// Median ratio of neighbouring runs, header authentication to ours over UDP.
    pub ratio_to_udp: Option<f64>,
    /// The rings of AF_XDP alone, if those are measured.
    pub bare_gbytes_per_s: Option<f64>,
    /// Median ratio of neighbouring runs, header authentication to these.
    pub ratio_to_bare: Option<f64>,
    /// Median ratio of neighbouring runs, header authentication to the spinning TCP.
    pub ratio: f64,
    /// With full authentication.
    pub full_ratio: f64,
    /// Spread of the ratios.
    pub ratio_spread: Summary,
    /// Spread of the ratios with full authentication.
    pub full_ratio_spread: Summary,
}

/// The result. The figures on top are those of the size with the least ratio.
#[derive(Clone, Serialize, Debug)]
pub struct BulkReport {
    /// "bulk".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// The measured NIC kind.
    pub nic: Nic,
    /// Between which devices.
    pub device: Option<String>,
    /// Ours with header authentication, 10^9 bytes per second.
    pub gbytes_per_s: f64,
    /// TCP with a spinning reader.
    pub tcp_gbytes_per_s: f64,
    /// Ours to TCP's.
    pub ratio: f64,
    /// The least that the ratio may be, over UDP.
    pub ratio_min: Option<f64>,
    /// The least ratio with full authentication.
    pub full_ratio: f64,
    /// Each size.
    pub rows: Vec<BulkRow>,
}

impl fmt::Display for BulkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        if let Some(device) = &self.device {
            writeln!(f, "device   {device}")?;
        }
        writeln!(
            f,
            "bulk     one-way stream over {}, GB/s (median of {} alternating runs)",
            self.nic.name(),
            self.runs()
        )?;
        writeln!(
            f,
            "{:>9} {:>9} {:>9} {:>9} {:>9}  {:>20} {:>20}",
            "MiB", "stillwire", "full auth", "tcp spin", "tcp sleep", "ratio (p10..p90)", "full (p10..p90)"
        )?;
        for row in &self.rows {
            let spread =
                |ratio: f64, spread: &Summary| format!("{ratio:.2} ({:.2}..{:.2})", spread.p10, spread.p90);
            writeln!(
                f,
                "{:>9} {:>9.2} {:>9.2} {:>9.2} {:>9.2}  {:>20} {:>20}",
                row.message_bytes >> 20,
                row.gbytes_per_s,
                row.full_gbytes_per_s,
                row.tcp_gbytes_per_s,
                row.tcp_blocking_gbytes_per_s,
                spread(row.ratio, &row.ratio_spread),
                spread(row.full_ratio, &row.full_ratio_spread),
            )?;
            if let Some((udp, ratio)) = row.udp_gbytes_per_s.zip(row.ratio_to_udp) {
                writeln!(f, "{:>9} stillwire udp {udp:.2}, ratio to it {ratio:.2}", "")?;
            }
            if let Some((bare, ratio)) = row.bare_gbytes_per_s.zip(row.ratio_to_bare) {
                writeln!(f, "{:>9} bare {} {bare:.2}, ratio to it {ratio:.2}", "", self.nic.name())?;
            }
        }
        let least = self.ratio_min.map_or(String::new(), |least| format!(" (at least {least})"));
        write!(f, "least ratio {:.2}{least}, with full authentication {:.2}", self.ratio, self.full_ratio)
    }
}

impl BulkReport {
    fn runs(&self) -> usize {
        self.rows.first().map_or(0, |row| row.ratio_spread.runs)
    }
}

#[derive(Serialize, Deserialize)]
struct Hello {
    header: Address,
    full: Address,
    udp: Address,
    tcp: SocketAddr,
    bare: Option<BareAddress>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Header,
    Full,
    TcpSpinning,
    TcpBlocking,
    Udp,
    Bare,
}

const KINDS: usize = 6;

/// The order of runs.
fn order(nic: Nic) -> &'static [Kind] {
    match nic {
        Nic::Udp => &[Kind::TcpSpinning, Kind::Header, Kind::TcpBlocking, Kind::Full],
        Nic::Shm | Nic::Verbs => &[Kind::TcpSpinning, Kind::Udp, Kind::Header, Kind::TcpBlocking, Kind::Full],
        Nic::Xdp => &[Kind::TcpSpinning, Kind::Udp, Kind::Header, Kind::Bare, Kind::TcpBlocking, Kind::Full],
    }
}

#[derive(Serialize, Deserialize)]
struct Run {
    kind: Kind,
    message_bytes: usize,
    messages: usize,
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a process, a socket or a message fails.
pub fn run(options: &BulkOptions) -> Result<BulkReport, BenchError> {
    let machine = Machine::here();
    let testbed = Testbed::with_mtu(options.nic, options.program, options.mtu)?;
    let mut workers = pair::introduce::<Hello>(testbed.start_two(ROLE)?, &testbed)?;
    let steps = Steps::new("bulk", options.sizes.len());
    let rows: Vec<BulkRow> = options
        .sizes
        .iter()
        .map(|&bytes| {
            steps.step(format_args!("messages of {} MiB", bytes >> 20));
            measure_size(&mut workers, options, bytes)
        })
        .collect::<Result<_, _>>()?;
    let worst = rows.iter().min_by(|a, b| a.ratio.total_cmp(&b.ratio));
    Ok(BulkReport {
        bench: "bulk",
        machine,
        nic: options.nic,
        device: testbed.device(),
        gbytes_per_s: worst.map_or(0.0, |row| row.gbytes_per_s),
        tcp_gbytes_per_s: worst.map_or(0.0, |row| row.tcp_gbytes_per_s),
        ratio: worst.map_or(0.0, |row| row.ratio),
        ratio_min: (options.nic == Nic::Udp).then_some(RATIO_MIN),
        full_ratio: rows.iter().map(|row| row.full_ratio).min_by(f64::total_cmp).unwrap_or(0.0),
        rows,
    })
}

fn measure_size(
    workers: &mut [Worker; 2],
    options: &BulkOptions,
    message_bytes: usize,
) -> Result<BulkRow, BenchError> {
    let messages = options.run_bytes.div_ceil(message_bytes);
    let mut speeds = [const { Vec::new() }; KINDS];
    let order = order(options.nic);
    // The first round only touches the buffers. One more of TCP's closes the last pair.
    for i in 0..order.len() * (options.runs + 1) + 1 {
        let kind = order[i % order.len()];
        let run = Run { kind, message_bytes, messages };
        for worker in workers.iter_mut().rev() {
            worker.send(&run)?;
        }
        let seconds: f64 = workers[0].hear()?;
        workers[1].hear::<()>()?;
        if i >= order.len() {
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
            let gbytes = (messages * message_bytes) as f64 / 1e9;
            speeds[kind as usize].push(gbytes / seconds);
        }
    }
    let of = |kind: Kind| &speeds[kind as usize];
    let ratio_spread = Summary::of(&paired_ratios(of(Kind::Header), of(Kind::TcpSpinning)));
    let full_ratio_spread = Summary::of(&paired_ratios(of(Kind::Full), of(Kind::TcpSpinning)));
    let median = |kind: Kind| Summary::of(of(kind)).median;
    let beside = |kind: Kind| (!of(kind).is_empty()).then(|| median(kind));
    let ratio_to =
        |kind: Kind| beside(kind).map(|_| Summary::of(&paired_ratios(of(Kind::Header), of(kind))).median);
    Ok(BulkRow {
        message_bytes,
        gbytes_per_s: median(Kind::Header),
        full_gbytes_per_s: median(Kind::Full),
        tcp_gbytes_per_s: median(Kind::TcpSpinning),
        tcp_blocking_gbytes_per_s: median(Kind::TcpBlocking),
        udp_gbytes_per_s: beside(Kind::Udp),
        ratio_to_udp: ratio_to(Kind::Udp),
        bare_gbytes_per_s: beside(Kind::Bare),
        ratio_to_bare: ratio_to(Kind::Bare),
        ratio: ratio_spread.median,
        full_ratio: full_ratio_spread.median,
        ratio_spread,
        full_ratio_spread,
    })
}

/// One of the two processes: rank 0 sends, rank 1 receives.
pub(crate) fn work(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(spec) = parent.hear::<RailSpec>()? else { return Ok(()) };
    let rank = spec.rank;
    machine::pin(rank as usize);
    let header = pair::open_on(spec.rail(Wire::Ours)?, rank, Auth::Header)?;
    let full = pair::open_on(spec.rail(Wire::Second)?, rank, Auth::Full)?;
    let udp = pair::open_on(spec.udp_rail()?, rank, Auth::Header)?;
    let bare = if spec.nic == Nic::Xdp { Some(spec.bare_xdp()?) } else { None };
    let listener = TcpListener::bind(spec.kernel())?;
    parent.send(&Hello {
        header: Address::of(&header),
        full: Address::of(&full),
        udp: Address::of(&udp),
        tcp: listener.local_addr()?,
        bare: bare.as_ref().map(BareXdp::address),
    })?;
    let Some(peer) = parent.hear::<Hello>()? else { return Ok(()) };
    let tcp = if rank == 0 { TcpStream::connect(peer.tcp)? } else { listener.accept()?.0 };
    tcp.set_nodelay(true)?;
    let mut ends = Ends {
        header_link: header.connect(pair::port_id(1 - rank), &[peer.header.raw()])?,
        full_link: full.connect(pair::port_id(1 - rank), &[peer.full.raw()])?,
        udp_link: udp.connect(pair::port_id(1 - rank), &[peer.udp.raw()])?,
        header,
        full,
        udp,
        tcp,
        bare,
        buffers: Vec::new(),
    };
    if let Some((bare, peer)) = ends.bare.as_mut().zip(peer.bare) {
        bare.prepare(peer, bare.frame_bytes_max())?;
    }
    while let Some(run) = parent.hear::<Run>()? {
        ends.prepare(run.message_bytes);
        if rank == 0 {
            let started = Instant::now();
            ends.send(&run)?;
            parent.send(&started.elapsed().as_secs_f64())?;
        } else {
            ends.receive(&run)?;
            parent.send(&())?;
        }
    }
    Ok(())
}

struct Ends {
    header: Endpoint,
    header_link: LinkIndex,
    full: Endpoint,
    full_link: LinkIndex,
    udp: Endpoint,
    udp_link: LinkIndex,
    tcp: TcpStream,
    bare: Option<BareXdp>,
    buffers: Vec<Vec<u8>>,
}

impl Ends {
    fn prepare(&mut self, message_bytes: usize) {
        if self.buffers.first().is_none_or(|buffer| buffer.len() != message_bytes) {
            self.buffers = (0..DEPTH).map(|_| vec![7; message_bytes]).collect();
        }
    }

    /// As many bytes in frames of the rings.
    fn bare(
        &mut self,
        run: &Run,
        act: fn(&mut BareXdp, usize, &mut [u8]) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let Some(bare) = &mut self.bare else { return Ok(()) };
        let frame_bytes = bare.frame_bytes_max();
        let frames = (run.messages * run.message_bytes).div_ceil(frame_bytes).next_multiple_of(BATCH);
        act(bare, frames, &mut vec![7; frame_bytes])
    }

    fn send(&mut self, run: &Run) -> Result<(), BenchError> {
        match run.kind {
            Kind::Header => send_ours(&self.header, self.header_link, &mut self.buffers, run.messages),
            Kind::Full => send_ours(&self.full, self.full_link, &mut self.buffers, run.messages),
            Kind::Udp => send_ours(&self.udp, self.udp_link, &mut self.buffers, run.messages),
            Kind::Bare => self.bare(run, send_bare),
            Kind::TcpSpinning | Kind::TcpBlocking => {
                for i in 0..run.messages {
                    self.tcp.write_all(&self.buffers[i % DEPTH])?;
                }
                Ok(self.tcp.read_exact(&mut [0])?)
            }
        }
    }

    fn receive(&mut self, run: &Run) -> Result<(), BenchError> {
        match run.kind {
            Kind::Header => receive_ours(&self.header, &mut self.buffers, run.messages),
            Kind::Full => receive_ours(&self.full, &mut self.buffers, run.messages),
            Kind::Udp => receive_ours(&self.udp, &mut self.buffers, run.messages),
            Kind::Bare => self.bare(run, receive_bare),
            Kind::TcpSpinning | Kind::TcpBlocking => {
                self.tcp.set_nonblocking(run.kind == Kind::TcpSpinning)?;
                for i in 0..run.messages {
                    read_tcp(&mut self.tcp, &mut self.buffers[i % DEPTH])?;
                }
                Ok(self.tcp.write_all(&[1])?)
            }
        }
    }
}

fn read_tcp(tcp: &mut TcpStream, buffer: &mut [u8]) -> Result<(), BenchError> {
    let mut watchdog = Watchdog::new("bytes of a stream");
    let mut at = 0;
    while at < buffer.len() {
        match tcp.read(&mut buffer[at..]) {
            Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(bytes) => at += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => watchdog.check()?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(crate) fn send_ours(
    endpoint: &Endpoint,
    link: LinkIndex,
    buffers: &mut Vec<Vec<u8>>,
    messages: usize,
) -> Result<(), BenchError> {
    let mut watchdog = Watchdog::new("completed sends");
    let (mut sent, mut done) = (0, 0);
    while done < messages {
        while sent < messages
            && let Some(buffer) = buffers.pop()
        {
            endpoint.send(link, pair::reported(1, 0), SendBuffer::Owned(buffer))?;
            sent += 1;
        }
        if let Some(Completion::SendDone { buffer: Some(buffer), .. }) = endpoint.poll() {
            buffers.push(buffer);
            done += 1;
        }
        watchdog.check()?;
    }
    Ok(())
}

pub(crate) fn receive_ours(
    endpoint: &Endpoint,
    buffers: &mut Vec<Vec<u8>>,
    messages: usize,
) -> Result<(), BenchError> {
    let mut watchdog = Watchdog::new("messages");
    let (mut posted, mut done) = (0, 0);
    while done < messages {
        while posted < messages
            && let Some(buffer) = buffers.pop()
        {
            let bytes = buffer.len() as u64;
            endpoint.post_receive(pair::receive(1, bytes, 0), ReceiveBuffer::Owned(buffer))?;
            posted += 1;
        }
        if let Some(Completion::Received { buffer: Some(buffer), .. }) = endpoint.poll() {
            buffers.push(buffer);
            done += 1;
        }
        watchdog.check()?;
    }
    Ok(())
}
