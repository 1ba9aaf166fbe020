//! Control messages between coordinator, keepers and ranks, beside the data.
//!
//! One control frame on a stream (a Unix socket, a TCP connection), little-endian:
//!
//! | at | bytes | field   | meaning                                                                             |
//! |----|-------|---------|-------------------------------------------------------------------------------------|
//! | 0  | 4     | length  | bytes that follow this field, at most `limits::CONTROL_BYTES_MAX`                   |
//! | 4  | 2     | magic   | 0x4c43, rejects a stray connection                                                  |
//! | 6  | 1     | version | this layout is 1                                                                    |
//! | 7  | 1     | zero    | must be 0                                                                           |
//! | 8  | 16    | job     | [`JobId`]                                                                           |
//! | 24 | 12    | life    | of the sender: counter, nonce; not equal to ours: dropped (R7)                  |
//! | 36 | 4     | epoch   | of the sender                                                                       |
//! | 40 | 5     | sender  | role (0 coordinator, 1 keeper, 2 rank, 3 tool) and its number                       |
//! | 45 | 3     | zero    | must be 0                                                                           |
//! | 48 | 8     | number  | of this frame on its connection, from 1; one that is not above the last is a replay |
//! | 56 | 16    | tag     | AEGIS-128L MAC over bytes 0..56 and the body                                        |
//! | 72 | ..    | body    | one byte for the kind, then the message's fields in order                           |
//!
//! Fields: integers as they are, `bool` and the presence of an option as one byte 0 or 1, variants as one byte, lists as
//! a 32-bit count and their entries. Each value has exactly one encoding, so `emit(parse(frame)) == frame`.

pub mod checkpoint;
mod display;
pub mod life;
mod nic;
pub mod stream;
mod waits;
pub(crate) mod wire;

use alloc::vec::Vec;

use transport::{Epoch, JobId, Life, PortId, Rank};

pub use checkpoint::{
    ClosedLink, ClosedPort, CutAt, CutMode, CutStatistics, ExitedRecord, ImageContent, ImageReport,
    MessageStates, NoImageReason, Point, PointSummary, Source, closed_port,
};
pub use life::{Decision, FaultReport, JobPhase, JobStatus, NewLife, PortEntry, Registration, Watch};
pub use nic::{BoundedText, NicText, Reason};
pub use stream::{ControlKey, ControlReader, ControlWriter};
pub use waits::{Found, OwedLink, RankReport, Wait, WaitKind};

use crate::names::{ExitStatus, GenerationId, NodeIndex, Party};
use crate::pmi::{Answer, RankState, Request};
use wire::wire_enum;

/// A control message with its common fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Control {
    /// The job.
    pub job: JobId,
    /// The sender's life. R7: checked for equality before anything else is looked at.
    pub life: Life,
    /// The sender's epoch.
    pub epoch: Epoch,
    /// The sender.
    pub sender: Party,
    /// Its contents.
    pub message: Message,
}

/// The life of a sender that belongs to none: a keeper before its first life, a tool.
pub const NO_LIFE: Life = Life { counter: 0, nonce: 0 };

/// The contents. The arrows show sender and receiver: C coordinator, K keeper, R rank, T tool; `^` is up the tree, `v`
/// down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    // --- a life begins -------------------------------------------------------------------------------------------------
    /// K -> C, straight: a keeper is there and runs nothing.
    KeeperHello {
        /// Its node.
        node: NodeIndex,
    },
    /// C -> K, straight: all lives with a counter below this one are over; end their processes (R9).
    Fence {
        /// Counter of the life to come.
        counter: u32,
        /// Whether the launcher has begun no life yet, so that a keeper which remembers none has forgotten nothing. Not for one on a host that has just got its
        /// node's place.
        first: bool,
    },
    /// K -> C, straight: all processes of those lives are dead here, and none will be started.
    Fenced {
        /// As in the question.
        counter: u32,
        /// The keeper's node.
        node: NodeIndex,
        /// Whether the keeper remembers all messages since the job's beginning: a keeper that was started anew may have
        /// given its vote to another coordinator before, so it has no vote until a decision has reached it.
        votes: bool,
    },
    /// C v K: begin this life. Sent in the name of the new life.
    NewLife {
        /// Decision, layout, heartbeats.
        new_life: NewLife,
    },
    /// K -> C, at once: the fence has come, and the processes are being ended, which may take its time. [`Message::Fenced`] follows.
    Ending {
        /// The counter of the fence.
        counter: u32,
        /// The sender.
        node: NodeIndex,
    },
    /// R -> K: the rank has come up.
    Hello {
        /// The new rank, and its addresses.
        registration: Registration,
    },
    /// K ^ C: ports of ranks that have come up; several messages for many.
    Registered {
        /// Their ports.
        ports: Vec<PortEntry>,
        /// Ranks that are complete with this message.
        ranks: u32,
    },
    /// C v R: ports of the job; several messages for many.
    Addresses {
        /// The ports.
        ports: Vec<PortEntry>,
    },
    /// C v R: the address table is complete; run.
    Start {
        /// The epoch in which the life begins.
        epoch: Epoch,
        /// The generation that has been restored, or none.
        restore: Option<GenerationId>,
        /// Ports in the table: a rank that has another number is missing some.
        ports: u32,
    },
    /// R ^ C: the program runs. Keepers add up.
    Running {
        /// How many ranks.
        ranks: u32,
        /// Those among them that can be saved only at counted points.
        counted: u32,
    },
    /// K ^ C, once for each part of the tree: a rank has begun to connect, and waits for all others.
    Connecting {
        /// The first.
        rank: Rank,
    },
    /// K ^ C, once for each part of the tree: a rank of a new program has ended well, and has not connected.
    Left {
        /// The first.
        rank: Rank,
    },
    // --- a checkpoint --------------------------------------------------------------------------------------------------
    /// R, T -> C: requests a checkpoint.
    Request {
        /// The party that asked for it.
        source: Source,
    },
    /// C v R: how many points have you passed?
    PointQuery {
        /// Number of the question within the life.
        query: u32,
    },
    /// R ^ C: the answer. Keepers add up.
    PointReport {
        /// The question.
        query: u32,
        /// The counts.
        summary: PointSummary,
    },
    /// C v R: cut to this epoch.
    Cut {
        /// The epoch, named by the coordinator alone (R1).
        epoch: Epoch,
        /// Where.
        at: CutAt,
        /// Nanoseconds after which the image is not wanted any more.
        time_left_ns: u64,
    },
    /// R -> K: the rank has raised its epoch: because of traffic (R3), before the command came; or for an image that is being
    /// written, so that the keeper knows an end that comes before the image for one after the cut.
    CutSeen {
        /// Its new epoch.
        epoch: Epoch,
    },
    /// R -> K: the image is durable.
    ImageDone {
        /// The cut that it holds.
        epoch: Epoch,
        /// The image.
        report: ImageReport,
    },
    /// K ^ C: images that are durable; several messages for many.
    Images {
        /// The cut that they hold.
        epoch: Epoch,
        /// The images.
        reports: Vec<ImageReport>,
    },
    /// R ^ C, at once: a rank has raised its epoch without an image (R2).
    NoImage {
        /// The cut.
        epoch: Epoch,
        /// The rank.
        rank: Rank,
        /// Why.
        reason: NoImageReason,
    },
    /// R -> K, before [`Message::NoImage`]: why, for people.
    Unsaved {
        /// In words.
        reason: Reason,
    },
    /// C v R: the epoch will never be committed. Raise to it if you have not, and drop its image.
    Abandon {
        /// The epoch.
        epoch: Epoch,
    },
    /// C v R: the generation is durable.
    Committed {
        /// Its epoch.
        epoch: Epoch,
    },
    // --- faults --------------------------------------------------------------------------------------------------------
    /// R, K ^ C, at once: something went wrong.
    Fault {
        /// Its name.
        report: FaultReport,
    },
    /// C v R: a rank has ended, and the job goes on without it (R37).
    RankLost {
        /// The rank.
        rank: Rank,
        /// How it has ended.
        status: ExitStatus,
    },
    /// K ^ C: I am there, and so are these; how long may my ranks run?
    Heartbeat {
        /// Keepers that are there, in the sender's part of the tree.
        keepers: u32,
        /// The instant of the question, on the sender's clock.
        asked_ns: u64,
    },
    /// C v K: a majority is there. So long after the question your ranks may run (R31).
    Lease {
        /// The instant of the question, as asked.
        asked_ns: u64,
        /// Nanoseconds.
        left_ns: u64,
    },
    /// C -> K, straight: are you there (R33)?
    Probe {
        /// Of the question.
        number: u64,
    },
    /// K -> C, straight, at once.
    ProbeAnswer {
        /// As asked.
        number: u64,
        /// The sender's node.
        node: NodeIndex,
    },
    // --- ends ----------------------------------------------------------------------------------------------------------
    /// R -> K: a port has closed; these are its final counters (R12). Several messages for many links.
    Closed {
        /// The port.
        port: PortId,
        /// Its links.
        links: Vec<ClosedLink>,
        /// Whether this was the last part.
        last: bool,
    },
    /// R -> K of the port's rank: asks for the final counters of a closed port towards ours.
    ClosedQuery {
        /// The closed port.
        port: PortId,
        /// Our port.
        peer: PortId,
    },
    /// K -> R that asked.
    ClosedAnswer {
        /// The closed port.
        port: PortId,
        /// The asker's port.
        peer: PortId,
        /// The final counters; `None` if that port is not closed, or never heard of the asker's.
        link: Option<ClosedLink>,
    },
    /// R ^ C: finished its work, waits for all others. Keepers add up.
    Finalize {
        /// How many ranks.
        ranks: u32,
    },
    /// C v R: all have finished; end.
    FinalizeDone,
    /// K ^ C: all processes of this part of the tree have ended as they should.
    Ended {
        /// How many ranks.
        ranks: u32,
        /// A status that is not success, if there is one.
        status: ExitStatus,
    },
    // --- PMI ---
    /// R -> K: a PMI request of the rank's program, for the keeper's server.
    PmiRequest {
        /// The request.
        request: Request,
    },
    /// K -> R that asked.
    PmiAnswer {
        /// The answer.
        answer: Answer,
    },
    /// R -> K: the rank's PMI state when it was saved (R26). Several messages for a long one.
    PmiState {
        /// A part of it.
        part: RankState,
        /// Whether this is the last part.
        last: bool,
    },
    // --- NICs ---
    /// R -> K: over which NIC the rank reaches other hosts, for people.
    Nic {
        /// In words.
        words: NicText,
    },
    /// C -> R: reach other hosts over this NIC from now on.
    HandOver {
        /// The number of this wish, for the answer.
        number: u64,
        /// The NIC, as a person names it.
        nic: NicText,
    },
    /// R -> C: it does, or why not. It has reported the NIC before.
    HandedOver {
        /// The number of the wish.
        number: u64,
        /// Why not; empty: it does.
        refused: NicText,
    },
    /// C -> R: open this NIC beside the present one, and report its addresses (R29).
    OpenRail {
        /// The number of the change.
        number: u64,
        /// The NIC, as a person names it.
        nic: NicText,
        /// Also if the rail could go on over it at its address.
        anew: bool,
    },
    /// R -> C: it is open, or why not.
    RailOpened {
        /// The number of the change.
        number: u64,
        /// Nothing was opened: the rail can go on over it at its address.
        in_place: bool,
        /// Its ports, and where they are after the change, on the new rail last.
        ports: Vec<PortEntry>,
        /// Why not; empty: it is.
        refused: NicText,
    },
    /// C -> R: where all ports are after the change; several messages for many.
    MeetRails {
        /// The number of the change.
        number: u64,
        /// The ports.
        ports: Vec<PortEntry>,
        /// Whether this was the last part.
        last: bool,
    },
    /// R -> C: all are reached there, and nothing needs the old rail any more; or why not.
    RailsMet {
        /// The number of the change.
        number: u64,
        /// Why not; empty: so it is.
        refused: NicText,
    },
    /// C -> R: close one of the two. [`Message::HandedOver`] reports that the old one is closed.
    ChangeRails {
        /// The number of the change.
        number: u64,
        /// The old one, and the NIC of the new one is the rank's from now on; `false`: the new one, and all is as it was.
        decided: bool,
    },
    /// R -> C: its rail to other hosts has died, and its address with it.
    RailLost {
        /// The NIC that was opened, in words.
        words: NicText,
    },
    // --- questions of people -------------------------------------------------------------------------------------------
    /// T -> C: asks for the job's status.
    StatusQuery,
    /// C -> T.
    StatusReport {
        /// The answer.
        status: JobStatus,
    },
    /// C v R: what do you wait for?
    WaitQuery {
        /// Number of the question.
        query: u32,
        /// Nanoseconds after which the answer is of no use any more.
        time_left_ns: u64,
    },
    /// R ^ C: the answers; several messages for many. Keepers name ranks that have not answered in time.
    WaitReports {
        /// The question.
        query: u32,
        /// The answers.
        reports: Vec<RankReport>,
    },
}

wire_enum!(Message, "kind of message", {
    1 => KeeperHello { node },
    2 => Fence { counter, first },
    3 => Fenced { counter, node, votes },
    4 => NewLife { new_life },
    5 => Hello { registration },
    6 => Registered { ports, ranks },
    7 => Addresses { ports },
    8 => Start { epoch, restore, ports },
    9 => Running { ranks, counted },
    10 => Connecting { rank },
    11 => Left { rank },
    12 => Ending { counter, node },
    16 => Request { source },
    17 => PointQuery { query },
    18 => PointReport { query, summary },
    19 => Cut { epoch, at, time_left_ns },
    20 => CutSeen { epoch },
    21 => ImageDone { epoch, report },
    22 => Images { epoch, reports },
    23 => NoImage { epoch, rank, reason },
    24 => Abandon { epoch },
    25 => Committed { epoch },
    26 => Unsaved { reason },
    32 => Fault { report },
    33 => Heartbeat { keepers, asked_ns },
    34 => Lease { asked_ns, left_ns },
    35 => Probe { number },
    36 => ProbeAnswer { number, node },
    40 => RankLost { rank, status },
    48 => Closed { port, links, last },
    49 => ClosedQuery { port, peer },
    50 => ClosedAnswer { port, peer, link },
    51 => Finalize { ranks },
    52 => FinalizeDone {},
    53 => Ended { ranks, status },
    56 => PmiRequest { request },
    57 => PmiAnswer { answer },
    58 => PmiState { part, last },
    60 => Nic { words },
    61 => HandOver { number, nic },
    62 => HandedOver { number, refused },
    64 => StatusQuery {},
    65 => StatusReport { status },
    68 => OpenRail { number, nic, anew },
    69 => RailOpened { number, in_place, ports, refused },
    70 => MeetRails { number, ports, last },
    71 => RailsMet { number, refused },
    72 => ChangeRails { number, decided },
    73 => RailLost { words },
    74 => WaitQuery { query, time_left_ns },
    75 => WaitReports { query, reports },
});
