//! The state behind the gate: the port, its rails, its buffers.

use std::collections::{BTreeMap, VecDeque};

use drivers::{Driver, DriverError, Notice};
use transport::config::{AuthLevel, RAILS_MAX};
use transport::{
    Epoch, Event, Instant, LinkIndex, OpId, Outgoing, Payload, Port, RailIndex, RawAddress, SendError,
};

use crate::buffers::{Bringing, BufferTable, ReceiveBuffer, SendBuffer};
use crate::frozen::PortCell;
use crate::op_times::OpTimes;
use crate::spin_policy::SpinPolicy;
use crate::tx_fast_path::FRAME_BYTES_MAX;

/// Frames taken from a rail in one round: as many as fit the caches; acknowledgements are sent between
/// rounds.
const RECEIVE_BURST: usize = 32;

/// Bytes staged before they are handed to a rail: enough to pay for the call, little enough that the peer starts to read while
/// the rest is being staged.
const FLUSH_BYTES: usize = 128 << 10;

/// Bytes that one system call pulls out of a peer's memory: its fixed cost is a hundredth of the copy's, and a thread
/// at the gate waits some 40 us for it at most.
const PULL_BYTES: u64 = 512 << 10;

/// Bytes that are pulled before others have their turn.
const PULL_ROUND_BYTES: u64 = 4 << 20;

/// Looks at a rail of the network that found nothing, and that nothing was sent over, after which it is looked at more rarely where another
/// rail ends at this host: a look at a socket is a system call, one at shared memory a load.
const QUIET_LOOKS: u32 = 256;

/// It is looked at once in so many rounds then, and in every one again as soon as something comes, or before a sleep.
const QUIET_LOOKS_SPARED: u32 = 8;

/// Looks of a program that polls, of which one is always a whole round: the clock is read in that, and a spared rail
/// looked at in one of 32. Few, because between two looks a program may give its processor away.
const GLANCES_PER_ROUND: u32 = 4;

/// Frames that one rail takes before it is the next one's turn: few enough to spread a window, enough for one segmented call.
const TURN_FRAMES: usize = 8;

/// Completions that wait for the owner, from which on no more are made of the port's events. The port keeps as many as
/// [`transport::config::EVENTS_MAX`] of these; then it counts no frames any more, and peers send them again.
pub(crate) const COMPLETIONS_MAX: usize = 1 << 14;

/// The outcome of an operation, or a notice to the owner.
#[derive(Debug)]
pub enum Completion {
    /// A message has been received. Messages of one link are matched in the order of sending; which is complete first is not promised
    /// ([`transport::Event::Received`]).
    Received {
        /// The receive.
        op: OpId,
        /// Its context.
        context: u64,
        /// Link that the message came over.
        source: LinkIndex,
        /// Tag of the message.
        tag: u64,
        /// User data of the message.
        data: u64,
        /// Offset of the message in the buffer, bytes.
        offset: u64,
        /// Bytes stored.
        bytes: u64,
        /// Bytes sent; more than `bytes` if the message was truncated.
        sent_bytes: u64,
        /// Nothing more comes into the buffer.
        finished: bool,
        /// The buffer, if it had been handed over and is finished.
        buffer: Option<Vec<u8>>,
    },
    /// Nothing more comes into a buffer that [`crate::Endpoint::stop`] has taken back, and no message has
    /// reported that.
    Stopped {
        /// Context of the receive.
        context: u64,
        /// The buffer, if it had been handed over.
        buffer: Option<Vec<u8>>,
    },
    /// A message has been received by its peer.
    SendDone {
        /// The send.
        op: OpId,
        /// Its context.
        context: u64,
        /// Its payload, if it had been handed over.
        buffer: Option<Vec<u8>>,
    },
    /// The link of a message is broken ([`Event::Inconsistent`] or [`Event::PeerLost`], which has been reported): how
    /// much of it the peer has is unknown.
    SendFailed {
        /// The send.
        op: OpId,
        /// Its context.
        context: u64,
        /// Its payload, if it had been handed over.
        buffer: Option<Vec<u8>>,
    },
    /// Likewise, of a message on its way into a receive, or of the only link from which one could come.
    ReceiveFailed {
        /// The receive.
        op: OpId,
        /// Its context.
        context: u64,
        /// The broken link.
        source: LinkIndex,
        /// Tag of the message; 0 if none had come.
        tag: u64,
        /// Nothing more comes into the buffer.
        finished: bool,
        /// The buffer, if it had been handed over and is finished.
        buffer: Option<Vec<u8>>,
    },
    /// A peer has cut: this rank must, straight to this epoch.
    CutRequired {
        /// The higher epoch.
        epoch: Epoch,
    },
    /// Something that the owner may want to report.
    Report(Event),
    /// A rail is dead; the others go on.
    RailDead {
        /// Which.
        rail: RailIndex,
        /// Its driver's error.
        reason: DriverError,
    },
}

/// A send that is over for the protocol.
#[derive(Clone, Copy)]
struct Over {
    op: OpId,
    context: u64,
    failed: bool,
}

pub(crate) struct Inner {
    pub(crate) port: PortCell,
    pub(crate) rails: Vec<Option<Box<dyn Driver>>>,
    pub(crate) buffers: BufferTable,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) on_rail_news: Option<Box<dyn Fn() + Send>>,
    /// A rail that has lost its helper, until it is queried, or another driver takes its place.
    pub(crate) lost_helper: Option<usize>,
    /// Where the peer of each link is on each rail, for a driver that takes a rail over.
    pub(crate) places: BTreeMap<(usize, LinkIndex), RawAddress>,
    /// Events may have been left with the port, for want of room.
    behind: bool,
    /// Sends that are over for the protocol, whose payload a NIC still reads.
    held: Vec<Over>,
    /// Whose turn it is.
    turn: usize,
    /// The rail that ends at this host.
    pub(crate) within_host: Option<usize>,
    /// Looks at each rail in a row that found nothing.
    pub(crate) empty_looks: [u32; RAILS_MAX],
    pub(crate) glances: u32,
    pub(crate) spin_policy: SpinPolicy,
    pub(crate) op_times: OpTimes,
    /// Where a frame of the fast path is written.
    pub(crate) fast_frame: [u8; FRAME_BYTES_MAX],
}

impl Inner {
    pub(crate) fn new(port: Port, rails: Vec<Box<dyn Driver>>, buffers: BufferTable) -> Inner {
        let within_host = rails.iter().position(|driver| driver.caps().within_host);
        let rails = rails.into_iter().map(Some).collect();
        Inner {
            port: PortCell::new(port),
            rails,
            buffers,
            completions: VecDeque::new(),
            on_rail_news: None,
            lost_helper: None,
            places: BTreeMap::new(),
            behind: false,
            held: Vec::new(),
            turn: 0,
            within_host,
            empty_looks: [0; RAILS_MAX],
            glances: 0,
            spin_policy: SpinPolicy::default(),
            op_times: OpTimes::default(),
            fast_frame: [0; FRAME_BYTES_MAX],
        }
    }

    /// Other rails in the place of those before, which are returned.
    pub(crate) fn replace_rails(&mut self, rails: Vec<Box<dyn Driver>>) -> Vec<Option<Box<dyn Driver>>> {
        self.within_host = rails.iter().position(|driver| driver.caps().within_host);
        self.turn = 0;
        self.places.clear();
        self.lost_helper = None;
        self.look_everywhere();
        // They count their frames from zero.
        (0..RAILS_MAX).for_each(|i| self.buffers.forget_rail(i));
        core::mem::replace(&mut self.rails, rails.into_iter().map(Some).collect())
    }

    /// Takes a message over, without sending anything.
    pub(crate) fn send(
        &mut self,
        link: LinkIndex,
        outgoing: Outgoing,
        buffer: SendBuffer<'_>,
    ) -> Result<OpId, SendError> {
        match buffer {
            SendBuffer::Copied(bytes) => self.port.send(link, outgoing, Payload::Copied(bytes)),
            SendBuffer::Owned(bytes) => {
                let payload = Payload::User { bytes: bytes.len() as u64 };
                let op = self.port.send(link, outgoing, payload)?;
                self.buffers.keep_send(op, bytes);
                Ok(op)
            }
            SendBuffer::Borrowed(payload) => {
                let bytes = Payload::User { bytes: payload.len() as u64 };
                let op = self.port.send(link, outgoing, bytes)?;
                self.buffers.keep_borrowed(op, payload);
                Ok(op)
            }
        }
    }

    /// Whether a round would find nothing, as far as a few loads can show: no clock is read. Now and then it returns
    /// false, for due timers.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.glances = self.glances.wrapping_add(1);
        !self.glances.is_multiple_of(GLANCES_PER_ROUND) && self.is_still_quiet()
    }

    /// As [`Inner::is_quiet`], for one that looks again within a few microseconds: nothing becomes due that fast.
    pub(crate) fn is_still_quiet(&self) -> bool {
        self.completions.is_empty()
            && !self.behind
            && self.held.is_empty()
            && !self.port.is_behind()
            && !self.port.has_events()
            && !self.port.wants_to_transmit()
            && !self.port.wants_to_pull()
            && self.rails_are_quiet()
    }

    /// Whether no rail that is looked at has a frame.
    #[inline]
    pub(crate) fn rails_are_quiet(&self) -> bool {
        self.rails.iter().zip(&self.empty_looks).all(|(rail, empty_looks)| {
            rail.as_ref().is_none_or(|driver| {
                let spared =
                    self.within_host.is_some() && !driver.caps().within_host && *empty_looks > QUIET_LOOKS;
                spared || driver.is_quiet()
            })
        })
    }

    /// One round: received frames, due timers, frames to send. True if anything happened.
    pub(crate) fn progress(&mut self, now: Instant, wanted: impl Fn() -> bool) -> bool {
        // Of the round before: the program has had its messages, and answered.
        self.port.catch_up();
        if self.behind {
            // First of all, so that the port has room for new frames.
            self.collect();
        }
        let known = self.completions.len();
        let mut happened = self.receive(now);
        happened |= self.pull(wanted);
        if self.port.is_due(now) {
            self.port.handle_timeout(now);
            happened = true;
        }
        if !self.held.is_empty() {
            // A copy that peers no longer need may be in frames that a rail has not handed over, with nothing
            // else left to send.
            (0..self.rails.len()).for_each(|i| self.hand_over_rest(i));
        }
        if self.port.wants_to_transmit() {
            // Sending would do it, and its results have to be reported in this round.
            self.port.catch_up();
        }
        self.collect();
        happened |= self.port.wants_to_transmit() && self.transmit(now);
        happened | (self.completions.len() > known)
    }

    /// No rail counts as quiet any more.
    pub(crate) fn look_everywhere(&mut self) {
        self.empty_looks = [0; RAILS_MAX];
    }

    fn receive(&mut self, now: Instant) -> bool {
        let mut happened = false;
        for i in 0..self.rails.len() {
            let Inner { port, rails, buffers, empty_looks, within_host, .. } = self;
            let Some(driver) = &mut rails[i] else { continue };
            if within_host.is_some() && !driver.caps().within_host {
                empty_looks[i] = empty_looks[i].wrapping_add(1);
                if empty_looks[i] > QUIET_LOOKS && !empty_looks[i].is_multiple_of(QUIET_LOOKS_SPARED) {
                    continue;
                }
            }
            let rail = rail_index(i);
            let taken = if port.authenticator_of(rail).is_some_and(|auth| auth.level() == AuthLevel::Full) {
                driver.receive(RECEIVE_BURST, &mut |frame| port.handle_frame(now, rail, frame, buffers))
            } else {
                driver.receive_deferred(RECEIVE_BURST, &mut |frame, deferred| match deferred {
                    None => port.handle_frame(now, rail, frame, buffers),
                    Some(deferred) => {
                        let payload_bytes = deferred.bytes();
                        port.handle_head(
                            now,
                            rail,
                            frame,
                            payload_bytes,
                            &mut Bringing { buffers, deferred },
                        );
                    }
                })
            };
            match taken {
                Ok(0) => {}
                Ok(_) => {
                    happened = true;
                    self.empty_looks[i] = 0;
                }
                Err(error) => self.rail_failed(i, error),
            }
        }
        happened
    }

    /// Pulls payloads that lie in the memory of peers on this host, until none is left, `PULL_ROUND_BYTES` are here, or
    /// `wanted` says that a thread waits for the gate. True if anything was pulled.
    pub(crate) fn pull(&mut self, wanted: impl Fn() -> bool) -> bool {
        let mut bytes = 0;
        while self.port.wants_to_pull() && bytes < PULL_ROUND_BYTES && (bytes == 0 || !wanted()) {
            let Some(pull) = self.port.next_pull(PULL_BYTES) else { break };
            let Inner { port, rails, buffers, .. } = self;
            let length = usize::try_from(pull.bytes).unwrap_or(usize::MAX);
            let here = match (
                &mut rails[usize::from(pull.rail.0)],
                buffers.target(pull.receive, pull.offset, length),
            ) {
                (Some(driver), Some(place)) => driver.pull(pull.from, pull.place, place),
                // It is not needed any more.
                (_, None) => true,
                (None, _) => false,
            };
            port.pulled(&pull, here);
            bytes += pull.bytes;
        }
        bytes > 0
    }

    /// Sends permitted frames. True if there were any.
    pub(crate) fn transmit(&mut self, now: Instant) -> bool {
        if !self.port.wants_to_transmit() {
            return false;
        }
        let mut happened = false;
        // Trunking: the rails take turns with a few frames each, and another one begins each time (R24).
        let frames_max = if self.rails.iter().flatten().nth(1).is_some() { TURN_FRAMES } else { usize::MAX };
        let mut idle = 0;
        while idle < self.rails.len() && self.port.wants_to_transmit() {
            let i = self.turn;
            self.turn = if i + 1 < self.rails.len() { i + 1 } else { 0 };
            if !self.fill(i, frames_max, now) {
                // It may have no room because its NIC had none.
                self.hand_over_rest(i);
                idle += 1;
                continue;
            }
            happened = true;
            idle = 0;
            self.empty_looks[i] = 0;
            self.hand_over(i);
        }
        self.collect_news();
        happened
    }

    /// Collects the results of sending: a send catches up with deferred work.
    pub(crate) fn collect_news(&mut self) {
        if self.port.has_events() {
            self.collect();
        }
    }

    /// Hands the staged frames to a rail.
    pub(crate) fn hand_over(&mut self, i: usize) {
        if let Some(Err(error)) = self.rails[i].as_mut().map(|driver| driver.flush()) {
            self.rail_failed(i, error);
        }
        self.take_notices(i);
    }

    /// Has a rail continue with its unfinished frames.
    fn hand_over_rest(&mut self, i: usize) {
        if self.rails[i].as_ref().is_some_and(|driver| driver.completed_total() < driver.staged_total()) {
            self.hand_over(i);
        }
    }

    /// Stages frames on one rail until the port has none, the rail no room, or its turn is over. True if any was staged.
    fn fill(&mut self, i: usize, frames_max: usize, now: Instant) -> bool {
        let Inner { port, rails, buffers, .. } = self;
        let Some(driver) = &mut rails[i] else { return false };
        let rail = rail_index(i);
        let mut staged = false;
        let mut bytes = 0;
        for _ in 0..driver.caps().burst.min(frames_max) {
            if bytes >= FLUSH_BYTES || !port.wants_to_transmit() {
                break;
            }
            let Some(frame) = driver.lease() else { break };
            let Some(transmit) = port.poll_transmit(now, rail, frame) else { break };
            if let Some(announced) = transmit.announced {
                transport::wire::write_place(&mut frame[announced.body..], buffers.place_of(announced.op));
            }
            let payload = match transmit.payload {
                Some(piece) => {
                    let after = driver.staged_total() + 1;
                    let payload = buffers.piece(piece, i, after);
                    if let Some((seal, auth)) = transmit.seal.zip(port.authenticator_of(rail))
                        && let Some(frame) = driver.lease()
                    {
                        auth.finish(seal, frame, payload.as_slice());
                    }
                    payload
                }
                None => drivers::Payload::EMPTY,
            };
            bytes += transmit.frame_bytes + payload.len();
            driver.commit(transmit.to, transmit.frame_bytes, payload);
            staged = true;
        }
        staged
    }

    fn take_notices(&mut self, i: usize) {
        while let Some(notice) = self.rails[i].as_mut().and_then(|driver| driver.poll_notice()) {
            tracing::debug!(rail = i, ?notice, "the rail says");
            match notice {
                Notice::PathShrunk { to, frame_bytes_max } => {
                    self.port.shrink_path(rail_index(i), to, frame_bytes_max);
                }
                Notice::PathLost { to } => self.port.lose_path(rail_index(i), to),
                Notice::HelperGone => {
                    tracing::warn!(
                        rail = i,
                        "the nic-helper is gone: frames that come to the rail pass through the kernel from now on"
                    );
                    self.lost_helper = Some(i);
                    self.report_rail_news();
                }
            }
        }
    }

    pub(crate) fn rail_failed(&mut self, i: usize, reason: DriverError) {
        if !reason.is_rail_dead() {
            tracing::debug!(rail = i, %reason, "a rail failed for now");
            return;
        }
        tracing::warn!(rail = i, %reason, "a rail is dead");
        // Dropping the driver gives every buffer back.
        self.rails[i] = None;
        self.lost_helper.take_if(|lost| *lost == i);
        self.buffers.forget_rail(i);
        let rail = rail_index(i);
        self.port.set_rail_alive(rail, false);
        self.completions.push_back(Completion::RailDead { rail, reason });
        self.report_rail_news();
    }

    fn report_rail_news(&self) {
        if let Some(notify) = &self.on_rail_news {
            notify();
        }
    }

    /// The next completion that is there already.
    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        let next = self.completions.pop_front();
        if self.behind && self.completions.is_empty() {
            // A caller that finds no completion may rely on that: nothing is left with the port either.
            self.collect();
        }
        next
    }

    /// Whether the effects of a call have to be looked at: the port has events, or something to pull.
    pub(crate) fn has_news(&self) -> bool {
        self.behind || self.port.has_events() || self.port.wants_to_pull() || !self.held.is_empty()
    }

    /// Moves up to `most` completions to the end of `to`.
    pub(crate) fn give_completions(&mut self, most: usize, to: &mut VecDeque<Completion>) {
        if to.is_empty() && self.completions.len() <= most && !self.behind {
            // No completion moves.
            core::mem::swap(&mut self.completions, to);
            return;
        }
        for _ in 0..most {
            let Some(completion) = self.next_completion() else { break };
            to.push_back(completion);
        }
    }

    /// Turns the port's events into completions, as far as there is room for them.
    pub(crate) fn collect(&mut self) {
        self.collect_up_to(COMPLETIONS_MAX);
    }

    /// Leaves no event with the port.
    pub(crate) fn collect_all(&mut self) {
        self.collect_up_to(usize::MAX);
    }

    fn collect_up_to(&mut self, completions_max: usize) {
        self.release_held();
        loop {
            self.behind = self.completions.len() >= completions_max;
            if self.behind {
                return;
            }
            let Some(event) = self.port.next_event() else { return };
            match event {
                Event::Received { op, context, source, tag, data, offset, bytes, sent_bytes, finished } => {
                    let buffer = self.received_into(op, finished);
                    self.completions.push_back(Completion::Received {
                        op,
                        context,
                        source,
                        tag,
                        data,
                        offset,
                        bytes,
                        sent_bytes,
                        finished,
                        buffer,
                    });
                }
                Event::ReceiveFailed { op, context, source, tag, finished } => {
                    let buffer = self.received_into(op, finished);
                    self.completions.push_back(Completion::ReceiveFailed {
                        op,
                        context,
                        source,
                        tag,
                        finished,
                        buffer,
                    });
                }
                Event::SendDone { op, context } => self.send_over(Over { op, context, failed: false }),
                Event::SendFailed { op, context } => self.send_over(Over { op, context, failed: true }),
                Event::CutRequired { epoch } => self.completions.push_back(Completion::CutRequired { epoch }),
                Event::PeerAppeared { link, rail, address, .. } => {
                    if let Err(error) = self.add_path(link, usize::from(rail.0), &address) {
                        tracing::warn!(?link, %error, "a peer that made contact cannot be reached");
                    }
                }
                report => self.completions.push_back(Completion::Report(report)),
            }
        }
    }

    /// Gives back the payloads that NICs were still reading and read no more.
    pub(crate) fn release_held(&mut self) {
        if !self.held.is_empty() {
            for over in core::mem::take(&mut self.held) {
                self.send_over(over);
            }
        }
    }

    /// The buffer of a receive, for its owner, if it had been handed over and is finished.
    fn received_into(&mut self, op: OpId, finished: bool) -> Option<Vec<u8>> {
        match if finished { self.buffers.take_receive(op) } else { None } {
            Some(ReceiveBuffer::Owned(buffer)) => Some(buffer),
            _ => None,
        }
    }

    fn send_over(&mut self, over: Over) {
        let Over { op, context, failed } = over;
        match self.buffers.take_send(op, self.completed()) {
            Ok(buffer) if failed => {
                self.completions.push_back(Completion::SendFailed { op, context, buffer })
            }
            Ok(buffer) => self.completions.push_back(Completion::SendDone { op, context, buffer }),
            Err(()) => self.held.push(over),
        }
    }

    fn completed(&self) -> [u64; RAILS_MAX] {
        let mut completed = [u64::MAX; RAILS_MAX];
        for (total, driver) in completed.iter_mut().zip(&self.rails) {
            if let Some(driver) = driver {
                *total = driver.completed_total();
            }
        }
        completed
    }

    /// Sets the address of the peer of `link` on rail `i`.
    pub(crate) fn add_path(
        &mut self,
        link: LinkIndex,
        i: usize,
        address: &RawAddress,
    ) -> Result<(), DriverError> {
        let Some(driver) = self.rails.get_mut(i).and_then(Option::as_mut) else {
            // Known when it goes on over another driver.
            if !self.port.is_retired(rail_index(i)) {
                self.places.insert((i, link), *address);
            }
            return Ok(());
        };
        let id = driver.resolve(address)?;
        let longest = driver.path(id).map_or(driver.caps().frame_bytes_max, |path| path.frame_bytes_max);
        self.port.set_path_limited(link, rail_index(i), id, longest);
        self.places.insert((i, link), *address);
        Ok(())
    }

    /// Forgets all peers' addresses on this rail.
    pub(crate) fn forget_places(&mut self, rail: usize) {
        self.places.retain(|(i, _), _| *i != rail);
    }

    /// Where the peers of all links are on a rail.
    pub(crate) fn places_on(&self, rail: usize) -> impl Iterator<Item = (LinkIndex, RawAddress)> {
        let all = (rail, LinkIndex(0))..=(rail, LinkIndex(u32::MAX));
        self.places.range(all).map(|((_, link), address)| (*link, *address))
    }
}

pub(crate) fn rail_index(i: usize) -> RailIndex {
    RailIndex(u8::try_from(i).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use transport::config::{EVENTS_MAX, LINKS_MAX};
    use transport::{Outgoing, Receive, Space};

    use super::{COMPLETIONS_MAX, Completion, Event};
    use crate::buffers::{ReceiveBuffer, SendBuffer};
    use crate::gate::Endpoint;
    use crate::testing;

    #[test]
    fn completions_that_nobody_takes_are_bounded_and_none_is_lost() {
        const LINKS: usize = COMPLETIONS_MAX + EVENTS_MAX;
        const { assert!(LINKS < LINKS_MAX) };
        let hub = drivers::mem::Hub::new();
        let mut crowded = testing::port(1);
        for rank in 0..u32::try_from(LINKS).expect("few") {
            // Each leaves an event.
            let link = crowded.connect(testing::id(10 + rank));
            crowded.close_link(link);
        }
        let (a, b) = (testing::open(testing::port(0), &hub), testing::open(crowded, &hub));
        let link = a.connect(testing::id(1), &b.addresses()).expect("reachable");
        b.connect(testing::id(0), &a.addresses()).expect("reachable");
        let space = Space(0);
        let receive =
            Receive { space, source: None, tag: 7, ignore: 0, bytes_max: 10, context: 0, multi: None };
        b.post_receive(receive, ReceiveBuffer::Owned(vec![0; 10])).expect("room");
        let outgoing = Outgoing { space, tag: 7, data: 0, context: 0, silent: false };
        a.send(link, outgoing, SendBuffer::Copied(b"comes again")).expect("room");
        let waiting = |endpoint: &Endpoint| endpoint.shared.lock().completions.len();
        while b.with_port(|port| port.counters().dropped_no_room) == 0 {
            b.progress();
            assert_eq!(waiting(&b), COMPLETIONS_MAX);
        }
        assert!(a.poll().is_none(), "it has not been counted");
        let (mut closed, mut received, mut done) = (0, 0, 0);
        let started = std::time::Instant::now();
        while received + done < 2 {
            assert!(started.elapsed().as_secs() < 20, "{closed} closed, {received} received, {done} sent");
            match b.poll() {
                Some(Completion::Report(Event::LinkClosed { .. })) => closed += 1,
                Some(Completion::Received { .. }) => received += 1,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            done += u32::from(matches!(a.poll(), Some(Completion::SendDone { .. })));
            assert!(waiting(&b) <= COMPLETIONS_MAX);
        }
        assert_eq!((closed, received, done), (LINKS, 1, 1));
    }
}
