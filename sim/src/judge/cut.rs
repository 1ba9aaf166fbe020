//! A consistent cut: no orphan, no loss.
//!
//! Two independent counts are compared for each committed generation. Messages: those that programs handed over and were given, by this judge's own
//! books. Frames: the counts of both ends of each link in the port sections of the images.

use super::{Generation, Violation};
use crate::workload::Script;

/// One end of a link as an image has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkEnd {
    /// Rank at the other end.
    pub peer: u32,
    /// Port of both ranks.
    pub port: u32,
    /// Oldest frame not cumulatively acknowledged.
    pub acked: u64,
    /// Number of the next frame to be sent.
    pub next: u64,
    /// Frames that are held for sending again: must be `next - acked`.
    pub held: u64,
    /// Number of the next frame to be counted.
    pub expected: u64,
}

#[derive(Debug)]
struct Saved {
    rank: u32,
    generation: Generation,
    /// Messages handed over so far, per (receiver, port).
    sent: Vec<u32>,
    links: Vec<LinkEnd>,
}

/// The judge. See the module.
#[derive(Debug)]
pub struct CutJudge {
    ranks: u32,
    ports: u32,
    /// Messages handed over so far, per process, by (receiver, port).
    sent: Vec<Vec<u32>>,
    saved: Vec<Saved>,
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl CutJudge {
    /// Empty books.
    #[must_use]
    pub fn new(script: &Script) -> CutJudge {
        CutJudge { ranks: script.ranks, ports: script.ports, sent: Vec::new(), saved: Vec::new() }
    }

    /// The program of `process` handed a message over.
    pub fn handed_over(&mut self, process: u32, to: u32, port: u32) {
        let at = index(to * self.ports + port);
        if let Some(sent) = self.sent.get_mut(index(process)).and_then(|sent| sent.get_mut(at)) {
            *sent += 1;
        }
    }

    /// `process` of `rank` has taken its cut; `links` are those of its image.
    pub fn cut(&mut self, process: u32, rank: u32, generation: Generation, links: Vec<LinkEnd>) {
        let sent = self.sent.get(index(process)).cloned().unwrap_or_default();
        self.saved.push(Saved { rank, generation, sent, links });
    }

    /// `process` runs `rank` from `generation`, or (`None`) from its start.
    pub fn restored(&mut self, process: u32, rank: u32, generation: Option<Generation>) {
        let saved = generation.and_then(|wanted| self.find(rank, wanted)).map(|saved| saved.sent.clone());
        let at = index(process);
        if self.sent.len() <= at {
            self.sent.resize(at + 1, Vec::new());
        }
        self.sent[at] = saved.unwrap_or_else(|| vec![0; index(self.ranks * self.ports)]);
    }

    fn find(&self, rank: u32, generation: Generation) -> Option<&Saved> {
        self.saved.iter().rfind(|saved| saved.rank == rank && saved.generation == generation)
    }

    /// Messages handed over before the cut by `from` to `to` over `port`.
    fn sent_at(&self, generation: Generation, from: u32, to: u32, port: u32) -> Option<u32> {
        self.find(from, generation).map(|saved| saved.sent[index(to * self.ports + port)])
    }

    /// `generation` has been committed. `received` gives how many messages the receiver had been given before its cut,
    /// by the highest number: `(to, from, port)`.
    ///
    /// # Errors
    /// The first link with an orphan or a loss.
    pub fn committed(
        &self,
        generation: Generation,
        received: impl Fn(u32, u32, u32) -> Option<u32>,
    ) -> Result<(), Violation> {
        for from in 0..self.ranks {
            for to in 0..self.ranks {
                for port in 0..self.ports {
                    let sent = self.sent_at(generation, from, to, port);
                    let taken = received(to, from, port);
                    if let (Some(sent), Some(taken)) = (sent, taken)
                        && taken > sent
                    {
                        let (sent, received) = (u64::from(sent), u64::from(taken));
                        return Err(Violation::Orphan { generation, from, to, sent, received });
                    }
                    self.frames(generation, from, to, port)?;
                }
            }
        }
        Ok(())
    }

    /// Compares both ends of the link that carries frames of `from` to `to`.
    fn frames(&self, generation: Generation, from: u32, to: u32, port: u32) -> Result<(), Violation> {
        let end = |of: u32, peer: u32| {
            let links = &self.find(of, generation)?.links;
            links.iter().find(|link| link.peer == peer && link.port == port).copied()
        };
        let (sender, receiver) = (end(from, to), end(to, from));
        let received = receiver.map_or(0, |end| end.expected);
        let next = sender.map_or(0, |end| end.next);
        let acknowledged = sender.map_or(0, |end| end.acked);
        if received > next {
            return Err(Violation::Orphan { generation, from, to, sent: next, received });
        }
        let held = sender.map_or(0, |end| end.held);
        if acknowledged > received || acknowledged + held < next {
            return Err(Violation::Lost { generation, from, to, acknowledged, received });
        }
        Ok(())
    }
}
