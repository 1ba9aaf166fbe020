//! The handle.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use store::Directory;

use crate::api::{Event, Order, Settings};
use crate::clerk::{Clerk, Task};
use crate::error::ProtectorError;
use crate::mailbox::{Bell, Mailbox};

/// A protector. When this is dropped, what is under way is given up and its threads end.
pub struct Protector {
    tasks: Arc<Mailbox<Task>>,
    bell: Arc<Bell<Event>>,
    thread: Option<JoinHandle<()>>,
}

impl Protector {
    /// Starts it. It does nothing before it is told to.
    ///
    /// # Errors
    /// [`ProtectorError::NotInGroup`], [`ProtectorError::Thread`], [`ProtectorError::Store`] if the directory is not there.
    pub fn start(settings: Settings) -> Result<Protector, ProtectorError> {
        let (node, nodes) = (settings.node, settings.group.nodes());
        let Some(me) = nodes.iter().position(|member| *member == node) else {
            return Err(ProtectorError::NotInGroup { node, nodes: nodes.to_vec() });
        };
        let directory = Directory::open(&settings.directory).map_err(store::StoreError::from)?;
        let failed = |reason: String| ProtectorError::Thread { node, reason };
        let bell = Arc::new(Bell::new().map_err(|error| failed(error.to_string()))?);
        let tasks = Arc::new(Mailbox::new());
        let clerk = Clerk::new(settings, me, directory, Arc::clone(&tasks), Arc::clone(&bell))?;
        let thread = std::thread::Builder::new().name("stillwire-parity".into());
        let thread = thread.spawn(move || clerk.run()).map_err(|error| failed(error.to_string()))?;
        Ok(Protector { tasks, bell, thread: Some(thread) })
    }

    /// A descriptor that is readable while [`Protector::next`] has something.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.descriptor()
    }

    /// Orders something. Returns at once; what becomes of it is an event.
    pub fn tell(&self, order: Order) {
        self.tasks.post(Task::Order(order));
    }

    /// The next event, if there is one.
    #[must_use]
    pub fn next(&self) -> Option<Event> {
        self.bell.next()
    }
}

impl Drop for Protector {
    fn drop(&mut self) {
        self.tasks.post(Task::End);
        if let Some(thread) = self.thread.take() {
            // It has said why it panicked already.
            let _ = thread.join();
        }
    }
}
