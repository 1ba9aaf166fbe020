//! Frames that are held back, and the fate of a frame.

use core::time::Duration;
use std::collections::VecDeque;

use transport::{AddressId, Instant};

use super::chance::Chance;
use super::spec::{Delay, Faults};
use crate::limits::{FAULT_BACKSTOP_CALLS, FAULT_LATE_CALLS_MAX, FAULT_REORDER_FRAMES_MAX};
use crate::payload::Payload;

/// The fate of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Pass,
    Lose,
    Twice,
    Hold(Hold),
    Corrupt,
    Truncate,
    /// The payload stays referenced and is read so many calls later.
    ReadLate {
        calls: u64,
    },
    /// The frame goes out now, its completion is reported so many calls later.
    CompleteLate {
        calls: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    Frames(u64),
    Time(Duration),
}

/// Draws the fate of one frame.
pub(super) fn fate(faults: &Faults, chance: &mut Chance) -> Fate {
    if chance.hits(faults.loss) {
        Fate::Lose
    } else if chance.hits(faults.dup) {
        Fate::Twice
    } else if chance.hits(faults.reorder) {
        Fate::Hold(Hold::Frames(1 + chance.below(FAULT_REORDER_FRAMES_MAX)))
    } else if chance.hits(faults.delay) {
        Fate::Hold(match faults.delay_by {
            Delay::Frames(frames) => Hold::Frames(u64::from(frames)),
            Delay::Time(time) => Hold::Time(time),
        })
    } else if chance.hits(faults.corrupt) {
        Fate::Corrupt
    } else if chance.hits(faults.truncate) {
        Fate::Truncate
    } else if chance.hits(faults.late) {
        // Later than the flush that sends it.
        let calls = 2 + chance.below(FAULT_LATE_CALLS_MAX);
        if chance.hits(super::spec::Rate::percent(50)) {
            Fate::ReadLate { calls }
        } else {
            Fate::CompleteLate { calls }
        }
    } else {
        Fate::Pass
    }
}

/// Flips one to eight bits.
pub(super) fn corrupt(frame: &mut [u8], chance: &mut Chance) {
    if frame.is_empty() {
        return;
    }
    for _ in 0..=chance.below(8) {
        let at = chance.index(frame.len());
        frame[at] ^= 1 << chance.below(8);
    }
}

/// When a held frame goes on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// At this frame count, or at this call count if no frames come.
    Frames {
        frame: u64,
        call: u64,
    },
    Call(u64),
    Time(Instant),
}

impl Due {
    /// When, if it goes by time.
    pub(super) fn time(self) -> Option<Instant> {
        match self {
            Due::Time(time) => Some(time),
            Due::Frames { .. } | Due::Call(_) => None,
        }
    }
}

/// Where one direction stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) frames: u64,
    pub(super) calls: u64,
    pub(super) now: Instant,
}

impl Moment {
    pub(super) fn due(&self, hold: Hold) -> Due {
        match hold {
            Hold::Frames(frames) => {
                Due::Frames { frame: self.frames + frames, call: self.calls + FAULT_BACKSTOP_CALLS }
            }
            Hold::Time(time) => Due::Time(self.now + time),
        }
    }

    pub(super) fn reached(&self, due: Due) -> bool {
        match due {
            Due::Frames { frame, call } => self.frames >= frame || self.calls >= call,
            Due::Call(call) => self.calls >= call,
            Due::Time(time) => self.now >= time,
        }
    }
}

/// A frame that is held back.
pub(super) struct HeldFrame {
    pub(super) due: Due,
    /// Meaningful on the way out only.
    pub(super) to: AddressId,
    /// The whole frame, or its head if `late` is there.
    pub(super) bytes: Vec<u8>,
    /// The number of the frame among those committed, and its payload, if the NIC still refers to that.
    pub(super) late: Option<(u64, Payload)>,
}

/// Takes out the first frame that is due; frames held equally long keep their order.
pub(super) fn take_due(held: &mut VecDeque<HeldFrame>, moment: Moment) -> Option<HeldFrame> {
    let at = held.iter().position(|frame| moment.reached(frame.due))?;
    held.remove(at)
}
