//! The helper: a thread that makes progress while the program computes.
//!
//! While the program polls by itself the helper only looks every tick whether that is still so; it never competes for
//! frames. Once the program has been away for a whole tick, the helper sleeps on the rails' descriptors and the port's
//! next deadline, until the program is back.

use std::sync::{Arc, Weak};

use drivers::sync::Ordering;
use drivers::sync::thread::{self, JoinHandle};

use crate::gate::Shared;
use crate::op_times::NOTED_EVERY;

pub(crate) struct Helper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<Helper> {
        let weak = Arc::downgrade(shared);
        let thread = thread::Builder::new().name("stillwire-helper".into()).spawn(move || run(&weak))?;
        Ok(Helper { shared: shared.clone(), thread: Some(thread) })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        self.shared.waker.wake();
        // The attendant may hold the last handle: then this is the helper, which ends by itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the helper thread panicked");
        }
    }
}

/// Most ticks between two looks at a program that polls all the time. Each look takes the processor from it for some 10 us.
const TICKS_MAX: u32 = 4;

fn run(weak: &Weak<Shared>) {
    let mut seen = 0;
    let mut ticks = 1;
    let mut noted = transport::Instant::ZERO;
    while let Some(shared) = weak.upgrade() {
        if shared.closed.load(Ordering::Relaxed) {
            return;
        }
        let now = shared.clock.now();
        if now.since(noted) >= NOTED_EVERY
            && let Some(mut inner) = shared.try_lock()
        {
            noted = now;
            let next = inner.port.next_op();
            inner.op_times.note(next, now);
        }
        let rounds = shared.rounds.load(Ordering::Relaxed);
        if rounds != seen || shared.sleepers.load(Ordering::Relaxed) > 0 {
            seen = rounds;
            let tick = shared.config.helper_tick * ticks;
            ticks = (ticks * 2).min(TICKS_MAX);
            drop(shared);
            thread::sleep(tick);
            continue;
        }
        ticks = 1;
        watch(&shared);
    }
}

/// One sleep and one round in the program's place.
fn watch(shared: &Shared) {
    let now = shared.clock.now();
    let (due, slot) = {
        let Some(mut inner) = shared.try_lock() else {
            // Another thread makes progress, or the port is frozen.
            thread::sleep(shared.config.helper_tick);
            return;
        };
        // A sleeper may wait for less than a completion: for a message, or for room.
        shared.progress_at(&mut inner, now);
        if !inner.completions.is_empty()
            && let Some(attend) = shared.attendant.get()
        {
            drop(inner);
            attend();
            if shared.try_lock().is_none_or(|inner| !inner.completions.is_empty()) {
                // It could not take them all: the program has to make room first.
                thread::sleep(shared.config.helper_tick);
            }
            return;
        }
        if !inner.arm() {
            return;
        }
        (inner.port.poll_timeout(), shared.waker.wait_slot())
    };
    if shared.closed.load(Ordering::Relaxed) {
        // It was woken for that before the slot was taken.
        return;
    }
    let longest = shared.config.helper_tick * 20;
    let timeout = due.map_or(longest, |due| due.since(shared.clock.now()).min(longest));
    slot.sleep(timeout);
}
