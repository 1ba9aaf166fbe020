//! Bounds and times of the simulated world, each with its unit and reason.

use crate::engine::queue::{MICRO, MILLI, Nanos, SECOND};

/// Frames that a NIC holds on the way out. Small, so that a full ring is an ordinary case.
pub const NIC_SEND_FRAMES: usize = 32;

/// Receive buffers posted to a NIC. Small, so that bursts overrun them.
pub const NIC_RECEIVE_FRAMES: usize = 64;

/// Addresses that one NIC knows: every NIC of a history, replaced ones included.
pub const NIC_ADDRESSES_MAX: usize = 512;

/// Time that NICs have to give their buffers back when a rank freezes, as in a session.
pub const DRAIN_MAX: Nanos = 200 * MILLI;

/// How often a rank that freezes asks its NICs for their buffers; a real one asks all the time.
pub const DRAIN_LOOK: Nanos = 500;

/// Ranks of a history; larger jobs are the business of `scale`.
pub const RANKS_MAX: usize = 8;

/// Frames that a judged history must deliver.
pub const FRAMES_DELIVERED_MIN: u64 = 2_000;

/// Checkpoint commands that a judged history must give.
pub const CHECKPOINT_COMMANDS_MIN: u32 = 3;

/// Histories within which the loss of any one rule must be noticed. The rule that takes longest takes 319.
pub const SABOTAGE_HISTORIES: u64 = 3000;

/// Events after which a history counts as one that never ends: an ordinary one takes some 10,000.
pub const EVENTS_MAX: u64 = 2_000_000;

/// Virtual time within which a history must end once the last fault has ceased.
pub const CALM_MAX: Nanos = 60 * SECOND;

/// Time that frames need from NIC to NIC at least.
pub const WIRE_MIN: Nanos = 2 * MICRO;

/// Longest time for which the network may hold a frame up: longer than any probe timeout, so that copies of frames
/// come out of older epochs and lives.
pub const HOLD_UP_MAX: Nanos = 20 * MILLI;
