//! Real parallel programs over the native interface.
//!
//! * [`is`]: the NAS integer sort, with the official partial and full verification;
//! * [`burst`]: every rank sends bursts of asynchronous messages to every other rank, and each message is checked;
//! * [`ring`]: the smallest program that survives a restart, to read first;
//! * [`tasks`]: one that goes on without ranks that are gone, over [`::session`] itself.
//!
//! The programs know a [`Communicator`] only: ranks, messages, and points at which the program may be saved.
//! The state that a program must keep is explicit ([`State`]), so a restarted one continues from its point,
//! not from its start. A program that `stillwire run` starts is a rank of a real job ([`session`]).
//! [`threads`] is a communicator inside one process, with a cut and a restart of its own. It serves for
//! trying the programs out and for testing that their state is complete.

pub mod burst;
pub mod collective;
pub mod command;
pub mod communicator;
pub mod error;
pub mod is;
pub mod limits;
pub mod ring;
pub mod session;
pub mod tasks;
pub mod threads;

pub use command::main;
pub use communicator::{Communicator, Fault, Region, State, Tag};
pub use error::ExampleError;
