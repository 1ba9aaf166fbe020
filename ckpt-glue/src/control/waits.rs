//! What ranks wait for, as they report it to a person's question.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use transport::Rank;

use super::wire::{wire_enum, wire_struct};
use crate::limits::{OWED_LINKS_MAX, WAITS_PER_RANK_MAX};

/// What an open operation of a rank waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitKind {
    /// A receive, or a probe that waits: no message has come for it.
    Receive,
    /// A receive that was given a message, of which a part is missing.
    Arrival,
    /// A send that has found no room on its link.
    Room,
    /// A long send that the receiver knows of, and has posted no receive for.
    Match,
    /// A send that has not been acknowledged.
    Delivery,
    /// A message of a collective operation.
    Collective,
    /// A read or write of the peer's memory.
    Memory,
    /// The end of the program: every other rank has to come to it.
    Finish,
    /// The launcher's answer over PMI, which it has when every other rank has asked as well.
    Launcher,
}

wire_enum!(WaitKind, "kind of a wait", {
    0 => Receive {},
    1 => Arrival {},
    2 => Room {},
    3 => Match {},
    4 => Delivery {},
    5 => Collective {},
    6 => Memory {},
    7 => Finish {},
    8 => Launcher {},
});

/// An open operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// What it waits for.
    pub kind: WaitKind,
    /// Whose act it waits for; `None`: any rank's, or every other one's ([`WaitKind::Finish`], [`WaitKind::Launcher`]).
    pub peer: Option<Rank>,
    /// Names it within its rank: the same number is the same operation.
    pub op: u64,
    /// The tag of its message.
    pub tag: u64,
    /// Bits of the tag that may differ.
    pub ignore: u64,
    /// Bytes of its message; of a receive without one, those that it has room for, as far as there is a buffer.
    pub bytes: u64,
    /// It began at least so many nanoseconds ago.
    pub age_ns: u64,
}

wire_struct!(Wait, 42, { kind, peer, op, tag, ignore, bytes, age_ns });

/// A link on which a peer owes acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwedLink {
    /// The peer.
    pub peer: Rank,
    /// Frames that it has not acknowledged.
    pub frames: u64,
    /// Nanoseconds since it was heard, or since it owes them, if that is less.
    pub silent_ns: u64,
    /// The link carries nothing more (R10).
    pub is_broken: bool,
}

wire_struct!(OwedLink, 21, { peer, frames, silent_ns, is_broken });

/// How a rank was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// It has answered.
    Answered {
        /// The program stands in a call that waits.
        in_call: bool,
        /// A thread sleeps until a message comes.
        sleeps: bool,
        /// Grows with every look of the program for messages.
        looks: u64,
        /// Grows with every operation and every waiting call that begins.
        begun: u64,
    },
    /// It has answered that a thread has held the gate of one of its ports for so long, in nanoseconds.
    GateHeld {
        /// How long it was tried.
        tried_ns: u64,
    },
    /// It has not come up, or is a program that exchanges no messages.
    NotAttached,
    /// It has ended as it should.
    Ended,
    /// Its process is gone.
    Dead,
    /// It has not answered for so long, in nanoseconds, says its keeper.
    Silent {
        /// How long its keeper has waited.
        waited_ns: u64,
    },
    /// Its keeper has not answered for so long, says the coordinator.
    KeeperSilent {
        /// How long the coordinator has waited.
        waited_ns: u64,
    },
}

wire_enum!(Found, "state of a rank", {
    0 => Answered { in_call, sleeps, looks, begun },
    1 => GateHeld { tried_ns },
    2 => NotAttached {},
    3 => Ended {},
    4 => Dead {},
    5 => Silent { waited_ns },
    6 => KeeperSilent { waited_ns },
});

/// What one rank waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankReport {
    /// The rank.
    pub rank: Rank,
    /// How it was found.
    pub found: Found,
    /// Its open operations, at most [`WAITS_PER_RANK_MAX`], the oldest first.
    pub waits: Vec<Wait>,
    /// Further open operations.
    pub more_waits: u32,
    /// Links on which peers owe acknowledgements, at most [`OWED_LINKS_MAX`], the longest silence first.
    pub links: Vec<OwedLink>,
    /// Further ones.
    pub more_links: u32,
}

wire_struct!(RankReport, 21, { rank, found, waits, more_waits, links, more_links });

impl RankReport {
    /// Of a rank that others speak for.
    #[must_use]
    pub fn of(rank: Rank, found: Found) -> RankReport {
        RankReport { rank, found, waits: Vec::new(), more_waits: 0, links: Vec::new(), more_links: 0 }
    }

    /// Leaves what a message has no room for to the counts.
    #[must_use]
    pub fn bounded(mut self) -> RankReport {
        fn cut<T>(list: &mut Vec<T>, most: usize, more: &mut u32) {
            let cut = u32::try_from(list.len().saturating_sub(most)).unwrap_or(u32::MAX);
            *more = more.saturating_add(cut);
            list.truncate(most);
        }
        cut(&mut self.waits, WAITS_PER_RANK_MAX, &mut self.more_waits);
        cut(&mut self.links, OWED_LINKS_MAX, &mut self.more_links);
        self
    }
}
