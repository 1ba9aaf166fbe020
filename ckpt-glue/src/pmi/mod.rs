//! The server of PMI-1, through which the processes of an MPI library find each other.
//!
//! One machine for all processes of a node. Its shell owns the sockets: it hands in received bytes, and sends
//! the machine's answers. A process begins with `init`, puts its address and gets those of others, meets them
//! at barriers, and sends `finalize` before it ends. A wrong request ends the job, with a reason: a client
//! waits for its answer without end.
//!
//! ```text
//!   Silent --init--> Attached --finalize--> Finished
//!      |                |                      |
//!      +----------------+------- its end ------+--> Gone
//! ```
//!
//! The ranks of the job are world 0. A process may ask for more processes (`spawn`): they are a world of their own,
//! with ranks from 0 on, keys and barriers, and find their spawner through a key that it puts there for them. Names
//! that programs publish are common to all worlds.
//!
//! A rank that is saved as a whole process has a [`Relay`] in it, and speaks through that: its requests are numbered,
//! and its requests and answers are a part of its image. The server itself is in no image: that of a new life is built
//! from the restored ranks' reports (R26).

mod line;
mod member;
mod rebuild;
mod relay;
mod server;
mod spawn;
mod state;
mod store;
mod world;

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use transport::{Epoch, Rank};

use crate::limits::{PMI_SPAWN_COMMANDS_MAX, PMI_SPAWN_PROCESSES_MAX};
pub use line::NoCommand;
pub use member::{Member, Ranks};
pub use relay::{Relay, Unsavable};
pub use server::Server;
pub use spawn::SpawnCommand;
pub use state::{Answer, Effect, Published, RankState, Request, Text};

/// An input of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Bytes came from a process, in any pieces.
    Bytes {
        /// The process.
        member: Member,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A rank of the job asks through its relay.
    Request {
        /// The rank.
        rank: Rank,
        /// Its epoch when it asked.
        epoch: Epoch,
        /// The request.
        request: Request,
    },
    /// A restored rank reports its requests of earlier lives.
    State {
        /// The rank.
        rank: Rank,
        /// A part of it.
        part: RankState,
        /// Whether it is the last part.
        last: bool,
    },
    /// The answer to [`Output::Spawn`].
    Spawned {
        /// As asked.
        world: u32,
        /// In one word: why none of the processes runs.
        outcome: Result<(), &'static str>,
    },
    /// A process will send nothing more: it has ended.
    Gone {
        /// The process.
        member: Member,
    },
    /// A rank has ended, and the job goes on without it (R37): no barrier waits for it, and the others can ask for it.
    Lost {
        /// The rank.
        rank: Rank,
    },
}

/// An output of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this line.
    Send {
        /// The receiver.
        member: Member,
        /// With its end.
        line: String,
    },
    /// Send this to a rank's relay.
    Answer {
        /// The rank.
        rank: Rank,
        /// The answer.
        answer: Answer,
    },
    /// A process has begun: it runs a program of an MPI library.
    Began {
        /// The process.
        member: Member,
    },
    /// A process has finished: it may end, as soon as it has the answer that follows.
    Finished {
        /// The process.
        member: Member,
    },
    /// The program ends itself and all others (`MPI_Abort`).
    Aborted {
        /// The process that asked.
        member: Member,
        /// Its code; never 0.
        code: u8,
    },
    /// The job cannot go on: end this process, and with it the job.
    Broken {
        /// Whose fault it is.
        member: Member,
        /// Why.
        why: Broken,
    },
    /// A process asks for more processes: start them all or none, then answer with [`Input::Spawned`].
    Spawn {
        /// The process that asks.
        by: Member,
        /// Their world. They are its ranks from 0 on, in the order of the commands.
        world: u32,
        /// The programs to start.
        commands: Vec<SpawnCommand>,
    },
    /// A process asked for more processes than there may be; it got an error, and its program decides.
    Refused {
        /// The process.
        member: Member,
        /// Why.
        why: Refused,
    },
    /// Processes wait at a barrier for others, for so long.
    Waiting {
        /// Their world.
        world: u32,
        /// Those that have not come.
        missing: Ranks,
        /// Since the first came.
        waited: Duration,
    },
}

/// Why a job cannot go on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// The received bytes are no command.
    #[error("it sent {0} to the launcher's PMI server")]
    NoCommand(#[from] NoCommand),
    /// A command that the protocol does not have.
    #[error("it sent the command `{name}` to the launcher's PMI server, which PMI-1 does not have")]
    Unknown {
        /// The command.
        name: String,
    },
    /// A command without one of its keys.
    #[error("its PMI command `{name}` has no `{key}`")]
    Missing {
        /// The command.
        name: String,
        /// The key.
        key: &'static str,
    },
    /// A command that cannot come now.
    #[error("it sent the PMI command `{name}` {when}")]
    OutOfTurn {
        /// The command.
        name: String,
        /// Its earlier state.
        when: &'static str,
    },
    /// A part of a `spawn` that contradicts its earlier parts.
    #[error("its PMI command `spawn` {problem}")]
    BadSpawn {
        /// The fault.
        problem: &'static str,
    },
    /// More programs in one spawn than there may be.
    #[error(
        "it asks for {asked} programs at once (MPI_Comm_spawn_multiple), at most {PMI_SPAWN_COMMANDS_MAX}"
    )]
    ManyPrograms {
        /// How many.
        asked: u32,
    },
    /// It ended, and others wait for it.
    #[error("it ended without reaching a barrier at which {waiting} other ranks wait for it")]
    Left {
        /// How many wait.
        waiting: u32,
    },
    /// It has not called `MPI_Init`, in which other ranks wait for it, or those that spawned it.
    #[error(
        "{missing} did not call MPI_Init within {waited:?} (--start-timeout); those that have wait for it"
    )]
    NeverBegan {
        /// Those that have not; the first is the one that is ended.
        missing: Ranks,
        /// Since they were started, or since the first rank of the job has called it.
        waited: Duration,
    },
    /// It was spawned and ended without calling `MPI_Init`, for which those that spawned it wait.
    #[error("it ended without calling MPI_Init, for which {by}, which spawned it, waits")]
    NotMpi {
        /// The waiting member.
        by: Member,
    },
    /// It has begun through its agent, and speaks past it: its program has executed another one.
    #[error("it speaks PMI to the launcher both through its agent and directly")]
    TwoWays,
    /// Its number is not the next one.
    #[error("its PMI request {found} arrived where {expected} was expected")]
    Misnumbered {
        /// The next one.
        expected: u64,
        /// The found value.
        found: u64,
    },
    /// It was restored, and its report of earlier lives contradicts those of others.
    #[error("its PMI requests before the checkpoint contradict those of other ranks: {what}")]
    Contradicts {
        /// The contradiction.
        what: &'static str,
    },
    /// It was restored, and did not report its PMI state.
    #[error(
        "{missing} did not report their PMI requests from before the checkpoint within {waited:?} (--start-timeout)"
    )]
    Untold {
        /// Those that have not; the first is the one that is ended.
        missing: Ranks,
        /// Since the first report.
        waited: Duration,
    },
    /// It did not come to the first barrier, which is a part of `MPI_Init`.
    #[error(
        "{missing} did not reach the first barrier of MPI_Init within {waited:?}; waited for by {waiting} (--start-timeout)"
    )]
    NeverCame {
        /// Those that have not come; the first is the one that is ended.
        missing: Ranks,
        /// How many wait.
        waiting: u32,
        /// Since the first came.
        waited: Duration,
    },
}

/// Why no more processes are started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// None are asked for.
    #[error("0 processes")]
    None,
    /// Too many would run at one time.
    #[error("{asked} processes beside {running} that run already, at most {PMI_SPAWN_PROCESSES_MAX}")]
    Processes {
        /// How many are asked for.
        asked: u32,
        /// How many there are.
        running: u32,
    },
    /// Keys that are put for them beforehand do not fit.
    #[error("keys for them that are too long")]
    Keys,
    /// The launcher has no more numbers for worlds.
    #[error("more worlds than can be numbered")]
    Worlds,
}

#[cfg(test)]
mod tests;
