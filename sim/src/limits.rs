//! Bounds and times of the simulated world, each with its unit and reason.

use crate::engine::queue::{MICRO, MILLI, Nanos, SECOND};

/// Frames that an ordinary NIC holds on the way out. Small, so that a full ring is an ordinary case.
pub const NIC_SEND_FRAMES: u32 = 32;

/// Receive buffers posted to a NIC. Small, so that bursts overrun them.
pub const NIC_RECEIVE_FRAMES: usize = 64;

/// Addresses that one NIC knows. A NIC speaks with the NICs of the same port and rail, one for each of [`RANKS_MAX`] ranks. A place that a process has left
/// is used again, so further ones belong to ranks that run twice: on a host that is cut off and on its spare. This is eight times as many.
pub const NIC_ADDRESSES_MAX: usize = 512;

/// Longest time from reading a frame until an ordinary NIC reports its completion.
pub const COMPLETION_MAX: Nanos = 12 * MICRO;

/// Time that NICs have to give their buffers back when a rank freezes, as in a session.
pub const DRAIN_MAX: Nanos = 200 * MILLI;

/// How often a rank that freezes asks its NICs for their buffers; a real one asks all the time.
pub const DRAIN_LOOK: Nanos = 500;

/// Ranks of a history; larger jobs are the business of `scale`.
pub const RANKS_MAX: u32 = 64;

/// Nodes of a history.
pub const NODES_MAX: u32 = 16;

/// Most ranks of a history that counts as small: its program uses every pair of ranks in a few rounds.
pub const RANKS_SMALL_MAX: u32 = 8;

/// One history of so many is large. It costs some ten times as much as a small one: so the mean cost stays within 1.3 times that of small ones.
pub const LARGE_ONE_IN: u64 = 48;

/// Fewest ranks of a large history that the swarm draws.
pub const RANKS_LARGE_MIN: u32 = 16;

/// Frames that a judged history must deliver.
pub const FRAMES_DELIVERED_MIN: u64 = 2_000;

/// Frames that a large history must deliver besides, for each of its ranks: enough for each to have sent some in every life.
pub const FRAMES_PER_RANK_LARGE: u64 = 60;

/// Checkpoint commands that a judged history must give.
pub const CHECKPOINT_COMMANDS_MIN: u32 = 3;

/// Histories within which the loss of any one rule must be noticed. The rule that takes longest takes 671.
pub const SABOTAGE_HISTORIES: u64 = 3000;

/// Events after which a history counts as one that never ends: an ordinary one takes some 10,000, one of 64 ranks up to some 300,000.
pub const EVENTS_MAX: u64 = 2_000_000;

/// Virtual time within which a history must end once the last fault has ceased.
pub const CALM_MAX: Nanos = 60 * SECOND;

/// Time that frames need from NIC to NIC at least.
pub const WIRE_MIN: Nanos = 2 * MICRO;

/// Longest time for which the network may hold a frame up: longer than any probe timeout, so that copies of frames
/// come out of older epochs and lives.
pub const HOLD_UP_MAX: Nanos = 20 * MILLI;
