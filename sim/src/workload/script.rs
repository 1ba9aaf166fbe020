//! The work of a history's ranks, round by round: derived from the seed, known to all of them.

use crate::engine::queue::{MICRO, Nanos};
use crate::engine::random::{Random, mix};
use crate::limits::RANKS_SMALL_MAX;

/// Senders and receivers of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// To the rank that is so many further.
    Shift(u32),
    /// To each of so many next ranks.
    Near(u32),
    /// To every other rank.
    All,
    /// To every rank, oneself included.
    AllAndSelf,
    /// All others to one.
    Gather(u32),
    /// One to all others.
    Scatter(u32),
    /// Only to oneself.
    SelfOnly,
}

/// How receives name their messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Source and tag; posted in another order than sent if `reversed`.
    Exact {
        /// Last message first.
        reversed: bool,
    },
    /// From anybody, any message of the round.
    AnySource,
    /// From a named source, the next message.
    AnyTag,
}

/// When receives are posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posting {
    /// Before the round's sends.
    First,
    /// After them, and after a computation: messages that arrive earlier are unexpected.
    Late,
}

/// One round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    /// Senders and receivers.
    pub shape: Shape,
    /// How receives name their messages.
    pub style: Style,
    /// When they are posted.
    pub posting: Posting,
    /// Messages from each sender to each of its receivers.
    pub burst: u32,
    /// Longest message, in bytes.
    pub bytes_max: u32,
    /// Which of the ranks' ports is used.
    pub port: u32,
    /// Computing before each part of the round, at most.
    pub compute_ns_max: Nanos,
    /// The round ends only when its sends have been received.
    pub settles: bool,
}

/// A message of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Round.
    pub round: u32,
    /// Sender.
    pub from: u32,
    /// Receiver.
    pub to: u32,
    /// Number among the messages of the round from this sender to this receiver.
    pub index: u32,
    /// Length in bytes.
    pub bytes: u32,
    /// The payload stays in the sender's buffer (rendezvous) instead of being copied.
    pub from_user_buffer: bool,
}

impl Message {
    /// Tag on the wire: round and index.
    #[must_use]
    pub fn tag(&self) -> u64 {
        tag(self.round, self.index)
    }
}

/// By this much the messages of a round from one rank to another are fewer in a large job.
const FAN_LARGE: u32 = 8;
/// Of a hundred rounds of a large job between all pairs, so many stay such.
const DENSE_PERCENT: u64 = 2;

/// Bits of a tag that number the messages of one round.
pub const INDEX_BITS: u32 = 16;

/// Tag of message `index` of a round.
#[must_use]
pub fn tag(round: u32, index: u32) -> u64 {
    u64::from(round) << INDEX_BITS | u64::from(index)
}

/// Round and index of a tag.
#[must_use]
pub fn round_and_index(tag: u64) -> (u32, u32) {
    let round = u32::try_from(tag >> INDEX_BITS).unwrap_or(u32::MAX);
    (round, u32::try_from(tag & ((1 << INDEX_BITS) - 1)).unwrap_or(0))
}

/// The whole program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// Ranks of the job.
    pub ranks: u32,
    /// Ports of each rank.
    pub ports: u32,
    /// Longest message that is copied (eager), in bytes.
    pub copied_bytes_max: u32,
    /// The rounds, those in reserve included.
    pub rounds: Vec<Round>,
    /// Rounds that are run; the others are a reserve for [`Script::lengthen`].
    pub end: u32,
    /// Mixed into every length and content.
    pub salt: u64,
}

/// The size of a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Messages of all ranks together, at least.
    pub messages_min: u32,
    /// Messages of further rounds, for a history in which not everything has happened when the program would end.
    pub messages_reserved: u32,
    /// Longest eager message, in bytes.
    pub copied_bytes_max: u32,
    /// Longest message of all, in bytes.
    pub bytes_max: u32,
}

impl Script {
    /// A script for `ranks` ranks with `ports` ports each.
    #[must_use]
    pub fn generate(random: &mut Random, ranks: u32, ports: u32, size: Size) -> Script {
        let mut script = Script {
            ranks,
            ports,
            copied_bytes_max: size.copied_bytes_max,
            rounds: Vec::with_capacity(128),
            end: 0,
            salt: random.bits(),
        };
        let mut messages = 0;
        while messages < size.messages_min + size.messages_reserved {
            if messages < size.messages_min {
                script.end += 1;
            }
            let round = round(random, ranks, ports, size);
            messages += (0..ranks).map(|rank| script.sends_in(&round, rank)).sum::<u32>();
            script.rounds.push(round);
        }
        script
    }

    /// Takes a round out of the reserve, if there is one. Only while no rank has gone through all rounds before it.
    pub fn lengthen(&mut self) {
        self.end = (self.end + 1).min(self.rounds_with_reserve());
    }

    fn edge(&self, shape: Shape, from: u32, to: u32) -> bool {
        match shape {
            Shape::Shift(by) => (from + by) % self.ranks == to,
            Shape::Near(ranks) => (1..=ranks).contains(&((to + self.ranks - from) % self.ranks)),
            Shape::All => from != to,
            Shape::AllAndSelf => true,
            Shape::Gather(root) => to == root && from != root,
            Shape::Scatter(root) => from == root && to != root,
            Shape::SelfOnly => from == to,
        }
    }

    /// The n-th rank that `rank` sends to (or, with `receiving`, receives from) in `round`.
    fn nth_partner(&self, round: &Round, rank: u32, n: u32, receiving: bool) -> Option<u32> {
        // Starting behind oneself, so that not everybody floods rank 0 first.
        let candidates = (1..=self.ranks).map(|step| (rank + step) % self.ranks);
        let wanted = |other: &u32| {
            if receiving {
                self.edge(round.shape, *other, rank)
            } else {
                self.edge(round.shape, rank, *other)
            }
        };
        candidates.filter(wanted).nth(usize::try_from(n).unwrap_or(usize::MAX))
    }

    fn partners(&self, round: &Round, rank: u32, receiving: bool) -> u32 {
        let count = |other: &u32| {
            if receiving {
                self.edge(round.shape, *other, rank)
            } else {
                self.edge(round.shape, rank, *other)
            }
        };
        u32::try_from((0..self.ranks).filter(count).count()).unwrap_or(0)
    }

    fn sends_in(&self, round: &Round, rank: u32) -> u32 {
        self.partners(round, rank, false) * round.burst
    }

    /// Messages that `rank` sends in round number `round`.
    #[must_use]
    pub fn sends(&self, round: u32, rank: u32) -> u32 {
        self.sends_in(self.round(round), rank)
    }

    /// Messages that `rank` receives in round number `round`.
    #[must_use]
    pub fn receives(&self, round: u32, rank: u32) -> u32 {
        let round = self.round(round);
        self.partners(round, rank, true) * round.burst
    }

    /// Round number `round`; it must exist.
    #[must_use]
    pub fn round(&self, round: u32) -> &Round {
        &self.rounds[usize::try_from(round).unwrap_or(usize::MAX)]
    }

    /// Number of rounds that are run.
    #[must_use]
    pub fn round_count(&self) -> u32 {
        self.end
    }

    /// Number of rounds, those in reserve included.
    #[must_use]
    pub fn rounds_with_reserve(&self) -> u32 {
        u32::try_from(self.rounds.len()).unwrap_or(u32::MAX)
    }

    /// The n-th message that `rank` sends in round number `number`, receivers taking turns; `None` behind the last.
    #[must_use]
    pub fn nth_send(&self, number: u32, rank: u32, n: u32) -> Option<Message> {
        let round = self.round(number);
        let partners = self.partners(round, rank, false);
        if partners == 0 || n >= partners * round.burst {
            return None;
        }
        let to = self.nth_partner(round, rank, n % partners, false)?;
        Some(self.message(number, rank, to, n / partners))
    }

    /// Message `index` of round number `number` from `from` to `to`: its length follows from the salt.
    #[must_use]
    pub fn message(&self, number: u32, from: u32, to: u32, index: u32) -> Message {
        let round = self.round(number);
        let name = u64::from(number) << 40 | u64::from(from) << 28 | u64::from(to) << 16 | u64::from(index);
        let draw = mix(self.salt ^ mix(name));
        let bytes = u32::try_from((draw >> 8) % u64::from(round.bytes_max + 1)).unwrap_or(0);
        let from_user_buffer = bytes > self.copied_bytes_max || (bytes > 0 && draw & 0xff < 16);
        Message { round: number, from, to, index, bytes, from_user_buffer }
    }

    /// The request of `rank`'s n-th receive in round number `number`; `None` behind the last.
    #[must_use]
    pub fn nth_receive(&self, number: u32, rank: u32, n: u32) -> Option<Wanted> {
        let round = self.round(number);
        let partners = self.partners(round, rank, true);
        let total = partners * round.burst;
        if n >= total {
            return None;
        }
        let all_of_round = (1 << INDEX_BITS) - 1;
        Some(match round.style {
            Style::Exact { reversed } => {
                let n = if reversed { total - 1 - n } else { n };
                let source = self.nth_partner(round, rank, n % partners, true)?;
                Wanted { source: Some(source), tag: tag(number, n / partners), ignore: 0 }
            }
            Style::AnySource => Wanted { source: None, tag: tag(number, 0), ignore: all_of_round },
            Style::AnyTag => {
                let source = self.nth_partner(round, rank, n % partners, true)?;
                Wanted { source: Some(source), tag: 0, ignore: u64::MAX }
            }
        })
    }

    /// Messages of round number `number` from one rank to another.
    #[must_use]
    pub fn messages(&self, number: u32, from: u32, to: u32) -> u32 {
        let round = self.round(number);
        if self.edge(round.shape, from, to) { round.burst } else { 0 }
    }
}

/// The request of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Sender; `None`: anybody.
    pub source: Option<u32>,
    /// Tag.
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
}

/// In a large job a round between all pairs would be the whole program: nearly all of them reach a few neighbours only.
fn sparse(random: &mut Random, shape: Shape) -> Shape {
    let is_dense = matches!(shape, Shape::All | Shape::AllAndSelf);
    let near = 1 + u32::try_from(random.below(3)).unwrap_or(0);
    if is_dense && !random.percent(DENSE_PERCENT) { Shape::Near(near) } else { shape }
}

fn round(random: &mut Random, ranks: u32, ports: u32, size: Size) -> Round {
    let root = u32::try_from(random.below(u64::from(ranks))).unwrap_or(0);
    let shape = match random.below(16) {
        0..5 => Shape::Shift(1 + u32::try_from(random.below(u64::from(ranks.max(2) - 1))).unwrap_or(0)),
        5..10 => Shape::All,
        10..12 => Shape::AllAndSelf,
        12..14 => Shape::Gather(root),
        14 => Shape::Scatter(root),
        _ => Shape::SelfOnly,
    };
    let style = match random.below(4) {
        0 => Style::Exact { reversed: true },
        1 => Style::Exact { reversed: false },
        2 => Style::AnySource,
        _ => Style::AnyTag,
    };
    let bytes_max = match random.below(8) {
        0..3 => 64.min(size.copied_bytes_max),
        3..6 => size.copied_bytes_max,
        _ => size.bytes_max,
    };
    let shape = if ranks > RANKS_SMALL_MAX { sparse(random, shape) } else { shape };
    let fan = match shape {
        Shape::Shift(_) if ranks > RANKS_SMALL_MAX => FAN_LARGE,
        Shape::Shift(_) | Shape::SelfOnly => 1,
        Shape::Near(near) => FAN_LARGE * near,
        _ => ranks,
    };
    // All ranks of a large job send at once: so that as many frames take as long as in a small one, they compute for longer.
    let slower = if ranks > RANKS_SMALL_MAX { u64::from(ranks / 4) } else { 1 };
    let burst = u32::try_from(random.log_between(1, 32)).unwrap_or(1).min(32 / fan).max(1);
    Round {
        shape,
        style,
        posting: if random.percent(40) { Posting::Late } else { Posting::First },
        burst,
        bytes_max,
        port: u32::try_from(random.below(u64::from(ports))).unwrap_or(0),
        compute_ns_max: if random.percent(75) {
            slower * random.log_between(2 * MICRO, 600 * MICRO)
        } else {
            0
        },
        settles: random.percent(30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every message has exactly one receive that can take it, in every style.
    #[test]
    fn sends_and_receives_of_a_round_agree() {
        for seed in 0..40 {
            let size =
                Size { messages_min: 300, messages_reserved: 0, copied_bytes_max: 256, bytes_max: 2000 };
            let script =
                Script::generate(&mut Random::new(seed), 2 + u32::try_from(seed % 4).unwrap(), 2, size);
            for number in 0..script.round_count() {
                for to in 0..script.ranks {
                    let sent: u32 = (0..script.ranks)
                        .flat_map(|from| (0..script.sends(number, from)).map(move |n| (from, n)))
                        .filter(|(from, n)| script.nth_send(number, *from, *n).unwrap().to == to)
                        .count()
                        .try_into()
                        .unwrap();
                    assert_eq!(sent, script.receives(number, to), "round {number} rank {to}");
                    assert!((0..sent).all(|n| script.nth_receive(number, to, n).is_some()));
                    assert_eq!(script.nth_receive(number, to, sent), None);
                }
            }
        }
    }

    #[test]
    fn tags_carry_round_and_index() {
        assert_eq!(round_and_index(tag(77, 31)), (77, 31));
    }
}
