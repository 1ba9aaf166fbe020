//! The protocol: one binary, a module for each behaviour.

mod before_cut;
mod deferred_payload;
mod freezing;
mod hints;
mod idle;
mod lives;
mod messages;
mod ownership;
mod pull;
mod replay;
mod resync;
mod tx_fast_path;
mod waits;
mod wire;
#[expect(clippy::cast_possible_truncation, reason = "test data")]
mod world;
