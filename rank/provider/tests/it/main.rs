//! The provider's interface, as libfabric's callers use it: one binary, a module for each behaviour.

#[path = "../../../../tests/skipped.rs"]
mod skipped;

mod bounds;
mod broken;
mod full;
mod hostile;
mod jobs;
mod keys;
mod layout;
mod logs;
mod many;
mod memory;
mod messages;
mod processes;
mod promises;
mod rig;
mod sets;
mod waits;
