//! What nodes with directories of their own have of the job's generations, and what follows from it (R27, R28).
//!
//! Pure: a shell asks the nodes, and acts on the answers that are given here.

pub mod late;
pub mod restore;
pub mod verdict;

pub use late::{Account, Cause, causes};
pub use restore::{Choice, Judged, RestorePlan, Terms};
pub use verdict::{
    Finding, GenerationVerdict, GroupVerdict, LostGroup, LostHow, ProtectionGroup, judge_group,
};
