//! Messages of one checkpoint.

use alloc::vec::Vec;
use core::fmt;

use transport::{Epoch, PortId, Rank};

use super::Message;
use super::wire::{Reader, Wire, put_list, wire_enum, wire_struct};
use crate::error::Malformed;
use crate::limits::ENTRIES_MAX;
use crate::names::{ExitStatus, ImageDigest};

/// The origin of a request for a checkpoint. All of them only request: the coordinator alone names epochs (R1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// The interval of the job's configuration.
    Timer,
    /// A signal to the launcher or a rank.
    Signal,
    /// A person's or a program's command.
    Command,
    /// The job's time is nearly used up.
    TimeLimit,
}

wire_enum!(Source, "source of a request", { 0 => Timer {}, 1 => Signal {}, 2 => Command {}, 3 => TimeLimit {} });

/// How ranks of a job can be saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum CutMode {
    /// At any instant: the whole process is saved.
    Instant,
    /// Only at counted points of its own: a native program with registered memory.
    Counted,
}

wire_enum!(CutMode, "cut mode", { 0 => Instant {}, 1 => Counted {} });

/// Where a rank is to cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutAt {
    /// Wherever it is.
    Now,
    /// When its count of points becomes `count`.
    Point {
        /// Points passed since the program began, over all lives.
        count: u64,
    },
}

wire_enum!(CutAt, "place of a cut", { 0 => Now {}, 1 => Point { count } });

/// How many counted points a rank has passed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Point {
    /// Points passed since the program began, over all lives.
    pub count: u64,
    /// The rank.
    pub rank: Rank,
}

wire_struct!(Point, 12, { count, rank });

/// Known facts about the counts of a set of ranks; two of them add up, so that keepers can gather along the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PointSummary {
    /// Ranks that answered.
    pub ranks: u32,
    /// Those among them that have finished their work and count as having reached every point.
    pub finalizing: u32,
    /// The rank that is furthest behind; `None` if all are finalizing.
    pub least: Option<Point>,
    /// The rank that is furthest ahead; `None` if all are finalizing.
    pub most: Option<Point>,
    /// Shortest mean time between two points of one rank, in nanoseconds; `None` if no rank has passed two.
    pub interval_ns_min: Option<u64>,
}

wire_struct!(PointSummary, 11, { ranks, finalizing, least, most, interval_ns_min });

impl PointSummary {
    /// No rank yet.
    pub const NONE: PointSummary =
        PointSummary { ranks: 0, finalizing: 0, least: None, most: None, interval_ns_min: None };

    /// A rank that will pass no more points.
    pub const FINALIZING: PointSummary = PointSummary { ranks: 1, finalizing: 1, ..PointSummary::NONE };

    /// One rank that is running.
    #[must_use]
    pub fn of(point: Point, interval_ns: Option<u64>) -> PointSummary {
        PointSummary {
            ranks: 1,
            finalizing: 0,
            least: Some(point),
            most: Some(point),
            interval_ns_min: interval_ns,
        }
    }

    /// The summary of both sets.
    #[must_use]
    pub fn with(self, other: PointSummary) -> PointSummary {
        fn either<T: Ord>(a: Option<T>, b: Option<T>, choose: fn(T, T) -> T) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(choose(a, b)),
                (a, b) => a.or(b),
            }
        }
        PointSummary {
            ranks: self.ranks.saturating_add(other.ranks),
            finalizing: self.finalizing.saturating_add(other.finalizing),
            least: either(self.least, other.least, Ord::min),
            most: either(self.most, other.most, Ord::max),
            interval_ns_min: either(self.interval_ns_min, other.interval_ns_min, Ord::min),
        }
    }
}

/// Messages that an image holds, by the state in which the cut found them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MessageStates {
    /// To be sent.
    pub to_send: u64,
    /// Sent, not acknowledged.
    pub unacknowledged: u64,
    /// Sent and acknowledged, their operation not yet closed.
    pub acknowledged: u64,
    /// Received, acknowledgement not yet sent.
    pub unanswered: u64,
    /// Received and acknowledged, not yet taken by the program.
    pub delivered: u64,
}

wire_struct!(MessageStates, 40, { to_send, unacknowledged, acknowledged, unanswered, delivered });

impl MessageStates {
    /// The sums over two images.
    #[must_use]
    pub fn with(self, other: MessageStates) -> MessageStates {
        MessageStates {
            to_send: self.to_send.saturating_add(other.to_send),
            unacknowledged: self.unacknowledged.saturating_add(other.unacknowledged),
            acknowledged: self.acknowledged.saturating_add(other.acknowledged),
            unanswered: self.unanswered.saturating_add(other.unanswered),
            delivered: self.delivered.saturating_add(other.delivered),
        }
    }
}

/// The cost of a cut at a rank, and its findings. Times in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CutStatistics {
    /// From the command to the instant when the program stood.
    pub stop_ns: u64,
    /// Freezing all ports.
    pub freeze_ns: u64,
    /// Turning them and the memory into something that outlives the thaw.
    pub dump_ns: u64,
    /// Thawing, until the first frame could be sent.
    pub thaw_ns: u64,
    /// From the end of the pause until the image was durable.
    pub write_ns: u64,
    /// By how much the checkpoint before this one has delayed the program, from its cut until the generation was committed: negative, if the program
    /// computed more than usual. `None`: none was committed before in this life, or the program does not compute enough to tell.
    pub delay_ns: Option<i64>,
    /// Messages found.
    pub messages: MessageStates,
    /// Bytes of the job's standard input that the rank had read since the job began; `None`: it has none, or does not have it open.
    pub input_read: Option<u64>,
}

wire_struct!(CutStatistics, 82, { stop_ns, freeze_ns, dump_ns, thaw_ns, write_ns, delay_ns, messages, input_read });

impl CutStatistics {
    /// Nanoseconds for which the program stood.
    #[must_use]
    pub fn pause_ns(&self) -> u64 {
        self.stop_ns.saturating_add(self.freeze_ns).saturating_add(self.dump_ns).saturating_add(self.thaw_ns)
    }
}

/// The subject of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageContent {
    /// A running rank that cut on command.
    Commanded,
    /// A running rank that cut because of a frame of a higher epoch (R3).
    ByTraffic,
    /// A rank that had ended before the cut (R12): its status and its ports' final counters, written by its keeper.
    Exited {
        /// How it ended.
        status: ExitStatus,
    },
}

wire_enum!(ImageContent, "content of an image", { 0 => Commanded {}, 1 => ByTraffic {}, 2 => Exited { status } });

/// A durable image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageReport {
    /// Whose.
    pub rank: Rank,
    /// Names its content.
    pub digest: ImageDigest,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its subject.
    pub content: ImageContent,
    /// The statistics of the cut.
    pub statistics: CutStatistics,
}

wire_struct!(ImageReport, 103, { rank, digest, bytes, content, statistics });

/// Why a rank has no image of an epoch. It has raised its epoch all the same (R2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoImageReason {
    /// It had passed the point when the command came.
    PointPassed {
        /// The point named.
        point: u64,
        /// Its own count.
        count: u64,
    },
    /// It did not reach the point in time.
    PointMissed {
        /// The point named; `None` if there was none: traffic announced the cut and no command followed, or the command
        /// named none to a rank that needs one.
        point: Option<u64>,
        /// Its own count.
        count: u64,
    },
    /// It stood at its point with a message that a peer did not receive in time.
    Unreceived {
        /// Its count of points.
        count: u64,
        /// The peer.
        by: Rank,
    },
    /// It holds something that cannot be saved; the number is the shell's own, for its report.
    Unsavable {
        /// The unsavable state, by the shell's numbering.
        what: u32,
    },
    /// Writing the image failed with this `errno`.
    WriteFailed {
        /// Linux error number.
        errno: u32,
    },
    /// A later cut came while the image was being written (R3).
    Overtaken {
        /// The later cut.
        by: Epoch,
    },
    /// Its process ended while its image was being written.
    Ended {},
    /// The checkpoint had been abandoned before the rank cut.
    Abandoned {},
}

wire_enum!(NoImageReason, "reason for no image", {
    0 => PointPassed { point, count },
    1 => PointMissed { point, count },
    2 => Unsavable { what },
    3 => WriteFailed { errno },
    4 => Overtaken { by },
    5 => Ended {},
    6 => Abandoned {},
    7 => Unreceived { count, by },
});

impl fmt::Display for NoImageReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoImageReason::PointPassed { point, count } => {
                write!(f, "had passed {count} points when ordered to cut at point {point}")
            }
            NoImageReason::PointMissed { point: Some(point), count } => {
                write!(f, "was at point {count} and did not reach point {point} in time")
            }
            NoImageReason::PointMissed { point: None, count } => {
                write!(f, "was at point {count} and got no point to cut at")
            }
            NoImageReason::Unreceived { count, by } => write!(
                f,
                "stood at point {count} with a message that rank {by} did not receive in time; messages that are received only after that point have to be sent with a request (isend)"
            ),
            NoImageReason::Unsavable { what } => write!(f, "holds state that cannot be saved ({what})"),
            NoImageReason::WriteFailed { errno } => write!(f, "could not write its image (errno {errno})"),
            NoImageReason::Overtaken { by } => write!(f, "had to cut to epoch {by} while writing its image"),
            NoImageReason::Ended {} => write!(f, "ended while its image was being written"),
            NoImageReason::Abandoned {} => {
                write!(f, "got the order to abandon the checkpoint before it cut")
            }
        }
    }
}

/// Final counters of one link of a closed port (R12).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClosedLink {
    /// The port at the other end.
    pub peer: PortId,
    /// Number that the next frame to the peer would have had.
    pub next: u64,
    /// Number of the first frame that was not received.
    pub expected: u64,
}

wire_struct!(ClosedLink, 24, { peer, next, expected });

/// The final counters of a closed port, in messages that each have room for a part; the last one is marked.
/// There is one at least.
pub fn closed_port(port: PortId, links: &[ClosedLink]) -> impl Iterator<Item = Message> {
    let most = ENTRIES_MAX;
    let parts = links.len().div_ceil(most).max(1);
    (1..=parts).map(move |part| {
        let links = links[(part - 1) * most..links.len().min(part * most)].to_vec();
        Message::Closed { port, links, last: part == parts }
    })
}

/// The final counts of a closed port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClosedPort {
    /// Its id, never used again.
    pub port: PortId,
    /// Its links, in the order of their peers.
    pub links: Vec<ClosedLink>,
}

/// The record of an ended rank: the content of its image from then on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExitedRecord {
    /// How it ended.
    pub status: ExitStatus,
    /// Its ports.
    pub ports: Vec<ClosedPort>,
}

impl ExitedRecord {
    /// The bytes that the keeper's shell puts into the rank's image.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.status.put(&mut out);
        u32::try_from(self.ports.len()).unwrap_or(u32::MAX).put(&mut out);
        for port in &self.ports {
            port.port.put(&mut out);
            put_list(&port.links, &mut out);
        }
        out
    }

    /// Reads the bytes back.
    ///
    /// # Errors
    /// If they are not an output of [`ExitedRecord::emit`].
    pub fn parse(bytes: &[u8]) -> Result<ExitedRecord, Malformed> {
        use crate::limits::{CLOSED_LINKS_MAX, CLOSED_PORTS_MAX};
        let mut from = Reader::new(bytes);
        let status = ExitStatus::take(&mut from)?;
        let found = usize::try_from(u32::take(&mut from)?).unwrap_or(usize::MAX);
        if found > CLOSED_PORTS_MAX {
            return Err(Malformed::Entries { what: "closed ports", expected: CLOSED_PORTS_MAX, found });
        }
        let mut ports = Vec::new();
        for _ in 0..found {
            let port = PortId::take(&mut from)?;
            ports.push(ClosedPort { port, links: from.list("links of a closed port", CLOSED_LINKS_MAX)? });
        }
        from.end()?;
        Ok(ExitedRecord { status, ports })
    }

    /// The messages by which a rank hands a closed port to its keeper: as many as its links need.
    pub fn chunks(port: &ClosedPort) -> impl Iterator<Item = super::Message> + '_ {
        let chunks = port.links.len().div_ceil(ENTRIES_MAX).max(1);
        (0..chunks).map(move |index| {
            let first = index * ENTRIES_MAX;
            let end = (first + ENTRIES_MAX).min(port.links.len());
            super::Message::Closed {
                port: port.port,
                links: port.links[first..end].to_vec(),
                last: index + 1 == chunks,
            }
        })
    }
}
