//! A thread for work that may take long, beside a loop that waits for nothing but events.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, never};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::limits::{WORKER_RESULTS_MAX, WORKER_TASKS_MAX};

/// The handle of the thread: it takes tasks in their order, and reports the outcome of each.
#[derive(Debug)]
pub(crate) struct Worker<T, D> {
    name: &'static str,
    tasks_max: usize,
    tasks: Option<Sender<T>>,
    done: Receiver<D>,
    /// A loop that waits for descriptors cannot wait for a channel.
    wake: Arc<EventFd>,
    thread: Option<std::thread::JoinHandle<()>>,
    has_overflowed: Cell<bool>,
}

/// A thread has not begun so many tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{tasks_max} tasks wait for the thread {name}, which is its bound: the disk of the job's directory does not answer; look at it, then restart \
     the job if it has ended"
)]
pub struct QueueFull {
    /// The thread.
    pub name: &'static str,
    /// The bound.
    pub tasks_max: usize,
}

/// Where a thread reports its results.
#[derive(Debug)]
pub(crate) struct Results<D> {
    to: Sender<D>,
    wake: Arc<EventFd>,
}

impl<D> Clone for Results<D> {
    fn clone(&self) -> Results<D> {
        Results { to: self.to.clone(), wake: Arc::clone(&self.wake) }
    }
}

impl<D> Results<D> {
    /// Waits for room, which the loop makes: it never waits for this thread.
    pub(crate) fn report(&self, done: D) {
        // Nobody listens any more; full means that it is readable already.
        let _ = self.to.send(done);
        let _ = self.wake.write(1);
    }
}

impl<T: Send + 'static, D: Send + 'static> Worker<T, D> {
    pub(crate) fn start(
        name: &'static str,
        perform: impl FnMut(T, &Results<D>) + Send + 'static,
    ) -> std::io::Result<Worker<T, D>> {
        Worker::start_with(WORKER_TASKS_MAX, name, perform)
    }

    /// With another bound than [`WORKER_TASKS_MAX`].
    pub(crate) fn start_with(
        tasks_max: usize,
        name: &'static str,
        mut perform: impl FnMut(T, &Results<D>) + Send + 'static,
    ) -> std::io::Result<Worker<T, D>> {
        let (tasks, waiting) = bounded(tasks_max);
        let (to, done) = bounded(WORKER_RESULTS_MAX);
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let results = Results { to, wake: Arc::clone(&wake) };
        let run = move || {
            let _guard = EndOnPanic(name);
            waiting.into_iter().for_each(|task| perform(task, &results));
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        let has_overflowed = Cell::new(false);
        Ok(Worker { name, tasks_max, tasks: Some(tasks), done, wake, thread: Some(thread), has_overflowed })
    }

    /// Leaves a task; without room it is dropped.
    pub(crate) fn try_ask(&self, task: T) -> Result<(), QueueFull> {
        match self.tasks.as_ref().map(|tasks| tasks.try_send(task)) {
            Some(Err(TrySendError::Full(_))) => Err(self.full()),
            // The thread ends only when this end is dropped.
            None | Some(Ok(()) | Err(TrySendError::Disconnected(_))) => Ok(()),
        }
    }

    /// Whether [`Worker::try_ask`] would take a task now: only this end makes them more.
    pub(crate) fn has_room(&self) -> Result<(), QueueFull> {
        if self.tasks.as_ref().is_some_and(Sender::is_full) { Err(self.full()) } else { Ok(()) }
    }

    /// As [`Worker::try_ask`]; [`Worker::overflow`] reports a dropped task from then on.
    pub(crate) fn ask(&self, task: T) {
        if self.try_ask(task).is_err() {
            self.has_overflowed.set(true);
        }
    }

    /// Some task found no room, and was dropped.
    pub(crate) fn overflow(&self) -> Option<QueueFull> {
        self.has_overflowed.get().then(|| self.full())
    }

    fn full(&self) -> QueueFull {
        QueueFull { name: self.name, tasks_max: self.tasks_max }
    }

    /// Rings when something is done.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(crate) fn next(&self) -> Option<D> {
        let _ = self.wake.read();
        self.done.try_recv().ok()
    }

    /// Waits for the next result, when nothing else is left to do.
    pub(crate) fn wait(&self) -> Option<D> {
        self.done.recv().ok()
    }

    /// Likewise, but not for longer than until then.
    pub(crate) fn wait_until(&self, until: Instant) -> Option<D> {
        self.done.recv_deadline(until).ok()
    }

    /// The thread is not waited for any more, and ends with this process at the latest.
    pub(crate) fn leave(&mut self) {
        self.thread = None;
    }
}

/// A thread that panics leaves its tasks unanswered for ever: it ends its process instead, whose guard or launcher notices.
struct EndOnPanic(&'static str);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::print_message(format_args!(
                "the thread {} has panicked, and its process ends: please report the lines above",
                self.0
            ));
            std::process::abort();
        }
    }
}

impl<T, D> Drop for Worker<T, D> {
    fn drop(&mut self) {
        self.tasks = None;
        // A thread that waits for room among the results goes on.
        self.done = never();
        if let Some(thread) = self.thread.take() {
            // It does not panic: [`EndOnPanic`].
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_stands_still_takes_a_bounded_number_of_tasks() {
        let (go, held) = bounded::<()>(0);
        let worker = Worker::start("still", move |task: usize, results| {
            // Until the test lets it go on.
            let _ = held.recv();
            results.report(task);
        })
        .expect("a thread");
        let taken = (0..2 * WORKER_TASKS_MAX).take_while(|task| worker.try_ask(*task).is_ok()).count();
        // One may be in the thread's hands.
        assert!((WORKER_TASKS_MAX..=WORKER_TASKS_MAX + 1).contains(&taken), "{taken}");
        assert_eq!(worker.overflow(), None, "the caller has the error");
        (0..2).for_each(|task| worker.ask(task));
        let full = worker.overflow().expect("a task was dropped").to_string();
        assert!(
            full.contains(&format!("{WORKER_TASKS_MAX} tasks")) && full.contains("thread still"),
            "{full}"
        );
        drop(go);
        assert_eq!(
            (0..taken).map_while(|_| worker.wait()).collect::<Vec<_>>(),
            (0..taken).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_thread_whose_results_nobody_takes_waits_and_still_ends() {
        let worker = Worker::start("prolific", |count: usize, results: &Results<usize>| {
            (0..count).for_each(|result| results.report(result));
        })
        .expect("a thread");
        worker.ask(4 * WORKER_RESULTS_MAX);
        assert_eq!(worker.wait(), Some(0));
        // The thread waits for room, or soon will. This returns.
        drop(worker);
    }
}
