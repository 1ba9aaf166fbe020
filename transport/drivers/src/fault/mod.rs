//! A driver around a driver that injects faults: seeded, at stated rates, on the frames sent, received, or both.
//!
//! ```
//! # use drivers::{Driver, fault::{FaultDriver, Faults}, mem::Hub};
//! let faults: Faults = "loss=1%,dup=0.5%,reorder=2%,seed=7".parse()?;
//! let rail = FaultDriver::new(Hub::new().open()?, faults);
//! let switch = rail.switch();             // stays with the test when the rail goes into a port
//! switch.kill();                          // from now on every call fails as a dead rail
//! # let mut rail = rail; assert!(rail.flush().is_err_and(|e| e.is_rail_dead()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Besides losing and reordering frames, it behaves as real NICs do and sockets do not: it completes late, reads the
//! payload long after the commit (a sender that reuses a buffer too early sends wrong bytes), has no free buffer, dies.

mod alarm;
mod chance;
mod held_frames;
mod spec;
mod state;
mod switch;

use core::ops::Range;
use core::task::Poll;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{BorrowedFd, RawFd};

use transport::{AddressId, Instant, RawAddress};

use crate::counters::Counters;
use crate::driver::{Armed, Caps, Driver, Notice, Path, Wake};
use crate::error::{DriverError, Errno, Operation};
use crate::limits::{FAULT_HELD_MAX, FAULT_OUTSTANDING_MAX, FAULT_STARVE_CALLS_MAX};
use crate::payload::Payload;
use crate::sleep::wait_readable;
use alarm::Alarm;
use chance::Chance;
use held_frames::{Due, Fate, HeldFrame, Moment, fate, take_due};
pub use spec::{Delay, Faults, FaultsError, Rate, Side};
use state::State;
pub use switch::FaultSwitch;

/// How many of each fault have been injected.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(missing_docs, reason = "the names are those of `Faults`")]
pub struct Tally {
    pub lost: u64,
    pub blacked_out: u64,
    pub duplicated: u64,
    pub held: u64,
    pub corrupted: u64,
    pub truncated: u64,
    pub late: u64,
    pub starved: u64,
}

/// Reads the time for delays.
pub type Clock = Box<dyn FnMut() -> Instant + Send>;

/// Injects faults into the driver inside it.
pub struct FaultDriver<D> {
    inner: D,
    caps: Caps,
    counters: Counters,
    /// Written by the caller, copied into the inner driver's at commit: bytes released meanwhile cannot
    /// overwrite it.
    buffer: Vec<u8>,
    leased: bool,
    staged_total: u64,
    /// Commits without a lease.
    unleased: u64,
    /// The conditions for each committed frame to count as completed, oldest first.
    outstanding: VecDeque<Done>,
    known: BTreeMap<AddressId, RawAddress>,
    held_out: VecDeque<HeldFrame>,
    /// When the first of the frames held in either direction that go by time is due.
    earliest: Option<Instant>,
    /// `None`: the driver inside can only be polled, or no descriptor was left.
    alarm: Option<Alarm>,
    state: State,
    switch: FaultSwitch,
}

/// When a committed frame is completed.
#[derive(Clone, Copy, Debug)]
enum Done {
    /// It never reaches the inner driver.
    Now,
    /// When the inner driver has completed so many, and so many calls have been made.
    Inner { completed: u64, call: u64 },
    /// It is held with its payload.
    Held,
}

fn system_clock() -> Clock {
    let start = std::time::Instant::now();
    Box::new(move || Instant::ZERO + start.elapsed())
}

impl<D: Driver> FaultDriver<D> {
    /// Wraps `inner`. Delays go by the system's clock.
    pub fn new(inner: D, faults: Faults) -> FaultDriver<D> {
        FaultDriver::with_clock(inner, faults, system_clock())
    }

    /// Wraps `inner`; delays go by `clock`.
    pub fn with_clock(inner: D, faults: Faults, clock: Clock) -> FaultDriver<D> {
        let caps = Caps { kind: "fault", ordered: false, ..*inner.caps() };
        let alarm = inner.fd().and_then(|fd| Alarm::beside(fd).ok());
        FaultDriver {
            buffer: vec![0; caps.frame_bytes_max],
            caps,
            counters: *inner.counters(),
            inner,
            leased: false,
            staged_total: 0,
            unleased: 0,
            outstanding: VecDeque::new(),
            known: BTreeMap::new(),
            held_out: VecDeque::new(),
            earliest: None,
            alarm,
            state: State::new(faults, clock),
            switch: FaultSwitch::default(),
        }
    }

    /// For switching faults from outside while the driver is in use.
    #[must_use]
    pub fn switch(&self) -> FaultSwitch {
        self.switch.clone()
    }

    /// Everything injected so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.state.tally
    }

    /// The driver inside.
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Takes over switched settings, counts the call, and fails if the rail is dead.
    fn enter(&mut self, operation: Operation) -> Result<(), DriverError> {
        self.take_switched();
        self.state.calls += 1;
        if self.is_dead() {
            return Err(DriverError::RailDead { operation, errno: Errno(libc::ENODEV) });
        }
        Ok(())
    }

    fn take_switched(&mut self) {
        if let Some(faults) = self.switch.take_faults() {
            self.state.faults = faults;
            self.state.chance = Chance::new(faults.seed);
        }
    }

    fn is_dead(&self) -> bool {
        let frames = self.state.frames_out + self.state.frames_in;
        self.switch.is_killed() || self.state.faults.die.is_some_and(|die| frames >= die)
    }

    fn moment_out(&mut self) -> Moment {
        let now = if self.earliest.is_some() { (self.state.clock)() } else { Instant::ZERO };
        Moment { frames: self.state.frames_out, calls: self.state.calls, now }
    }

    /// Whether a frame that goes by time is due.
    fn is_due(&mut self) -> bool {
        self.earliest.is_some_and(|due| (self.state.clock)() >= due)
    }

    /// Sets the alarm to the first frame that goes by time, as held frames are now.
    fn wind(&mut self) {
        let held = self.held_out.iter().chain(&self.state.held_in);
        let earliest = held.filter_map(|held| held.due.time()).min();
        if earliest != self.earliest {
            self.wind_to(earliest);
        }
    }

    fn wind_to(&mut self, earliest: Option<Instant>) {
        self.earliest = earliest;
        self.stands();
    }

    /// Whether the alarm stands at the first frame that goes by time, if there is one.
    fn stands(&mut self) -> bool {
        let Some(due) = self.earliest else {
            return self.alarm.as_mut().is_none_or(|alarm| alarm.stand_at(None, Instant::ZERO));
        };
        let now = (self.state.clock)();
        self.alarm.as_mut().is_some_and(|alarm| alarm.stand_at(Some(due), now))
    }

    /// Counts completions, oldest first, and takes over the inner driver's counts.
    fn settle(&mut self) {
        let (completed, calls) = (self.inner.completed_total(), self.state.calls);
        let is_done = |done: &Done| match *done {
            Done::Now => true,
            Done::Inner { completed: needed, call } => completed >= needed && calls >= call,
            Done::Held => false,
        };
        while self.outstanding.front().is_some_and(is_done) {
            self.outstanding.pop_front();
        }
        self.switch.report_lost(self.state.tally.lost + self.state.tally.blacked_out);
        let (own, inner) = (self.counters, *self.inner.counters());
        self.counters = Counters {
            frames_received: own.frames_received,
            bytes_received: own.bytes_received,
            lost_other: inner.lost_other + self.unleased,
            lost_injected: self.state.tally.lost + self.state.tally.blacked_out,
            ..inner
        };
    }

    /// Gives held frames that are due to the inner driver.
    fn release(&mut self) -> Result<(), DriverError> {
        if self.held_out.is_empty() {
            return Ok(());
        }
        let moment = self.moment_out();
        loop {
            if self.inner.lease().is_none() {
                self.inner.flush()?;
            }
            let Some(buffer) = self.inner.lease() else { break };
            let Some(held) = take_due(&mut self.held_out, moment) else { break };
            buffer[..held.bytes.len()].copy_from_slice(&held.bytes);
            let (late, payload) = held.late.map_or((None, Payload::EMPTY), |(n, payload)| (Some(n), payload));
            self.inner.commit(held.to, held.bytes.len(), payload);
            if let Some(number) = late {
                self.done_at(number, Done::Inner { completed: self.inner.staged_total(), call: 0 });
            }
        }
        self.wind();
        Ok(())
    }

    /// The frame `number` of those committed, counted from 1, completes by `done`.
    fn done_at(&mut self, number: u64, done: Done) {
        let oldest = self.staged_total - self.outstanding.len() as u64 + 1;
        let place = number.checked_sub(oldest).and_then(|at| usize::try_from(at).ok());
        if let Some(entry) = place.and_then(|at| self.outstanding.get_mut(at)) {
            *entry = done;
        }
    }

    /// The frame in `buffer`, with its payload, as bytes.
    fn whole(&self, frame_bytes: usize, payload: &Payload) -> Vec<u8> {
        [&self.buffer[..frame_bytes], payload.as_slice()].concat()
    }

    fn hold(&mut self, due: Due, to: AddressId, bytes: Vec<u8>, late: Option<(u64, Payload)>) {
        self.held_out.push_back(HeldFrame { due, to, bytes, late });
        if let Some(due) = due.time()
            && self.earliest.is_none_or(|earliest| due < earliest)
        {
            self.wind_to(Some(due));
        }
    }

    /// Commits to the inner driver. Returns when the frame will be completed.
    fn pass(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) -> Done {
        match self.inner.lease() {
            Some(buffer) => {
                buffer[..frame_bytes].copy_from_slice(&self.buffer[..frame_bytes]);
                self.inner.commit(to, frame_bytes, payload);
                Done::Inner { completed: self.inner.staged_total(), call: 0 }
            }
            // Released frames have taken the buffer that was free at the lease.
            None => {
                let bytes = self.whole(frame_bytes, &payload);
                self.hold(Due::Call(0), to, bytes, None);
                Done::Now
            }
        }
    }

    fn apply(&mut self, fate: Fate, to: AddressId, frame_bytes: usize, payload: Payload) -> Done {
        let calls = self.state.calls;
        match fate {
            Fate::Pass => self.pass(to, frame_bytes, payload),
            Fate::Lose => {
                self.state.tally.lost += 1;
                Done::Now
            }
            Fate::Twice => {
                self.state.tally.duplicated += 1;
                let bytes = self.whole(frame_bytes, &payload);
                self.hold(Due::Call(0), to, bytes, None);
                self.pass(to, frame_bytes, payload)
            }
            Fate::Hold(hold) => {
                self.state.tally.held += 1;
                let bytes = self.whole(frame_bytes, &payload);
                let moment = Moment { now: (self.state.clock)(), calls, frames: self.state.frames_out };
                self.hold(moment.due(hold), to, bytes, None);
                Done::Now
            }
            Fate::Corrupt | Fate::Truncate => {
                let mut bytes = self.whole(frame_bytes, &payload);
                self.state.damage(fate, &mut bytes);
                self.buffer[..bytes.len()].copy_from_slice(&bytes);
                self.pass(to, bytes.len(), Payload::EMPTY)
            }
            Fate::ReadLate { calls: more } => {
                self.state.tally.late += 1;
                let head = self.buffer[..frame_bytes].to_vec();
                self.hold(Due::Call(calls + more), to, head, Some((self.staged_total, payload)));
                Done::Held
            }
            Fate::CompleteLate { calls: more } => {
                self.state.tally.late += 1;
                match self.pass(to, frame_bytes, payload) {
                    Done::Inner { completed, .. } => Done::Inner { completed, call: calls + more },
                    done => done,
                }
            }
        }
    }

    fn is_blacked_out(&self, to: AddressId) -> bool {
        self.switch.has_black_outs()
            && self.known.get(&to).is_some_and(|address| self.switch.is_blacked_out(address))
    }
}

impl<D: Driver> Driver for FaultDriver<D> {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn local_address(&self) -> RawAddress {
        self.inner.local_address()
    }

    fn resolve(&mut self, address: &RawAddress) -> Result<AddressId, DriverError> {
        self.enter(Operation::Connect)?;
        let id = self.inner.resolve(address)?;
        self.known.insert(id, *address);
        Ok(id)
    }

    fn forget(&mut self, address: AddressId) {
        self.known.remove(&address);
        self.inner.forget(address);
    }

    fn path(&self, to: AddressId) -> Option<Path> {
        self.inner.path(to)
    }

    fn pull(&mut self, from: AddressId, place: u64, to: &mut [u8]) -> bool {
        !self.is_dead() && self.inner.pull(from, place, to)
    }

    fn lease(&mut self) -> Option<&mut [u8]> {
        if !self.leased {
            self.take_switched();
            if self.is_dead() || self.outstanding.len() >= FAULT_OUTSTANDING_MAX {
                return None;
            }
            let state = &mut self.state;
            if state.starve_calls == 0 && state.chance.hits(state.faults.starve) {
                state.starve_calls = 1 + state.chance.below(FAULT_STARVE_CALLS_MAX);
            }
            if state.starve_calls > 0 {
                state.starve_calls -= 1;
                state.tally.starved += 1;
                return None;
            }
            self.inner.lease()?;
            self.leased = true;
        }
        Some(&mut self.buffer)
    }

    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) {
        if !core::mem::take(&mut self.leased) {
            self.unleased += 1;
            return self.settle();
        }
        self.staged_total += 1;
        self.state.frames_out += 1;
        // Frames that the inner driver would refuse are left for it to count.
        let usable =
            self.inner.path(to).is_some_and(|path| frame_bytes + payload.len() <= path.frame_bytes_max);
        let tampering =
            usable && self.state.faults.side != Side::Receive && self.held_out.len() < FAULT_HELD_MAX;
        let done = if usable && self.is_blacked_out(to) {
            self.state.tally.blacked_out += 1;
            Done::Now
        } else {
            let fate = if tampering { fate(&self.state.faults, &mut self.state.chance) } else { Fate::Pass };
            self.apply(fate, to, frame_bytes, payload)
        };
        self.outstanding.push_back(done);
        self.settle();
    }

    fn flush(&mut self) -> Result<usize, DriverError> {
        self.enter(Operation::Send)?;
        self.release()?;
        let flushed = self.inner.flush();
        self.settle();
        flushed
    }

    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        self.enter(Operation::Receive)?;
        // Its owner need not have anything else to send.
        let is_due = self.is_due();
        if is_due {
            self.release()?;
            self.inner.flush()?;
        }
        let deaf = self.switch.is_deaf();
        let (mut given, mut bytes) = (0, 0);
        let mut give = |frame: &[u8]| {
            given += 1;
            bytes += frame.len() as u64;
            each(frame);
        };
        let mut released = 0;
        if !self.state.held_in.is_empty() {
            let now = if is_due { (self.state.clock)() } else { Instant::ZERO };
            let moment = Moment { frames: self.state.frames_in, calls: self.state.calls, now };
            while released < frames_max
                && let Some(held) = take_due(&mut self.state.held_in, moment)
            {
                released += 1;
                give(&held.bytes);
            }
        }
        let state = &mut self.state;
        let result = self.inner.receive(frames_max - released, &mut |frame| {
            if deaf {
                state.tally.blacked_out += 1;
            } else if let Some(frame) = state.incoming(frame) {
                give(&frame);
            }
        });
        self.counters.frames_received += given as u64;
        self.counters.bytes_received += bytes;
        if !self.state.held_in.is_empty() || released > 0 {
            self.wind();
        }
        self.settle();
        result.map(|_| given)
    }

    fn staged_total(&self) -> u64 {
        self.staged_total
    }

    fn completed_total(&self) -> u64 {
        self.staged_total - self.outstanding.len() as u64
    }

    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        self.enter(Operation::Drain)?;
        self.release()?;
        let pending_late = self.held_out.iter().any(|held| held.late.is_some());
        let ready = if pending_late {
            self.inner.flush()?;
            false
        } else {
            self.inner.drain()?.is_ready()
        };
        self.settle();
        Ok(if ready && self.outstanding.is_empty() { Poll::Ready(()) } else { Poll::Pending })
    }

    fn device_mappings(&self) -> Vec<Range<usize>> {
        self.inner.device_mappings()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let own = self.alarm.iter().flat_map(Alarm::descriptors);
        own.chain(self.inner.descriptors()).collect()
    }

    fn poll_notice(&mut self) -> Option<Notice> {
        self.inner.poll_notice()
    }

    /// Sleeps while frames are held only if all of them go by time: those that go by calls would never go.
    fn arm(&mut self) -> Result<Armed, DriverError> {
        self.enter(Operation::Wait)?;
        let by_calls = self.held_out.iter().chain(&self.state.held_in).any(|held| held.due.time().is_none());
        if by_calls || !self.outstanding.is_empty() || !self.stands() {
            return Ok(Armed::FrameWaiting);
        }
        self.inner.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.alarm.as_ref().map(Alarm::fd).or_else(|| self.inner.fd())
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, DriverError> {
        match self.arm()? {
            Armed::FrameWaiting => Ok(Wake::Frame),
            Armed::Sleep => match &self.alarm {
                Some(alarm) if self.earliest.is_some() => wait_readable(alarm.fd(), timeout),
                _ => self.inner.wait(timeout),
            },
        }
    }
}
