//! Sleeping until a frame comes, outside the gate.

use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use drivers::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, spin_loop};
use drivers::{Armed, Driver};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use transport::matching::{Envelope, Pattern};
use transport::{LinkIndex, Port};

use crate::gate::{Endpoint, Shared};
use crate::inner::Inner;

/// How long to sleep where nothing would wake the sleeper.
const POLLED: Duration = Duration::from_micros(50);

/// Wakes sleepers: the rails' descriptors, and wake-ups for completions that other threads have found. A
/// wake-up is for all sleepers. So each has an event of its own: the first sleeper would use up a shared one.
pub(crate) struct Waker {
    slots: Mutex<WaitSlots>,
    /// Readable when a rail's descriptor is. A thread that sleeps on it need not know the rails: one may die,
    /// and a restored process has others.
    rails: Epoll,
    /// How many rails it watches.
    watched: AtomicUsize,
}

#[derive(Default)]
struct WaitSlots {
    taken: Vec<Arc<EventFd>>,
    free: Vec<Arc<EventFd>>,
}

/// A place to sleep in: each wake-up from when it is taken wakes its sleeper.
pub(crate) struct WaitSlot<'a> {
    waker: &'a Waker,
    /// `None`: the process had no descriptor left.
    event: Option<Arc<EventFd>>,
}

fn event() -> std::io::Result<Arc<EventFd>> {
    Ok(Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?))
}

impl Waker {
    pub(crate) fn new(rails: &[Box<dyn Driver>]) -> std::io::Result<Waker> {
        let slots = Mutex::new(WaitSlots { taken: Vec::new(), free: vec![event()?] });
        let waker = Waker {
            slots,
            rails: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            watched: AtomicUsize::new(0),
        };
        waker.watch(rails)?;
        Ok(waker)
    }

    /// Watches these rails. Those before are not watched any more once their descriptors are closed.
    pub(crate) fn watch(&self, rails: &[Box<dyn Driver>]) -> std::io::Result<()> {
        let mut watched = 0;
        for fd in rails.iter().filter_map(|driver| driver.fd()) {
            self.rails.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            watched += 1;
        }
        self.watched.store(watched, Ordering::Relaxed);
        Ok(())
    }

    /// Watches one of the rails, which has another driver now; that of before is closed.
    pub(crate) fn watch_another(&self, rails: &[Option<Box<dyn Driver>>], new: usize) -> std::io::Result<()> {
        let others = rails.iter().enumerate().filter(|(i, rail)| *i != new && rail.is_some());
        let others = others.filter_map(|(_, rail)| rail.as_ref()?.fd()).count();
        self.watched.store(others, Ordering::Relaxed);
        if let Some(fd) = rails.get(new).and_then(|rail| rail.as_ref()?.fd()) {
            self.rails.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            self.watched.store(others + 1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A rail is gone, and with it its descriptor.
    pub(crate) fn watch_less(&self, rails: &[Option<Box<dyn Driver>>]) {
        let watched = rails.iter().flatten().filter(|driver| driver.fd().is_some()).count();
        self.watched.store(watched, Ordering::Relaxed);
    }

    /// Wakes all sleepers.
    pub(crate) fn wake(&self) {
        for event in &self.slots().taken {
            // Full means that it is readable already.
            let _ = event.write(1);
        }
    }

    pub(crate) fn wake_sleepers(&self, shared: &Shared) {
        if shared.sleepers.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }

    /// Takes a place to sleep in: under the gate, so that nothing is missed between the last look and the sleep.
    pub(crate) fn wait_slot(&self) -> WaitSlot<'_> {
        let mut slots = self.slots();
        let event = slots.free.pop().or_else(|| event().ok());
        slots.taken.extend(event.clone());
        WaitSlot { waker: self, event }
    }

    fn slots(&self) -> MutexGuard<'_, WaitSlots> {
        // Nothing that can panic runs while it is held.
        self.slots.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn rails(&self) -> std::io::Result<OwnedFd> {
        self.rails.0.try_clone()
    }

    /// Rails without a descriptor can only be polled.
    fn longest(&self, rails: usize) -> Duration {
        if self.watched.load(Ordering::Relaxed) < rails { POLLED } else { Duration::from_secs(1) }
    }
}

impl WaitSlot<'_> {
    /// Sleeps until a frame or a wake-up, for `timeout` at most.
    pub(crate) fn sleep(&self, timeout: Duration) {
        let rails = self.waker.rails.0.as_fd();
        let event = self.event.as_ref().map_or(rails, |event| event.as_fd());
        let mut fds = [rails, event].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        // A thread that cannot be woken polls.
        let timeout = if self.event.is_some() { timeout } else { timeout.min(POLLED) };
        // An interrupted sleep is a short one; the caller looks again anyway.
        let _ = sleep_on(&mut fds, timeout);
    }
}

#[cfg(not(loom))]
fn sleep_on(fds: &mut [PollFd<'_>], timeout: Duration) -> nix::Result<i32> {
    ppoll(fds, Some(TimeSpec::from_duration(timeout)), None)
}

/// In a model no time passes, so only a wake-up ends a sleep. Others run meanwhile.
#[cfg(loom)]
fn sleep_on(fds: &mut [PollFd<'_>], _: Duration) -> nix::Result<i32> {
    loop {
        let woken = ppoll(fds, Some(TimeSpec::from_duration(Duration::ZERO)), None)?;
        if woken > 0 {
            return Ok(woken);
        }
        drivers::sync::thread::yield_now();
    }
}

impl Drop for WaitSlot<'_> {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            let mut slots = self.waker.slots();
            slots.taken.retain(|taken| !Arc::ptr_eq(taken, &event));
            // It is not woken any more: the cause of its wake-up is over.
            let _ = event.read();
            slots.free.push(event);
        }
    }
}

impl Inner {
    /// Prepares every rail for a sleep. False: a frame may be there already.
    pub(crate) fn arm(&mut self) -> bool {
        // The next round finds the cause of the wake-up.
        self.look_everywhere();
        !self.port.wants_to_pull()
            && !self.port.is_behind()
            && !self.port.has_events()
            && self.rails.iter_mut().flatten().all(|driver| matches!(driver.arm(), Ok(Armed::Sleep)))
    }
}

/// Messages that wait to be received, for a caller under the gate.
pub struct Waiting<'a>(&'a mut Port);

impl Waiting<'_> {
    /// The envelope of the message that a receive with this pattern would get.
    pub fn peek(&mut self, pattern: &Pattern) -> Option<Envelope> {
        self.0.peek(pattern)
    }
}

impl Endpoint {
    /// Waits until a completion is there, for `timeout` at most: polls for a while, then sleeps. True if one is there.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.wait_until(timeout, |_| false)
    }

    /// As [`Endpoint::wait`], and also returns when a message waits that a receive with this pattern would get.
    pub fn wait_message(&self, pattern: &Pattern, timeout: Duration) -> bool {
        self.wait_until(timeout, |inner| inner.port.peek(pattern).is_some())
    }

    /// As [`Endpoint::wait`], and also returns when a message could be sent on this link from the user's buffer.
    pub fn wait_room(&self, link: LinkIndex, timeout: Duration) -> bool {
        self.wait_until(timeout, |inner| inner.port.can_send(link, 0))
    }

    /// As [`Endpoint::wait`], and also returns when `met` is true for the waiting messages, or for its owner's state:
    /// called under the gate, after every event. A thread that changes that state calls [`Endpoint::wake`].
    pub fn wait_for(&self, timeout: Duration, mut met: impl FnMut(&mut Waiting<'_>) -> bool) -> bool {
        self.wait_until(timeout, |inner| met(&mut Waiting(&mut inner.port)))
    }

    /// Has waiting threads look again.
    pub fn wake(&self) {
        // Under the gate: a thread that has just looked in vain has its place to sleep in already.
        let _inner = self.shared.lock();
        self.shared.waker.wake();
    }

    fn wait_until(&self, timeout: Duration, mut met: impl FnMut(&mut Inner) -> bool) -> bool {
        let shared = &*self.shared;
        let started = shared.clock.now();
        loop {
            {
                let mut inner = shared.lock();
                if !inner.completions.is_empty() || met(&mut inner) {
                    return true;
                }
                let now = shared.clock.now();
                let rounds = shared.rounds.load(Ordering::Relaxed).wrapping_add(1);
                shared.rounds.store(rounds, Ordering::Relaxed);
                if !inner.is_quiet() {
                    shared.progress_at(&mut inner, now);
                }
                if !inner.completions.is_empty() || met(&mut inner) {
                    return true;
                }
                let waited = now.since(started);
                if waited >= timeout {
                    return false;
                }
                if waited >= shared.config.spin && inner.arm() {
                    let due = inner.port.poll_timeout().map_or(Duration::MAX, |due| due.since(now));
                    let rest = (timeout - waited)
                        .min(due)
                        .min(shared.waker.longest(inner.rails.iter().flatten().count()));
                    shared.sleepers.fetch_add(1, Ordering::Relaxed);
                    let slot = shared.waker.wait_slot();
                    drop(inner);
                    slot.sleep(rest);
                    shared.sleepers.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
            }
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::sync::atomic::Ordering;

    use drivers::udp::{UdpAddress, UdpConfig, UdpDriver};
    use nix::poll::{PollFd, PollFlags, ppoll};
    use nix::sys::time::TimeSpec;
    use transport::{Outgoing, RawAddress, Receive, Space};

    use crate::buffers::{ReceiveBuffer, SendBuffer};
    use crate::gate::Endpoint;
    use crate::testing;

    /// Whether `act` wakes the sleepers in `endpoint`: all or none.
    fn wakes(endpoint: &Endpoint, act: impl FnOnce()) -> bool {
        let shared = &endpoint.shared;
        shared.sleepers.fetch_add(2, Ordering::Relaxed);
        let slots = [shared.waker.wait_slot(), shared.waker.wait_slot()];
        act();
        shared.sleepers.fetch_sub(2, Ordering::Relaxed);
        let woken = slots.each_ref().map(|slot| slot.event.as_ref().expect("a descriptor").read().is_ok());
        assert_eq!(woken[0], woken[1], "a wake-up is for everybody");
        woken[0]
    }

    #[test]
    fn who_waits_for_something_of_its_own_is_woken() {
        let hub = drivers::mem::Hub::new();
        let endpoint = testing::open(testing::port(0), &hub);
        let changed = std::sync::atomic::AtomicBool::new(false);
        let met = |_: &mut super::Waiting<'_>| changed.load(Ordering::Relaxed);
        assert!(!endpoint.wait_for(core::time::Duration::from_millis(1), met), "nothing has changed");
        assert!(wakes(&endpoint, || endpoint.wake()));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| endpoint.wait_for(core::time::Duration::from_secs(60), met));
            changed.store(true, Ordering::Relaxed);
            endpoint.wake();
            assert!(waits.join().expect("it does not panic"));
        });
    }

    /// Over shared memory a look takes back that frames ring: an earlier sleeper would not be woken by them.
    #[test]
    fn who_sleeps_is_woken_by_a_frame_after_another_has_looked_in_vain() {
        let open = |number| {
            let rail =
                drivers::shm::ShmDriver::open(&drivers::shm::ShmConfig::default()).expect("memory and /proc");
            testing::open_on(testing::port(number), Box::new(rail))
        };
        let (a, b) = (open(0), open(1));
        let link = a.connect(testing::id(1), &b.addresses()).expect("reachable");
        b.connect(testing::id(0), &a.addresses()).expect("reachable");
        let shared = &b.shared;
        while !shared.lock().arm() {
            b.progress();
        }
        shared.sleepers.fetch_add(1, Ordering::Relaxed);
        assert!(!b.progress(), "nothing has come");
        let outgoing = Outgoing { space: Space(0), tag: 1, data: 0, context: 0, silent: true };
        a.send(link, outgoing, SendBuffer::Copied(b"found")).expect("room");
        let rails = shared.waker.rails().expect("a descriptor");
        let mut sleeps = [PollFd::new(rails.as_fd(), PollFlags::POLLIN)];
        let woken =
            ppoll(&mut sleeps, Some(TimeSpec::from_duration(core::time::Duration::from_secs(20))), None);
        shared.sleepers.fetch_sub(1, Ordering::Relaxed);
        assert_eq!(woken, Ok(1), "it sleeps on");
    }

    #[test]
    fn who_sleeps_has_to_prepare_the_new_driver_of_a_rail() {
        let mut open = |address: &RawAddress| -> Result<Box<dyn drivers::Driver>, drivers::DriverError> {
            let UdpAddress(at) = UdpAddress::try_from(address).expect("a rail over UDP");
            Ok(Box::new(UdpDriver::open(&UdpConfig::new(at))?))
        };
        let here = RawAddress::from(UdpAddress("127.0.0.1:0".parse().expect("an address")));
        let endpoint = testing::open_on(testing::port(0), open(&here).expect("a socket"));
        let mut never = |_: &RawAddress| panic!("it opens");
        assert!(wakes(&endpoint, || endpoint.hand_over(0, &mut open, &mut never).expect("a socket")));
    }

    #[test]
    fn what_one_thread_finds_wakes_those_that_wait_for_it() {
        let hub = drivers::mem::Hub::new();
        let (a, b) = (testing::open(testing::port(0), &hub), testing::open(testing::port(1), &hub));
        let link = a.connect(testing::id(1), &b.addresses()).expect("reachable");
        b.connect(testing::id(0), &a.addresses()).expect("reachable");
        let space = Space(0);
        let send = |tag| {
            let outgoing = Outgoing { space, tag, data: 0, context: 0, silent: true };
            a.send(link, outgoing, SendBuffer::Copied(b"found")).expect("room");
        };
        let post = |tag| {
            let receive =
                Receive { space, source: None, tag, ignore: 0, bytes_max: 10, context: 0, multi: None };
            b.post_receive(receive, ReceiveBuffer::Owned(vec![0; 10])).expect("room");
        };
        assert!(!wakes(&b, || post(1)), "nothing has come for it");
        assert!(!wakes(&b, || assert!(b.poll().is_none())));
        post(2);
        send(1);
        send(2);
        assert!(wakes(&b, || assert!(b.poll().is_some())), "two have come, and one is given");
        assert!(b.take_completion().is_some());
        send(3);
        assert!(wakes(&b, || assert!(b.progress())), "a message waits");
        assert!(wakes(&b, || post(3)), "it is received at once");
        assert!(wakes(&b, || b.peer_has_closed(testing::id(0), 0)), "the peer has closed");
    }
}
