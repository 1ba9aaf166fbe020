//! The sending half of a link: the next frame to send, and buffers that an acknowledgement frees.

use crate::config::{ANNOUNCED_MAX, CHECKPOINTABLE, WINDOW_FRAMES_MAX};
use crate::link::queues::Pending;
use crate::link::recovery::Sample;
use crate::link::timer::NEVER;
use crate::link::{Flags, Link};
use crate::sabotage::{Rule, Sabotage};

/// The next thing that a link wants to put on the wire. Decided in one place, performed in another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Nothing may or needs to be sent now.
    Idle,
    /// A STOPPED hint.
    Hint,
    /// Our counters, after a restart.
    Resync,
    /// The lost frame at this place of `sent`.
    Resend(usize),
    /// A CTS.
    Control,
    /// The next fragment of the copied message at the head of the queue.
    Copied,
    /// An RTS; `convert`: of the copied message at the head, for which the peer has no window.
    Rts { convert: bool },
    /// The next piece of a granted payload.
    Stream,
    /// The end of our direction.
    Close,
    /// An acknowledgement alone.
    Ack,
    /// A request for an acknowledgement.
    Probe,
}

impl Link {
    /// The next action to send. Pure: another call returns the same.
    pub(crate) fn next_action(&self, now: u64, sabotage: Sabotage) -> Action {
        if self.flags.contains(Flags::BROKEN) {
            return Action::Idle;
        }
        if CHECKPOINTABLE {
            if self.flags.contains(Flags::HINT_DUE) {
                return Action::Hint;
            }
            if self.flags.contains(Flags::RESYNC_DUE) {
                return Action::Resync;
            }
            if self.flags.contains(Flags::RESYNC) {
                return Action::Idle;
            }
        }
        if !CHECKPOINTABLE || self.timers.stopped == NEVER {
            let action = self.next_numbered(sabotage);
            if action != Action::Idle {
                return action;
            }
            if self.flags.contains(Flags::PROBE_DUE) {
                return Action::Probe;
            }
        }
        if self.flags.contains(Flags::ACK_NOW) || self.timers.ack <= now {
            return Action::Ack;
        }
        Action::Idle
    }

    /// Whether [`Link::next_action`] is certain to answer `Idle` until something happens. Cheaper than asking it.
    pub(crate) fn has_nothing_to_send(&self) -> bool {
        const DUE: Flags = Flags::HINT_DUE
            .union(Flags::RESYNC_DUE)
            .union(Flags::PROBE_DUE)
            .union(Flags::ACK_NOW)
            .union(Flags::CLOSING);
        self.timers.ack == NEVER
            && !self.flags.intersects(DUE)
            && self.queues.as_ref().is_none_or(|queues| queues.nothing_to_send() && queues.lost.is_empty())
    }

    fn next_numbered(&self, sabotage: Sabotage) -> Action {
        let Some(queues) = &self.queues else {
            return if self.close_due() { Action::Close } else { Action::Idle };
        };
        if let Some(&number) = queues.lost.front() {
            let place = number.saturating_sub(self.acked);
            return Action::Resend(usize::try_from(place).unwrap_or(usize::MAX));
        }
        if self.in_flight() >= WINDOW_FRAMES_MAX {
            return Action::Idle;
        }
        if queues.control_is_due() {
            return Action::Control;
        }
        let message = queues.pending.front().map_or(Action::Idle, |front| self.next_message(front, sabotage));
        let stream = match queues.streams.front() {
            Some(_) if self.flight_bytes < self.congestion_bytes => Action::Stream,
            _ => Action::Idle,
        };
        match (message, stream) {
            (Action::Idle, Action::Idle) if self.close_due() => Action::Close,
            (Action::Idle, stream) => stream,
            (message, Action::Idle) => message,
            (message, stream) => {
                if self.flags.contains(Flags::STREAM_TURN) {
                    message
                } else {
                    stream
                }
            }
        }
    }

    fn next_message(&self, front: &Pending, sabotage: Sabotage) -> Action {
        match *front {
            Pending::Rts { .. } if self.may_announce() => Action::Rts { convert: false },
            Pending::Rts { .. } => Action::Idle,
            Pending::Copied { envelope, sent, .. } => {
                let wanted = envelope.total - u64::from(sent);
                let room = u64::from(self.peer_window_bytes.saturating_sub(self.copied_bytes));
                let frames = self.copied_frames < self.peer_window_frames;
                // Under way: the window was wide enough for all of it, and that promise holds even if the window has
                // shrunk since. Stopping here would block the messages behind it.
                if sent > 0 || frames && wanted <= room || sabotage.has(Rule::WindowBounds) {
                    return Action::Copied;
                }
                // R17: the peer has no room for unexpected payload; matching must go on all the same.
                if self.may_announce() { Action::Rts { convert: true } } else { Action::Idle }
            }
        }
    }

    /// Bounds the state of ours that the peer has to remember ([`crate::config::INCOMING_MAX`]).
    fn may_announce(&self) -> bool {
        let granted = self.queues.as_ref().map_or(0, |queues| queues.streams.len());
        usize::from(self.announced) < ANNOUNCED_MAX && granted < ANNOUNCED_MAX
    }

    fn close_due(&self) -> bool {
        // Behind a close no payload is taken any more: announced payload comes before it.
        self.flags.contains(Flags::CLOSING)
            && !self.flags.contains(Flags::CLOSE_SENT)
            && self.announced == 0
            && self.queues.as_ref().is_none_or(|queues| queues.nothing_to_send())
    }

    /// Whether something waits that the peer's window holds back, so that the window has to be probed.
    pub(crate) fn is_held_back(&self) -> bool {
        self.queues.as_ref().is_some_and(|queues| !queues.pending.is_empty()) && self.acked == self.next
    }

    /// Marks the frames that `bitmap` reports as received out of order; returns the bytes newly reported, and whether a
    /// needless resend was seen.
    pub(crate) fn select(&mut self, bitmap: u64, echo: u64, now: u64) -> (u32, bool) {
        let Some(queues) = &mut self.queues else { return (0, false) };
        let mut bits = bitmap;
        let (mut bytes, mut spurious) = (0, false);
        while bits != 0 {
            let i = bits.trailing_zeros() as usize + 1;
            bits &= bits - 1;
            let Some(sent) = queues.sent.get_mut(i) else { break };
            if sent.selected {
                continue;
            }
            sent.selected = true;
            bytes += sent.payload_bytes;
            spurious |= matches!(self.recovery.on_acknowledged(sent, echo, now), Sample::Spurious);
            if sent.lost {
                sent.lost = false;
            } else {
                self.flight_bytes = self.flight_bytes.saturating_sub(sent.payload_bytes);
            }
        }
        (bytes, spurious)
    }

    /// Drops numbers from the list of lost frames that are lost no longer.
    pub(crate) fn forget_found(&mut self) {
        let acked = self.acked;
        let Some(queues) = &mut self.queues else { return };
        while let Some(&number) = queues.lost.front() {
            let lost = usize::try_from(number.wrapping_sub(acked))
                .ok()
                .and_then(|place| queues.sent.get(place))
                .is_some_and(|sent| sent.lost);
            if number >= acked && lost {
                break;
            }
            queues.lost.pop_front();
        }
    }

    /// Marks the oldest frame that is not reported as received as lost: a probe retransmits it.
    pub(crate) fn lose_oldest(&mut self) {
        let acked = self.acked;
        let Some(queues) = &mut self.queues else { return };
        let oldest = queues.sent.iter_mut().enumerate().find(|(_, sent)| !sent.selected);
        if let Some((i, sent)) = oldest
            && !sent.lost
        {
            sent.lost = true;
            queues.lost.push_front(acked + i as u64);
            self.flight_bytes = self.flight_bytes.saturating_sub(sent.payload_bytes);
        }
    }

    /// Marks everything unacknowledged as lost: after a restart, or when the peer had to drop our frames
    /// until its cut.
    pub(crate) fn lose_all(&mut self, keep_selected: bool) {
        let acked = self.acked;
        let Some(queues) = &mut self.queues else { return };
        queues.lost.clear();
        for (i, sent) in queues.sent.iter_mut().enumerate() {
            sent.selected &= keep_selected;
            sent.lost = !sent.selected;
            if sent.lost {
                queues.lost.push_back(acked + i as u64);
            }
        }
        self.flight_bytes = 0;
    }
}
