//! A Linux process, saved and restored from inside it, without root and without a change to the program.
//!
//! The state of a process besides the bytes of its pages is a [`state::ProcessState`], one section of an image; its
//! pages are another section, in the order of [`state::memory::PageRun`]s; its descriptors a third ([`state::files`]).

#![allow(
    clippy::cast_possible_truncation,
    reason = "64-bit processors only (arch/): addresses and lengths are the same as u64 and usize; the kernel's small answers fit"
)]

mod arch;
pub mod build_id;
pub mod capture;
pub mod content;
pub mod declared;
pub mod facilities;
pub mod files;
pub mod live;
mod maps;
pub mod outside;
mod page_set;
mod pages;
mod preflight;
pub mod refuse;
pub mod restore;
mod scratch;
pub mod signals;
mod smaps;
pub mod state;
mod stop;
mod sys;
pub mod track;

pub use pages::{COVER_TAG_BYTES, Cover, Pace, Sum};
pub use preflight::{machine, refusals};
pub use stop::{StopFault, threads_are_stopped};
pub use sys::Errno;
