//! The native programming interface: a rank's port, protected memory, and counted checkpoint points.
//!
//! A program that is started by `stillwire run` opens a [`Session`], exchanges messages, and calls
//! [`Session::point`] where its state is complete. The job is saved at such points while its messages are still on their
//! way, and a restarted program goes on from the point that it was saved at:
//!
//! ```no_run
//! use session::{Protect, Region, Session, SessionError};
//!
//! struct Token([u8; 8]);
//!
//! impl Protect for Token {
//!     fn regions(&mut self) -> Vec<Region<'_>> {
//!         vec![Region::fixed(1, &mut self.0)]
//!     }
//! }
//!
//! fn main() -> Result<(), SessionError> {
//!     let mut session = Session::open()?;
//!     if !session.had_finished() {
//!         let mut steps = Token([0; 8]);
//!         session.protect(&mut steps)?;
//!         while u64::from_le_bytes(steps.0) < 1000 {
//!             let next = (session.rank() + 1) % session.size();
//!             let previous = (session.rank() + session.size() - 1) % session.size();
//!             session.send(next, 1, steps.0.to_vec())?;
//!             let message = session.recv(previous, 1)?;
//!             assert_eq!(message.bytes, steps.0);
//!             steps.0 = (u64::from_le_bytes(steps.0) + 1).to_le_bytes();
//!             session.point(&mut steps)?;
//!         }
//!     }
//!     session.finalize()
//! }
//! ```
//!
//! Messages in flight belong to the session: it keeps messages, and requests that are still open, with the saved state.
//! A program never waits for its messages before it may be saved.

mod agent;
mod calls;
mod capture;
mod collective;
mod control;
mod delay;
pub mod error;
pub mod limits;
mod message;
mod open;
mod port_section;
mod region;
mod requests;
mod session;
mod traffic;
mod writer;

pub use error::{RegionError, SessionError, StateError};
pub use message::{From, Message, Outcome, Request, Tags, Waiting};
pub use region::{Protect, Region};
pub use session::Session;

const _: () = assert!(
    transport::config::CHECKPOINTABLE,
    "a program built with --cfg uncheckpointable cannot be saved: only `stillwire-dev bench checkpointable` builds so"
);
