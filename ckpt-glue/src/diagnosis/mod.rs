//! Why a job hangs: who waits for whom, from what its ranks report of their open operations.
//!
//! Ranks are asked twice ([`Collection`]). Nothing stops them, so two reports are of two instants. A rank *waits* only if it
//! has the same open operations in both answers and has begun no other in between. All waits of a diagnosis therefore held
//! at one instant between the two questions.
//!
//! A rank knows its open operations, and only a native program also the one that it needs next. So the graph is an AND/OR
//! graph, which is read in favour of the program:
//!
//! * a rank with several open operations may go on when *any* of them completes;
//! * a receive from any source may be completed by *any* other rank;
//! * a rank that has finished, or stands at a barrier of PMI, needs *all* others.
//!
//! A rank can go on if it waits for nothing, or if what it waits for can go on. All others are stuck. A set of stuck ranks
//! that wait for each other, and for nobody else (a *knot*), is a deadlock: no message of anybody can end it. Other stuck
//! ranks wait, perhaps through others, for a knot, for a rank that does not answer or has ended, or for a link that has lost
//! its peer. Those are the causes that a diagnosis lists.

mod collection;
mod graph;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use serde::{Deserialize, Serialize};
use transport::Rank;

use crate::control::{Found, RankReport, WaitKind};
use crate::limits::FINDINGS_MAX;
pub use collection::{Collection, Step};
use graph::Graph;

/// The answers to one question, by rank.
pub type Reports = BTreeMap<Rank, RankReport>;

/// What a rank is doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankState {
    /// It waits for an open operation, or for a message of any rank.
    Waiting,
    /// It does not look for messages: it computes.
    Computing,
    /// It begins and completes operations.
    Communicating,
    /// It has not come up, or exchanges no messages.
    NotAttached,
    /// It has ended as it should.
    Ended,
    /// Its process is gone.
    Dead,
    /// A thread in it holds the gate of a port.
    GateHeld,
    /// It does not answer.
    Silent,
    /// Its node daemon does not answer.
    NodeSilent,
}

impl RankState {
    /// Whether it can go on without another rank.
    fn is_free(self) -> bool {
        matches!(self, RankState::Computing | RankState::Communicating | RankState::NotAttached)
    }

    /// Whether nothing is known of what it does.
    fn is_silent(self) -> bool {
        matches!(self, RankState::Dead | RankState::GateHeld | RankState::Silent | RankState::NodeSilent)
    }

    /// Whether it has answered for itself.
    fn has_answered(self) -> bool {
        matches!(self, RankState::Waiting | RankState::Computing | RankState::Communicating)
    }
}

/// An open operation of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenWait {
    /// What it waits for.
    #[serde(rename = "for")]
    pub kind: WaitKind,
    /// Whose act it waits for; `None`: any rank's, or every other one's.
    pub peer: Option<u32>,
    /// The tag of its message.
    pub tag: u64,
    /// Bits of the tag that may differ.
    pub ignore: u64,
    /// Bytes of its message, or of its buffer.
    pub bytes: u64,
    /// It began at least so many milliseconds ago.
    pub ms: u64,
}

/// A link on which a peer owes acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwingPeer {
    /// The peer.
    pub peer: u32,
    /// Frames that it has not acknowledged.
    pub frames: u64,
    /// Milliseconds since it was heard, or since it owes them, if that is less.
    pub silent_ms: u64,
    /// The link carries nothing more.
    pub is_broken: bool,
}

/// One rank of a diagnosed job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiagnosedRank {
    /// The rank.
    pub rank: u32,
    /// What it is doing.
    pub state: RankState,
    /// Its open operations, the oldest first. A rank that computes may have some, too.
    pub waits: Vec<OpenWait>,
    /// Further open operations.
    pub more_waits: u32,
    /// Links on which peers owe acknowledgements.
    pub links: Vec<OwingPeer>,
    /// Further ones.
    pub more_links: u32,
}

/// Why ranks wait.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum Cause {
    /// These ranks wait for each other, and for nobody else: none can ever go on.
    Deadlock {
        /// All of them.
        ranks: Vec<u32>,
        /// Some of them, each of which waits for the next, and the last for the first.
        cycle: Vec<u32>,
    },
    /// Nothing is known of what a rank does.
    Silent {
        /// The rank.
        rank: u32,
        /// [`RankState::Dead`], [`RankState::GateHeld`], [`RankState::Silent`] or [`RankState::NodeSilent`].
        state: RankState,
        /// For how long an answer was waited for.
        waited_ms: u64,
    },
    /// A link has frames that its peer, which runs, does not acknowledge.
    LostLink {
        /// The rank that has sent them.
        from: u32,
        /// The peer.
        to: u32,
        /// Frames.
        frames: u64,
        /// Milliseconds since the peer was heard, or since it owes an acknowledgement.
        silent_ms: u64,
        /// The counters of both ends contradict each other: nothing more is sent.
        is_broken: bool,
    },
    /// A rank has ended that others wait for.
    Ended {
        /// The rank.
        rank: u32,
    },
    /// A rank waits for nothing while others wait for it.
    Straggler {
        /// The rank.
        rank: u32,
    },
    /// These ranks wait for each other, but each has another open operation, or waits through another, that may still complete.
    CircularWait {
        /// All of them.
        ranks: Vec<u32>,
        /// Some of them, each of which waits for the next, and the last for the first.
        cycle: Vec<u32>,
    },
}

impl Cause {
    /// Proven causes come first; a circular wait may be none.
    fn order(&self) -> u8 {
        match self {
            Cause::Deadlock { .. } => 0,
            Cause::Silent { .. } => 1,
            Cause::LostLink { .. } => 2,
            Cause::Ended { .. } => 3,
            Cause::Straggler { .. } => 4,
            Cause::CircularWait { .. } => 5,
        }
    }

    /// Orders causes that are alike.
    fn first_rank(&self) -> u32 {
        match self {
            Cause::Deadlock { ranks, .. } | Cause::CircularWait { ranks, .. } => {
                ranks.first().copied().unwrap_or(0)
            }
            Cause::Silent { rank, .. } | Cause::Ended { rank } | Cause::Straggler { rank } => *rank,
            Cause::LostLink { from, .. } => *from,
        }
    }
}

/// A cause, and the ranks that wait for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The cause.
    #[serde(flatten)]
    pub cause: Cause,
    /// Ranks that wait for it and are no part of it, directly or through others; some of many, the nearest.
    pub waiting: Vec<u32>,
    /// How many there are.
    pub waiting_total: u32,
}

/// Who waits for whom, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Causes, cycles first, then ranks that do not answer; of one kind, the one that most ranks wait for.
    pub findings: Vec<Finding>,
    /// Further ones.
    pub more_findings: u32,
    /// All ranks.
    pub each_rank: Vec<DiagnosedRank>,
}

impl Diagnosis {
    /// Of `ranks` ranks that were asked twice. A rank without an answer counts as one whose node daemon has not answered.
    #[must_use]
    pub fn new(ranks: u32, first: &Reports, second: &Reports) -> Diagnosis {
        let each_rank: Vec<DiagnosedRank> =
            (0..ranks).map(|rank| diagnosed(rank, first.get(&Rank(rank)), second.get(&Rank(rank)))).collect();
        let mut findings = Graph::new(&each_rank, first).findings(|rank| waited_ms(second.get(&Rank(rank))));
        findings.sort_by_key(|finding| {
            (finding.cause.order(), Reverse(finding.waiting_total), finding.cause.first_rank())
        });
        let more = findings.len().saturating_sub(FINDINGS_MAX);
        findings.truncate(FINDINGS_MAX);
        Diagnosis { findings, more_findings: u32::try_from(more).unwrap_or(u32::MAX), each_rank }
    }
}

fn diagnosed(rank: u32, first: Option<&RankReport>, second: Option<&RankReport>) -> DiagnosedRank {
    let state = second.map_or(RankState::NodeSilent, |second| state(first, second));
    let ms = |ns: u64| ns / 1_000_000;
    let waits = second.map_or(&[][..], |report| &report.waits);
    let links = second.map_or(&[][..], |report| &report.links);
    DiagnosedRank {
        rank,
        state,
        waits: waits
            .iter()
            .map(|wait| OpenWait {
                kind: wait.kind,
                peer: wait.peer.map(|peer| peer.0),
                tag: wait.tag,
                ignore: wait.ignore,
                bytes: wait.bytes,
                ms: ms(wait.age_ns),
            })
            .collect(),
        more_waits: second.map_or(0, |report| report.more_waits),
        links: links
            .iter()
            .map(|link| OwingPeer {
                peer: link.peer.0,
                frames: link.frames,
                silent_ms: ms(link.silent_ns),
                is_broken: link.is_broken,
            })
            .collect(),
        more_links: second.map_or(0, |report| report.more_links),
    }
}

fn state(first: Option<&RankReport>, second: &RankReport) -> RankState {
    let (in_call, sleeps, looks, begun) = match second.found {
        Found::Answered { in_call, sleeps, looks, begun } => (in_call, sleeps, looks, begun),
        Found::GateHeld { .. } => return RankState::GateHeld,
        Found::NotAttached => return RankState::NotAttached,
        Found::Ended => return RankState::Ended,
        Found::Dead => return RankState::Dead,
        Found::Silent { .. } => return RankState::Silent,
        Found::KeeperSilent { .. } => return RankState::NodeSilent,
    };
    let Some((first, Found::Answered { looks: looked, begun: had_begun, .. })) =
        first.map(|first| (first, first.found))
    else {
        // It has answered one of two questions.
        return RankState::Communicating;
    };
    let same = first.more_waits == second.more_waits
        && first
            .waits
            .iter()
            .map(|wait| (wait.kind, wait.peer, wait.op))
            .eq(second.waits.iter().map(|wait| (wait.kind, wait.peer, wait.op)));
    if begun != had_begun || !same {
        RankState::Communicating
    } else if in_call || sleeps || looks != looked {
        RankState::Waiting
    } else {
        RankState::Computing
    }
}

fn waited_ms(report: Option<&RankReport>) -> u64 {
    match report.map(|report| report.found) {
        Some(
            Found::GateHeld { tried_ns: ns }
            | Found::Silent { waited_ns: ns }
            | Found::KeeperSilent { waited_ns: ns },
        ) => ns / 1_000_000,
        _ => 0,
    }
}
