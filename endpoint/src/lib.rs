//! A port in a real process.
//!
//! ```text
//!   program threads          helper thread
//!        |   send, poll, wait     |   while the program computes
//!        v                        v
//!   ==== gate (one mutex) =======================
//!   Inner: transport::Port + rails (drivers) + buffers
//! ```
//!
//! Everything goes through the gate, so a freeze finds the port between two steps of its state machine: the
//! holder of the gate knows that no thread of ours can touch port memory, and a drained driver guarantees the
//! same for the NIC.

mod buffers;
mod clock;
mod error;
mod frozen;
mod further_rail;
mod gate;
mod hand_over;
mod helper;
mod inner;
mod moves;
mod op_times;
mod shutdown;
mod spin_policy;
#[cfg(test)]
mod testing;
mod tx_fast_path;
mod wait;
mod waits;

pub use buffers::{BorrowedBuffer, BorrowedPayload, BufferTable, ReceiveBuffer, SendBuffer};
pub use error::EndpointError;
pub use frozen::{Frozen, PauseSplit};
pub use gate::{Endpoint, EndpointConfig};
pub use hand_over::OpenAt;
pub use inner::Completion;
pub use shutdown::{Linger, ShutdownHooks};
pub use wait::Waiting;
pub use waits::Waits;
