//! R11: payloads that their receiver pulls out of the sender's memory.
//!
//! An RTS that leaves over a rail within the host contains the place of its payload, and there it stays as it
//! is until the sender has the CTS. So when a receive has matched, the shell pulls first, piece by piece, and
//! the CTS waits for its number. When all is there, an empty CTS informs the sender; if the payload is not
//! available, the CTS asks for frames, as it would have without all this.
//!
//! No image knows of it: a port that is frozen in the middle has a CTS without a number, and a port that is loaded from
//! that requests frames.

use crate::ids::{LinkIndex, OpId, RailIndex};
use crate::link::queues::{Control, Queues};
use crate::link::receive::Incoming;
use crate::message::Pull;
use crate::port::{Port, received};
use crate::sabotage::Rule;

/// A payload that is being pulled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pulling {
    /// The peer's operation.
    pub(crate) peer_op: OpId,
    /// Where it lies in the peer's memory.
    place: u64,
    /// Bytes that are here.
    done: u64,
}

impl Queues {
    /// Whether the oldest CTS may get its number.
    pub(crate) fn control_is_due(&self) -> bool {
        match self.control.front() {
            Some(Control::Cts { op, .. }) => self.pulls.front().is_none_or(|pull| pull.peer_op != *op),
            None => false,
        }
    }

    /// Where the payload of an RTS lies, if its sender has sent that; for the last time.
    fn take_place(&mut self, peer_op: OpId) -> Option<u64> {
        let at = self.places.iter().position(|(op, _)| *op == peer_op)?;
        self.places.remove(at).map(|(_, place)| place)
    }
}

impl Port {
    /// Keeps where the payload of an RTS lies until a receive matches it; 0: unknown.
    pub(crate) fn keep_place(&mut self, index: LinkIndex, peer_op: OpId, place: u64) {
        if place != 0 {
            let copied_bytes_max = self.config.link_copied_bytes_max;
            self.links[index.0 as usize].queues(copied_bytes_max).places.push_back((peer_op, place));
        }
    }

    /// The payload is not needed any more.
    pub(crate) fn forget_place(&mut self, index: LinkIndex, peer_op: OpId) {
        if let Some(queues) = &mut self.links[index.0 as usize].queues {
            queues.take_place(peer_op);
        }
    }

    /// A receive has matched, and the CTS stands in the queue: it waits while the shell pulls.
    pub(crate) fn begin_pull(&mut self, index: LinkIndex, incoming: &Incoming) {
        let Some(queues) = &mut self.links[index.0 as usize].queues else { return };
        if let Some(place) = queues.take_place(incoming.peer_op)
            && incoming.granted > 0
        {
            queues.pulls.push_back(Pulling { peer_op: incoming.peer_op, place, done: 0 });
            self.pulling.push_back(index);
        }
    }

    /// Whether [`Port::next_pull`] may have a piece; false is certain.
    #[must_use]
    pub fn wants_to_pull(&self) -> bool {
        !self.pulling.is_empty()
    }

    /// The next piece, of at most `bytes_max` bytes, that the shell should pull; [`Port::pulled`] reports its
    /// outcome. Until then the same is answered again.
    pub fn next_pull(&mut self, bytes_max: u64) -> Option<Pull> {
        loop {
            let link = *self.pulling.front()?;
            match self.piece_to_pull(link, bytes_max) {
                Some(pull) => return Some(pull),
                // There is no way to the peer within the host any more.
                None => self.end_pull(link),
            }
        }
    }

    fn piece_to_pull(&self, link: LinkIndex, bytes_max: u64) -> Option<Pull> {
        let entry = &self.links[link.0 as usize];
        let queues = entry.queues.as_ref()?;
        let pulling = queues.pulls.front()?;
        let incoming = queues.incoming.iter().find(|incoming| incoming.peer_op == pulling.peer_op)?;
        let ways = self.rails.iter().zip(&entry.paths).enumerate();
        let (rail, path) = ways
            .filter(|(_, (rail, _))| rail.within_host && rail.alive)
            .find_map(|(i, (_, path))| Some((RailIndex(u8::try_from(i).ok()?), (*path)?)))?;
        Some(Pull {
            link,
            rail,
            from: path.address,
            place: pulling.place.checked_add(pulling.done)?,
            receive: incoming.op,
            offset: incoming.base + pulling.done,
            bytes: (incoming.granted - pulling.done).min(bytes_max),
        })
    }

    /// Reports the outcome of the piece that [`Port::next_pull`] has named: it is in its place, or it is not available.
    pub fn pulled(&mut self, pull: &Pull, here: bool) {
        let index = pull.link;
        if !here {
            self.end_pull(index);
            return;
        }
        let Some(queues) = &mut self.links[index.0 as usize].queues else { return };
        let Some(pulling) = queues.pulls.front_mut() else { return };
        pulling.done += pull.bytes;
        let Pulling { peer_op, done, .. } = *pulling;
        let of_peer = |incoming: &Incoming| incoming.peer_op == peer_op;
        let Some(place) = queues.incoming.iter().position(of_peer) else { return };
        if done < queues.incoming[place].granted && !self.sabotage.has(Rule::PulledWhole) {
            return;
        }
        let mut incoming = queues.incoming.remove(place);
        // The sender sends nothing for a CTS of nothing, and is done.
        for control in &mut queues.control {
            let Control::Cts { op, total } = control;
            if *op == peer_op {
                *total = 0;
            }
        }
        self.counters.messages_pulled += 1;
        self.end_pull(index);
        incoming.finished = self.end_multi_recv(incoming.op, incoming.finished);
        self.events.push_back(received(index, &incoming));
    }

    /// The CTS may get its number.
    fn end_pull(&mut self, index: LinkIndex) {
        self.pulling.pop_front();
        if let Some(queues) = &mut self.links[index.0 as usize].queues {
            queues.pulls.pop_front();
        }
        self.make_ready(index);
    }
}
