//! Waking up: work that is due, and when to come back.

use core::cmp::Reverse;

use crate::config::{CHECKPOINTABLE, GONE_AFTER, SLOW_AFTER};
use crate::ids::LinkIndex;
use crate::link::Flags;
use crate::link::timer::NEVER;
use crate::message::{Event, Silence};
use crate::port::{Port, nanos};
use crate::time::Instant;

impl Port {
    /// When [`Port::handle_timeout`] should be called at the latest; `None`: nothing is due before something else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let frozen_ns = if CHECKPOINTABLE { self.frozen_ns } else { 0 };
        let deadline = self.deadlines.peek().map(|Reverse((at, _))| *at);
        let deferred_ack = self.deferred_ack.as_ref().map(|deferred_ack| deferred_ack.now);
        let at = [deadline, deferred_ack].into_iter().flatten().min()?;
        Some(Instant::from_nanos(at.wrapping_add(frozen_ns)))
    }

    /// Whether a deadline has passed. An acknowledgement that was put off is none.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        let now = self.port_time(now);
        self.deadlines.peek().is_some_and(|Reverse((at, _))| *at <= now)
    }

    /// Handles timeouts that have become due. Costs nothing while none has.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.catch_up();
        let now = self.port_time(now);
        while let Some(&Reverse((at, index))) = self.deadlines.peek() {
            if at > now {
                return;
            }
            self.deadlines.pop();
            let link = &mut self.links[index.0 as usize];
            if link.timers.armed != at {
                // An entry that an earlier deadline has replaced.
                continue;
            }
            link.timers.armed = NEVER;
            self.wake(index, now);
            self.arm(index);
        }
    }

    fn wake(&mut self, index: LinkIndex, now: u64) {
        let link = &mut self.links[index.0 as usize];
        if link.timers.ack <= now {
            link.timers.ack = NEVER;
            self.ack_now(index);
        }
        let link = &mut self.links[index.0 as usize];
        if CHECKPOINTABLE && link.timers.stopped != NEVER {
            if link.timers.stopped > now {
                return;
            }
            // The pause should be over: ask. Acknowledgements owed before are owed from now on.
            link.timers.stopped = NEVER;
            link.timers.probe = now;
            // Traffic that waited for the end of the pause may differ from the traffic that a probe asks
            // about.
            self.make_ready(index);
        }
        let link = &mut self.links[index.0 as usize];
        if link.timers.reorder <= now {
            self.detect_losses(index, now);
        }
        if self.links[index.0 as usize].timers.probe <= now {
            self.probe(index, now);
        }
    }

    /// The peer owes us an acknowledgement for longer than a probe timeout.
    fn probe(&mut self, index: LinkIndex, now: u64) {
        let link = &mut self.links[index.0 as usize];
        link.timers.probe = NEVER;
        if link.flags.contains(Flags::BROKEN) {
            return;
        }
        if link.flags.contains(Flags::RESYNC) {
            link.flags.insert(Flags::RESYNC_DUE);
        } else if link.in_flight() > 0 {
            let oldest_rail =
                link.queues.as_ref().and_then(|queues| queues.sent.front()).map(|sent| sent.rail);
            link.lose_oldest();
            if let Some(rail) = oldest_rail.and_then(|rail| self.rails.get_mut(usize::from(rail))) {
                rail.losses = rail.losses.saturating_add(1);
            }
            self.suspect_rails(now);
        } else if link.is_held_back() {
            link.flags.insert(Flags::PROBE_DUE);
        } else {
            return;
        }
        let link = &mut self.links[index.0 as usize];
        link.recovery.on_probe_timeout();
        link.timers.probe = now + link.recovery.probe_timeout_ns();
        self.make_ready(index);
        self.report_silence(index, now);
    }

    /// R22: silence is an event for the recovery manager, never an error.
    fn report_silence(&mut self, index: LinkIndex, now: u64) {
        let link = &mut self.links[index.0 as usize];
        let silent_ns = now.saturating_sub(link.heard_at);
        let silence = if silent_ns >= nanos(GONE_AFTER) && !link.flags.contains(Flags::GONE) {
            link.flags.insert(Flags::GONE | Flags::SLOW);
            Silence::Gone
        } else if silent_ns >= nanos(SLOW_AFTER) && !link.flags.contains(Flags::SLOW) {
            link.flags.insert(Flags::SLOW);
            if link.peer_pause > 0 && link.recovery.back_off <= 1 { Silence::Frozen } else { Silence::Slow }
        } else {
            return;
        };
        let event = Event::PeerSilent {
            link: index,
            peer: link.peer,
            silence,
            since: core::time::Duration::from_nanos(silent_ns),
        };
        self.events.push_back(event);
    }
}
