//! Memory bounds: every table and queue of a port, a keeper and the coordinator stays within its named bound, for any
//! behaviour of their peers.

use ckpt_glue::Keeper;
use ckpt_glue::control::JobStatus;
use transport::config::{ANNOUNCED_MAX, EVENTS_MAX, INCOMING_MAX, PENDING_MESSAGES_MAX, WINDOW_FRAMES_MAX};
use transport::port::Arrived;
use transport::{FrozenPort, Port, PortConfig};

use super::Violation;

/// The judge of the bounds on one port of a job.
#[derive(Clone, Copy, Debug)]
pub struct BoundsJudge {
    links: u64,
    unexpected_bytes: u64,
    unexpected_entries: u64,
    reorder_bytes: u64,
    copied_bytes: u64,
    posted: u64,
}

/// Name, found amount, and limit of a bounded quantity.
type Found = (&'static str, u64, u64);

impl BoundsJudge {
    /// For ports with these settings in a job of `ranks` ranks.
    #[must_use]
    pub fn new(config: &PortConfig, ranks: u32) -> BoundsJudge {
        let links = u64::from(ranks);
        BoundsJudge {
            links,
            // R17: beyond the bound a peer may still send as much as it was promised before.
            unexpected_bytes: config.unexpected_bytes_max as u64
                + links * u64::from(config.link_window_bytes),
            unexpected_entries: config.unexpected_entries_max as u64 * (4 + links) / 4,
            reorder_bytes: config.reorder_bytes_max as u64,
            copied_bytes: config.link_copied_bytes_max as u64,
            posted: config.posted_max as u64,
        }
    }

    /// Checks a port between two steps, by figures that cost nothing to read at any time.
    ///
    /// # Errors
    /// The first bound that does not hold.
    pub fn running(&self, rank: u32, port: &Port) -> Result<(), Violation> {
        let whose = || format!("rank {rank}");
        within(
            whose,
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
        let whose = || format!("rank {rank}");
        let waiting = port.unexpected().chain(port.claimed());
        let copied =
            waiting.filter(|(_, message)| matches!(message.payload, Arrived::Copied(_))).count() as u64;
        within(
            whose,
            [
                ("unexpected messages", copied, self.unexpected_entries),
                ("announced messages", port.waiting_len() as u64 - copied, self.links * ANNOUNCED_MAX as u64),
                ("posted receives", port.posted_len() as u64, self.posted),
                ("completions", port.completions().count() as u64, EVENTS_MAX as u64),
            ],
        )?;
        for queues in port.links().filter_map(|link| link.queues()) {
            let (first, second) = queues.copied();
            within(
                whose,
                [
                    ("frames in flight", queues.sent().count() as u64, WINDOW_FRAMES_MAX),
                    ("copied bytes", (first.len() + second.len()) as u64, self.copied_bytes),
                    ("messages to be sent", queues.pending().len() as u64, PENDING_MESSAGES_MAX as u64),
                    ("payloads going out", queues.streams().len() as u64, ANNOUNCED_MAX as u64),
                    ("payloads coming in", queues.incoming().len() as u64, INCOMING_MAX as u64),
                ],
            )?;
        }
        Ok(())
    }

    /// The keeper of a node.
    ///
    /// # Errors
    /// The first bound that does not hold.
    pub fn keeper(node: u32, keeper: &Keeper) -> Result<(), Violation> {
        let Some(tables) = keeper.tables() else { return Ok(()) };
        within(|| format!("node {node}"), tables.map(|t| (t.name, t.entries as u64, t.entries_max as u64)))
    }

    /// The coordinator: its other tables have an entry for each rank, by rank.
    ///
    /// # Errors
    /// The first bound that does not hold.
    pub fn coordinator(status: &JobStatus) -> Result<(), Violation> {
        let ranks = u64::from(status.ranks);
        let counts = [
            ("ranks that run", u64::from(status.running), ranks),
            ("ranks that have finished", u64::from(status.finalizing), ranks),
        ];
        within(|| "coordinator".to_owned(), counts)
    }
}

fn within<const N: usize>(whose: impl Fn() -> String, found: [Found; N]) -> Result<(), Violation> {
    match found.into_iter().find(|(_, found, max)| found > max) {
        Some((what, found, max)) => {
            Err(Violation::Bound { whose: whose(), what: what.to_owned(), found, max })
        }
        None => Ok(()),
    }
}
