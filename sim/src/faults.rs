//! The kinds of trouble a history can have, and how often each happened.

use serde::Serialize;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A kind of trouble.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            /// All kinds, in the order of reports.
            pub const ALL: &'static [Fault] = &[$(Fault::$name),*];

            /// The name in reports.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Fault::$name => $text),* }
            }
        }
    };
}

kinds! {
    /// A frame vanished in the network.
    Loss = "loss",
    /// A frame arrived twice.
    Duplication = "duplication",
    /// A frame was overtaken on purpose.
    Reordering = "reordering",
    /// Bits of a frame changed on the way, or its end was cut off.
    Corruption = "corruption",
    /// A frame was held up far beyond the usual time.
    Delay = "delay",
    /// Frames between two nodes were dropped for a while.
    Partition = "partition",
    /// A NIC stopped working from one moment to the next.
    RailDeath = "rail_death",
    /// All ranks went over another NIC.
    RailsChanged = "rails_changed",
    /// A rank's process died.
    ProcessCrash = "process_crash",
    /// A node lost power: its processes, its keeper, unsynced data of its disk.
    NodeCrash = "node_crash",
    /// The directory of a node was lost for good.
    NodeLost = "node_lost",
    /// A process died between freeze and thaw.
    CrashInFreeze = "crash_in_freeze",
    /// A process died while its image was being written.
    CrashInDump = "crash_in_dump",
    /// The coordinator's node lost power between the first image and the end of the commit.
    CrashInCommit = "crash_in_commit",
    /// A process died while it was being restored.
    CrashInRestart = "crash_in_restart",
    /// Another process died after a recovery had been decided and before it was complete.
    CrashInRecovery = "crash_in_recovery",
    /// A power loss left a part of an unsynced write.
    TornWrite = "torn_write",
    /// A power loss took unsynced writes or directory entries with it.
    UnsyncedWrite = "unsynced_write",
    /// A node's clock jumped.
    ClockJump = "clock_jump",
    /// The launcher died.
    LauncherCrash = "launcher_crash",
    /// The launcher died, and the keepers on other nodes did not see it.
    LauncherCutOff = "launcher_cut_off",
    /// A keeper stood still.
    KeeperStopped = "keeper_stopped",
    /// A host was cut off from all others, for messages of control.
    HostCutOff = "host_cut_off",
    /// A spare host took the place of a node's.
    HostReplaced = "host_replaced",
    /// A person said that a node that may be well is failing.
    NodeSuspected = "node_suspected",
    /// A rank went on elsewhere, while the others ran.
    RankMoved = "rank_moved",
    /// A connection of control messages broke and took messages with it.
    ControlLost = "control_lost",
    /// A rank could not save its state and raised its epoch without an image.
    NoImage = "no_image",
    /// A disk refused a write.
    DiskError = "disk_error",
    /// No committed generation could be read when a life was to begin.
    Unreadable = "unreadable",
}

/// How often each kind happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultCounts([u64; Fault::ALL.len()]);

impl Default for FaultCounts {
    fn default() -> Self {
        FaultCounts([0; Fault::ALL.len()])
    }
}

impl FaultCounts {
    /// One more of `fault`.
    #[inline]
    pub fn add(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    /// How often `fault` happened.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// Adds the counts of another history or thread.
    pub fn merge(&mut self, other: &FaultCounts) {
        for (sum, n) in self.0.iter_mut().zip(other.0) {
            *sum += n;
        }
    }

    /// One for each kind that happened at all: summed up, the number of histories that had it.
    #[must_use]
    pub fn occurred(&self) -> FaultCounts {
        FaultCounts(self.0.map(|n| u64::from(n > 0)))
    }

    /// Kinds and counts in the order of reports.
    pub fn each(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.iter().map(|fault| (*fault, self.of(*fault)))
    }
}

impl Serialize for FaultCounts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.each().map(|(fault, n)| (fault.name(), n)))
    }
}
