//! The provider as libfabric uses it: the built library is opened with `dlopen`, and everything goes through its C tables.

mod bounds;
mod broken;
mod full;
mod hostile;
mod jobs;
mod keys;
mod logs;
mod many;
mod memory;
mod messages;
mod processes;
mod promises;
mod rig;
mod sets;
mod waits;
