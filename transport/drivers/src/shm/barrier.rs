//! A barrier in all processes that take part, made by one of them (membarrier(2)).
//!
//! A sender writes a frame and then looks whether its receiver sleeps; a receiver announces that it sleeps
//! and then looks for frames. One of the two has to see the other, which takes a barrier between the two
//! steps of each. Senders do this for every frame, receivers before a sleep of 15 us and more. So the
//! receiver makes the barrier for both, and a sender does not stand still until its frame has left its core.

use libc::{MEMBARRIER_CMD_GLOBAL_EXPEDITED, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, c_int};
#[cfg(not(loom))]
use libc::{SYS_membarrier, c_long};

#[cfg(not(loom))]
fn membarrier(command: c_int) -> bool {
    const FLAGS: c_long = 0;
    // SAFETY: takes numbers, and does nothing that a program could notice.
    unsafe { libc::syscall(SYS_membarrier, c_long::from(command), FLAGS, FLAGS) == 0 }
}

/// The barrier itself is a fence in a model, which stands at its two ends.
#[cfg(loom)]
fn membarrier(_: c_int) -> bool {
    crate::sync::model::barriers()
}

/// Takes part from now on. False: the kernel has no such barrier, or does not let us.
pub(super) fn take_part() -> bool {
    membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
}

/// Makes the barrier, here and in all participants. False: it was not made.
pub(super) fn everywhere() -> bool {
    #[cfg(test)]
    if REFUSED.get() {
        return false;
    }
    membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

#[cfg(test)]
thread_local! {
    /// The kernel has no memory for it, for the calls of this thread.
    pub(super) static REFUSED: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_can_be_taken_part_in_can_be_made() {
        assert_eq!(super::take_part(), super::everywhere());
    }
}
