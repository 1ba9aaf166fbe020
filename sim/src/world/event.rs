//! What can happen next in a world.

use crate::network::FrameId;

/// An event in the queue. Small, because thousands pass through it in each history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Event {
    /// A frame reaches the NIC that it is for.
    Arrive(FrameId),
    /// A NIC reads the frames that were flushed to it.
    Read(u32),
    /// A process looks at its NICs, its timers, its program.
    Wake(u32),
    /// A timer of a process may have run out.
    Timer(u32),
    /// A process thaws after a cut.
    Thaw(u32),
}
