//! The end of a link, and of a port (R12).

use core::time::Duration;

use crate::ids::{LinkIndex, PortId};
use crate::link::{Flags, Link};
use crate::message::Event;
use crate::port::{FinalCounters, Port, nanos};
use crate::time::Instant;

/// Links that a port has not finished with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unsettled {
    /// Their peers have been heard lately.
    pub heard: usize,
    /// Their peers have not.
    pub silent: usize,
}

impl Port {
    /// Ends our direction of a link: no further sends; a close follows the waiting messages (R12).
    pub fn close_link(&mut self, link: LinkIndex) {
        if let Some(entry) = self.links.get_mut(link.0 as usize) {
            entry.flags.insert(Flags::CLOSING);
            if entry.has_history() || entry.queues.is_some() {
                self.make_ready(link);
            } else {
                entry.flags.insert(Flags::CLOSE_SENT);
                let peer = entry.peer;
                self.events.push_back(Event::LinkClosed { link, peer });
            }
        }
    }

    /// Nothing waits to be sent and everything sent has been acknowledged, on all links.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.links.iter().all(Link::is_settled)
    }

    /// Looks at the links of which the peer neither has everything that was sent, the close included, nor has closed by
    /// itself: a peer that has closed wants nothing more. How many of them have been heard within `silence`, and how many
    /// not. Each is sent a probe, so that a peer which waits for its program rather than for us makes itself heard.
    pub fn probe_unsettled(&mut self, now: Instant, silence: Duration) -> Unsettled {
        let since = self.port_time(now).saturating_sub(nanos(silence));
        let mut unsettled = Unsettled::default();
        for i in 0..self.links.len() {
            let link = &mut self.links[i];
            if link.needs_nothing_more() {
                continue;
            }
            if link.heard_at >= since {
                unsettled.heard += 1;
            } else {
                unsettled.silent += 1;
            }
            link.flags.insert(Flags::PROBE_DUE);
            self.make_ready(LinkIndex(u32::try_from(i).unwrap_or(u32::MAX)));
        }
        unsettled
    }

    /// The peers of those links that have not been heard within `silence`.
    pub fn silent_unsettled(&self, now: Instant, silence: Duration) -> impl Iterator<Item = PortId> {
        let since = self.port_time(now).saturating_sub(nanos(silence));
        let silent = move |link: &&Link| !link.needs_nothing_more() && link.heard_at < since;
        self.links.iter().filter(silent).map(|link| link.peer)
    }

    /// The peers of all links that [`Port::probe_unsettled`] counts.
    pub fn unsettled(&self) -> impl Iterator<Item = PortId> {
        self.links.iter().filter(|link| !link.needs_nothing_more()).map(|link| link.peer)
    }

    /// The final counters of every link that was used: a keeper needs them to answer for this port once it is
    /// closed (R12).
    pub fn final_counters(&self) -> impl Iterator<Item = FinalCounters> {
        self.links.iter().filter(|link| link.has_history()).map(|link| FinalCounters {
            peer: link.peer,
            next: link.next,
            expected: link.expected,
        })
    }

    /// The keeper of a closed peer confirms on its behalf: it has everything before `expected` (R12).
    pub fn peer_has_closed(&mut self, now: Instant, peer: PortId, expected: u64) {
        self.catch_up();
        let now = self.port_time(now);
        let Some(&index) = self.by_peer.get(&peer) else { return };
        let link = &self.links[index.0 as usize];
        let (oldest_held, next) = (link.acked, link.next);
        if expected > next || expected < oldest_held {
            let event = Event::Inconsistent { link: index, peer, peer_expected: expected, oldest_held, next };
            self.break_link(index, event);
            return;
        }
        self.acknowledge(index, expected, 0, None, now);
        let link = &mut self.links[index.0 as usize];
        link.flags.remove(Flags::RESYNC | Flags::RESYNC_DUE);
        if !link.flags.contains(Flags::PEER_CLOSED) {
            link.flags.insert(Flags::PEER_CLOSED);
            self.events.push_back(Event::PeerClosed { link: index, peer });
        }
    }
}

impl Link {
    /// Whether the peer has everything that was sent, the close included, or has closed by itself, or can have nothing more.
    fn needs_nothing_more(&self) -> bool {
        !self.has_history() && self.queues.is_none()
            || self.flags.intersects(Flags::PEER_CLOSED | Flags::BROKEN)
            || self.is_settled() && self.flags.contains(Flags::CLOSE_SENT)
    }
}
