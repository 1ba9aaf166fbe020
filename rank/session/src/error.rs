//! Errors of a session.

use ckpt_glue::enrolment::EnrolmentError;
use ckpt_glue::error::Malformed;
use client::launch::{LaunchError, SOCKET_VARIABLE};
use endpoint::EndpointError;
use store::StoreError;
use transport::matching::MatchError;

use crate::limits::{REGIONS_MAX, REQUESTS_MAX};

/// The reason why a call on a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No launcher started this process.
    #[error(
        "this program was not started as a rank of a job ({SOCKET_VARIABLE} is not set); start it with `stillwire run -n N -- PROGRAM`"
    )]
    NotLaunched,
    /// The variable does not hold a descriptor's number.
    #[error(
        "{SOCKET_VARIABLE} is {found:?}, expected the number of an inherited socket; start the program with `stillwire run`"
    )]
    Variable {
        /// Its value.
        found: String,
    },
    /// A process is one rank.
    #[error("this process has opened its session already; a process is one rank and opens one session")]
    OpenedTwice,
    /// The launcher's first words.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The connection to the keeper.
    #[error("{operation} the keeper's socket failed: {source}; is the launcher still running?")]
    Keeper {
        /// The failed action.
        operation: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The keeper closed the connection while the job was starting.
    #[error("the keeper closed the connection while the job was starting; its own message says why")]
    KeeperGone,
    /// Control messages that cannot be read.
    #[error(transparent)]
    Control(#[from] Malformed),
    /// The start of the job.
    #[error(transparent)]
    Enrolment(#[from] EnrolmentError),
    /// The rails.
    #[error("no rail could be opened on {bind}: {source}")]
    Rails {
        /// Where it was to receive.
        bind: std::net::IpAddr,
        /// The driver's error.
        source: drivers::RailsError,
    },
    /// The endpoint.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The rank's process has ended, and the job goes on without it: [`crate::Session::lost_ranks`].
    #[error("rank {rank} has ended, and the job goes on without it: leave it out of what follows")]
    RankLost {
        /// The rank.
        rank: u32,
    },
    /// The image.
    #[error("rank {rank} cannot be restored: {source}")]
    Image {
        /// This rank.
        rank: u32,
        /// The store's error.
        source: StoreError,
    },
    /// A section of the image.
    #[error("rank {rank} cannot be restored: its image's session section: {source}")]
    State {
        /// This rank.
        rank: u32,
        /// The fault.
        source: StateError,
    },
    /// The port's section of the image.
    #[error("rank {rank} cannot be restored: its image's port section: {source}")]
    Port {
        /// This rank.
        rank: u32,
        /// The fault.
        source: nic_freeze::LoadError,
    },
    /// No such rank.
    #[error("rank {rank} does not exist: the job has ranks 0 to {}", ranks.saturating_sub(1))]
    NoSuchRank {
        /// The rank named.
        rank: u32,
        /// Ranks of the job.
        ranks: u32,
    },
    /// A request that is not open.
    #[error("request {number} is not open: its outcome was taken already, or it belongs to another rank")]
    NoSuchRequest {
        /// Its number.
        number: u64,
    },
    /// Too many requests.
    #[error("{REQUESTS_MAX} requests are open, the most a rank may have; wait for some of them")]
    TooManyRequests,
    /// Too many receives.
    #[error(transparent)]
    Receive(#[from] MatchError),
    /// A message cannot be sent any more.
    #[error("nothing can be sent to rank {rank}: {source}")]
    Send {
        /// The rank.
        rank: u32,
        /// The port's error.
        source: transport::SendError,
    },
    /// The ranks disagree about a collective operation.
    #[error(
        "a collective operation got {found} bytes of rank {source_rank}, expected {expected}: do all ranks call the same operations in the same order, with the same lengths?"
    )]
    Collective {
        /// Whose contribution.
        source_rank: u32,
        /// Bytes expected.
        expected: usize,
        /// Bytes received.
        found: usize,
    },
    /// Regions.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The program called something although it had finished when it was saved.
    #[error(
        "this rank had finished its work when it was saved: nothing is left to do but `finalize` (ask `Session::had_finished`)"
    )]
    Finished,
    /// The connection to the keeper ended while the rank waited for the others to finish.
    #[error("the launcher has ended the job")]
    Ended,
}

/// The faults of the regions that a program protects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// Two regions with one id.
    #[error("two protected regions have the id {id}; give each its own")]
    Twice {
        /// The id.
        id: u32,
    },
    /// Too many.
    #[error("{found} regions are protected, at most {REGIONS_MAX} can be; put several into one")]
    TooMany {
        /// How many.
        found: usize,
    },
    /// The image has no such region.
    #[error("region {id} is not in the image; the program that restarts differs from the one that was saved")]
    Missing {
        /// Its id.
        id: u32,
    },
    /// The image has another length.
    #[error(
        "region {id} has {saved} bytes in the image, {found} in this program; restart with the same program and arguments"
    )]
    Length {
        /// Its id.
        id: u32,
        /// Bytes in the image.
        saved: usize,
        /// Bytes in the program.
        found: usize,
    },
    /// The image has a region that the program does not.
    #[error(
        "the image has a region {id} that this program does not protect; restart with the same program and arguments"
    )]
    Unclaimed {
        /// Its id.
        id: u32,
    },
    /// A restarted program went on without its state.
    #[error(
        "a restarted program must call `protect` before its first point: it would continue without its saved state"
    )]
    NotRestored,
}

/// The faults of the session's section of an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A version of another time.
    #[error("version {found}, this build reads {expected}; use the build that wrote it")]
    Version {
        /// Ours.
        expected: u16,
        /// The section's.
        found: u16,
    },
    /// It ends too early.
    #[error("{expected} more bytes were expected, {found} are there; restart from another generation")]
    Short {
        /// Bytes wanted.
        expected: u64,
        /// Bytes left.
        found: usize,
    },
    /// It ends too late.
    #[error("{found} bytes follow the last request; restart from another generation")]
    Trailing {
        /// Bytes left over.
        found: usize,
    },
    /// More requests than can be.
    #[error("{found} requests, at most {expected} can be; restart from another generation")]
    Requests {
        /// The bound.
        expected: usize,
        /// The count.
        found: u32,
    },
    /// A kind of request that does not exist.
    #[error("request {number} is of kind {found}, expected 0 to 3; restart from another generation")]
    Kind {
        /// Its number.
        number: u64,
        /// Its kind.
        found: u8,
    },
    /// A number that was never given out, or twice.
    #[error(
        "request number {number} was never given out (the next is {next}), or is there twice; restart from another generation"
    )]
    Number {
        /// The number.
        number: u64,
        /// The next one to be given out.
        next: u64,
    },
    /// A section is missing.
    #[error("the image has no section of kind {kind:#06x}: another kind of program wrote it")]
    Missing {
        /// The kind.
        kind: u32,
    },
}
