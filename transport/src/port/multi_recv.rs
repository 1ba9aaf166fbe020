//! Buffers that take several messages: when the last one is complete.
//!
//! Messages are matched in order and may be complete in another (R18). So the message that uses a buffer up need not be the last one
//! to come into it.

use crate::ids::OpId;
use crate::link::receive::Target;
use crate::port::{FrozenPort, Port};

/// A receive with messages that it has taken and that are not complete.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct MultiRecv {
    incomplete: u32,
    /// The message that uses the buffer up is complete.
    used_up: bool,
}

/// The end of a buffer that gets no more messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// Messages that it has taken are still to come into it: the last one's event reports that it is
    /// finished.
    WithTheLastMessage,
    /// Nothing comes into it, and no event reports that.
    AtOnce,
}

impl Port {
    /// A receive for several messages is given no more.
    pub(crate) fn stop_multi_recv(&mut self, op: OpId) -> Stopped {
        match self.multi_recv.get_mut(&op) {
            Some(multi_recv) => {
                multi_recv.used_up = true;
                Stopped::WithTheLastMessage
            }
            None => Stopped::AtOnce,
        }
    }

    /// A receive for several messages has taken one that is not complete yet.
    pub(crate) fn begin_multi_recv(&mut self, op: OpId) {
        self.multi_recv.entry(op).or_default().incomplete += 1;
    }

    /// A message is complete that was not when its receive took it. `last`: it uses the buffer up. Whether nothing more comes into
    /// the buffer.
    pub(crate) fn end_multi_recv(&mut self, op: OpId, last: bool) -> bool {
        self.fill(op, last, 1)
    }

    /// Likewise, of a message that was complete when its receive took it.
    pub(crate) fn fill_at_once(&mut self, op: OpId, last: bool) -> bool {
        last && self.fill(op, last, 0)
    }

    fn fill(&mut self, op: OpId, last: bool, complete: u32) -> bool {
        if self.multi_recv.is_empty() {
            return last;
        }
        let Some(multi_recv) = self.multi_recv.get_mut(&op) else { return last };
        multi_recv.used_up |= last;
        multi_recv.incomplete -= complete;
        let over = multi_recv.incomplete == 0;
        let used_up = multi_recv.used_up;
        if over {
            self.multi_recv.remove(&op);
        }
        over && used_up
    }

    /// Marks every message that is still to come into a used-up buffer, so that a frozen port shows this.
    pub(crate) fn report_used_up(&mut self) {
        if self.multi_recv.values().all(|multi_recv| !multi_recv.used_up) {
            return;
        }
        let multi_recv = &self.multi_recv;
        let used_up = |op: OpId| multi_recv.get(&op).is_some_and(|multi_recv| multi_recv.used_up);
        for queues in self.links.iter_mut().filter_map(|link| link.queues.as_mut()) {
            for incoming in &mut queues.incoming {
                incoming.finished |= used_up(incoming.op);
            }
            if let Some(open) = &mut queues.open
                && let Target::Posted { op, finished, .. } = &mut open.target
            {
                *finished |= used_up(*op);
            }
        }
    }
}

impl FrozenPort {
    /// Counts anew the messages for which the buffers of a loaded port still wait.
    pub(crate) fn recount_multi_recv(&mut self) {
        let port = &mut self.port;
        for queues in port.links.iter().filter_map(|link| link.queues.as_ref()) {
            let open = queues.open.and_then(|open| match open.target {
                Target::Posted { op, .. } => Some(op),
                _ => None,
            });
            for op in queues.incoming.iter().map(|incoming| incoming.op).chain(open) {
                port.multi_recv.entry(op).or_default().incomplete += 1;
            }
        }
    }
}
