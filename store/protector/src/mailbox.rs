//! Tasks that wait for a thread, and the event that wakes it.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::PoisonError;
use std::time::Duration;

use drivers::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering};
use endpoint::{Endpoint, Waiting};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Tasks that wait in a mailbox; a thread that posts one more waits. In a model one: there the second one finds no room.
const TASKS_MAX: usize = if cfg!(loom) { 1 } else { 256 };

/// Tasks of a thread that sleeps in its endpoint, as soon as it has one.
pub(crate) struct Mailbox<T> {
    tasks: Mutex<Tasks<T>>,
    come: Condvar,
    /// There is room again.
    room: Condvar,
    /// Something is there.
    waiting: AtomicBool,
}

struct Tasks<T> {
    /// None: its owner is gone.
    queue: Option<VecDeque<T>>,
    endpoint: Option<Endpoint>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Mailbox<T> {
        let tasks = Mutex::new(Tasks { queue: Some(VecDeque::new()), endpoint: None });
        Mailbox { tasks, come: Condvar::new(), room: Condvar::new(), waiting: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Tasks<T>> {
        // Nothing that can panic runs while it is held.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a task, or drops it if the queue is closed. Waits for room, which its owner makes: the owner never waits for those who post here.
    pub(crate) fn post(&self, task: T) {
        let mut tasks = self.lock();
        while tasks.queue.as_ref().is_some_and(|queue| queue.len() >= TASKS_MAX) {
            tasks = self.room.wait(tasks).unwrap_or_else(PoisonError::into_inner);
        }
        self.leave(tasks, task);
    }

    /// Likewise, and never waits: the caller has a bound of its own, and comes on top of [`TASKS_MAX`].
    pub(crate) fn post_at_once(&self, task: T) {
        self.leave(self.lock(), task);
    }

    fn leave(&self, mut tasks: MutexGuard<'_, Tasks<T>>, task: T) {
        let endpoint = {
            let Some(queue) = &mut tasks.queue else { return };
            queue.push_back(task);
            self.waiting.store(true, Ordering::Release);
            tasks.endpoint.clone()
        };
        drop(tasks);
        self.come.notify_one();
        if let Some(endpoint) = endpoint {
            endpoint.wake();
        }
    }

    pub(crate) fn take(&self) -> Option<T> {
        let mut tasks = self.lock();
        let queue = tasks.queue.as_mut()?;
        let task = queue.pop_front();
        let has_room = queue.len() < TASKS_MAX;
        self.waiting.store(!queue.is_empty(), Ordering::Release);
        drop(tasks);
        if has_room {
            self.room.notify_one();
        }
        task
    }

    /// Drops waiting and later tasks.
    pub(crate) fn close(&self) {
        let tasks = self.lock().queue.take();
        self.room.notify_all();
        // Outside of the lock: it may hold answers for which others wait.
        drop(tasks);
    }

    /// From now on its owner sleeps in this endpoint.
    pub(crate) fn sleep_in(&self, endpoint: Option<Endpoint>) {
        self.lock().endpoint = endpoint;
    }

    /// Sleeps until a task is there, or something of the endpoint's that `met` looks for, for `timeout` at most.
    pub(crate) fn wait(&self, timeout: Duration, mut met: impl FnMut(&mut Waiting<'_>) -> bool) {
        let endpoint = {
            let tasks = self.lock();
            if tasks.queue.as_ref().is_some_and(|queue| !queue.is_empty()) {
                return;
            }
            let Some(endpoint) = tasks.endpoint.clone() else {
                // It looks again after a wake-up that has no reason.
                let _ = self.come.wait_timeout(tasks, timeout);
                return;
            };
            endpoint
        };
        endpoint.wait_for(timeout, |waiting| self.waiting.load(Ordering::Acquire) || met(waiting));
    }
}

/// Events for the owner of a protector, and a descriptor that is readable while something is there. Each answers a request, so there are at most as
/// many as requests that are open.
pub(crate) struct EventQueue<T> {
    queued: Mutex<VecDeque<T>>,
    readable: EventFd,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> nix::Result<EventQueue<T>> {
        let readable = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(EventQueue { queued: Mutex::new(VecDeque::new()), readable })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    pub(crate) fn push(&self, event: T) {
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        queued.push_back(event);
        // Full means that it is readable already.
        let _ = self.readable.write(1);
    }

    pub(crate) fn next(&self) -> Option<T> {
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        let next = queued.pop_front();
        if queued.is_empty() {
            // Empty already: it was written for tasks that have been taken.
            let _ = self.readable.read();
        }
        next
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{RecvTimeoutError, sync_channel};

    use super::*;

    const NOT_YET: Duration = Duration::from_millis(50);
    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_post_to_a_full_mailbox_waits_for_room() {
        let mailbox = Arc::new(Mailbox::new());
        (0..TASKS_MAX).for_each(|task| mailbox.post(task));
        let (posted, heard) = sync_channel(1);
        let post = |task| {
            let (mailbox, posted) = (Arc::clone(&mailbox), posted.clone());
            std::thread::spawn(move || {
                mailbox.post(task);
                posted.send(()).expect("it is awaited");
            })
        };
        let waiting = post(TASKS_MAX);
        assert_eq!(heard.recv_timeout(NOT_YET), Err(RecvTimeoutError::Timeout));
        assert_eq!(mailbox.take(), Some(0));
        heard.recv_timeout(SOON).expect("there is room");
        waiting.join().expect("it has posted");
        // `post_at_once` may exceed the bound; `close` wakes waiting threads.
        mailbox.post_at_once(TASKS_MAX + 1);
        let waiting = post(TASKS_MAX + 2);
        assert_eq!(heard.recv_timeout(NOT_YET), Err(RecvTimeoutError::Timeout));
        mailbox.close();
        heard.recv_timeout(SOON).expect("nobody takes it");
        waiting.join().expect("it has posted");
        assert_eq!(mailbox.take(), None);
    }
}
