//! Starting and ending the processes of a job: keepers on this host and behind remote shells, ranks in their namespaces, and what ranks spawn.

pub(crate) mod descriptors;
pub(crate) mod guard;
pub mod namespace;
pub mod pidfd;
pub mod preload;
pub(crate) mod process;
pub(crate) mod remote_shell;
