//! A port that stands still. By type it can neither send nor receive.

use core::net::IpAddr;

use crate::auth::{Authenticator, JobKey};
use crate::config::AuthLevel;
use crate::ids::{Epoch, Life, PortId};
use crate::link::recovery::Recovery;
use crate::link::timer::Timers;
use crate::link::{BeforeCut, Flags};
use crate::message::Event;
use crate::port::Port;
use crate::port::state::Census;
use crate::sabotage::Rule;
use crate::time::Instant;

/// A frozen port: its state between two steps. It holds no pointer into a NIC's memory.
#[derive(Debug)]
pub struct FrozenPort {
    pub(crate) port: Port,
    /// When it was frozen, on the shell's clock; `None`: it comes from an image.
    pub(crate) at: Option<Instant>,
}

/// Facts that a restarted port cannot find in its image.
#[derive(Clone, Debug)]
pub struct Restart {
    /// The new life.
    pub life: Life,
    /// The job's key in that life, where it is another: a launcher makes its own.
    pub key: Option<JobKey>,
    /// How peers are reached in that life, where that may be another way: ranks are on other hosts.
    pub reach: Option<Reach>,
}

/// How a port's peers are reached. All ports that speak with each other have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// The bytes that the tags of frames cover ([`crate::PortConfig`]).
    pub auth: AuthLevel,
    /// Whether a network lies between.
    pub network: bool,
}

impl Reach {
    /// Of a port that receives at this address: frames that leave the host are authenticated as a whole, and
    /// `least` counts within it.
    #[must_use]
    pub fn at(address: IpAddr, least: AuthLevel) -> Reach {
        let network = !address.is_loopback();
        Reach { auth: if network { AuthLevel::Full } else { least }, network }
    }
}

impl Restart {
    /// With the key that the port has, and peers that are reached as before.
    #[must_use]
    pub fn in_life(life: Life) -> Restart {
        Restart { life, key: None, reach: None }
    }
}

impl Port {
    /// Freezes the port: constant time, regardless of frames in flight, except for a pass over all links while a buffer
    /// for several messages is used up and waits for payloads.
    #[must_use]
    pub fn freeze(mut self, now: Instant) -> FrozenPort {
        self.catch_up();
        self.report_used_up();
        FrozenPort { port: self, at: Some(now) }
    }
}

impl FrozenPort {
    /// Identity of the port.
    #[must_use]
    pub fn id(&self) -> PortId {
        self.port.id
    }

    /// Life in which the port was frozen.
    #[must_use]
    pub fn life(&self) -> Life {
        self.port.life
    }

    /// Epoch of the rank.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.port.epoch
    }

    /// Raises the epoch: the rank has cut (R2). All ports of a rank get the same.
    ///
    /// # Panics
    /// If the epoch would fall: a bug of the caller.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        assert!(epoch >= self.port.epoch, "an epoch never falls: {:?} after {:?}", epoch, self.port.epoch);
        self.port.epoch = epoch;
        self.port.cut_asked = self.port.cut_asked.max(epoch);
        for link in &mut self.port.links {
            link.before_cut = BeforeCut { next: link.next, expected: link.expected };
            link.flags.remove(Flags::PAST_TOLD);
        }
    }

    /// Messages in each of the five states in which a checkpoint can find them (Huo et al. 2006; docs/reference/protocol.md).
    #[must_use]
    pub fn census(&self) -> Census {
        let mut census =
            Census { acknowledged: self.port.acked_total - self.port.acked_reported, ..Census::default() };
        for link in &self.port.links {
            census.received_unacknowledged += link.expected - link.ack_reported;
            if let Some(queues) = &link.queues {
                census.to_be_sent +=
                    (queues.pending.len() + queues.control.len() + queues.streams.len()) as u64;
                census.sent_unacknowledged += queues.sent.len() as u64;
            }
        }
        census.delivered_waiting = self.port.matcher.unexpected_len() as u64;
        census
    }

    /// Goes on in the same life: nothing has happened meanwhile, for the port's clock stood still.
    ///
    /// # Panics
    /// If the port comes from an image: its life is over, it has to be restarted in a new one (R7).
    #[must_use]
    pub fn thaw(self, now: Instant) -> Port {
        let at = self.at.expect("a port from an image starts a new life");
        let mut port = self.port;
        let stood_at = port.port_time(at);
        port.frozen_ns = now.as_nanos().saturating_sub(stood_at);
        port.acked_reported = port.acked_total;
        port.news_due = true;
        if port.sabotage.has(Rule::RendezvousOffsets) {
            port.forget_offsets();
        }
        port
    }

    /// Continues in a new life: state of the old one (link indexes, rails, paths, round-trip and congestion state,
    /// selective acknowledgements, reordered frames) is forgotten, and every link that was used resynchronises before
    /// it sends anything else (R5, R7, R10). Add rails and paths, then go on as usual.
    #[must_use]
    pub fn restart(self, now: Instant, restart: Restart) -> Port {
        let mut port = self.port;
        // Port time starts at zero in every life.
        port.frozen_ns = now.as_nanos();
        port.life = restart.life;
        if let Some(reach) = restart.reach {
            port.config.network = reach.network;
            // A port without a key has no driver that could carry a stranger's frames.
            if let Some(auth) = &mut port.auth {
                port.config.auth = reach.auth;
                auth.set_level(reach.auth);
            }
        }
        if let (Some(auth), Some(key)) = (&mut port.auth, &restart.key) {
            *auth = Authenticator::new(auth.level(), key);
        }
        port.newer_life = None;
        // Pending reports of the old life are of no use in the new one; results that the program waits for are.
        port.events.retain(Event::is_completion);
        port.cut_asked = port.epoch;
        port.rails.clear();
        port.ready.clear();
        port.starved.clear();
        port.pulling.clear();
        port.deadlines.clear();
        port.reorder_bytes = 0;
        port.counters = Default::default();
        port.acked_total = 0;
        port.acked_reported = 0;
        port.news_due = false;
        let congestion_bytes = port.congestion_bytes_initial();
        let (window_bytes, window_frames) = (port.window_bytes_initial(), port.window_frames_initial());
        let promised_frames = port.window_frames_most();
        for link in &mut port.links {
            link.peer_index = None;
            link.paths = Default::default();
            link.peer_epoch = port.epoch;
            link.flags &= Flags::CLOSING | Flags::CLOSE_SENT | Flags::PEER_CLOSED;
            link.transmissions = 1;
            link.newest = 0;
            link.heard = 0;
            link.unacknowledged = 0;
            if port.sabotage.has(Rule::CountedNotAcked) {
                link.expected = link.ack_reported;
            }
            link.ack_reported = link.expected;
            link.peer_window_bytes = window_bytes;
            link.peer_window_frames = window_frames;
            link.congestion_bytes = congestion_bytes;
            // The peer retransmits frames that it had in flight by the promises of the old life.
            link.promised_bytes = port.config.link_window_bytes;
            link.promised_frames = promised_frames;
            link.peer_pause = 0;
            link.heard_at = 0;
            link.recovery = Recovery::default();
            link.timers = Timers::default();
            if let Some(queues) = &mut link.queues {
                // The peer is another process now.
                queues.pulls.clear();
                queues.places.clear();
                queues.reorder.clear();
            }
            link.lose_all(false);
            if link.has_history() {
                link.flags.insert(Flags::RESYNC | Flags::RESYNC_DUE);
            }
        }
        if port.sabotage.has(Rule::RendezvousOffsets) {
            port.forget_offsets();
        }
        port
    }

    /// Whether frames of this port carry tags.
    #[must_use]
    pub fn auth_level(&self) -> AuthLevel {
        self.port.config.auth
    }
}

impl Port {
    /// Only under sabotage: every payload under way starts anew.
    fn forget_offsets(&mut self) {
        for link in &mut self.links {
            for stream in link.queues.iter_mut().flat_map(|queues| queues.streams.iter_mut()) {
                stream.offset = 0;
            }
        }
    }
}
