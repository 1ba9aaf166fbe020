//! Exactly once and in order.
//!
//! A *stream* is all messages of one rank to another (or to itself) over one port. Its messages are numbered by the script.
//! Of each stream the judge remembers which numbers arrived, and with which receive: a book per process. When a rank cuts,
//! its book is copied; the process that is restored from that cut begins with the copy.

use super::{Generation, Violation};
use crate::workload::script::{Script, Style, round_and_index};

/// Arrivals at one process: for each message of its streams the receive that took it, plus one; 0 if it has not arrived.
type Book = Vec<u32>;

/// The judge. See the module.
#[derive(Debug)]
pub struct OrderJudge {
    ranks: u32,
    ports: u32,
    /// Messages of each stream that the whole script has.
    totals: Vec<u32>,
    /// Where each stream begins in the book of its receiver.
    places: Vec<u32>,
    /// Number of the first message of each round on each stream.
    firsts: Vec<u32>,
    /// By process; empty once it is gone.
    books: Vec<Book>,
    saved: Vec<(u32, Generation, Book)>,
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
            places: Vec::new(),
            firsts: Vec::with_capacity(index(streams * script.rounds_with_reserve())),
            books: Vec::new(),
            saved: Vec::new(),
        };
        for number in 0..script.rounds_with_reserve() {
            judge.firsts.extend_from_slice(&judge.totals);
            let port = script.round(number).port;
            for from in 0..script.ranks {
                for to in 0..script.ranks {
                    let stream = judge.stream(from, to, port);
                    judge.totals[stream] += script.messages(number, from, to);
                }
            }
        }
        for rank in 0..script.ranks {
            let mut place = 0;
            for stream in judge.streams_to(rank) {
                judge.places.push(place);
                place += judge.totals[stream];
            }
        }
        judge
    }

    fn stream(&self, from: u32, to: u32, port: u32) -> usize {
        index((to * self.ranks + from) * self.ports + port)
    }

    /// Messages of a stream before `round`.
    fn before(&self, stream: usize, round: u32) -> u32 {
        let first = self.firsts.get(index(round) * self.totals.len() + stream);
        first.copied().unwrap_or(self.totals[stream])
    }

    fn streams_to(&self, rank: u32) -> std::ops::Range<usize> {
        let per_rank = index(self.ranks * self.ports);
        index(rank) * per_rank..(index(rank) + 1) * per_rank
    }

    /// The receive that `process` posted as number `post` was given a message: `[from, to, port]`.
    ///
    /// # Errors
    /// If it was given before, is none of the script's, or overtook another.
    pub fn delivered(
        &mut self,
        script: &Script,
        process: u32,
        [from, to, port]: [u32; 3],
        tag: u64,
        post: u64,
    ) -> Result<(), Violation> {
        let (round, number) = round_and_index(tag);
        let unknown = Violation::UnknownMessage { rank: to, from, tag };
        if round >= script.round_count() || script.round(round).port != port || from >= self.ranks {
            return Err(unknown);
        }
        let stream = self.stream(from, to, port);
        let (first, next_round) = (self.before(stream, round), self.before(stream, round + 1));
        let serial = first + number;
        if serial >= next_round {
            return Err(unknown);
        }
        let taken_by = u32::try_from(post + 1).unwrap_or(u32::MAX);
        let place = self.places[stream];
        let Some(book) = self.books.get_mut(index(process)) else { return Err(unknown) };
        let of_round = &mut book[index(place + first)..index(place + next_round)];
        let at = index(number);
        if of_round[at] != 0 {
            return Err(Violation::Twice { rank: to, from, port, serial });
        }
        of_round[at] = taken_by;
        if matches!(script.round(round).style, Style::Exact { .. }) {
            return Ok(());
        }
        // Every receive of the round could have taken every message of the stream in that round: the earlier message
        // belongs to the earlier receive.
        let in_order = of_round[..at].iter().all(|other| *other == 0 || *other < taken_by)
            && of_round[at + 1..].iter().all(|other| *other == 0 || *other > taken_by);
        if in_order { Ok(()) } else { Err(Violation::Overtaken { rank: to, from, port, serial }) }
    }

    /// `process` of `rank` has taken its cut for `generation`.
    pub fn cut(&mut self, process: u32, rank: u32, generation: Generation) {
        if let Some(book) = self.books.get(index(process)) {
            self.saved.push((rank, generation, book.clone()));
        }
    }

    /// `process` runs `rank` from `generation`, or (`None`) from its start.
    pub fn restored(&mut self, process: u32, rank: u32, generation: Option<Generation>) {
        let saved = generation.and_then(|wanted| self.find(rank, wanted)).cloned();
        let book = saved.unwrap_or_else(|| {
            let total: u32 = self.totals[self.streams_to(rank)].iter().sum();
            vec![0; index(total)]
        });
        let at = index(process);
        if self.books.len() <= at {
            self.books.resize(at + 1, Book::new());
        }
        self.books[at] = book;
    }

    fn find(&self, rank: u32, generation: Generation) -> Option<&Book> {
        let saved = self.saved.iter().rfind(|(r, g, _)| *r == rank && *g == generation);
        saved.map(|(_, _, book)| book)
    }

    /// Messages that `rank` had received at its cut for `generation` on one stream: highest number plus one.
    #[must_use]
    pub fn received_at_cut(&self, rank: u32, generation: Generation, from: u32, port: u32) -> Option<u32> {
        let book = self.find(rank, generation)?;
        let stream = self.stream(from, rank, port);
        let place = self.places[stream];
        let arrived = &book[index(place)..index(place + self.totals[stream])];
        let last = arrived.iter().rposition(|taken| *taken != 0);
        Some(last.map_or(0, |at| u32::try_from(at + 1).unwrap_or(u32::MAX)))
    }

    /// `process` of `rank` is the one that finished the history, after `rounds` rounds: every message must have arrived.
    ///
    /// # Errors
    /// The first that did not.
    pub fn finished(&self, process: u32, rank: u32, rounds: u32) -> Result<(), Violation> {
        let Some(book) = self.books.get(index(process)) else { return Ok(()) };
        for from in 0..self.ranks {
            for port in 0..self.ports {
                let stream = self.stream(from, rank, port);
                let place = index(self.places[stream]);
                let wanted = &book[place..place + index(self.before(stream, rounds))];
                if let Some(missing) = wanted.iter().position(|taken| *taken == 0) {
                    let serial = u32::try_from(missing).unwrap_or(u32::MAX);
                    return Err(Violation::Missing { rank, from, port, serial });
                }
            }
        }
        Ok(())
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
