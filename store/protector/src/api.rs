//! A keeper's requests and the events in answer.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ckpt_glue::protection::Account;
use drivers::fault::Faults;
use serde::{Deserialize, Serialize};
use store::GenerationId;
use store::protect::{Group, Repaired};
use transport::config::{AuthLevel, RAILS_MAX};
use transport::{JobId, Life, Rank};

use crate::error::ProtectorError;
use crate::shape::Shape;

/// The settings of a protector.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The job.
    pub job: JobId,
    /// The job's key: messages of nodes without it are discarded.
    pub key: [u8; 16],
    /// The bytes of each frame that the key covers.
    pub auth: AuthLevel,
    /// Networks that it is on, in the same order on every node: at least one. Parity is spread over all of them.
    pub rails: Vec<Rail>,
    /// This node, by its number in the manifest.
    pub node: u32,
    /// The nodes that protect each other, this one among them.
    pub group: Group,
    /// This node's own directory of the job.
    pub directory: PathBuf,
    /// Its limits.
    pub limits: Limits,
    /// The way that parity takes; `None`: the cheapest by the cost model.
    pub shape: Option<Shape>,
    /// A peer that does not answer for so long is given up, and with it the encoding or the repair that waits for it.
    pub patience: Duration,
}

/// A network that a node is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rail {
    /// Where to receive; the port is a free one.
    pub bind: IpAddr,
    /// Faults of frames that are sent and received there, for tests.
    pub faults: Faults,
}

impl Rail {
    /// One to which nothing happens.
    #[must_use]
    pub fn new(bind: IpAddr) -> Rail {
        Rail { bind, faults: Faults::NONE }
    }
}

/// The resources of its node that a protector may use. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes per second of the network, in each direction: of all rails together.
    pub link_bytes_per_s: Option<u64>,
    /// Bytes per second of the disk, read and written together.
    pub disk_bytes_per_s: Option<u64>,
    /// Processor time by time: 0.5 is half of one core.
    pub cores: Option<f64>,
}

/// A request to a protector. Requests are carried out one after the other, and each is answered by one event.
/// [`Request::Open`] ends the current and all waiting ones, and [`Request::Abandon`] the encoding of its generation,
/// without waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A new life, or another attempt to meet in the current one: a new endpoint, not known to other nodes yet. [`Event::Opened`].
    Open {
        /// The life. The nonce is one that no endpoint of its counter has had: a delayed frame must not be taken for one of the new endpoint.
        life: Life,
    },
    /// Where the other members of the group are in this life. [`Event::Met`].
    Meet {
        /// The life.
        life: Life,
        /// Node, and the addresses of its [`Event::Opened`]. Nodes of other groups may be among them.
        addresses: Vec<(u32, Vec<u8>)>,
    },
    /// The images of this node's ranks are durable: place them, send the others their parity, keep the parity received. [`Event::Protected`].
    Protect {
        /// The generation. The counter of its life is that of the open endpoint.
        generation: GenerationId,
        /// The committed and protected generation that its parity builds upon: the same on every member, or none.
        from: Option<GenerationId>,
        /// The ranks whose images lie here.
        ranks: Vec<Rank>,
    },
    /// Give up a generation that will not be committed: also while it is being protected. [`Event::Abandoned`].
    Abandon {
        /// The generation.
        generation: GenerationId,
    },
    /// Compute this node's lost data of a generation from the data of the others. [`Event::Repaired`].
    Repair {
        /// The generation.
        generation: GenerationId,
    },
}

impl Request {
    /// Which one it is, and the generation that it is about.
    pub(crate) fn kind(&self) -> (RequestKind, Option<GenerationId>) {
        match self {
            Request::Open { .. } => (RequestKind::Open, None),
            Request::Meet { .. } => (RequestKind::Meet, None),
            Request::Protect { generation, .. } => (RequestKind::Protect, Some(*generation)),
            Request::Abandon { generation } => (RequestKind::Abandon, Some(*generation)),
            Request::Repair { generation } => (RequestKind::Repair, Some(*generation)),
        }
    }
}

/// Which request an event answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of `Request`")]
pub enum RequestKind {
    Open,
    Meet,
    Protect,
    Abandon,
    Repair,
}

/// The state of a request.
#[derive(Clone, Debug)]
pub enum Event {
    /// This node's protector can be reached.
    Opened {
        /// The life.
        life: Life,
        /// Its addresses for the others: for their [`Request::Meet`].
        addresses: Vec<u8>,
        /// Addresses of [`Settings::rails`] at which nothing can be received, and why. It does without them.
        unusable: Vec<String>,
    },
    /// It knows where the others are.
    Met {
        /// The life.
        life: Life,
    },
    /// This node keeps, durably, all that it has to keep for the generation. When every node of every group says so, it may be committed.
    Protected {
        /// The generation.
        generation: GenerationId,
        /// Its cost.
        statistics: Statistics,
    },
    /// The generation has been given up.
    Abandoned {
        /// The generation.
        generation: GenerationId,
        /// How far this node was with it, if it was being protected and that has not come to a good end.
        account: Option<Account>,
    },
    /// This node has its data of the generation again.
    Repaired {
        /// The generation.
        generation: GenerationId,
        /// The repaired data.
        repaired: Repaired,
        /// Its cost.
        statistics: Statistics,
    },
    /// A request has failed. The data from before it is unchanged.
    Failed {
        /// Which.
        request: RequestKind,
        /// The generation that it was about, if it was about one.
        generation: Option<GenerationId>,
        /// Why.
        error: ProtectorError,
    },
}

/// The cost of protecting or repairing on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    /// The way that parity took; none for a repair.
    pub shape: Option<Shape>,
    /// Messages with contributions to parity that were sent to other nodes.
    pub sent_messages: u64,
    /// Frames that each rail was handed, in the order of [`Settings::rails`]; 0 for one that is not there, or has died.
    pub rail_frames: [u64; RAILS_MAX],
    /// Rails that have died in this life so far, or could not be opened.
    pub rails_lost: usize,
    /// Bytes of messages to other nodes.
    pub sent_bytes: u64,
    /// Bytes of messages from other nodes.
    pub received_bytes: u64,
    /// Bytes read from the disk.
    pub read_bytes: u64,
    /// Bytes written to it.
    pub written_bytes: u64,
    /// Seconds by activity. Time in which activities overlap is in each of them.
    pub seconds: Seconds,
}

/// Where time went, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds {
    /// Something was on its way to or from another node, or waited for the link's limit.
    pub network: f64,
    /// Some thread was reading or writing, or waited for the disk's limit.
    pub disk: f64,
    /// Checksums, products and sums.
    pub arithmetic: f64,
    /// Processor time of all threads of the protector.
    pub processor: f64,
    /// From the order to its end.
    pub total: f64,
    /// The cost model's prediction for an encoding by this shape; 0 for a repair.
    pub predicted: f64,
}
