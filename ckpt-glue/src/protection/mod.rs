//! Decisions about generations that lie on nodes' own disks: which can be restored, which are rebuilt first (R28), and which node made a protection late
//! (R27). [`nodes`] is the actor that makes them.
//!
//! Pure: a shell asks the nodes, and carries the decisions out.

pub mod late;
pub mod nodes;
pub mod restore;
pub mod seat;
pub mod verdict;

pub use late::{Account, Cause, causes};
pub use nodes::Nodes;
pub use restore::{Choice, Judged, RestorePlan, Terms};
pub use verdict::{
    Finding, GenerationVerdict, GroupVerdict, LostGroup, LostHow, ProtectionGroup, judge_group,
};
