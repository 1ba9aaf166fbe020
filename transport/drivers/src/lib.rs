//! The NICs under a port: memory, UDP, and wrappers; the endpoint that moves bytes between them.
//!
//! * [`driver`]: the [`Driver`] trait, written for NICs that own their buffers;
//! * [`mem`]: queues inside one process, for tests and benches;
//! * [`shm`]: shared memory, between the processes of one user on one host;
//! * [`udp`]: ordinary sockets, IPv4 and IPv6, with segmentation and receive offload where the kernel has them;
//! * [`xdp`]: around the kernel's network stack, through queues of a device (AF_XDP);
//! * [`verbs`]: queue pairs of RDMA devices, over InfiniBand and RoCE;
//! * [`pack`]: several short frames in one datagram;
//! * [`choice`]: which of them a port gets;
//! * [`nic`]: which of them reaches other hosts;
//! * [`fault`]: a wrapper that injects faults into any of them;
//! * [`capture`]: a wrapper that writes down the frames of any of them;
//! * `conformance` (feature of that name): the tests that belong to the trait; every implementation runs all of them.
//!
//! A driver moves whole frames and may lose, repeat and reorder them: the protocol above recovers from all of that. It
//! must never deliver bytes that no peer sent, block, or touch a buffer after reporting its completion.

mod addresses;
mod cache;
pub mod capture;
pub mod choice;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod counters;
pub mod driver;
pub mod error;
pub mod fault;
mod interfaces;
pub mod limits;
pub mod mem;
pub mod nic;
pub mod pack;
pub mod payload;
pub mod shm;
mod sleep;
mod staging;
pub mod sync;
pub mod udp;
pub mod verbs;
pub mod xdp;

pub use capture::CAPTURE_VARIABLE;
pub use choice::{FAULTS_VARIABLE, Opened, RAILS_VARIABLE, RailChoice, RailsError, open_nic, open_rails};
pub use counters::Counters;
pub use driver::{Armed, Caps, DeferredPayload, Driver, EachFrame, Notice, Path, Wake};
pub use error::{DriverError, Errno, Operation};
pub use nic::{NIC_VARIABLE, NicChoice, NicRequest, NicSelection};
pub use payload::Payload;
