//! What the protocol alone costs per message: two ports in one thread, frames handed over by function calls.
//!
//! No socket, no clock, no other thread: what remains is our own arithmetic, which the other benches cannot tell from the
//! kernel's.

use std::fmt;
use std::time::Instant;

use serde::Serialize;
use transport::config::AuthLevel;
use transport::{AddressId, Buffers, Event, LinkIndex, OpId, Payload, Port, RailIndex, RawAddress};

use crate::error::BenchError;
use crate::machine::Machine;
use crate::pair;
use crate::statistics::Summary;

const RAIL: RailIndex = RailIndex(0);
const FRAME_BYTES: usize = 65_507;

/// What to measure.
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

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct ProtocolReport {
    /// "protocol".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// Each level of authentication.
    pub rows: Vec<ProtocolRow>,
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
        Ok(())
    }
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a message is refused.
pub fn run(options: &ProtocolOptions) -> Result<ProtocolReport, BenchError> {
    let machine = Machine::here();
    let levels = [("off", AuthLevel::Off), ("header", AuthLevel::Header), ("full", AuthLevel::Full)];
    let rows = levels.map(|(name, level)| measure(name, level, options));
    Ok(ProtocolReport { bench: "protocol", machine, rows: rows.into_iter().collect::<Result<_, _>>()? })
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

fn measure(
    name: &'static str,
    level: AuthLevel,
    options: &ProtocolOptions,
) -> Result<ProtocolRow, BenchError> {
    let mut ends = [End::new(0, level), End::new(1, level)];
    let mut frame = vec![0; FRAME_BYTES];
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    let clock = Instant::now();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    for _ in 0..options.runs {
        let (mut send_ns, mut receive_ns) = (0, 0);
        for i in 0..options.messages {
            let now = transport::Instant::from_nanos(nanos(&clock));
            let [a, b] = &mut ends;
            let (from, to) = if i % 2 == 0 { (a, b) } else { (b, a) };
            from.port.send(from.link, pair::silent(1), Payload::Copied(&[7; 8]))?;
            let Some(written) = from.port.poll_transmit(now, RAIL, &mut frame) else { continue };
            let sent = nanos(&clock);
            send_ns += sent - now.as_nanos();
            let now = transport::Instant::from_nanos(sent);
            to.port.post_receive(pair::receive(1, 8, 0), &mut to.landing)?;
            to.port.handle_frame(now, RAIL, &frame[..written.frame_bytes], &mut to.landing);
            let received = to.port.poll_event();
            debug_assert!(matches!(received, Some(Event::Received { .. })));
            if to.port.poll_timeout().is_some_and(|due| due <= now) {
                to.port.handle_timeout(now);
            }
            receive_ns += nanos(&clock) - sent;
        }
        sends.push(send_ns as f64 / options.messages as f64);
        receives.push(receive_ns as f64 / options.messages as f64);
    }
    Ok(ProtocolRow { auth: name, send_ns: Summary::of(&sends), receive_ns: Summary::of(&receives) })
}

fn nanos(clock: &Instant) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
