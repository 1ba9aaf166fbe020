//! The cost of the protocol alone per message: two ports in one thread, frames handed over by function calls.
//!
//! There is no socket, no clock and no other thread. So this bench measures our own arithmetic, which the other benches cannot separate from the
//! kernel's.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;
use transport::config::AuthLevel;
use transport::{AddressId, Buffers, Event, LinkIndex, OpId, Payload, Port, RailIndex, RawAddress};

use crate::error::BenchError;
use crate::machine::Machine;
use crate::pair;
use crate::progress::Steps;
use crate::statistics::Summary;

const RAIL: RailIndex = RailIndex(0);
const FRAME_BYTES: usize = 65_507;

/// Links that have fallen silent, of each port.
const IDLE_LINKS: usize = 4096;
/// Longer than an acknowledgement is delayed.
const ACKNOWLEDGED_AFTER: Duration = Duration::from_millis(1);

/// Settings of the protocol benchmark.
#[derive(Clone, Copy, Debug)]
pub struct ProtocolOptions {
    /// Runs per level of authentication.
    pub runs: usize,
    /// Messages per run.
    pub messages: usize,
}

impl Default for ProtocolOptions {
    fn default() -> ProtocolOptions {
        ProtocolOptions { runs: 50, messages: 10_000 }
    }
}

/// Nanoseconds per 8-byte message of a ping-pong, at one level of authentication.
#[derive(Clone, Serialize, Debug)]
pub struct ProtocolRow {
    /// "off", "header" or "full".
    pub auth: &'static str,
    /// Send, and write the frame.
    pub send_ns: Summary,
    /// Post the receive, read the frame, take the event.
    pub receive_ns: Summary,
}

/// The same with thousands of links that have fallen silent, and without, in turns.
#[derive(Clone, Serialize, Debug)]
pub struct IdleRow {
    /// Silent links of each port.
    pub idle_links: usize,
    /// A message, sent and received, among them.
    pub message_ns: Summary,
    /// Without them.
    pub alone_ns: Summary,
    /// Median of the ratios of neighbouring runs.
    pub ratio: f64,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct ProtocolReport {
    /// "protocol".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Each level of authentication.
    pub rows: Vec<ProtocolRow>,
    /// The cost of idle links.
    pub idle: IdleRow,
}

impl fmt::Display for ProtocolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(f, "protocol cost of the protocol alone, ns per 8-byte message (least, median)")?;
        write!(f, "{:>8} {:>14} {:>14}", "tags", "send", "receive")?;
        for row in &self.rows {
            let show = |of: &Summary| format!("{:.0}, {:.0}", of.min, of.median);
            write!(f, "\n{:>8} {:>14} {:>14}", row.auth, show(&row.send_ns), show(&row.receive_ns))?;
        }
        let IdleRow { idle_links, message_ns, alone_ns, ratio } = &self.idle;
        write!(
            f,
            "\namong {idle_links} idle links {:.0} ns per message, without them {:.0}: ratio {ratio:.2}",
            message_ns.median, alone_ns.median
        )
    }
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a message is refused.
pub fn run(options: &ProtocolOptions) -> Result<ProtocolReport, BenchError> {
    let machine = Machine::here();
    let levels = [("off", AuthLevel::Off), ("header", AuthLevel::Header), ("full", AuthLevel::Full)];
    let steps = Steps::new("protocol", levels.len() + 1);
    let rows = levels.map(|(name, level)| {
        steps.step(format_args!("authentication: {name}"));
        measure(name, level, options)
    });
    let rows = rows.into_iter().collect::<Result<_, _>>()?;
    steps.step(format_args!("idle links"));
    Ok(ProtocolReport { bench: "protocol", machine, rows, idle: measure_idle(options)? })
}

/// An 8-byte message lands here.
struct Landing([u8; 8]);

impl Buffers for Landing {
    fn place(&mut self, _receive: OpId, offset: u64, bytes: &[u8]) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(place) = self.0.get_mut(from..from.saturating_add(bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }
}

struct End {
    port: Port,
    link: LinkIndex,
    landing: Landing,
}

impl End {
    fn new(rank: u32, level: AuthLevel) -> End {
        let mut port = pair::port_with(rank, level);
        port.add_rail(RawAddress::NONE, FRAME_BYTES);
        let link = port.connect(pair::port_id(1 - rank));
        port.set_path(link, RAIL, AddressId(0));
        End { port, link, landing: Landing([0; 8]) }
    }
}

/// Two ports that talk to each other.
struct Pair {
    ends: [End; 2],
    frame: Vec<u8>,
    clock: Instant,
}

impl Pair {
    fn new(level: AuthLevel) -> Pair {
        let ends = [End::new(0, level), End::new(1, level)];
        Pair { ends, frame: vec![0; FRAME_BYTES], clock: Instant::now() }
    }

    /// Each port hears one message from so many others, and never again.
    fn hear_from(&mut self, others: usize, level: AuthLevel) -> Result<(), BenchError> {
        let now = transport::Instant::from_nanos(nanos(&self.clock));
        for rank in (2u32..).take(others) {
            for end in &mut self.ends {
                let known = end.port.connect(pair::port_id(rank));
                end.port.set_path(known, RAIL, AddressId(rank));
                let mut other = pair::port_with(rank, level);
                other.add_rail(RawAddress::NONE, FRAME_BYTES);
                let link = other.connect(end.port.id());
                other.set_path(link, RAIL, AddressId(0));
                other.send(link, pair::silent(1), Payload::Copied(&[7; 8]))?;
                end.port.post_receive(pair::receive(1, 8, 0), &mut end.landing)?;
                while let Some(written) = other.poll_transmit(now, RAIL, &mut self.frame) {
                    let frame = &self.frame[..written.frame_bytes];
                    end.port.handle_frame(now, RAIL, frame, &mut end.landing);
                }
                // The acknowledgement; it is not needed, but the link owes nothing then.
                let later = now + ACKNOWLEDGED_AFTER;
                end.port.handle_timeout(later);
                while end.port.poll_transmit(later, RAIL, &mut self.frame).is_some() {}
                while end.port.poll_event().is_some() {}
            }
        }
        Ok(())
    }

    /// Nanoseconds per message: to send it, and to receive it.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn run(&mut self, messages: usize) -> Result<(f64, f64), BenchError> {
        let (mut send_ns, mut receive_ns) = (0, 0);
        for i in 0..messages {
            let now = transport::Instant::from_nanos(nanos(&self.clock));
            let [a, b] = &mut self.ends;
            let (from, to) = if i % 2 == 0 { (a, b) } else { (b, a) };
            from.port.send(from.link, pair::silent(1), Payload::Copied(&[7; 8]))?;
            let Some(written) = from.port.poll_transmit(now, RAIL, &mut self.frame) else { continue };
            let sent = nanos(&self.clock);
            send_ns += sent - now.as_nanos();
            let now = transport::Instant::from_nanos(sent);
            to.port.post_receive(pair::receive(1, 8, 0), &mut to.landing)?;
            to.port.handle_frame(now, RAIL, &self.frame[..written.frame_bytes], &mut to.landing);
            let received = to.port.poll_event();
            debug_assert!(matches!(received, Some(Event::Received { .. })));
            if to.port.poll_timeout().is_some_and(|due| due <= now) {
                to.port.handle_timeout(now);
            }
            receive_ns += nanos(&self.clock) - sent;
        }
        Ok((send_ns as f64 / messages as f64, receive_ns as f64 / messages as f64))
    }
}

fn measure(
    name: &'static str,
    level: AuthLevel,
    options: &ProtocolOptions,
) -> Result<ProtocolRow, BenchError> {
    let mut pair = Pair::new(level);
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for _ in 0..options.runs {
        let (send_ns, receive_ns) = pair.run(options.messages)?;
        sends.push(send_ns);
        receives.push(receive_ns);
    }
    Ok(ProtocolRow { auth: name, send_ns: Summary::of(&sends), receive_ns: Summary::of(&receives) })
}

fn measure_idle(options: &ProtocolOptions) -> Result<IdleRow, BenchError> {
    let level = AuthLevel::Header;
    let mut pairs = [Pair::new(level), Pair::new(level)];
    pairs[0].hear_from(IDLE_LINKS, level)?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..options.runs {
        for (pair, times) in pairs.iter_mut().zip(&mut times) {
            let (send_ns, receive_ns) = pair.run(options.messages)?;
            times.push(send_ns + receive_ns);
        }
    }
    let [among, alone] = &times;
    let ratios: Vec<f64> = among.iter().zip(alone).map(|(among, alone)| among / alone).collect();
    Ok(IdleRow {
        idle_links: IDLE_LINKS,
        message_ns: Summary::of(among),
        alone_ns: Summary::of(alone),
        ratio: Summary::of(&ratios).median,
    })
}

fn nanos(clock: &Instant) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
