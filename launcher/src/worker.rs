//! A thread for work that may take long, beside a loop that waits for nothing but events.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use nix::sys::eventfd::{EfdFlags, EventFd};

/// The handle of the thread: it takes tasks in their order, and reports the outcome of each.
#[derive(Debug)]
pub(crate) struct Worker<T, D> {
    tasks: Option<Sender<T>>,
    done: Receiver<D>,
    wake: Arc<EventFd>,
    thread: Option<std::thread::JoinHandle<()>>,
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
    pub(crate) fn report(&self, done: D) {
        // Nobody listens any more; full means that it is readable already.
        let _ = self.to.send(done);
        let _ = self.wake.write(1);
    }
}

impl<T: Send + 'static, D: Send + 'static> Worker<T, D> {
    pub(crate) fn start(
        name: &str,
        mut perform: impl FnMut(T, &Results<D>) + Send + 'static,
    ) -> std::io::Result<Worker<T, D>> {
        let (tasks, waiting) = channel();
        let (to, done) = channel();
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let results = Results { to, wake: Arc::clone(&wake) };
        let run = move || waiting.into_iter().for_each(|task| perform(task, &results));
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Worker { tasks: Some(tasks), done, wake, thread: Some(thread) })
    }

    pub(crate) fn ask(&self, task: T) {
        if let Some(tasks) = &self.tasks {
            // The thread ends only when this end is dropped.
            let _ = tasks.send(task);
        }
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
        self.done.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    /// The thread is not waited for any more, and ends with this process at the latest.
    pub(crate) fn leave(&mut self) {
        self.thread = None;
    }
}

impl<T, D> Drop for Worker<T, D> {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by the thread itself.
            let _ = thread.join();
        }
    }
}
