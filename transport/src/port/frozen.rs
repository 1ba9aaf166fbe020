//! A port that stands still. By type it can neither send nor receive.

use core::net::IpAddr;

use crate::auth::{Authenticator, JobKey};
use crate::config::AuthLevel;
use crate::ids::{Epoch, Life, PortId};
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
        port.life = restart.life;
        port.moves.clear();
        port.link_lives.clear();
        port.newer_life = None;
        port.cut_asked = port.epoch;
        port.counters = Default::default();
        port.reach(now, restart.key.as_ref(), restart.reach);
        let beginning = port.beginning();
        for link in &mut port.links {
            if port.sabotage.has(Rule::CountedNotAcked) {
                link.expected = link.ack_reported;
            }
            link.begin_again(port.epoch, beginning);
        }
        if port.sabotage.has(Rule::RendezvousOffsets) {
            port.forget_offsets();
        }
        port
    }

    /// R13: continues in the same life, elsewhere: its rank has moved, for the `moves`th time in this life. As [`FrozenPort::restart`], but its peers run on, and each
    /// resynchronises when it hears of the move ([`Port::peer_moved`]).
    ///
    /// # Panics
    /// If the rank has moved as often before: a bug of the caller.
    #[must_use]
    pub fn go_on_elsewhere(self, now: Instant, moves: u32, reach: Option<Reach>) -> Port {
        let mut port = self.port;
        let rank = port.id.rank();
        assert!(moves > port.moves_of(rank), "a rank moves once at a time");
        port.moves.insert(rank, moves);
        port.reach(now, None, reach);
        let beginning = port.beginning();
        for link in &mut port.links {
            link.begin_again(port.epoch, beginning);
        }
        port.note_lives();
        port
    }

    /// Whether frames of this port carry tags.
    #[must_use]
    pub fn auth_level(&self) -> AuthLevel {
        self.port.config.auth
    }
}

impl Port {
    /// In another process: nothing is there of rails, ways and what waited for them.
    fn reach(&mut self, now: Instant, key: Option<&JobKey>, reach: Option<Reach>) {
        // Port time starts at zero.
        self.frozen_ns = now.as_nanos();
        if let Some(reach) = reach {
            self.config.network = reach.network;
            // A port without a key has no driver that could carry a stranger's frames.
            if let Some(auth) = &mut self.auth {
                self.config.auth = reach.auth;
                auth.set_level(reach.auth);
            }
        }
        if let (Some(auth), Some(key)) = (&mut self.auth, key) {
            *auth = Authenticator::new(auth.level(), key);
        }
        // Reports about the old process are of no use in the new one; results that the program waits for are.
        self.events.retain(Event::is_completion);
        self.rails.clear();
        self.ready.clear();
        self.starved.clear();
        self.pulling.clear();
        self.deadlines.clear();
        self.reorder_bytes = 0;
        self.acked_total = 0;
        self.acked_reported = 0;
        self.news_due = false;
    }

    /// Only under sabotage: every payload under way starts anew.
    fn forget_offsets(&mut self) {
        for link in &mut self.links {
            for stream in link.queues.iter_mut().flat_map(|queues| queues.streams.iter_mut()) {
                stream.offset = 0;
            }
        }
    }
}
