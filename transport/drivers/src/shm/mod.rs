//! Shared memory between the processes of one user on one host.
//!
//! Each rail owns a segment (`layout`), its inbox. A sender claims a ring there and is that ring's only writer, so no
//! lock is shared between processes, and one that dies leaves nothing locked. Memory is backed when it is first written
//! to: a peer that never sends costs nothing at the receiver.
//!
//! A frame is small (in its slot), long (in the ring's area), or has a payload of its own. That one lies in
//! the area too, or is only *offered*: the slot has its place in the sender's memory, and the receiver pulls
//! it from there with one copy (R11). An offer can be ended by either side at any time. The receiver ends it
//! when it has read, and the read bytes count only if the offer stood until then. The sender withdraws it
//! (the frame is lost, and retransmitted), or copies the payload into the area, if the receiver has not come
//! for it within `SHM_OFFER_PATIENCE`. So neither ever waits for the other.

mod address;
mod barrier;
pub mod host;
mod incoming;
mod layout;
#[cfg_attr(loom, path = "map_model.rs")]
mod map;
mod outgoing;
mod peers;
mod pull;
mod segment;
#[cfg(test)]
mod tests;

use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::task::Poll;
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Instant;

use transport::{AddressId, RawAddress};

use crate::counters::Counters;
use crate::driver::{Armed, Caps, DeferredPayload, Driver, EachFrame, Notice, Path, Wake};
use crate::error::DriverError;
use crate::limits::{
    BURST_FRAMES, SHM_COPIED_AHEAD, SHM_FRAME_BYTES_MAX, SHM_OFFER_BYTES_MIN, SHM_OFFER_PATIENCE,
    SHM_STAGED_FRAMES,
};
use crate::payload::Payload;
use crate::sleep::wait_readable;
use crate::staging::Staging;
use crate::sync::Ordering;

use incoming::{Desk, EachFetch, Incoming};
use layout::{ACTIVE, ACTIVE_WORDS, AREA_BYTES, ARMED, HEADER_KEY_ADDRESS, RINGS_MAX, SLOTS};
use outgoing::{Offer, Outcome, Sender};
use peers::Peers;
use pull::Key;
use segment::Inbox;

/// Settings of a rail.
#[derive(Clone, Copy, Debug)]
pub struct ShmConfig {
    /// Large payloads are read from the sender's memory, where the system permits it; otherwise they are copied through the ring.
    pub pull: bool,
    /// Large payloads that are copied ahead of a receiver that may read our memory, before further ones are offered to it.
    pub copied_ahead: usize,
    /// How long an offered payload waits for its receiver before it is copied through the ring.
    pub offer_patience: Duration,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig { pull: true, copied_ahead: SHM_COPIED_AHEAD, offer_patience: SHM_OFFER_PATIENCE }
    }
}

/// Calls between two looks at the clock while an offer is open.
const LOOKS_PER_CLOCK: u32 = if cfg!(loom) { 1 } else { 16 };

/// Looks at a ring that find nothing, after which it is looked at only when its sender asks for it.
const QUIET_LOOKS: u32 = if cfg!(loom) { 0 } else { 4096 };

/// Rings that are looked at all the time, quiet or not: each costs a load from the cache.
const QUIET_RINGS: usize = if cfg!(loom) { 0 } else { 4 };

// The slot of an offer is not used again before the offer has been settled: only staged frames have offers.
const _: () = assert!(SHM_STAGED_FRAMES <= SLOTS);

/// A frame that has been written to its ring, in the order of the commits.
enum Handed {
    Done,
    Offer { to: AddressId, number: u64, since: Instant, bytes: usize },
}

/// One rail.
pub struct ShmDriver {
    caps: Caps,
    counters: Counters,
    config: ShmConfig,
    inbox: Inbox,
    /// Receivers read it to verify that they read this process; see [`Key`]. Boxed: peers get its address.
    key: Box<AtomicU64>,
    peers: Peers,
    staging: Staging,
    /// The oldest frames of `staging`: those that have been written.
    handed: VecDeque<Handed>,
    /// Peers with frames that have not been announced.
    written: Vec<AddressId>,
    looks: u32,
    /// By number.
    rings: Vec<Option<Incoming>>,
    /// Numbers of the rings that are looked at, and the same as bits.
    active: Vec<usize>,
    active_bits: [u64; ACTIVE_WORDS],
    /// Place in `active` of the ring that is looked at first.
    first: usize,
    scratch: Vec<u8>,
    /// Where a frame is put together whose receiver wants it in one piece.
    whole: Vec<u8>,
    armed: bool,
}

impl ShmDriver {
    /// Opens a rail.
    ///
    /// # Errors
    /// `CannotOpen`: there is no `/proc`, or the system refuses memory or descriptors.
    pub fn open(config: &ShmConfig) -> Result<ShmDriver, DriverError> {
        let inbox = Inbox::create()?;
        let own = inbox.place.encode();
        let key = Box::new(AtomicU64::new(Key::value_of(&own)));
        let sender = Sender {
            process: inbox.place.owner,
            key: Key { address: (&raw const *key) as u64, value: Key::value_of(&own) },
            copied_ahead: config.copied_ahead,
            offer_bytes_min: if config.pull { SHM_OFFER_BYTES_MIN } else { usize::MAX },
        };
        if config.pull {
            pull::permit();
            inbox.front.u64(HEADER_KEY_ADDRESS).store(sender.key.address, Ordering::Release);
        }
        Ok(ShmDriver {
            caps: Caps {
                kind: "shm",
                frame_bytes_max: SHM_FRAME_BYTES_MAX,
                burst: BURST_FRAMES,
                gather: true,
                ordered: true,
                receive_bytes: AREA_BYTES,
                within_host: true,
            },
            counters: Counters::default(),
            config: *config,
            peers: Peers::new(inbox.place.host, sender),
            inbox,
            key,
            staging: Staging::new(SHM_STAGED_FRAMES, SHM_FRAME_BYTES_MAX),
            handed: VecDeque::new(),
            written: Vec::new(),
            looks: 0,
            rings: (0..RINGS_MAX).map(|_| None).collect(),
            active: Vec::new(),
            active_bits: [0; ACTIVE_WORDS],
            first: 0,
            scratch: vec![0; SHM_FRAME_BYTES_MAX],
            whole: vec![0; SHM_FRAME_BYTES_MAX],
            armed: false,
        })
    }

    /// Writes the staged frame that is next, if there is one. False: it is lost.
    fn hand_over(&mut self) -> Option<bool> {
        let i = self.handed.len();
        if i == self.staging.len() {
            return None;
        }
        let mut written = false;
        let done = match self.staging.frame(i) {
            None => Handed::Done,
            Some(frame) => match self.peers.write(frame, &mut self.counters) {
                None => {
                    let to = frame.to;
                    if self.peers.dead(to) {
                        self.end_offers(Some(to));
                        self.peers.part(to);
                    }
                    Handed::Done
                }
                Some(outcome) => {
                    written = true;
                    if self.written.last() != Some(&frame.to) {
                        self.written.push(frame.to);
                    }
                    match outcome {
                        Outcome::Offered(number) => {
                            Handed::Offer { to: frame.to, number, since: Instant::now(), bytes: frame.len() }
                        }
                        _ => {
                            self.counters.frames_sent += 1;
                            self.counters.bytes_sent += frame.len() as u64;
                            Handed::Done
                        }
                    }
                }
            },
        };
        self.handed.push_back(done);
        Some(written)
    }

    fn announce(&mut self) {
        // Taken out and put back, so that its memory is used again.
        let mut written = core::mem::take(&mut self.written);
        for to in written.drain(..) {
            if self.peers.announce(to) {
                self.counters.send_calls += 1;
            } else {
                self.end_offers(Some(to));
                self.peers.part(to);
            }
        }
        self.written = written;
    }

    /// Completes finished frames, in order.
    fn settle(&mut self) {
        let mut now = None;
        while let Some(oldest) = self.handed.front() {
            if let Handed::Offer { to, number, since, bytes } = *oldest {
                let Some(ring) = self.peers.ring(to) else {
                    debug_assert!(false, "an offer to a peer that was parted from");
                    return;
                };
                let mut offer = ring.offer(number);
                if offer == Offer::Open {
                    self.looks += 1;
                    if now.is_none() && self.looks < LOOKS_PER_CLOCK {
                        return;
                    }
                    self.looks = 0;
                    if now.get_or_insert_with(Instant::now).duration_since(since) < self.config.offer_patience
                    {
                        return;
                    }
                    let payload = self.staging.frame(0).map_or(&[][..], |frame| frame.payload);
                    offer = ring.copy_offer(number, payload);
                    self.counters.offers_copied += 1;
                }
                count_offer(&mut self.counters, offer, bytes, |counters| &mut counters.lost_receiver_full);
            }
            self.handed.pop_front();
            self.staging.complete(1);
        }
    }

    /// Takes back the offers to `to_whom`, or to anybody.
    fn end_offers(&mut self, to_whom: Option<AddressId>) {
        for handed in &mut self.handed {
            let Handed::Offer { to, number, bytes, .. } = *handed else { continue };
            if to_whom.is_some_and(|whom| whom != to) {
                continue;
            }
            let offer = self.peers.ring(to).map_or(Offer::Lost, |ring| ring.withdraw(number));
            count_offer(&mut self.counters, offer, bytes, |counters| {
                if to_whom.is_some() { &mut counters.lost_refused } else { &mut counters.lost_drained }
            });
            *handed = Handed::Done;
        }
    }

    /// Takes over the rings whose senders have asked to be looked at.
    fn look_for_senders(&mut self) {
        for word in 0..ACTIVE_WORDS {
            let mut fresh = self.inbox.active(word) & !self.active_bits[word];
            while fresh != 0 {
                let ring = word * 64 + fresh.trailing_zeros() as usize;
                fresh &= fresh - 1;
                if self.rings[ring].is_none() {
                    // Without memory for it now: it is tried again by the next call.
                    let Ok(map) = self.inbox.map_ring(ring) else { continue };
                    self.rings[ring] = Some(Incoming::new(ring, map));
                }
                self.active_bits[word] |= 1 << (ring % 64);
                self.active.push(ring);
            }
        }
    }

    /// Stops looking at a ring that has been quiet for long, unless a frame comes at this moment, or might come unseen.
    fn leave(&mut self, at: usize) {
        let ring = self.active[at];
        let (word, bit) = (ring / 64, 1u64 << (ring % 64));
        let bits = self.inbox.front.u64(ACTIVE + word * 8);
        bits.fetch_and(!bit, Ordering::SeqCst);
        let met = self.inbox.meet_senders();
        if let Some(incoming) = &mut self.rings[ring] {
            incoming.quiet_looks = 0;
            if !met || incoming.has_frame() {
                bits.fetch_or(bit, Ordering::SeqCst);
                return;
            }
        }
        self.active_bits[word] &= !bit;
        self.active.swap_remove(at);
    }

    fn disarm(&mut self) {
        self.armed = false;
        if self.inbox.front.u32(ARMED).swap(0, Ordering::SeqCst) == 0 {
            self.inbox.silence();
        }
    }

    /// Gives arrived frames to `each`; see [`Incoming::receive`].
    fn look(&mut self, frames_max: usize, each: &mut EachFetch<'_>) -> usize {
        if !self.handed.is_empty() {
            self.settle();
        }
        if self.armed {
            self.disarm();
        }
        self.look_for_senders();
        let (mut given, mut quiet) = (0, None);
        let rings = self.active.len();
        for i in 0..rings {
            let at = (self.first + i) % rings;
            let Some(incoming) = &mut self.rings[self.active[at]] else { continue };
            let mut desk = Desk {
                front: &self.inbox.front,
                counters: &mut self.counters,
                scratch: &mut self.scratch,
                pull: self.config.pull,
            };
            let came = incoming.receive(&mut desk, frames_max - given, each);
            given += came;
            incoming.quiet_looks = if came > 0 { 0 } else { incoming.quiet_looks.saturating_add(1) };
            if incoming.quiet_looks > QUIET_LOOKS {
                quiet = Some(at);
            }
            if given == frames_max {
                // Those behind it come first next time.
                self.first = at + 1;
                break;
            }
        }
        if given > 0 {
            self.counters.receive_calls += 1;
        } else {
            self.counters.empty_polls += 1;
            if let Some(at) = quiet.filter(|_| rings > QUIET_RINGS) {
                self.leave(at);
            }
        }
        given
    }

    fn has_frame(&self) -> bool {
        self.active.iter().any(|ring| self.rings[*ring].as_ref().is_some_and(Incoming::has_frame))
    }
}

/// Counts the outcome of an offer: sent, or lost in the counter that `lost` names.
fn count_offer(
    counters: &mut Counters,
    offer: Offer,
    bytes: usize,
    lost: impl FnOnce(&mut Counters) -> &mut u64,
) {
    if offer == Offer::Lost {
        *lost(counters) += 1;
    } else {
        counters.frames_sent += 1;
        counters.bytes_sent += bytes as u64;
    }
}

impl Driver for ShmDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn local_address(&self) -> RawAddress {
        self.inbox.place.encode()
    }

    fn resolve(&mut self, address: &RawAddress) -> Result<AddressId, DriverError> {
        self.peers.resolve(address)
    }

    fn forget(&mut self, address: AddressId) {
        self.end_offers(Some(address));
        self.peers.forget(address);
    }

    fn path(&self, to: AddressId) -> Option<Path> {
        self.peers.knows(to).then_some(Path { frame_bytes_max: self.caps.frame_bytes_max, on_host: true })
    }

    fn pull(&mut self, from: AddressId, place: u64, to: &mut [u8]) -> bool {
        self.config.pull && self.peers.pull(from, place, to)
    }

    fn lease(&mut self) -> Option<&mut [u8]> {
        self.staging.lease()
    }

    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) {
        if frame_bytes + payload.len() > self.caps.frame_bytes_max {
            self.counters.lost_too_long += 1;
            self.staging.commit_refused(to);
        } else if !self.staging.commit(to, frame_bytes, payload) {
            self.counters.lost_other += 1;
        }
    }

    fn send_fast(&mut self, to: AddressId, frame: &[u8]) -> bool {
        if self.staging.len() > 0 || !self.peers.write_short(to, frame) {
            return false;
        }
        self.staging.pass();
        self.counters.frames_sent += 1;
        self.counters.bytes_sent += frame.len() as u64;
        self.counters.send_calls += 1;
        true
    }

    fn flush(&mut self) -> Result<usize, DriverError> {
        let mut frames = 0;
        while let Some(written) = self.hand_over() {
            frames += usize::from(written);
        }
        self.announce();
        self.settle();
        Ok(frames)
    }

    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        let mut whole = core::mem::take(&mut self.whole);
        let given = self.look(frames_max, &mut |frame, deferred| {
            let Some(deferred) = deferred else {
                each(frame);
                return true;
            };
            let bytes = frame.len() + deferred.bytes();
            let (head, payload) = whole[..bytes].split_at_mut(frame.len());
            head.copy_from_slice(frame);
            let fetched = deferred.fetch(payload);
            if fetched {
                each(&whole[..bytes]);
            }
            fetched
        });
        self.whole = whole;
        Ok(given)
    }

    fn receive_deferred(
        &mut self,
        frames_max: usize,
        each: &mut EachFrame<'_>,
    ) -> Result<usize, DriverError> {
        Ok(self.look(frames_max, &mut |frame, deferred| {
            each(frame, deferred.map(|deferred| deferred as &mut dyn DeferredPayload));
            true
        }))
    }

    fn is_quiet(&self) -> bool {
        let no_sender_is_new =
            || self.active_bits.iter().enumerate().all(|(word, known)| self.inbox.active(word) & !known == 0);
        self.handed.is_empty() && !self.armed && !self.has_frame() && no_sender_is_new()
    }

    fn staged_total(&self) -> u64 {
        self.staging.staged_total()
    }

    fn completed_total(&self) -> u64 {
        self.staging.completed_total()
    }

    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        self.end_offers(None);
        self.staging.complete(self.handed.len());
        self.handed.clear();
        self.counters.lost_drained += self.staging.drain() as u64;
        Ok(Poll::Ready(()))
    }

    fn device_mappings(&self) -> Vec<Range<usize>> {
        let rings = self.rings.iter().flatten().map(Incoming::mapping);
        core::iter::once(self.inbox.front.range()).chain(rings).chain(self.peers.mappings()).collect()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.inbox.descriptors().into_iter().chain(self.peers.descriptors()).collect()
    }

    fn poll_notice(&mut self) -> Option<Notice> {
        self.peers.lost.pop_front().map(|to| Notice::PathLost { to })
    }

    fn arm(&mut self) -> Result<Armed, DriverError> {
        self.settle();
        if !self.handed.is_empty() {
            // Only calls end an offer that no receiver takes.
            return Ok(Armed::FrameWaiting);
        }
        self.inbox.silence();
        self.armed = true;
        // An exchange, as a store of this ordering is on x86-64: it has its place behind the senders' exchanges before it.
        self.inbox.front.u32(ARMED).swap(1, Ordering::SeqCst);
        let met = self.inbox.meet_senders();
        self.look_for_senders();
        if !met || self.has_frame() {
            self.disarm();
            return Ok(Armed::FrameWaiting);
        }
        Ok(Armed::Sleep)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.bell().as_fd())
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, DriverError> {
        match self.arm()? {
            Armed::FrameWaiting => Ok(Wake::Frame),
            Armed::Sleep => wait_readable(self.inbox.bell().as_fd(), timeout),
        }
    }
}

impl Drop for ShmDriver {
    fn drop(&mut self) {
        // Payload is dropped with the staging ring: bytes read of it from here on must not be used.
        self.end_offers(None);
        // From here on receivers discard bytes read of our memory.
        self.key.store(0, Ordering::SeqCst);
    }
}
