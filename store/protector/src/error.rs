//! Errors of an order.

use std::time::Duration;

use drivers::DriverError;
use endpoint::EndpointError;
use store::protect::ProtectError;
use store::{GenerationId, StoreError};
use transport::Life;

/// Why an order was not carried out.
#[derive(Debug, Clone, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named by the messages")]
pub enum ProtectorError {
    /// A thread could not be started.
    #[error(
        "the protector of node {node} cannot start a thread: {reason}; raise the limit of threads (ulimit -u)"
    )]
    Thread { node: u32, reason: String },
    /// The settings name a node that is not in its group.
    #[error("node {node} is not in the group that it was given ({nodes:?}); report this launcher's bug")]
    NotInGroup { node: u32, nodes: Vec<u32> },
    /// No socket.
    #[error("the protector of node {node} cannot receive: {reason}")]
    Socket { node: u32, reason: String },
    /// An order for a life for which no endpoint is open.
    #[error("node {node} has no endpoint for life {life} ({}); open it first", open_text(.open.as_ref()))]
    NotOpen { node: u32, life: Life, open: Option<Life> },
    /// An order that needs the other members.
    #[error("node {node} does not know the addresses of its group; send them first")]
    NotMet { node: u32 },
    /// The addresses of the other members are missing or wrong.
    #[error("node {node} has no usable address of node {peer}: {reason}")]
    Address { node: u32, peer: u32, reason: String },
    /// A peer did not say anything for too long.
    #[error(
        "node {peer} has been silent for {waited:.1?} while this node waited for {what}; is it alive and reachable?"
    )]
    Silent { peer: u32, waited: Duration, what: String },
    /// A peer answers, but the expected message does not arrive.
    #[error("{what} has not come for {waited:.1?} from {}, though all nodes answer; report this bug", nodes_text(.awaited))]
    Stuck { awaited: Vec<u32>, waited: Duration, what: String },
    /// Another member has given up.
    #[error("node {peer} gave up generation {generation}: {reason}")]
    PeerGaveUp { peer: u32, generation: GenerationId, reason: String },
    /// Another member understands the order differently.
    #[error(
        "node {peer} protects generation {generation} {theirs}, this node {ours}; report this launcher's bug"
    )]
    Disagree { peer: u32, generation: GenerationId, theirs: String, ours: String },
    /// A message makes no sense.
    #[error(
        "node {peer} sent a message that this build does not understand: {reason}; use the same build on all nodes"
    )]
    Message { peer: u32, reason: String },
    /// Nothing more can be sent to a member.
    #[error("node {peer} cannot be reached: {reason}; look at that node and at the network to it")]
    Unreachable { peer: u32, reason: String },
    /// A thread of this node has not done what it was given.
    #[error(
        "{waiting} reads and writes of node {node} wait for its disk, and no more may (writer_jobs_max, reader_jobs_max); look at that disk"
    )]
    QueueFull { node: u32, waiting: usize },
    /// It was ended by another order.
    #[error("it was ended by a new order: {by}")]
    Ended { by: &'static str },
    /// The node's directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Parity, or repair.
    #[error(transparent)]
    Protect(#[from] ProtectError),
}

fn open_text(open: Option<&Life>) -> String {
    open.map_or_else(|| "none is open".to_owned(), |open| format!("that of life {open} is open"))
}

/// The nodes that are waited for; none: it is this node itself.
fn nodes_text(nodes: &[u32]) -> String {
    match nodes {
        [] => "this node's own disk".to_owned(),
        [node] => format!("node {node}"),
        nodes => format!("nodes {}", nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}

impl ProtectorError {
    pub(crate) fn socket(node: u32, error: &DriverError) -> ProtectorError {
        ProtectorError::Socket { node, reason: error.to_string() }
    }

    pub(crate) fn endpoint(node: u32, error: &EndpointError) -> ProtectorError {
        ProtectorError::Socket { node, reason: error.to_string() }
    }
}
