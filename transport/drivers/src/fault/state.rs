//! Rates, dice and counts of a fault wrapper, apart from the driver inside it, which is borrowed while frames come in.

use std::borrow::Cow;
use std::collections::VecDeque;

use transport::AddressId;

use super::chance::Chance;
use super::held_frames::{Due, Fate, HeldFrame, Moment, corrupt, fate};
use super::spec::{Faults, Side};
use super::{Clock, Tally};
use crate::limits::FAULT_HELD_MAX;

/// The state for received frames, while the inner driver is borrowed.
pub(super) struct State {
    pub(super) faults: Faults,
    pub(super) chance: Chance,
    pub(super) clock: Clock,
    pub(super) calls: u64,
    pub(super) frames_out: u64,
    pub(super) frames_in: u64,
    pub(super) starve_calls: u64,
    pub(super) held_in: VecDeque<HeldFrame>,
    pub(super) tally: Tally,
}

impl State {
    pub(super) fn new(faults: Faults, clock: Clock) -> State {
        State {
            chance: Chance::new(faults.seed),
            faults,
            clock,
            calls: 0,
            frames_out: 0,
            frames_in: 0,
            starve_calls: 0,
            held_in: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    pub(super) fn damage(&mut self, fate: Fate, bytes: &mut Vec<u8>) {
        if fate == Fate::Corrupt {
            self.tally.corrupted += 1;
            corrupt(bytes, &mut self.chance);
        } else if !bytes.is_empty() {
            self.tally.truncated += 1;
            bytes.truncate(self.chance.index(bytes.len()));
        }
    }

    /// One frame from the inner driver. Returns the form in which it passes to the caller now, if it does.
    pub(super) fn incoming<'a>(&mut self, frame: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        self.frames_in += 1;
        if self.faults.side == Side::Send {
            return Some(frame.into());
        }
        let fate = fate(&self.faults, &mut self.chance);
        let hold = |due| HeldFrame { due, to: AddressId(0), bytes: frame.to_vec(), late: None };
        match fate {
            Fate::Lose => {
                self.tally.lost += 1;
                return None;
            }
            Fate::Twice if self.held_in.len() < FAULT_HELD_MAX => {
                self.tally.duplicated += 1;
                self.held_in.push_back(hold(Due::Call(0)));
            }
            Fate::Hold(by) if self.held_in.len() < FAULT_HELD_MAX => {
                self.tally.held += 1;
                let moment = Moment { frames: self.frames_in, calls: self.calls, now: (self.clock)() };
                self.held_in.push_back(hold(moment.due(by)));
                return None;
            }
            Fate::Corrupt | Fate::Truncate => {
                let mut bytes = frame.to_vec();
                self.damage(fate, &mut bytes);
                return Some(bytes.into());
            }
            // Completions belong to the way out.
            _ => {}
        }
        Some(frame.into())
    }
}
