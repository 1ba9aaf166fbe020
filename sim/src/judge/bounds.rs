//! Memory bounds: every table and queue of a port stays within its named bound, whatever its peers do.

use transport::config::{ANNOUNCED_MAX, EVENTS_MAX, INCOMING_MAX, PENDING_MESSAGES_MAX, WINDOW_FRAMES_MAX};
use transport::{FrozenPort, Port, PortConfig};

use super::Violation;

/// The judge: what one port of a job may hold.
#[derive(Clone, Copy, Debug)]
pub struct BoundsJudge {
    links: u64,
    unexpected_bytes: u64,
    unexpected_entries: u64,
    reorder_bytes: u64,
    copied_bytes: u64,
    posted: u64,
}

/// What, how much was found, how much there may be.
type Found = (&'static str, u64, u64);

impl BoundsJudge {
    /// For ports with these settings in a job of `ranks` ranks.
    #[must_use]
    pub fn new(config: &PortConfig, ranks: u32) -> BoundsJudge {
        let links = u64::from(ranks);
        BoundsJudge {
            links,
            // R17: beyond the bound a peer may still send what it was promised before.
            unexpected_bytes: config.unexpected_bytes_max as u64
                + links * u64::from(config.link_window_bytes),
            unexpected_entries: config.unexpected_entries_max as u64,
            reorder_bytes: config.reorder_bytes_max as u64,
            copied_bytes: config.link_copied_bytes_max as u64,
            posted: config.posted_max as u64,
        }
    }

    /// A port between two steps: what can be asked at any time for nothing.
    ///
    /// # Errors
    /// The first bound that does not hold.
    pub fn running(&self, rank: u32, port: &Port) -> Result<(), Violation> {
        within(
            rank,
            [
                ("unexpected bytes", port.unexpected_bytes() as u64, self.unexpected_bytes),
                ("bytes out of turn", port.reorder_bytes() as u64, self.reorder_bytes),
                ("links", port.links() as u64, self.links),
            ],
        )
    }

    /// A frozen port: everything that it holds.
    ///
    /// # Errors
    /// The first bound that does not hold.
    pub fn frozen(&self, rank: u32, port: &FrozenPort) -> Result<(), Violation> {
        within(
            rank,
            [
                ("unexpected messages", port.waiting_len() as u64, self.unexpected_entries),
                ("posted receives", port.posted_len() as u64, self.posted),
                ("completions", port.completions().count() as u64, EVENTS_MAX as u64),
            ],
        )?;
        for queues in port.links().filter_map(|link| link.queues()) {
            let (first, second) = queues.copied();
            within(
                rank,
                [
                    ("frames in flight", queues.sent().len() as u64, WINDOW_FRAMES_MAX),
                    ("copied bytes", (first.len() + second.len()) as u64, self.copied_bytes),
                    ("messages to be sent", queues.pending().len() as u64, PENDING_MESSAGES_MAX as u64),
                    ("payloads going out", queues.streams().len() as u64, ANNOUNCED_MAX as u64),
                    ("payloads coming in", queues.incoming().len() as u64, INCOMING_MAX as u64),
                ],
            )?;
        }
        Ok(())
    }
}

fn within<const N: usize>(rank: u32, found: [Found; N]) -> Result<(), Violation> {
    match found.into_iter().find(|(_, found, max)| found > max) {
        Some((what, found, max)) => Err(Violation::Bound { rank, what: what.to_owned(), found, max }),
        None => Ok(()),
    }
}
