//! The library inside an unmodified program that is saved: its part in checkpoints, its images, its restore.
//!
//! The launcher starts such a program with a library of this project before all others, whose constructor calls
//! [`enter`]. In a new process a thread begins, the *agent*, which speaks with the keeper and takes checkpoints. In a
//! process that is being restored the constructor never returns: the process becomes the one of its image
//! ([`process::restore`]), and the agent, a thread of that image, finds that it is in a new life.
//!
//! Owners of ports in the process register them with [`ThisRank`]: they are frozen while it is captured, and continue
//! in its next life.

mod agent_thread;
mod choice;
mod decrypted_pages;
mod error;
mod image;
mod limits;
mod pmi;
mod ports;
mod rank_slot;
pub mod spaces;
mod startup;
mod this_rank;

pub use choice::{CAPTURE_VARIABLE, CaptureMode};
pub use image::last_id;
pub use pmi::LAUNCHERS_VARIABLE as PMI_LAUNCHERS_VARIABLE;
pub use rank_slot::is_shell;
pub use startup::{
    CHANGED_FILES, CHANGED_FILES_VARIABLE, IDS_KEPT, IDS_VARIABLE, SAVE_PROCESS, SAVE_VARIABLE, enter,
};
pub use this_rank::{ThisRank, this_rank};
