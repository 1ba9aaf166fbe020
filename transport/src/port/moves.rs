//! R13: ranks that go on elsewhere while the others run.
//!
//! A rank that has moved is another process at another address, with the counters and queues of the one before. So each of its links begins again as after a
//! restart (R10), at either end when that end knows of the move. Frames from before the move must count at neither end any more: numbers that the peer has not
//! counted are given out again, to frames that may be cut otherwise. So all frames of such a link carry a life of its own from then on, made of how often its ends
//! have moved ([`Life::of_link`]).

use crate::ids::{Life, LinkIndex, Rank};
use crate::link::timer::Timers;
use crate::link::{Beginning, Flags};
use crate::port::Port;
use crate::time::Instant;

impl Port {
    /// How often a rank has moved in this life.
    #[must_use]
    pub fn moves_of(&self, rank: Rank) -> u32 {
        self.moves.get(&rank).copied().unwrap_or(0)
    }

    /// The life that frames to and from a rank carry.
    pub(crate) fn life_with(&self, peer: Rank) -> Life {
        if self.moves.is_empty() {
            return self.life;
        }
        let of = |rank| (rank, self.moves_of(rank));
        self.life.of_link(of(self.id.rank()), of(peer))
    }

    /// The life that frames of a link carry.
    #[inline]
    pub(crate) fn life_of_link(&self, link: LinkIndex) -> Life {
        match self.link_lives.get(link.0 as usize) {
            None => self.life,
            Some(nonce) => Life { nonce: *nonce, ..self.life },
        }
    }

    /// After a move: which life each link has.
    pub(crate) fn note_lives(&mut self) {
        let nonces = self.links.iter().map(|link| self.life_with(link.peer.rank()).nonce).collect();
        self.link_lives = nonces;
    }

    /// How links begin, in a new process and at a new peer.
    pub(crate) fn beginning(&self) -> Beginning {
        Beginning {
            congestion_bytes: self.congestion_bytes_initial(),
            window_bytes: self.window_bytes_initial(),
            window_frames: self.window_frames_initial(),
            promised_bytes: self.config.link_window_bytes,
            promised_frames: self.window_frames_most(),
        }
    }

    /// A peer's rank has moved, for the `moves`th time in this life: each link to it begins again. Set paths to its new addresses then. False: that is no news, or it
    /// is older.
    pub fn peer_moved(&mut self, now: Instant, rank: Rank, moves: u32) -> bool {
        self.catch_up();
        if moves <= self.moves_of(rank) || rank == self.id.rank() {
            return false;
        }
        self.moves.insert(rank, moves);
        self.note_lives();
        let (beginning, now) = (self.beginning(), self.port_time(now));
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if link.peer.rank() != rank || link.flags.contains(Flags::BROKEN) {
                continue;
            }
            let reordered = link.queues.as_ref().map_or(0, |queues| queues.reorder.bytes());
            // It stands in queues of the port as before.
            let queued = link.flags & (Flags::READY | Flags::STARVED);
            let armed = link.timers.armed;
            link.begin_again(self.epoch, beginning);
            link.flags |= queued;
            link.timers = Timers { armed, ..Timers::default() };
            link.heard_at = now;
            self.reorder_bytes -= reordered;
            let index = LinkIndex(u32::try_from(at).unwrap_or(u32::MAX));
            self.pulling.retain(|pulled| *pulled != index);
            self.make_ready(index);
        }
        true
    }
}
