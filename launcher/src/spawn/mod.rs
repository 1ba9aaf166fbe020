//! Starting and ending the processes of a job: keepers on this host and behind remote shells (which may be a scheduler's), ranks in their namespaces, and the
//! processes that ranks spawn.

pub(crate) mod descriptors;
pub(crate) mod guard;
mod lease_timer;
pub mod namespace;
pub mod pidfd;
pub mod preload;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod remote_shell;
