//! Errors of an example program.

use crate::communicator::Fault;

/// Errors of an example program.
#[derive(Debug, thiserror::Error)]
pub enum ExampleError {
    /// The key ranges are dealt out by halving.
    #[error("{ranks} ranks: IS needs a power of two, at most {ranks_max}; start it with 1, 2, 4, ... ranks")]
    Ranks {
        /// Ranks of the job.
        ranks: u32,
        /// [`crate::limits::IS_RANKS_MAX`].
        ranks_max: u32,
    },

    /// The program needs the ranks of a real job.
    #[error("this program needs a launcher: start it with `stillwire run -n N -- stillwire example tasks`")]
    NotLaunched,

    /// All ranks that could do the rest are gone.
    #[error(
        "{done} of {tasks} tasks are done, and no rank is left that could do another; start it with more ranks"
    )]
    NobodyLeft {
        /// Tasks that were done.
        done: u64,
        /// All of them.
        tasks: u64,
    },

    /// A number outside of a program's range.
    #[error("{name} is {found}: it must lie in {least}..={most}; {hint}")]
    OutOfRange {
        /// The option's name on the command line.
        name: &'static str,
        /// The value that was given.
        found: u64,
        /// The least possible value.
        least: u64,
        /// The greatest possible value.
        most: u64,
        /// The way to correct it.
        hint: &'static str,
    },

    /// Two ranks disagree about a message: our bug, or a layer below that mixed up two messages.
    #[error(
        "rank {rank}: a message of rank {from} with tag {tag} has {found} bytes, {expected} were expected; \
         are all ranks started with the same arguments?"
    )]
    Length {
        /// The receiver.
        rank: u32,
        /// The sender.
        from: u32,
        /// The message's tag.
        tag: u64,
        /// Bytes expected.
        expected: usize,
        /// Bytes received.
        found: usize,
    },

    /// A message of a burst that is not the one that must come next: lost, doubled, overtaken or damaged.
    #[error("rank {rank}: burst message {counter} of rank {from}: {fault}; the transport broke its promise")]
    Burst {
        /// The receiver.
        rank: u32,
        /// The sender.
        from: u32,
        /// The number of the message that had to come next on this link.
        counter: u64,
        /// The fault.
        fault: BurstFault,
    },

    /// A restarted program was started with other arguments than the saved one.
    #[error(
        "rank {rank}: the saved run had {name} = {saved}, this one {given}; restart with the same arguments"
    )]
    OtherRun {
        /// The rank that noticed.
        rank: u32,
        /// The argument's name.
        name: &'static str,
        /// Its value in the saved run.
        saved: u64,
        /// Its value now.
        given: u64,
    },

    /// A token of the ring has another value than its steps account for.
    #[error(
        "rank {rank}: the token says {found} after {steps} steps, it must say {expected}; a step was lost or doubled"
    )]
    Token {
        /// The rank that noticed.
        rank: u32,
        /// Steps done.
        steps: u64,
        /// The value that the steps account for.
        expected: u64,
        /// The value that came.
        found: u64,
    },

    /// The layer below.
    #[error(transparent)]
    Communication(Fault),

    /// The result could not be written.
    #[error("cannot write the result: {0}")]
    Output(#[from] std::io::Error),
}

/// How a burst message differs from the one that had to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BurstFault {
    /// Another size.
    #[error("it has {found} bytes, {expected} were sent")]
    Bytes {
        /// Bytes sent.
        expected: usize,
        /// Bytes received.
        found: usize,
    },
    /// It was made for another pair of ranks.
    #[error("it was sent from rank {source_rank} to rank {destination}")]
    Misrouted {
        /// Its sender, by its header.
        source_rank: u32,
        /// Its receiver, by its header.
        destination: u32,
    },
    /// A number that was received already.
    #[error("number {found} arrived again")]
    Doubled {
        /// The number in the message.
        found: u64,
    },
    /// A number whose predecessors have not come.
    #[error("number {found} arrived before it")]
    Overtaken {
        /// The number in the message.
        found: u64,
    },
    /// The contents differ from the sender's.
    #[error("its digest is {found:#018x}, its contents give {computed:#018x}")]
    Damaged {
        /// The digest in the message.
        found: u64,
        /// The digest of the received contents.
        computed: u64,
    },
}
