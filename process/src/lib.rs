//! A Linux process, saved and restored from inside it, without root and without a change to the program.
//!
//! What a process is besides the bytes of its pages is a [`state::ProcessState`], one section of an image; its pages are another
//! section, in the order of [`state::memory::PageRun`]s; its descriptors a third ([`state::files`]).

pub mod declared;
pub mod state;
