//! Errors of an endpoint.

use core::time::Duration;

use drivers::DriverError;
use transport::config::{LINKS_MAX, RAILS_MAX};

/// The reason why a call on an endpoint failed.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Rails beyond the bound.
    #[error("{rails} rails were given, a port takes 1 to {RAILS_MAX}: leave some out")]
    Rails {
        /// How many were given.
        rails: usize,
    },
    /// A rail refused something.
    #[error("rail {rail}: {source}")]
    Driver {
        /// Which rail.
        rail: usize,
        /// Its driver's error.
        source: DriverError,
    },
    /// There is no such rail.
    #[error("there is no rail {rail}: the port has been opened on {rails}")]
    NoRail {
        /// Which was asked for.
        rail: usize,
        /// Rails with which the port was opened.
        rails: usize,
    },
    /// The driver that was to take a rail over could not be opened.
    #[error("rail {rail} is unchanged: {source}")]
    NotHandedOver {
        /// Which rail.
        rail: usize,
        /// The driver's error.
        source: DriverError,
    },
    /// The driver that was to take a rail over is no substitute: frames that are on their way keep their length, and peers know one address.
    #[error(
        "rail {rail} is unchanged: {}",
        if *is_elsewhere {
            "the other driver is at another address, which peers do not know".to_owned()
        } else {
            format!("frames of up to {frame_bytes} bytes are on their way, and the other driver takes {found} bytes; try again when fewer are, or restart the job on it")
        }
    )]
    NoSubstitute {
        /// Which rail.
        rail: usize,
        /// Bytes of the longest frame on its way.
        frame_bytes: usize,
        /// Bytes that the other driver takes.
        found: usize,
        /// It has another address.
        is_elsewhere: bool,
    },
    /// None of a peer's addresses can be used on our rails.
    #[error(
        "no rail reaches the peer: it gave {given} addresses, this port has {rails} rails; check that both use the same kind of NIC and address family"
    )]
    Unreachable {
        /// Addresses that the peer gave.
        given: usize,
        /// Our rails.
        rails: usize,
    },
    /// Peers beyond the bound.
    #[error(
        "a port has at most {LINKS_MAX} links, and all are taken: no further peer can be reached from this endpoint"
    )]
    Links,
    /// A driver did not give its buffers back in time.
    #[error(
        "freezing timed out: rail {rail} did not return its buffers within {waited:?}; the port keeps running; check the NIC"
    )]
    DrainTimeout {
        /// Which rail.
        rail: usize,
        /// How long.
        waited: Duration,
    },
    /// This build cannot freeze.
    #[error(
        "this program was built with --cfg uncheckpointable, for one measurement, and cannot freeze a port: build it without"
    )]
    Uncheckpointable,
    /// The endpoint has been closed.
    #[error("the endpoint has been closed")]
    Closed,
    /// Not everything was acknowledged when the time to linger was over.
    #[error(
        "closing waited {waited:?}, and {links} links still have unacknowledged messages: their peers are gone, or their keeper must answer for them"
    )]
    Linger {
        /// How long.
        waited: Duration,
        /// Links with something left.
        links: usize,
    },
    /// Live peers have not received all messages, and were not waited for any longer.
    #[error(
        "closing waited {waited:.0?} for {links} peers to receive their messages, and timed out: messages that they have not received are lost"
    )]
    Unreceived {
        /// How long.
        waited: Duration,
        /// Links with something left.
        links: usize,
    },
    /// A helper thread could not be started.
    #[error("the helper thread could not be started: {0}; raise the limit of threads (ulimit -u)")]
    Helper(std::io::Error),
    /// An event descriptor could not be made.
    #[error("no event descriptor: {0}; raise the limit of open files (ulimit -n)")]
    Descriptor(std::io::Error),
}
