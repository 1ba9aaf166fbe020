//! Atomics, fences and locks of everything that threads or processes share without further ado: those of the standard
//! library, or the ones of a model checker (`--cfg loom`, tests/ordering), which runs the very same code under every
//! order that the memory model permits.

#[cfg(loom)]
pub mod model;

#[cfg(not(loom))]
mod real {
    pub use core::hint::spin_loop;
    pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
    pub use std::sync::{Condvar, Mutex, MutexGuard};
    pub use std::thread;

    /// The cheap half of an asymmetric fence, whose other half is a barrier in all processes.
    #[inline]
    pub fn light_fence() {
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    }
}

pub use core::sync::atomic::Ordering;

#[cfg(loom)]
pub use model::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, fence, light_fence, spin_loop,
    thread,
};
#[cfg(not(loom))]
pub use real::*;
