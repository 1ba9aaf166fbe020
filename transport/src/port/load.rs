//! From plain data back to a port, checked before it is believed.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::auth::JobKey;
use crate::bytering::ByteRing;
use crate::config::{LINKS_MAX, PortConfig};
use crate::hash::PlainHasher;
use crate::ids::LinkIndex;
use crate::link::queues::{Queues, Sent};
use crate::link::receive::Target;
use crate::link::record::FrameRecord;
use crate::link::{Flags, Link};
use crate::matching::MessageKey;
use crate::port::check::{NUMBER_MAX, StateError, StatePart};
use crate::port::state::{Arrived, LinkState, PortState, WaitingMessage};
use crate::port::{FrozenPort, Port};

/// Under which key the port that was dumped and the loaded one know a waiting message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyChange {
    /// In the port that was dumped.
    pub old: MessageKey,
    /// In the loaded port.
    pub new: MessageKey,
}

type Keys = HashMap<MessageKey, MessageKey, core::hash::BuildHasherDefault<PlainHasher>>;

impl FrozenPort {
    /// Makes a port from an image's contents, for a restart in a new life. `config` and `key` are those of the job, as
    /// for [`Port::new`]. Also returns the new keys of the messages that the program had claimed, in the order of
    /// claiming.
    ///
    /// # Errors
    /// [`StateError`] for a state that no port of this configuration can be in. Nothing that comes from a file can make
    /// this panic.
    ///
    /// # Panics
    /// Like [`Port::new`], without a key where one is needed.
    pub fn from_state(
        config: PortConfig,
        key: Option<&JobKey>,
        state: PortState,
    ) -> Result<(FrozenPort, Vec<KeyChange>), StateError> {
        if state.job != config.job {
            return Err(StateError::Job { found: state.job, expected: config.job });
        }
        StateError::bound("links", state.links.len() as u64, LINKS_MAX as u64)?;
        let mut port = Port::new(config, state.id, state.life, state.epoch, key);
        port.next_op = state.next_op;
        port.pause = state.pause;
        port.acked_total = state.acknowledged;
        for (i, link) in state.links.iter().enumerate() {
            let index = LinkIndex(u32::try_from(i).unwrap_or(u32::MAX));
            if port.by_peer.insert(link.peer, index).is_some() {
                return Err(StateError::Twice { what: "peer", number: link.peer.0 });
            }
        }
        let (keys, claimed) = port.load_waiting(state.waiting)?;
        for receive in state.posted {
            port.matcher.restore_posted(receive)?;
        }
        for send in state.sends {
            let op = send.envelope.op;
            if port.sends.insert(op, send).is_some() {
                return Err(StateError::Twice { what: "send", number: op.0 });
            }
        }
        for (i, link) in state.links.into_iter().enumerate() {
            let link = port.load_link(i, link, &keys)?;
            port.links.push(link);
        }
        port.events.extend(state.completions);
        let mut frozen = FrozenPort { port, at: None };
        frozen.recount_multi_recv();
        frozen.check()?;
        Ok((frozen, claimed))
    }
}

impl Port {
    fn load_waiting(&mut self, waiting: Vec<WaitingMessage>) -> Result<(Keys, Vec<KeyChange>), StateError> {
        let (mut keys, mut claims) = (Keys::default(), Vec::new());
        for WaitingMessage { key: old, claimed, message } in waiting {
            if let Arrived::Copied(payload) = &message.payload {
                self.unexpected_bytes = self.unexpected_bytes.saturating_add(payload.len());
            }
            let new = if claimed {
                self.matcher.restore_claimed(message)?
            } else {
                self.matcher.restore_unexpected(message)?
            };
            if keys.insert(old, new).is_some() {
                return Err(StateError::Twice { what: "waiting message", number: old.0.to_bits() });
            }
            if claimed {
                claims.push(KeyChange { old, new });
            }
        }
        Ok((keys, claims))
    }

    fn load_link(&self, i: usize, state: LinkState, keys: &Keys) -> Result<Link, StateError> {
        let index = LinkIndex(u32::try_from(i).unwrap_or(u32::MAX));
        let mut link = Link::new(
            state.peer,
            self.congestion_bytes_initial(),
            self.window_bytes_initial(),
            self.window_frames_initial(),
        );
        link.peer_epoch = self.epoch;
        link.next = state.next;
        link.acked = state.next.checked_sub(state.sent.len() as u64).ok_or(StateError::Value {
            place: StatePart::Link(index),
            field: "unacknowledged frames",
            found: state.sent.len() as u64,
            needed: state.next,
        })?;
        link.expected = state.expected;
        link.ack_reported = state.expected.saturating_sub(state.owed);
        link.announced = state.announced;
        link.flags.set(Flags::CLOSING, state.ends.closing);
        link.flags.set(Flags::CLOSE_SENT, state.ends.close_sent);
        link.flags.set(Flags::PEER_CLOSED, state.ends.peer_closed);
        let idle = state.sent.is_empty()
            && state.copied.is_empty()
            && state.pending.is_empty()
            && state.control.is_empty()
            && state.streams.is_empty()
            && state.incoming.is_empty()
            && state.open.is_none();
        if !idle {
            link.queues = Some(Box::new(self.load_queues(index, state, keys)?));
            let frames = link.queues.iter().flat_map(|queues| &queues.frames);
            let copied = frames.filter(|frame| frame.is_copied());
            let (frames, bytes) = copied.fold((0u16, 0u32), |(frames, bytes), frame| {
                (frames.saturating_add(1), bytes.saturating_add(frame.bytes.get()))
            });
            link.copied_frames = frames;
            link.copied_bytes = bytes;
            link.lose_all(false);
        }
        Ok(link)
    }

    fn load_queues(&self, link: LinkIndex, state: LinkState, keys: &Keys) -> Result<Queues, StateError> {
        let place = StatePart::Link(link);
        let bytes_max = self.config.link_copied_bytes_max;
        let mut copied = ByteRing::starting_at(bytes_max, state.copied_start);
        place.at_most("place in the ring", state.copied_start, NUMBER_MAX)?;
        let bytes = state.copied.len() as u64;
        copied.push(&state.copied).map_err(|full| StateError::Value {
            place,
            field: "copied bytes",
            found: bytes,
            needed: full.bytes_max as u64,
        })?;
        let mut open = state.open;
        if let Some(open) = &mut open
            && let Target::Waiting(old) = open.target
        {
            let new = keys.get(&old).copied();
            open.target = Target::Waiting(new.ok_or(StateError::Value {
                place,
                field: "message under assembly",
                found: old.0.to_bits(),
                needed: 0,
            })?);
        }
        let mut queues = Queues::new(bytes_max);
        for frame in &state.sent {
            let sent = Sent {
                transmission: 0,
                sent_at: 0,
                payload_bytes: frame.payload_bytes,
                rail: 0,
                selected: false,
                lost: false,
                resent: true,
            };
            queues.keep(FrameRecord::new(frame), sent);
        }
        queues.copied = copied;
        queues.pending = state.pending.into();
        queues.control = state.control.into();
        queues.streams = state.streams.into();
        queues.incoming = state.incoming;
        queues.open = open;
        Ok(queues)
    }
}
