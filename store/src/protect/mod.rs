//! Images that survive their nodes.
//!
//! Every node has a *content*: the pages of its images of a generation, each in a place that it keeps from one
//! generation to the next ([`Extent`]). The nodes of a [`Group`] have parity of each other's contents, spread evenly
//! over them. Any M of them may be lost with all their data, and [`Member::repair`] computes it from the data of the
//! others.
//!
//! A generation goes from *local* (images durable on their nodes) over *protected* (every member has sealed its parity, [`Member::seal`]) to
//! *committed*. Parity of a new generation is sent as changes of the old one's, and lies beside it until the old generation is collected; then it is
//! folded in (`node_parity::fold`). So at every instant the newest committed generation survives the loss of any M members, regardless of other
//! events at that instant.
//!
//! How strips, records and pages travel between nodes is not decided here: a test moves them by function calls, keepers over the transport.

mod base;
mod domains;
mod error;
mod group;
mod member;
pub(crate) mod node_parity;
pub mod parity_changes;
mod placement;
mod repair;
mod scrub;
mod strip;

pub use domains::{Exposed, exposed, scheme_that_survives};
pub use error::ProtectError;
pub use group::{Group, GroupError, Scheme, StripePage};
pub use member::{Changes, Keeping, Member};
pub use placement::{Extent, Piece, place};
pub use repair::{Half, Others, PageAnswer, Repaired, Served, Wanted};
pub use scrub::{ParityFile, Scrubbed, inspect_changed, inspect_pages, inspect_sums, scrub};
pub use strip::{CHUNK_PAGES, Strip};
