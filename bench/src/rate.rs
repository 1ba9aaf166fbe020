//! How many 8-byte messages per second go one way, against bare datagrams of the same length.
//!
//! Two processes, UDP on loopback, header authentication, helper threads running; both ends poll. Both sides hand over 32 messages at a time.
//! Ours: 31 messages that may leave later and one that takes them along; the receiver has one buffer posted for many messages; a run ends when
//! all of them are acknowledged. Bare: connected sockets, `sendmmsg` and `recvmmsg` of up to 32 datagrams; the receiver answers each 32 with
//! one datagram, and the sender has at most 256 unanswered (our window), so that nothing is lost and both sides have one kind of flow control. Runs
//! alternate.

use std::fmt;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use endpoint::{Completion, Endpoint, ReceiveBuffer, SendBuffer};
use nix::sys::socket::sockopt::RcvBuf;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use transport::{LinkIndex, Port, Receive, SendError};

use crate::error::BenchError;
use crate::machine::{self, Machine};
use crate::pair::{self, Address, Auth, FRAME_BYTES, MESSAGE_BYTES, Watchdog};
use crate::statistics::{Summary, paired_ratios};
use crate::worker::{Parent, Worker};

pub(crate) const ROLE: &str = "rate";

/// Messages that are handed over together.
pub(crate) const BATCH: usize = 32;

/// Bare datagrams that may be unanswered.
const BARE_WINDOW: usize = 256;

/// What the bare receiver asks for as socket buffer.
const BARE_BUFFER_BYTES: usize = 8 << 20;

/// Length of the buffer that takes our messages.
const BUFFER_BYTES: usize = 64 << 10;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct RateOptions {
    /// Pairs of processes, one after the other.
    pub pairs: usize,
    /// Runs of ours, and of the baseline, per pair.
    pub runs: usize,
    /// Messages per run.
    pub messages: usize,
}

impl Default for RateOptions {
    fn default() -> RateOptions {
        RateOptions { pairs: 5, runs: 10, messages: 200_000 }
    }
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct RateReport {
    /// "rate".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Ours, median of the runs.
    pub messages_per_s: f64,
    /// Bare datagrams.
    pub bare_messages_per_s: f64,
    /// Median of the ratios of neighbouring runs.
    pub ratio: f64,
    /// Bytes of a datagram, on both sides.
    pub datagram_bytes: usize,
    /// Messages per run.
    pub messages: usize,
    /// Spread over the runs.
    pub messages_per_s_spread: Summary,
    /// Spread over the runs.
    pub bare_messages_per_s_spread: Summary,
    /// Spread over the runs.
    pub ratio_spread: Summary,
}

impl fmt::Display for RateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(
            f,
            "rate     8-byte messages per second, one way; {} datagram bytes, {BATCH} at a time",
            self.datagram_bytes
        )?;
        writeln!(f, "{:>10} {:>10} {:>10} {:>10}", "", "median", "p10", "p90")?;
        for (name, spread) in
            [("stillwire", &self.messages_per_s_spread), ("bare udp", &self.bare_messages_per_s_spread)]
        {
            writeln!(f, "{name:>10} {:>10.0} {:>10.0} {:>10.0}", spread.median, spread.p10, spread.p90)?;
        }
        write!(
            f,
            "ratio {:.3}, p10 {:.3}, p90 {:.3}, {} alternating runs of {} messages",
            self.ratio, self.ratio_spread.p10, self.ratio_spread.p90, self.ratio_spread.runs, self.messages
        )
    }
}

#[derive(Serialize, Deserialize)]
struct Hello {
    ours: Address,
    bare: SocketAddr,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Side {
    Ours,
    Bare,
}

#[derive(Serialize, Deserialize)]
struct Run {
    side: Side,
    messages: usize,
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a process, a socket or a message fails.
pub fn run(options: &RateOptions) -> Result<RateReport, BenchError> {
    let machine = Machine::here();
    let messages = options.messages.next_multiple_of(BATCH);
    let (mut ours, mut bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        let mut pair = RatePair::start([Worker::start(ROLE)?, Worker::start(ROLE)?])?;
        let (mut ours_here, mut bare_here) = (Vec::new(), Vec::new());
        for i in 0..=2 * options.runs {
            if i % 2 == 0 {
                bare_here.push(pair.run(Side::Bare, messages)?);
            } else {
                ours_here.push(pair.run(Side::Ours, messages)?);
            }
        }
        ratios.extend(paired_ratios(&ours_here, &bare_here));
        ours.extend(ours_here);
        bare.extend(bare_here);
    }
    let (ours, bare, ratios) = (Summary::of(&ours), Summary::of(&bare), Summary::of(&ratios));
    Ok(RateReport {
        bench: "rate",
        machine,
        messages_per_s: ours.median,
        bare_messages_per_s: bare.median,
        ratio: ratios.median,
        datagram_bytes: FRAME_BYTES,
        messages,
        messages_per_s_spread: ours,
        bare_messages_per_s_spread: bare,
        ratio_spread: ratios,
    })
}

/// Two processes that know each other.
pub(crate) struct RatePair([Worker; 2]);

impl RatePair {
    pub(crate) fn start(workers: [Worker; 2]) -> Result<RatePair, BenchError> {
        Ok(RatePair(pair::introduce::<Hello>(workers)?))
    }

    /// Messages per second of one run.
    fn run(&mut self, side: Side, messages: usize) -> Result<f64, BenchError> {
        for worker in self.0.iter_mut().rev() {
            worker.tell(&Run { side, messages })?;
        }
        let seconds: f64 = self.0[0].hear()?;
        self.0[1].hear::<()>()?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        Ok(messages as f64 / seconds)
    }

    /// Messages per second of one run of ours; `messages` is a multiple of what is handed over at a time.
    pub(crate) fn ours(&mut self, messages: usize) -> Result<f64, BenchError> {
        self.run(Side::Ours, messages)
    }
}

/// One of the two processes: rank 0 sends, rank 1 receives.
pub(crate) fn work(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(rank) = parent.hear::<u32>()? else { return Ok(()) };
    machine::pin(rank as usize);
    let endpoint = pair::open(rank, Auth::Header)?;
    let bare = UdpSocket::bind(pair::ANY)?;
    bare.set_nonblocking(true)?;
    // The kernel gives less if its limit is lower; the default holds a window, but hardly.
    setsockopt(&bare, RcvBuf, &BARE_BUFFER_BYTES).map_err(std::io::Error::from)?;
    parent.tell(&Hello { ours: Address::of(&endpoint), bare: bare.local_addr()? })?;
    let Some(peer) = parent.hear::<Hello>()? else { return Ok(()) };
    bare.connect(peer.bare)?;
    let link = endpoint.connect(pair::port_id(1 - rank), &[peer.ours.raw()])?;
    let mut bare = Bare::new(bare);
    while let Some(run) = parent.hear::<Run>()? {
        if rank == 0 {
            let started = Instant::now();
            match run.side {
                Side::Ours => send_ours(&endpoint, link, run.messages)?,
                Side::Bare => bare.send(run.messages)?,
            }
            parent.tell(&started.elapsed().as_secs_f64())?;
        } else {
            match run.side {
                Side::Ours => receive_ours(&endpoint, run.messages)?,
                Side::Bare => bare.receive(run.messages)?,
            }
            parent.tell(&())?;
        }
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
