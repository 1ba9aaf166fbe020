//! How many 8-byte messages per second go one way, against bare datagrams of the same length, and against UDP.
//!
//! Two processes, header authentication, helper threads running; both ends poll. All sides hand over 32 messages at a time.
//! Ours: 31 messages that may leave later and one that takes them along; the receiver has one buffer posted for many messages; a run ends when
//! all of them are acknowledged. Bare: connected sockets, `sendmmsg` and `recvmmsg` of up to 32 datagrams, or the rings of AF_XDP; the receiver answers
//! each 32 with one datagram, and the sender has at most 256 unanswered (our window), so that nothing is lost and both sides have one kind of flow control.
//! UDP: ours, over sockets beside the measured NIC. Runs alternate.

use std::fmt;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use drivers::xdp::bare::{BareAddress, BareXdp};
use endpoint::{Completion, Endpoint, ReceiveBuffer, SendBuffer};
use nix::sys::socket::sockopt::RcvBuf;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use transport::{LinkIndex, Port, Receive, SendError};

use crate::error::BenchError;
use crate::machine::{self, Machine};
use crate::pair::{self, Address, Auth, FRAME_BYTES, MESSAGE_BYTES, Watchdog};
use crate::progress::Steps;
use crate::statistics::{Summary, paired_ratios};
use crate::testbed::{Nic, Program, RailSpec, Testbed, Wire};
use crate::worker::{Parent, Worker};

pub(crate) const ROLE: &str = "rate";

/// Messages that are handed over together.
pub(crate) const BATCH: usize = 32;

/// Bare datagrams that may be unanswered.
const BARE_WINDOW: usize = 256;

/// Socket buffer that the bare receiver requests.
const BARE_BUFFER_BYTES: usize = 8 << 20;

/// Length of the buffer that takes our messages.
const BUFFER_BYTES: usize = 64 << 10;

/// The bar of AF_XDP: its rate to that of bare datagrams over UDP between devices like these.
pub const RATIO_TO_BARE_UDP_MIN: f64 = 2.0;

/// Settings of the message rate benchmark.
#[derive(Clone, Copy, Debug)]
pub struct RateOptions {
    /// NIC kind to measure.
    pub nic: Nic,
    /// How AF_XDP's program is attached.
    pub program: Program,
    /// Pairs of processes, one after the other.
    pub pairs: usize,
    /// Runs of ours, and of each baseline, per pair.
    pub runs: usize,
    /// Messages per run.
    pub messages: usize,
}

impl Default for RateOptions {
    fn default() -> RateOptions {
        RateOptions { nic: Nic::Udp, program: Program::Native, pairs: 5, runs: 10, messages: 200_000 }
    }
}

/// The result. Figures that are not measured beside this NIC are null.
#[derive(Clone, Serialize, Debug)]
pub struct RateReport {
    /// "rate".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// The measured NIC kind.
    pub nic: Nic,
    /// Between which devices.
    pub device: Option<String>,
    /// Ours, median of the runs.
    pub messages_per_s: f64,
    /// Bare datagrams.
    pub bare_messages_per_s: Option<f64>,
    /// Ours over UDP.
    pub udp_messages_per_s: Option<f64>,
    /// Bare datagrams over UDP.
    pub bare_udp_messages_per_s: Option<f64>,
    /// To bare datagrams: median of the ratios of neighbouring runs.
    pub ratio: Option<f64>,
    /// The same to ours over UDP.
    pub ratio_to_udp: Option<f64>,
    /// The same to bare datagrams over UDP.
    pub ratio_to_bare_udp: Option<f64>,
    /// The least that this ratio may be.
    pub ratio_to_bare_udp_min: Option<f64>,
    /// Bytes of a datagram, on all sides.
    pub datagram_bytes: usize,
    /// Messages per run.
    pub messages: usize,
    /// Spread over the runs.
    pub messages_per_s_spread: Summary,
    /// Spread over the runs.
    pub bare_messages_per_s_spread: Option<Summary>,
    /// Spread over the runs.
    pub udp_messages_per_s_spread: Option<Summary>,
    /// Spread over the runs.
    pub bare_udp_messages_per_s_spread: Option<Summary>,
    /// Spread over the runs.
    pub ratio_spread: Option<Summary>,
    /// Spread over the runs.
    pub ratio_to_udp_spread: Option<Summary>,
    /// Spread over the runs.
    pub ratio_to_bare_udp_spread: Option<Summary>,
}

impl fmt::Display for RateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        if let Some(device) = &self.device {
            writeln!(f, "device   {device}")?;
        }
        writeln!(
            f,
            "rate     8-byte messages per second, one way; {} datagram bytes, {BATCH} at a time",
            self.datagram_bytes
        )?;
        writeln!(f, "{:>14} {:>10} {:>10} {:>10}", "", "median", "p10", "p90")?;
        let name = |path: &str| format!("{path} {}", self.nic.name());
        for (name, spread) in [
            (name("stillwire"), Some(self.messages_per_s_spread)),
            (name("bare"), self.bare_messages_per_s_spread),
            ("stillwire udp".to_owned(), self.udp_messages_per_s_spread),
            ("bare udp".to_owned(), self.bare_udp_messages_per_s_spread),
        ] {
            if let Some(Summary { median, p10, p90, .. }) = spread {
                writeln!(f, "{name:>14} {median:>10.0} {p10:>10.0} {p90:>10.0}")?;
            }
        }
        for (to, spread, least) in [
            (name("bare"), self.ratio_spread, None),
            ("udp".to_owned(), self.ratio_to_udp_spread, None),
            ("bare udp".to_owned(), self.ratio_to_bare_udp_spread, self.ratio_to_bare_udp_min),
        ] {
            let Some(Summary { median, p10, p90, .. }) = spread else { continue };
            let least = least.map_or(String::new(), |least| format!(" (at least {least})"));
            writeln!(f, "ratio to {to} {median:.3}{least}, p10 {p10:.3}, p90 {p90:.3}")?;
        }
        write!(f, "{} alternating runs of {} messages", self.messages_per_s_spread.runs, self.messages)
    }
}

#[derive(Serialize, Deserialize)]
struct Hello {
    ours: Address,
    udp: Address,
    bare: Option<BareAddress>,
    bare_udp: SocketAddr,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Side {
    Bare,
    Udp,
    BareUdp,
    Ours,
}

impl Side {
    /// Measured in turns; ours is the last one.
    fn all(nic: Nic) -> &'static [Side] {
        match nic {
            Nic::Udp => &[Side::BareUdp, Side::Ours],
            Nic::Shm => &[Side::Udp, Side::Ours],
            Nic::Verbs => &[Side::Udp, Side::BareUdp, Side::Ours],
            Nic::Xdp => &[Side::Bare, Side::Udp, Side::BareUdp, Side::Ours],
        }
    }

    /// The NIC with nothing above it.
    fn bare(nic: Nic) -> Side {
        if nic == Nic::Udp { Side::BareUdp } else { Side::Bare }
    }
}

#[derive(Serialize, Deserialize)]
struct Run {
    side: Side,
    messages: usize,
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a process, a socket or a message fails, or the process lacks rights for the measurement.
pub fn run(options: &RateOptions) -> Result<RateReport, BenchError> {
    let machine = Machine::here();
    let testbed = Testbed::make(options.nic, options.program)?;
    let messages = options.messages.next_multiple_of(BATCH);
    let mut results = [const { Vec::new() }; 4];
    let mut ratios = [const { Vec::new() }; 4];
    let sides = Side::all(options.nic);
    let steps = Steps::new("rate", options.pairs);
    for _ in 0..options.pairs {
        steps.step(format_args!("a pair of processes"));
        let mut pair = RatePair::start(testbed.start_two(ROLE)?, &testbed)?;
        let mut here = [const { Vec::new() }; 4];
        for side in sides.iter().cycle().take(sides.len() * (options.runs + 1) - 1) {
            here[*side as usize].push(pair.run(*side, messages)?);
        }
        for (ratios, side) in ratios.iter_mut().zip(&here) {
            ratios.extend(paired_ratios(&here[Side::Ours as usize], side));
        }
        results.iter_mut().zip(here).for_each(|(all, here)| all.extend(here));
    }
    let of = |of: &[Vec<f64>; 4], side: Side| {
        let of = &of[side as usize];
        (!of.is_empty()).then(|| Summary::of(of))
    };
    let median = |summary: Option<Summary>| summary.map(|summary| summary.median);
    let (bare, ours) = (Side::bare(options.nic), Summary::of(&results[Side::Ours as usize]));
    let beside = |spreads: &[Vec<f64>; 4]| match options.nic {
        Nic::Xdp | Nic::Verbs => of(spreads, Side::BareUdp),
        Nic::Udp | Nic::Shm => None,
    };
    Ok(RateReport {
        bench: "rate",
        machine,
        nic: options.nic,
        device: testbed.device(),
        messages_per_s: ours.median,
        bare_messages_per_s: median(of(&results, bare)),
        udp_messages_per_s: median(of(&results, Side::Udp)),
        bare_udp_messages_per_s: median(beside(&results)),
        ratio: median(of(&ratios, bare)),
        ratio_to_udp: median(of(&ratios, Side::Udp)),
        ratio_to_bare_udp: median(beside(&ratios)),
        ratio_to_bare_udp_min: (options.nic == Nic::Xdp).then_some(RATIO_TO_BARE_UDP_MIN),
        datagram_bytes: FRAME_BYTES,
        messages,
        messages_per_s_spread: ours,
        bare_messages_per_s_spread: of(&results, bare),
        udp_messages_per_s_spread: of(&results, Side::Udp),
        bare_udp_messages_per_s_spread: beside(&results),
        ratio_spread: of(&ratios, bare),
        ratio_to_udp_spread: of(&ratios, Side::Udp),
        ratio_to_bare_udp_spread: beside(&ratios),
    })
}

/// Two processes that know each other.
pub(crate) struct RatePair([Worker; 2]);

impl RatePair {
    pub(crate) fn start(workers: [Worker; 2], testbed: &Testbed) -> Result<RatePair, BenchError> {
        Ok(RatePair(pair::introduce::<Hello>(workers, testbed)?))
    }

    /// Messages per second of one run.
    fn run(&mut self, side: Side, messages: usize) -> Result<f64, BenchError> {
        for worker in self.0.iter_mut().rev() {
            worker.send(&Run { side, messages })?;
        }
        let seconds: f64 = self.0[0].hear()?;
        self.0[1].hear::<()>()?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        Ok(messages as f64 / seconds)
    }

    /// Messages per second of one run of ours; `messages` is a multiple of the messages handed over at a time.
    pub(crate) fn ours(&mut self, messages: usize) -> Result<f64, BenchError> {
        self.run(Side::Ours, messages)
    }
}

/// One of the two processes: rank 0 sends, rank 1 receives.
pub(crate) fn work(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(spec) = parent.hear::<RailSpec>()? else { return Ok(()) };
    let rank = spec.rank;
    machine::pin(rank as usize);
    let ours = pair::open_on(spec.rail(Wire::Ours)?, rank, Auth::Header)?;
    let udp = pair::open_on(spec.udp_rail()?, rank, Auth::Header)?;
    let bare_udp = UdpSocket::bind(spec.kernel())?;
    bare_udp.set_nonblocking(true)?;
    // The kernel gives less if its limit is lower; the default holds a window, but hardly.
    setsockopt(&bare_udp, RcvBuf, &BARE_BUFFER_BYTES).map_err(std::io::Error::from)?;
    let mut bare = if spec.nic == Nic::Xdp { Some(spec.bare_xdp()?) } else { None };
    parent.send(&Hello {
        ours: Address::of(&ours),
        udp: Address::of(&udp),
        bare: bare.as_ref().map(BareXdp::address),
        bare_udp: bare_udp.local_addr()?,
    })?;
    let Some(peer) = parent.hear::<Hello>()? else { return Ok(()) };
    if let Some((bare, peer)) = bare.as_mut().zip(peer.bare) {
        bare.prepare(peer, FRAME_BYTES)?;
    }
    bare_udp.connect(peer.bare_udp)?;
    let link = |endpoint: &Endpoint, peer: Address| endpoint.connect(pair::port_id(1 - rank), &[peer.raw()]);
    let links = [link(&ours, peer.ours)?, link(&udp, peer.udp)?];
    let mut bare_udp = Bare::new(bare_udp);
    while let Some(run) = parent.hear::<Run>()? {
        let started = Instant::now();
        match (rank, run.side, &mut bare) {
            (0, Side::Ours, _) => send_ours(&ours, links[0], run.messages)?,
            (0, Side::Udp, _) => send_ours(&udp, links[1], run.messages)?,
            (0, Side::Bare, Some(bare)) => send_bare(bare, run.messages, &mut [7; FRAME_BYTES])?,
            (0, Side::BareUdp | Side::Bare, _) => bare_udp.send(run.messages)?,
            (_, Side::Ours, _) => receive_ours(&ours, run.messages)?,
            (_, Side::Udp, _) => receive_ours(&udp, run.messages)?,
            (_, Side::Bare, Some(bare)) => receive_bare(bare, run.messages, &mut [7; FRAME_BYTES])?,
            (_, Side::BareUdp | Side::Bare, _) => bare_udp.receive(run.messages)?,
        }
        if rank == 0 {
            parent.send(&started.elapsed().as_secs_f64())?;
        } else {
            parent.send(&())?;
        }
    }
    Ok(())
}

/// Sends so many frames, and waits until all are answered.
pub(crate) fn send_bare(bare: &mut BareXdp, messages: usize, datagram: &mut [u8]) -> Result<(), BenchError> {
    let mut watchdog = Watchdog::new("answers to frames");
    let (mut sent, mut answered) = (0, 0);
    while answered < messages {
        if sent < messages && sent - answered + BATCH <= BARE_WINDOW {
            bare.send(BATCH, datagram)?;
            sent += BATCH;
            continue;
        }
        answered += BATCH * bare.receive(BATCH, datagram);
        watchdog.check()?;
    }
    Ok(())
}

pub(crate) fn receive_bare(
    bare: &mut BareXdp,
    messages: usize,
    datagram: &mut [u8],
) -> Result<(), BenchError> {
    let mut watchdog = Watchdog::new("frames");
    let (mut received, mut answered) = (0, 0);
    while received < messages {
        received += bare.receive(BATCH, datagram);
        while answered + BATCH <= received {
            bare.send(1, datagram)?;
            answered += BATCH;
        }
        watchdog.check()?;
    }
    Ok(())
}

fn send_ours(endpoint: &Endpoint, link: LinkIndex, messages: usize) -> Result<(), BenchError> {
    let payload = || SendBuffer::Copied(&[7; MESSAGE_BYTES]);
    let mut watchdog = Watchdog::new("room for messages, or their acknowledgement");
    let mut sent = 0;
    while sent < messages {
        let last = sent % BATCH == BATCH - 1;
        let handed = if last {
            endpoint.send(link, pair::silent(1), payload())
        } else {
            endpoint.send_later(link, pair::silent(1), payload())
        };
        match handed {
            Ok(_) => sent += 1,
            Err(SendError::Full { .. }) => {
                let _ = endpoint.poll();
                watchdog.check()?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    // Also those that had to be announced, whose payload the receiver asks for.
    while !endpoint.with_port(Port::is_settled) {
        let _ = endpoint.poll();
        watchdog.check()?;
    }
    Ok(())
}

fn receive_ours(endpoint: &Endpoint, messages: usize) -> Result<(), BenchError> {
    let receive = |buffer: Vec<u8>| {
        let many = Receive { multi: Some(MESSAGE_BYTES as u64), ..pair::receive(1, BUFFER_BYTES as u64, 0) };
        endpoint.post_receive(many, ReceiveBuffer::Owned(buffer))
    };
    // One is being filled while the other one is posted again.
    let first = receive(vec![0; BUFFER_BYTES])?;
    let second = receive(vec![0; BUFFER_BYTES])?;
    let mut posted = vec![first, second];
    let mut watchdog = Watchdog::new("messages");
    let mut received = 0;
    // Counted, for the last one sent need not be the last one that is complete.
    while received < messages {
        match endpoint.poll() {
            Some(Completion::Received { op, buffer, .. }) => {
                received += 1;
                if let Some(buffer) = buffer {
                    posted.retain(|known| *known != op);
                    posted.push(receive(buffer)?);
                }
            }
            _ => watchdog.check().map_err(|_| BenchError::Missing {
                expected: messages,
                received,
                seconds: pair::PATIENCE.as_secs(),
            })?,
        }
    }
    for op in posted {
        endpoint.cancel(op);
    }
    Ok(())
}

struct Bare {
    socket: UdpSocket,
    buffers: Vec<[u8; FRAME_BYTES]>,
    headers: MultiHeaders<SockaddrStorage>,
}

impl Bare {
    fn new(socket: UdpSocket) -> Bare {
        Bare {
            socket,
            buffers: vec![[7; FRAME_BYTES]; BATCH],
            headers: MultiHeaders::preallocate(BATCH, None),
        }
    }

    /// Sends so many, and waits until all are answered.
    fn send(&mut self, messages: usize) -> Result<(), BenchError> {
        let mut watchdog = Watchdog::new("answers to datagrams");
        let (mut sent, mut answered) = (0, 0);
        while answered < messages {
            if sent < messages && sent - answered + BATCH <= BARE_WINDOW {
                let fd = self.socket.as_raw_fd();
                let slices: Vec<[IoSlice<'_>; 1]> =
                    self.buffers.iter().map(|buffer| [IoSlice::new(buffer)]).collect();
                let nobody = [None::<SockaddrStorage>; BATCH];
                let mut rest = 0;
                while rest < BATCH {
                    rest += sendmmsg(fd, &mut self.headers, &slices[rest..], nobody, [], MsgFlags::empty())
                        .map_err(std::io::Error::from)?
                        .count();
                }
                sent += BATCH;
                continue;
            }
            let mut answer = [0; FRAME_BYTES];
            match self.socket.recv(&mut answer) {
                Ok(_) => answered += BATCH,
                Err(error) if error.kind() == ErrorKind::WouldBlock => watchdog.check()?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&mut self, messages: usize) -> Result<(), BenchError> {
        let mut watchdog = Watchdog::new("datagrams");
        let (mut received, mut answered) = (0, 0);
        while received < messages {
            let fd = self.socket.as_raw_fd();
            let mut slices: Vec<[IoSliceMut<'_>; 1]> =
                self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
            match recvmmsg(fd, &mut self.headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None) {
                Ok(found) => received += found.count(),
                Err(nix::errno::Errno::EAGAIN) => watchdog.check()?,
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
            while answered + BATCH <= received {
                self.socket.send(&[7; FRAME_BYTES])?;
                answered += BATCH;
            }
        }
        Ok(())
    }
}
