//! The gate: the one lock through which everything reaches the port.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, TryLockError};

use drivers::Driver;
use drivers::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, spin_loop, thread};
use nic_freeze::Carried;
use transport::config::{LINKS_MAX, RAILS_MAX};
use transport::matching::{Envelope, MatchError, MessageKey, Pattern};
use transport::port::{FinalCounters, Stopped};
use transport::{
    Event, FrozenPort, LinkIndex, OpId, Outgoing, Port, PortId, Rank, RawAddress, Receive, Restart, SendError,
};

use crate::buffers::{BufferTable, ReceiveBuffer, SendBuffer};
use crate::clock::Clock;
use crate::error::EndpointError;
use crate::helper::Helper;
use crate::inner::{Completion, Inner, rail_index};
use crate::wait::Waker;

/// Settings of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// A thread that acknowledges, resends and receives while the program computes.
    pub helper: bool,
    /// How often the helper looks whether the program still polls by itself.
    pub helper_tick: Duration,
    /// How long [`Endpoint::wait`] polls before it sleeps; a sleep costs about 15 µs.
    pub spin: Duration,
}

impl Default for EndpointConfig {
    fn default() -> EndpointConfig {
        EndpointConfig {
            helper: true,
            helper_tick: Duration::from_micros(500),
            spin: Duration::from_micros(50),
        }
    }
}

/// Looks at the rails in one poll, so that a frame that comes is found earlier: a look is a few loads, and most of a poll in vain is the gate around it.
const LOOKS_PER_POLL: u32 = 4;

/// Rounds of progress in which frames of a lost rank are taken, at most: others may go on sending.
const LAST_ROUNDS_MAX: usize = 256;

pub(crate) struct Shared {
    inner: Mutex<Inner>,
    pub(crate) clock: Clock,
    pub(crate) config: EndpointConfig,
    /// Rounds of progress that the program made by itself: while this moves, the helper stays away.
    pub(crate) rounds: AtomicU64,
    /// Threads that sleep in [`Endpoint::wait`]; they make progress by themselves.
    pub(crate) sleepers: AtomicU64,
    /// Threads that wait for the gate.
    knocking: AtomicU64,
    /// R37: links to ports of these ranks are broken, also those that are made later. Taken under the gate.
    lost: Mutex<BTreeSet<Rank>>,
    pub(crate) closed: AtomicBool,
    pub(crate) waker: Waker,
    pub(crate) attendant: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        if let Some(inner) = self.try_lock() {
            return inner;
        }
        self.knocking.fetch_add(1, Ordering::Relaxed);
        let inner = self.wait_for_lock();
        self.knocking.fetch_sub(1, Ordering::Relaxed);
        inner
    }

    fn lost(&self) -> MutexGuard<'_, BTreeSet<Rank>> {
        self.lost.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether a thread waits for the gate: a long-running holder then releases it.
    fn is_wanted(&self) -> bool {
        self.knocking.load(Ordering::Relaxed) > 0
    }

    #[cold]
    fn wait_for_lock(&self) -> MutexGuard<'_, Inner> {
        // A panic in a progress call is a bug that has been reported already; the state machine itself stays consistent,
        // for it never runs user code.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// As [`Inner::progress`]; for calls that do not give all they have found to their caller.
    fn progress(&self, inner: &mut Inner) -> bool {
        self.progress_at(inner, self.clock.now())
    }

    pub(crate) fn progress_at(&self, inner: &mut Inner, now: transport::Instant) -> bool {
        let happened = inner.progress(now, || self.is_wanted());
        if happened {
            self.waker.wake_sleepers(self);
        } else if self.sleepers.load(Ordering::Relaxed) > 0 && !inner.arm() {
            // A look undoes the preparation of a rail for sleep; and others sleep on.
            self.waker.wake();
        }
        happened
    }

    /// Runs an action that may leave completions, and wakes threads that wait for them.
    pub(crate) fn notifying<R>(&self, inner: &mut Inner, act: impl FnOnce(&mut Inner) -> R) -> R {
        let known = inner.completions.len();
        let result = act(inner);
        if inner.completions.len() > known {
            self.waker.wake_sleepers(self);
        }
        result
    }

    /// Turns the immediate effects of a call into completions, and sends permitted frames.
    fn collect_and_transmit(&self, inner: &mut Inner) {
        self.notifying(inner, |inner| {
            if inner.pull(|| self.is_wanted()) && inner.port.wants_to_pull() {
                // The next progress does the rest, and sleepers have to be woken.
                self.waker.wake();
            }
            inner.collect();
            self.transmit(inner);
        });
    }

    /// Sends permitted frames. Without anything to send, not even the clock is read: most receives are posted
    /// that way.
    pub(crate) fn transmit(&self, inner: &mut Inner) {
        if inner.port.wants_to_transmit() {
            self.notifying(inner, |inner| inner.transmit(self.clock.now()));
        }
    }

    /// The gate, if it is free within a time. For callers that can do without: they look at it now and then.
    pub(crate) fn lock_within(&self, within: Duration) -> Option<MutexGuard<'_, Inner>> {
        const LOOK_EVERY: Duration = Duration::from_micros(200);
        let until = std::time::Instant::now() + within;
        self.knocking.fetch_add(1, Ordering::Relaxed);
        let inner = loop {
            match self.try_lock() {
                None if std::time::Instant::now() < until => thread::sleep(LOOK_EVERY),
                inner => break inner,
            }
        };
        self.knocking.fetch_sub(1, Ordering::Relaxed);
        inner
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Rail i of the port is `rails[i]`.
pub(crate) fn add_rails(port: &mut Port, rails: &[Box<dyn Driver>]) -> Result<(), EndpointError> {
    if rails.is_empty() || rails.len() > RAILS_MAX {
        return Err(EndpointError::Rails { rails: rails.len() });
    }
    for driver in rails {
        let (address, caps) = (driver.local_address(), driver.caps());
        if caps.within_host {
            port.add_rail_within_host(address, caps.frame_bytes_max);
        } else {
            port.add_rail(address, caps.frame_bytes_max);
        }
    }
    Ok(())
}

/// One endpoint of this process. Clones share it.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) shared: Arc<Shared>,
    _helper: Option<Arc<Helper>>,
}

impl Endpoint {
    /// Puts a port on its rails. Rail i of the port is `rails[i]`.
    ///
    /// # Errors
    /// [`EndpointError::Rails`], [`EndpointError::Helper`], [`EndpointError::Descriptor`].
    pub fn open(
        port: Port,
        rails: Vec<Box<dyn Driver>>,
        config: EndpointConfig,
    ) -> Result<Endpoint, EndpointError> {
        Endpoint::open_with(port, rails, config, Clock::start(), BufferTable::default())
    }

    /// Starts a port from an image in a new life, on new rails; every peer has to be connected anew.
    ///
    /// # Errors
    /// As [`Endpoint::open`].
    pub fn restart(
        frozen: FrozenPort,
        carried: Carried,
        rails: Vec<Box<dyn Driver>>,
        restart: Restart,
        config: EndpointConfig,
    ) -> Result<Endpoint, EndpointError> {
        let clock = Clock::start();
        let port = frozen.restart(clock.now(), restart);
        Endpoint::open_with(port, rails, config, clock, BufferTable::from_carried(carried))
    }

    fn open_with(
        mut port: Port,
        rails: Vec<Box<dyn Driver>>,
        config: EndpointConfig,
        clock: Clock,
        buffers: BufferTable,
    ) -> Result<Endpoint, EndpointError> {
        add_rails(&mut port, &rails)?;
        let waker = Waker::new(&rails).map_err(EndpointError::Descriptor)?;
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner::new(port, rails, buffers)),
            clock,
            config,
            rounds: AtomicU64::new(0),
            sleepers: AtomicU64::new(0),
            knocking: AtomicU64::new(0),
            lost: Mutex::new(BTreeSet::new()),
            closed: AtomicBool::new(false),
            waker,
            attendant: OnceLock::new(),
        });
        let helper = if config.helper {
            Some(Arc::new(Helper::start(&shared).map_err(EndpointError::Helper)?))
        } else {
            None
        };
        Ok(Endpoint { shared, _helper: helper })
    }

    /// Own address per rail, for the address exchange.
    #[must_use]
    pub fn addresses(&self) -> Vec<RawAddress> {
        let inner = self.shared.lock();
        inner
            .rails
            .iter()
            .map(|rail| rail.as_ref().map_or(RawAddress::NONE, |driver| driver.local_address()))
            .collect()
    }

    /// The link to a peer, with the peer's address on each of its rails. Causes no traffic by itself.
    ///
    /// Rail i of one side meets rail i of the other. Where those are of different kinds, or a side has fewer, a rail takes the first address
    /// that is left and that it can use.
    ///
    /// # Errors
    /// [`EndpointError::Unreachable`] if no rail can use any address, [`EndpointError::Links`] if there are too many peers.
    pub fn connect(&self, peer: PortId, addresses: &[RawAddress]) -> Result<LinkIndex, EndpointError> {
        let mut inner = self.shared.lock();
        if inner.port.link_to(peer).is_none() && inner.port.links() >= LINKS_MAX {
            return Err(EndpointError::Links);
        }
        let link = inner.port.connect(peer);
        if self.shared.lost().contains(&peer.rank()) {
            self.shared.notifying(&mut inner, |inner| {
                inner.port.lose_peer(peer);
                inner.collect();
            });
            return Ok(link);
        }
        let rails = inner.rails.len();
        let (mut met, mut used) = ([false; RAILS_MAX], vec![false; addresses.len()]);
        let mut try_to_meet = |i: usize, j: usize| {
            let is_gone = inner.port.is_retired(rail_index(i));
            if met[i] || used[j] || is_gone || addresses[j] == RawAddress::NONE {
                return;
            }
            match inner.add_path(link, i, &addresses[j]) {
                Ok(()) => (met[i], used[j]) = (true, true),
                Err(source) => tracing::debug!(rail = i, %source, "an address cannot be used"),
            }
        };
        (0..rails.min(addresses.len())).for_each(|i| try_to_meet(i, i));
        (0..rails).for_each(|i| (0..addresses.len()).for_each(|j| try_to_meet(i, j)));
        if met.contains(&true) {
            Ok(link)
        } else {
            Err(EndpointError::Unreachable { given: addresses.len(), rails: inner.rails.len() })
        }
    }

    /// R37: the process of `rank` has ended, and none takes its place in this life. Frames of it that have come are taken
    /// first. Operations to it and from it alone end with [`Completion::SendFailed`] and [`Completion::ReceiveFailed`],
    /// behind a [`Event::PeerLost`] for each link.
    pub fn lose_rank(&self, rank: Rank) {
        let mut inner = self.shared.lock();
        let rounds = (0..LAST_ROUNDS_MAX).take_while(|_| self.shared.progress(&mut inner)).count();
        tracing::debug!(%rank, rounds, "a rank is lost");
        self.shared.lost().insert(rank);
        let links = (0..inner.port.links()).filter_map(|index| u32::try_from(index).ok());
        let peers: Vec<PortId> = links.filter_map(|index| inner.port.peer(LinkIndex(index))).collect();
        self.shared.notifying(&mut inner, |inner| {
            for peer in peers.into_iter().filter(|peer| peer.rank() == rank) {
                inner.port.lose_peer(peer);
            }
            inner.collect();
        });
    }

    /// Bytes up to which payload is copied.
    #[must_use]
    pub fn copied_bytes_max(&self) -> usize {
        self.shared.lock().port.config().eager_bytes_max
    }

    /// Sends a message; the first frame leaves before this returns, if it may.
    ///
    /// # Errors
    /// [`SendError::Full`] is ordinary back-pressure: poll, then try again. An owned buffer is dropped with the error, so
    /// ask [`Endpoint::can_send`] first where that matters.
    pub fn send(
        &self,
        link: LinkIndex,
        outgoing: Outgoing,
        buffer: SendBuffer<'_>,
    ) -> Result<OpId, SendError> {
        let mut inner = self.shared.lock();
        inner.spin_policy.sent();
        if let Some(op) = inner.send_fast(link, &outgoing, &buffer, &self.shared.clock) {
            self.shared.notifying(&mut inner, Inner::collect_news);
            return Ok(op);
        }
        let op = inner.send(link, outgoing, buffer)?;
        self.shared.transmit(&mut inner);
        Ok(op)
    }

    /// As [`Endpoint::send`], but the message leaves with the next call that sends or makes progress: several messages
    /// together cost the rail one call.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub fn send_later(
        &self,
        link: LinkIndex,
        outgoing: Outgoing,
        buffer: SendBuffer<'_>,
    ) -> Result<OpId, SendError> {
        self.shared.lock().send(link, outgoing, buffer)
    }

    /// The shortest round trip that was measured on a link, none before the first.
    #[must_use]
    pub fn round_trip(&self, link: LinkIndex) -> Option<Duration> {
        self.shared.lock().port.round_trip(link)
    }

    /// Frames handed to each rail so far; 0 for a dead one.
    #[must_use]
    pub fn frames_by_rail(&self) -> Vec<u64> {
        let inner = self.shared.lock();
        inner.rails.iter().map(|rail| rail.as_ref().map_or(0, |driver| driver.staged_total())).collect()
    }

    /// Stops sending over a rail, or begins again; frames that arrive over it are received either way. So
    /// links are handed over from one rail to another: nothing is lost or doubled by it (R24). Without
    /// another rail the port falls silent.
    pub fn use_rail(&self, rail: usize, used: bool) {
        let mut inner = self.shared.lock();
        if inner.rails.get(rail).is_some_and(Option::is_some) {
            inner.port.set_rail_alive(rail_index(rail), used);
            self.shared.transmit(&mut inner);
        }
    }

    /// Whether a send on this link would be accepted now.
    #[must_use]
    pub fn can_send(&self, link: LinkIndex, copied_bytes: usize) -> bool {
        self.shared.lock().port.can_send(link, copied_bytes)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`MatchError::PostedFull`].
    pub fn post_receive(&self, mut receive: Receive, buffer: ReceiveBuffer) -> Result<OpId, MatchError> {
        let mut inner = self.shared.lock();
        receive.bytes_max = receive.bytes_max.min(buffer.len() as u64);
        // A waiting message is placed while the receive is being posted: its buffer has to be there first.
        let op = inner.port.next_op();
        inner.buffers.keep_receive(op, buffer);
        let Inner { port, buffers, .. } = &mut *inner;
        match port.post_receive(receive, buffers) {
            Ok(posted) => {
                debug_assert_eq!(posted, op);
                inner.spin_policy.posted();
                if inner.has_news() {
                    self.shared.collect_and_transmit(&mut inner);
                } else {
                    self.shared.transmit(&mut inner);
                }
                Ok(posted)
            }
            Err(error) => {
                inner.buffers.take_receive(op);
                Err(error)
            }
        }
    }

    /// The envelope of the message that a receive with this pattern would get.
    #[must_use]
    pub fn peek(&self, pattern: &Pattern) -> Option<Envelope> {
        self.shared.lock().port.peek(pattern)
    }

    /// Takes back a receive that nothing has matched, with its buffer.
    pub fn cancel(&self, op: OpId) -> Option<ReceiveBuffer> {
        let mut inner = self.shared.lock();
        if inner.port.cancel(op) { inner.buffers.take_receive(op) } else { None }
    }

    /// Takes the buffer of a receive away, in any state of the receive: from now on nothing is written to it. A matched
    /// message continues without a buffer, and completes.
    pub fn abandon(&self, op: OpId) -> Option<ReceiveBuffer> {
        self.shared.lock().buffers.take_receive(op)
    }

    /// Takes back a receive for several messages: it is given no more of them. Messages already given are
    /// reported as before. The end of the receive is reported with the last message, which is finished then,
    /// or by [`Completion::Stopped`]. False: it takes none any more.
    pub fn stop(&self, op: OpId, context: u64) -> bool {
        let mut inner = self.shared.lock();
        let Some(stopped) = inner.port.stop(op) else { return false };
        if stopped == Stopped::AtOnce {
            self.shared.notifying(&mut inner, |inner| {
                // Messages that it has received come first, however many wait.
                inner.collect_all();
                let buffer = match inner.buffers.take_receive(op) {
                    Some(ReceiveBuffer::Owned(buffer)) => Some(buffer),
                    _ => None,
                };
                inner.completions.push_back(Completion::Stopped { context, buffer });
            });
        }
        true
    }

    /// Sets the message aside that a receive with this pattern would get, and names it.
    #[must_use]
    pub fn claim(&self, pattern: &Pattern) -> Option<(MessageKey, Envelope)> {
        self.shared.lock().port.claim(pattern)
    }

    /// Receives a claimed message.
    ///
    /// # Errors
    /// [`MatchError::NotClaimed`].
    pub fn receive_claimed(
        &self,
        key: MessageKey,
        context: u64,
        buffer: ReceiveBuffer,
    ) -> Result<OpId, MatchError> {
        let mut inner = self.shared.lock();
        let bytes_max = buffer.len() as u64;
        let op = inner.port.next_op();
        inner.buffers.keep_receive(op, buffer);
        let Inner { port, buffers, .. } = &mut *inner;
        match port.receive_claimed(key, bytes_max, context, buffers) {
            Ok(received) => {
                debug_assert_eq!(received, op);
                self.shared.collect_and_transmit(&mut inner);
                Ok(received)
            }
            Err(error) => {
                inner.buffers.take_receive(op);
                Err(error)
            }
        }
    }

    /// Throws a waiting or claimed message away; its sender completes as if it had been received. False: it is not there.
    #[must_use]
    pub fn discard(&self, key: MessageKey) -> bool {
        let mut inner = self.shared.lock();
        let known = inner.port.discard(key);
        self.shared.transmit(&mut inner);
        known
    }

    /// One round of progress. True if anything happened.
    pub fn progress(&self) -> bool {
        let mut inner = self.shared.lock();
        self.shared.rounds.fetch_add(1, Ordering::Relaxed);
        self.shared.progress(&mut inner)
    }

    /// The next completion, after a round of progress if none is waiting.
    #[must_use]
    pub fn poll(&self) -> Option<Completion> {
        let mut inner = self.shared.lock();
        if let Some(completion) = inner.next_completion() {
            return Some(completion);
        }
        // Relaxed, and not an atomic addition: a lost count only makes the helper look once more.
        let rounds = &self.shared.rounds;
        rounds.store(rounds.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if inner.is_quiet() && (1..LOOKS_PER_POLL).all(|_| inner.rails_are_quiet()) {
            return None;
        }
        self.shared.progress(&mut inner);
        inner.next_completion()
    }

    /// For a program that polls: makes progress if there is any to make, and looks a few times more where that has been worth it; gives the processor away
    /// where it has not for long. False: no completion waits, and nothing was found by looks that cost a few loads.
    #[must_use]
    pub fn look(&self) -> bool {
        let shared = &*self.shared;
        // Another thread makes progress, or the port is frozen.
        let Some(mut inner) = shared.try_lock() else { return true };
        shared.rounds.store(shared.rounds.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let mut attempt = inner.spin_policy.begin();
        let mut worked = false;
        let mut quiet = inner.is_quiet();
        loop {
            if !quiet {
                shared.progress(&mut inner);
                worked = true;
                if !inner.completions.is_empty() {
                    let found = inner.completions.len();
                    inner.spin_policy.record_hit(attempt, found);
                    return true;
                }
            }
            if !attempt.goes_on(quiet) || shared.is_wanted() {
                let give_away = inner.spin_policy.record_miss(attempt);
                drop(inner);
                if give_away {
                    thread::yield_now();
                }
                return worked;
            }
            spin_loop();
            quiet = inner.is_still_quiet();
        }
    }

    /// The next completion that is there already: no progress is made for it.
    #[must_use]
    pub fn take_completion(&self) -> Option<Completion> {
        self.shared.lock().next_completion()
    }

    /// Appends up to `most` completions that are there already to `to`.
    pub fn take_completions(&self, most: usize, to: &mut VecDeque<Completion>) {
        self.shared.lock().give_completions(most, to);
    }

    /// Has `attend` called by the helper whenever it has found completions while the program is elsewhere, so that
    /// requests of peers are served meanwhile. It is called outside of the gate and may use the endpoint. The first
    /// attendant stays; true if it is this one.
    pub fn attend(&self, attend: impl Fn() + Send + Sync + 'static) -> bool {
        self.shared.attendant.set(Box::new(attend)).is_ok()
    }

    /// Prepares for a sleep on [`Endpoint::descriptor`]. False: something may be there already, so look again.
    #[must_use]
    pub fn prepare_sleep(&self) -> bool {
        let mut inner = self.shared.lock();
        inner.completions.is_empty() && inner.arm()
    }

    /// A descriptor that becomes readable when a frame comes over any rail that has one: a duplicate, which goes on being right when the rails are
    /// others.
    ///
    /// # Errors
    /// That of duplicating: no descriptor is left.
    pub fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.shared.waker.rails()
    }

    /// Looks at the port under the gate.
    pub fn with_port<R>(&self, look: impl FnOnce(&Port) -> R) -> R {
        look(&self.shared.lock().port)
    }

    /// The answer of a closed peer's keeper on its behalf.
    pub fn peer_has_closed(&self, peer: PortId, expected: u64) {
        let now = self.shared.clock.now();
        let mut inner = self.shared.lock();
        inner.port.peer_has_closed(now, peer, expected);
        self.shared.notifying(&mut inner, Inner::collect);
    }

    /// Announces a pause of about `expected` to active peers. Call before a freeze; returns the number of peers.
    pub fn announce_pause(&self, expected: Duration) -> usize {
        let mut inner = self.shared.lock();
        let now = self.shared.clock.now();
        let hints = inner.port.announce_pause(now, expected);
        self.shared.notifying(&mut inner, |inner| inner.transmit(now));
        hints
    }

    /// Ends all links and makes progress until everything is acknowledged, or `linger` is over. Returns the final counters
    /// for the keeper.
    ///
    /// # Errors
    /// [`EndpointError::Linger`] if a peer has not acknowledged in time.
    pub fn close(&self, linger: Duration) -> Result<Vec<FinalCounters>, EndpointError> {
        let started = std::time::Instant::now();
        let links = {
            let mut inner = self.shared.lock();
            let links = inner.port.links();
            for i in 0..links {
                inner.port.close_link(LinkIndex(u32::try_from(i).unwrap_or(u32::MAX)));
            }
            links
        };
        let mut closed = 0;
        loop {
            while let Some(completion) = self.poll() {
                if matches!(completion, Completion::Report(Event::LinkClosed { .. })) {
                    closed += 1;
                }
            }
            if closed >= links || self.with_port(Port::is_settled) {
                break;
            }
            if started.elapsed() >= linger {
                return Err(EndpointError::Linger { waited: linger, links: links - closed });
            }
            self.wait(Duration::from_millis(1));
        }
        self.shared.closed.store(true, Ordering::Relaxed);
        Ok(self.shared.lock().port.final_counters().collect())
    }
}
