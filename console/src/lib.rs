//! Shared parts of the command lines: numbers in arguments, sizes and times in words, progress on standard
//! error.

mod number;
mod progress;
mod size;

pub use number::{number, positive};
pub use progress::{Progress, Unit};
pub use size::{bytes, nanos, seconds};
