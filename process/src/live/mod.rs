//! A process that moves while it runs: its memory is sent in rounds, then it stops for the rest, and stands still until
//! it is known whether another process goes on in its place.
//!
//! 1. [`Rounds`] hands over all pages, and then, round by round, those that were written meanwhile.
//! 2. [`crate::capture::Prepared::capture_held`] stops all threads, takes the rest, and runs ordinary code while
//!    they stand still. [`HoldAllocator`] gives that code memory: a stopped thread may hold the lock of `malloc(3)`.
//! 3. The process that takes over collects the pages in a [`crate::restore::Staging`], and becomes the moved one by
//!    [`crate::restore::restore_staged`].

mod allocator;
mod rounds;

pub use allocator::HoldAllocator;
pub(crate) use allocator::{Hold, NoArena, ignored_arena, make_arena, restored};
pub use rounds::{Round, RoundError, Rounds};
