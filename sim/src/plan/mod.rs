//! The plan of a history: everything that is not the machines' own doing, as plain data.
//!
//! [`generate`] draws a plan from a seed; scenarios write one by hand.

mod generate;

pub use generate::{draw, generate};

use crate::engine::queue::Nanos;
use crate::network::NetworkConditions;

/// Clocks of a plan: one for each node that a history can have.
pub(crate) const NODES: usize = crate::limits::NODES_MAX as usize;

/// When something of the plan happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// At this virtual time.
    At(Nanos),
    /// When the history has delivered so many frames: early or late in it, however long it takes.
    Frames(u64),
    /// So long after the `nth` (from 0) time that the moment comes.
    On {
        /// The moment.
        moment: Moment,
        /// How many earlier ones are passed over.
        nth: u32,
        /// Virtual time after it.
        after: Nanos,
    },
}

/// Moments of the machines that a plan can wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// A rank has frozen its ports.
    Frozen,
    /// A rank runs again and its image is being written.
    Dumping,
    /// A rank's image is durable, and its keeper is about to be informed.
    Saved,
    /// The coordinator has asked for the commit record.
    Committing,
    /// The nodes have reported what they have, before a life after a fault.
    Surveyed,
    /// The decision about a new life after a fault is durable.
    Decided,
    /// A rank's process of a later life has been started and is being restored.
    Restoring,
}

/// Which rank or node an action is about: a number, or the cause of the moment that the action waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// This one.
    Number(u32),
    /// The cause of the moment; 0 without one.
    Cause,
    /// Another than the cause of the moment: so many further.
    Other(u32),
}

/// Reactions of a job to faults, as a policy file would have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reactions {
    /// The defaults.
    Usual,
    /// The node of any fault is to leave.
    Moving,
    /// Nodes that are lost are waited for.
    Waiting,
    /// A fault whose node cannot leave ends the job.
    Ending,
    /// The job goes on without ranks that have died (R37).
    Ignoring,
}

impl Reactions {
    /// All of them, with their names.
    pub const ALL: [(&str, Reactions); 5] = [
        ("usual", Reactions::Usual),
        ("moving", Reactions::Moving),
        ("waiting", Reactions::Waiting),
        ("ending", Reactions::Ending),
        ("ignoring", Reactions::Ignoring),
    ];

    /// The name in scenarios.
    #[must_use]
    pub fn name(self) -> &'static str {
        Reactions::ALL.iter().find(|(_, reactions)| *reactions == self).map_or("", |(name, _)| name)
    }
}

/// Something that is done to the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A request for a checkpoint. A `patient` user waits a little until the job runs and the checkpoint before is
    /// over.
    Checkpoint {
        /// Whether to wait.
        patient: bool,
    },
    /// A rank's process dies.
    CrashProcess(Which),
    /// A node loses power; it is back after `down`.
    CrashNode {
        /// The node.
        node: Which,
        /// Time until it runs again.
        down: Nanos,
    },
    /// The launcher dies; an operator starts the job again after `down`.
    KillLauncher {
        /// The keepers on other nodes do not see it: their connections stay half open.
        cut_off: bool,
        /// Until the job is started again.
        down: Nanos,
    },
    /// The keeper of a node stands still: it is stopped, or waits for a disk.
    StopKeeper {
        /// The node.
        node: u32,
        /// For how long.
        lasts: Nanos,
    },
    /// Messages of control to and from the host of a node are held up, until it is over. Of no effect on the launcher's own.
    CutOff {
        /// The node.
        node: u32,
        /// For how long.
        lasts: Nanos,
    },
    /// A person says that a node is failing: another host is to take its place.
    Suspect {
        /// The node.
        node: u32,
    },
    /// A rank goes on elsewhere while the others run (R13).
    Move {
        /// The rank.
        rank: u32,
        /// For how long it stands still.
        lasts: Nanos,
    },
    /// A node's own directory is lost for good, and the node loses power; it is back, empty, after `down`. If the newest committed generation would not
    /// survive that by what its commit has promised, the node only loses power.
    DestroyNode {
        /// The node.
        node: u32,
        /// Time until it runs again.
        down: Nanos,
    },
    /// The head node loses power in the middle of a write: at the changing operation after so many further ones.
    PowerLoss {
        /// Changing operations until then.
        after: u64,
        /// Time until it runs again.
        down: Nanos,
    },
    /// Frames between two nodes are dropped (and within a node, if they are the same).
    Partition {
        /// One node.
        one: u32,
        /// The other.
        other: u32,
        /// For how long.
        lasts: Nanos,
    },
    /// The NICs of one rail of one rank's ports die; new ones are opened after `lasts`.
    RailDown {
        /// The rank.
        rank: u32,
        /// The rail.
        rail: u32,
        /// Until it is opened anew.
        lasts: Nanos,
    },
    /// All ranks go over another NIC (R29). A plan with this has two rails, of which one is open at a time.
    ChangeRails {
        /// Bytes of the longest frame that it takes.
        frame_bytes_max: u32,
    },
    /// The clock of a node jumps.
    ClockJump {
        /// The node.
        node: u32,
        /// By how much, nanoseconds.
        by: i64,
    },
    /// The connection between a node's keeper and the coordinator breaks.
    BreakControl {
        /// The node.
        node: u32,
    },
    /// From now on and for so long the rank holds something that cannot be saved.
    Unsavable {
        /// The rank.
        rank: u32,
        /// For how long.
        lasts: Nanos,
    },
    /// The disk refuses one write after so many further changes.
    DiskError {
        /// Changing operations until then.
        after: u64,
        /// No room, instead of a broken device.
        full: bool,
    },
    /// No committed generation can be read for a while, as when too many nodes are away; the generations that exist are known all the same.
    Unreadable {
        /// For how long.
        lasts: Nanos,
    },
    /// The network is worse than usual for a while.
    Storm {
        /// How it is.
        conditions: NetworkConditions,
        /// For how long.
        lasts: Nanos,
    },
    /// The rank's process is not scheduled for so long.
    Stall {
        /// The rank.
        rank: u32,
        /// For how long.
        lasts: Nanos,
    },
}

/// An action and its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// When.
    pub when: When,
    /// Its name.
    pub action: Action,
}

/// How ranks can be saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// At any instant, as a process is.
    Instant,
    /// At counted points, as a native program is.
    Counted,
}

/// How frames are protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Auth {
    /// Not at all; the NIC's checksum finds damage.
    Off,
    /// Heads.
    Header,
    /// Everything.
    Full,
}

/// Events that a history must have had before its program may end: until then the program goes on with further rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Floors {
    /// Frames that reached a port.
    pub frames: u64,
    /// Checkpoint commands given to a running job.
    pub commands: u32,
    /// Crashes after which all ranks ran again.
    pub restarts: u32,
    /// If nothing has crashed by so many frames, the first planned crash happens without the moment that it waits for.
    pub crash_by_frames: u64,
}

/// A whole history, before it happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Seed of everything that is drawn while the history runs.
    pub seed: u64,
    /// Ranks.
    pub ranks: u32,
    /// Nodes.
    pub nodes: u32,
    /// Nodes have directories of their own, and this many of them may be lost; 0: one directory for all, on the head node.
    pub losses: u32,
    /// Nodes that protect each other: so many in a row, and those that are left over with the last of these; 0: all.
    pub group: u32,
    /// Hosts that may take the place of lost ones.
    pub spares: u32,
    /// The job's reactions to faults.
    pub reactions: Reactions,
    /// Ports of each rank.
    pub ports: u32,
    /// Rails of each port.
    pub rails: u32,
    /// How ranks are saved.
    pub mode: Mode,
    /// How frames are protected.
    pub auth: Auth,
    /// Bytes of the largest frame.
    pub frame_bytes_max: u32,
    /// Events that must have happened before the program may end.
    pub floors: Floors,
    /// The program ends after a checkpoint that has begun long after the last fault.
    pub calm: bool,
    /// Messages of the program, at least.
    pub messages_min: u32,
    /// Messages of further rounds, from which the program is made longer until the floors are reached.
    pub messages_reserved: u32,
    /// Longest message, in bytes.
    pub message_bytes_max: u32,
    /// The ports' bounds are so tight that senders run into them.
    pub tight_bounds: bool,
    /// The ports treat the path as a network: congestion control.
    pub congested: bool,
    /// Ranks of a node read long payloads out of each other's memory (R11). Only where frames carry no tags, as within a host.
    pub pulls: bool,
    /// A helper makes progress while the program computes.
    pub helper: bool,
    /// How the network is when nothing special happens.
    pub conditions: NetworkConditions,
    /// Longest time of one control message from party to party.
    pub control_ns_max: Nanos,
    /// Longest time of writing an image, and of a commit record.
    pub write_ns_max: Nanos,
    /// Longest pause between freeze and thaw.
    pub pause_ns_max: Nanos,
    /// Frames that a NIC holds on the way out: a power of two.
    pub nic_frames: u32,
    /// Longest time until a NIC reports frames that it has read: for so long it holds their buffers.
    pub completion_ns_max: Nanos,
    /// Drift of each node's clock, see [`crate::engine::clock::Clock`].
    pub drift: [i64; NODES],
    /// The planned events.
    pub steps: Vec<Step>,
}

impl Plan {
    /// The nodes that protect each other with `node`.
    pub(crate) fn group_of(&self, node: u32) -> core::ops::Range<u32> {
        let width = if self.group == 0 { self.nodes } else { self.group.min(self.nodes) }.max(1);
        let last = (self.nodes / width).max(1) - 1;
        let group = (node / width).min(last);
        group * width..if group == last { self.nodes } else { (group + 1) * width }
    }

    /// The groups of nodes that protect each other.
    pub(crate) fn groups(&self) -> impl Iterator<Item = core::ops::Range<u32>> + '_ {
        (0..self.nodes)
            .map(|node| (node, self.group_of(node)))
            .filter(|(node, group)| *node == group.start)
            .map(|(_, group)| group)
    }

    /// Frames after which everything planned by frames has happened: a little before the history's least length.
    pub(crate) fn frames_planned(&self) -> u64 {
        self.floors.frames * 8 / 10
    }

    /// Whether all ranks go over another NIC at some time.
    fn changes_rails(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.action, Action::ChangeRails { .. }))
    }

    /// Whether a port has this rail from its beginning.
    pub(crate) fn opens(&self, rail: u32) -> bool {
        rail == 0 || !self.changes_rails()
    }

    /// Bytes of the longest frame of any NIC.
    pub(crate) fn longest_frame(&self) -> u32 {
        let longest = |step: &Step| match step.action {
            Action::ChangeRails { frame_bytes_max } => Some(frame_bytes_max),
            _ => None,
        };
        self.steps.iter().filter_map(longest).chain([self.frame_bytes_max]).max().unwrap_or(0)
    }
}
