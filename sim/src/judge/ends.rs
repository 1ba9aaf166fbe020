//! Nothing is left behind: when the program is over, no port has an operation that is open, and every frame that carried
//! something has been counted at the other end.

use transport::FrozenPort;
use transport::port::state::{Control, SentBody};

use super::Violation;

/// How a link was left.
#[derive(Clone, Copy, Debug)]
struct LinkLeft {
    peer: u32,
    port: u64,
    /// Frames up to here carried something that is waited for.
    sent: u64,
    /// Frames before this one have been counted.
    counted: u64,
}

/// The judge of the final ports of the ranks that have ended well.
#[derive(Debug)]
pub struct EndsJudge {
    /// `None`: it runs, or was killed when everybody had finished, or never ran.
    ranks: Vec<Option<Vec<LinkLeft>>>,
}

fn left(what: String) -> Violation {
    Violation::Leftover { what }
}

impl EndsJudge {
    /// For a job of `ranks` ranks.
    #[must_use]
    pub fn new(ranks: u32) -> EndsJudge {
        EndsJudge { ranks: vec![None; usize::try_from(ranks).unwrap_or(0)] }
    }

    /// A process of `rank` begins: how an earlier one ended does not matter any more.
    pub fn begins(&mut self, rank: u32) {
        if let Some(of_rank) = self.ranks.get_mut(usize::try_from(rank).unwrap_or(usize::MAX)) {
            *of_rank = None;
        }
    }

    /// `rank` ends because everybody has finished; these are its ports.
    ///
    /// # Errors
    /// The first thing that is still open.
    pub fn ended(&mut self, rank: u32, ports: &[FrozenPort]) -> Result<(), Violation> {
        let mut links = Vec::new();
        for port in ports {
            let open = [
                ("posted receives", port.posted_len()),
                ("messages that nobody asked for", port.waiting_len()),
                ("completions that nobody polled", port.completions().count()),
                ("sends", port.sends().iter().filter(|send| !send.envelope.silent).count()),
            ];
            if let Some((what, n)) = open.into_iter().find(|(_, n)| *n > 0) {
                return Err(left(format!("{n} {what} at port {} of rank {rank}", port.id())));
            }
            for link in port.links() {
                let acked = link.next() - link.queues().map_or(0, |queues| queues.sent().count() as u64);
                let mut sent = acked;
                if let Some(queues) = link.queues() {
                    let waits = queues.pending().len() + queues.streams().len() + queues.incoming().len();
                    let cts_frames = queues.control().filter(|c| !matches!(c, Control::Cts { total: 0, .. }));
                    if waits + cts_frames.count() > 0 || queues.open().is_some() {
                        let (port, peer) = (port.id(), link.peer());
                        return Err(left(format!(
                            "something unsent or half received at {port}, from or for {peer}"
                        )));
                    }
                    // The CTS of an empty message is not waited for.
                    let carries = |body: &SentBody| !matches!(body, SentBody::Cts { total: 0, .. });
                    let last = queues.sent().enumerate().filter(|(_, frame)| carries(&frame.body)).last();
                    sent = last.map_or(acked, |(place, _)| acked + place as u64 + 1);
                }
                let port = port.id().0 & 0xffff_ffff;
                links.push(LinkLeft { peer: link.peer().rank().0, port, sent, counted: link.expected() });
            }
        }
        if let Some(of_rank) = self.ranks.get_mut(usize::try_from(rank).unwrap_or(usize::MAX)) {
            *of_rank = Some(links);
        }
        Ok(())
    }

    /// The job is over.
    ///
    /// # Errors
    /// The first frame that was sent and never counted.
    pub fn over(&self) -> Result<(), Violation> {
        for (from, links) in (0..).zip(&self.ranks) {
            for link in links.iter().flatten() {
                let other = self.ranks.get(usize::try_from(link.peer).unwrap_or(usize::MAX));
                let Some(Some(ends)) = other else { continue };
                let end = ends.iter().find(|end| end.peer == from && end.port == link.port);
                let counted = end.map_or(0, |end| end.counted);
                if counted < link.sent {
                    let (sent, to) = (link.sent, link.peer);
                    return Err(left(format!(
                        "frames {counted} to {sent} from rank {from} were never counted by rank {to}"
                    )));
                }
            }
        }
        Ok(())
    }
}
