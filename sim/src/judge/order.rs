//! Exactly once and in order.
//!
//! A *stream* is all messages of one rank to another (or to itself) over one port. Its messages are numbered by the script.
//! Of each stream the judge remembers which numbers arrived, and with which receive. When a rank cuts, its part of the books
//! is copied; when it is restored, the copy comes back.

use super::{Generation, Violation};
use crate::workload::script::{Message, Script, Style, round_and_index};

/// What arrived of one stream: for each number the receive that took it, plus one; 0 if it has not arrived.
type Arrived = Vec<u32>;

/// The judge. See the module.
#[derive(Debug)]
pub struct OrderJudge {
    ranks: u32,
    ports: u32,
    /// Messages of each stream that the whole script has.
    totals: Vec<u32>,
    /// Number of the first message of each round on each stream.
    firsts: Vec<u32>,
    arrived: Vec<Arrived>,
    saved: Vec<Saved>,
}

#[derive(Debug)]
struct Saved {
    rank: u32,
    generation: Generation,
    arrived: Vec<Arrived>,
}

impl OrderJudge {
    /// Empty books.
    #[must_use]
    pub fn new(script: &Script) -> OrderJudge {
        let streams = script.ranks * script.ranks * script.ports;
        let mut judge = OrderJudge {
            ranks: script.ranks,
            ports: script.ports,
            totals: vec![0; index(streams)],
            firsts: Vec::new(),
            arrived: vec![Vec::new(); index(streams)],
            saved: Vec::new(),
        };
        for number in 0..script.round_count() {
            let before = judge.totals.clone();
            for from in 0..script.ranks {
                let mut n = 0;
                while let Some(message) = script.nth_send(number, from, n) {
                    let stream = judge.stream(from, message.to, script.round(number).port);
                    judge.totals[stream] += 1;
                    n += 1;
                }
            }
            judge.firsts.extend(before);
        }
        for (arrived, total) in judge.arrived.iter_mut().zip(&judge.totals) {
            arrived.resize(index(*total), 0);
        }
        judge
    }

    fn stream(&self, from: u32, to: u32, port: u32) -> usize {
        index((to * self.ranks + from) * self.ports + port)
    }

    fn streams_to(&self, rank: u32) -> std::ops::Range<usize> {
        let per_rank = index(self.ranks * self.ports);
        index(rank) * per_rank..(index(rank) + 1) * per_rank
    }

    /// The number of a message within its stream.
    #[must_use]
    pub fn serial(&self, script: &Script, message: &Message) -> u32 {
        let stream = self.stream(message.from, message.to, script.round(message.round).port);
        self.firsts[index(message.round) * self.totals.len() + stream] + message.index
    }

    /// The program of `to` was given a message by the receive that it posted as number `post`.
    ///
    /// # Errors
    /// If it was given before, is none of the script's, or overtook another.
    pub fn delivered(
        &mut self,
        script: &Script,
        [from, to, port]: [u32; 3],
        tag: u64,
        post: u64,
    ) -> Result<(), Violation> {
        let (round, number) = round_and_index(tag);
        let unknown = Violation::UnknownMessage { rank: to, from, tag };
        if round >= script.round_count() || script.round(round).port != port {
            return Err(unknown);
        }
        let stream = self.stream(from, to, port);
        let first = self.firsts[index(round) * self.totals.len() + stream];
        let Some(next_round) = self.totals.get(stream).map(|total| {
            let at = (index(round) + 1) * self.totals.len() + stream;
            self.firsts.get(at).copied().unwrap_or(*total)
        }) else {
            return Err(unknown);
        };
        let serial = first + number;
        if serial >= next_round {
            return Err(unknown);
        }
        let taken_by = u32::try_from(post + 1).unwrap_or(u32::MAX);
        let arrived = &mut self.arrived[stream];
        if arrived[index(serial)] != 0 {
            return Err(Violation::Twice { rank: to, from, port, serial });
        }
        arrived[index(serial)] = taken_by;
        if matches!(script.round(round).style, Style::Exact { .. }) {
            return Ok(());
        }
        // Every receive of the round could have taken every message of the stream in that round: the earlier message
        // belongs to the earlier receive.
        let before = &arrived[index(first)..index(serial)];
        let after = &arrived[index(serial) + 1..index(next_round)];
        let in_order = before.iter().all(|other| *other == 0 || *other < taken_by)
            && after.iter().all(|other| *other == 0 || *other > taken_by);
        if in_order { Ok(()) } else { Err(Violation::Overtaken { rank: to, from, port, serial }) }
    }

    /// `rank` has taken its cut for `generation`.
    pub fn cut(&mut self, rank: u32, generation: Generation) {
        let arrived = self.arrived[self.streams_to(rank)].to_vec();
        self.saved.push(Saved { rank, generation, arrived });
    }

    /// `rank` runs again from `generation`, or (`None`) from its start.
    pub fn restored(&mut self, rank: u32, generation: Option<Generation>) {
        let streams = self.streams_to(rank);
        let saved = generation
            .and_then(|wanted| self.saved.iter().rfind(|s| s.rank == rank && s.generation == wanted));
        match saved {
            Some(saved) => self.arrived[streams].clone_from_slice(&saved.arrived),
            None => self.arrived[streams].iter_mut().for_each(|arrived| arrived.fill(0)),
        }
    }

    /// What `rank` had received at its cut for `generation`: highest number plus one, per (sender, port).
    #[must_use]
    pub fn received_at_cut(&self, rank: u32, generation: Generation, from: u32, port: u32) -> Option<u32> {
        let saved = self.saved.iter().rfind(|s| s.rank == rank && s.generation == generation)?;
        let arrived = &saved.arrived[index(from * self.ports + port)];
        let last = arrived.iter().rposition(|taken| *taken != 0);
        Some(last.map_or(0, |at| u32::try_from(at + 1).unwrap_or(u32::MAX)))
    }

    /// At the end of a history every message must have arrived.
    ///
    /// # Errors
    /// The first that did not.
    pub fn finished(&self) -> Result<(), Violation> {
        for to in 0..self.ranks {
            for from in 0..self.ranks {
                for port in 0..self.ports {
                    let arrived = &self.arrived[self.stream(from, to, port)];
                    if let Some(at) = arrived.iter().position(|taken| *taken == 0) {
                        let serial = u32::try_from(at).unwrap_or(u32::MAX);
                        return Err(Violation::Missing { rank: to, from, port, serial });
                    }
                }
            }
        }
        Ok(())
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
