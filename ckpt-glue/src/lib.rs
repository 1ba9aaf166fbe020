//! One checkpoint of one job: coordinator, participant, keeper, recovery. Pure state machines.
//!
//! Nothing here can reach a clock, a socket, a thread or a file. Each machine takes inputs and the time as
//! arguments and returns its outputs, in order. The launcher carries them out with processes, sockets and
//! files, the simulator with a model of them.
//!
//! | machine         | where                  | decides                                                               |
//! |-----------------|------------------------|-----------------------------------------------------------------------|
//! | [`Job`]         | beside the coordinator | nothing by itself: joins the next two to keepers and store            |
//! | [`coordinator`] | in [`Job`]             | when a checkpoint begins, which epoch, whether it is committed        |
//! | [`Recovery`]    | in [`Job`]             | which life runs, and the generation it restores                       |
//! | [`Keeper`]      | one for each node      | which processes run on the node; speaks for those that have ended     |
//! | [`Enrolment`]   | in a rank's process    | when the rank knows everybody's address and may run                   |
//! | [`Participant`] | in a rank's process    | when the rank cuts                                                    |
//! | [`pmi::Server`] | beside the keeper      | key-value exchange and barriers of the ranks of an MPI library        |
//! | [`diagnosis::Collection`] | in [`Job`]           | who waits for whom, when a person asks                                |
//! | [`rails::RailChange`] | beside the coordinator | when all ranks go over another NIC at another address             |
//!
//! Every machine is driven in the same way: `handle(now, input)`, then `poll_output()` until there is none, and
//! `handle_timeout(now)` when `poll_timeout()` has come. All answers to `poll_timeout` may change with every call.
//!
//! # The order of messages
//!
//! C is the coordinator ([`Job`]), K a keeper, R a rank, S the store. Keepers form a tree with the coordinator above
//! its top ([`Layout`]): commands are passed down to children and own ranks, answers are added up until the whole part
//! of the tree has answered, so a checkpoint takes O(N) messages. Only `Fence`, its answer, and `KeeperHello` go
//! straight, because the tree may be broken when they are needed.
//!
//! **A life begins** (R7, R9). The first life differs from a later one only in that there is nothing to end.
//!
//! ```text
//! K > C  KeeperHello                 once, when the keeper starts
//! C > K  Fence(counter)              end every process of a life below `counter`; C > S the same for commits
//! K > C  Fenced(counter)             all dead; S > C which generation is the newest committed one
//! C > S  the decision                life and generation; durable before anything else happens
//! C v K  NewLife(decision, layout)   keepers start their ranks, in order
//! R > K  Hello(ports, addresses)     after the rank has loaded its image, if there is one
//! K ^ C  Registered                  when all ranks of a part of the tree have come
//! C v R  Addresses.., Start          the whole table, then "run"
//! R ^ C  Running                     when all run, checkpoints begin
//! ```
//!
//! **A checkpoint** (R1, R2, R3, R8).
//!
//! ```text
//! C v R  PointQuery, R ^ C PointReport    only if some ranks can be saved at counted points alone
//! C v R  Cut(epoch, where, time left)     or a frame of that epoch comes first; the rank says CutSeen and cuts
//! R > K  ImageDone                        K ^ C Images, when a part of the tree is complete
//! C > S  the commit record                only now does the generation exist
//! C v R  Committed(epoch)                 C > S older generations may go
//!
//! R ^ C  NoImage(reason)                  instead, at once, if a rank has none; or the time is over:
//! C v R  Abandon(epoch)                   ranks that have not raised their epoch do, images are dropped
//! ```
//!
//! **A failure** (R7, R9).
//!
//! ```text
//! K ^ C  Fault(report)               at once: a process ended, a keeper is silent, the program aborts
//! C      detector: which model of fault?    policy: restart, migration, stop, ignore, or wait?
//! C > K  Fence(counter) ...          a life begins as above; a fault on the way is one like any other
//! ```
//!
//! **A person asks why the job hangs.** Twice, some hundred milliseconds apart.
//!
//! ```text
//! C v R  WaitQuery(query, time left)
//! R > K  WaitReports                  K ^ C WaitReports, when a part of the tree is complete or the time is over
//! ```
//!
//! **The end** (R12).
//!
//! ```text
//! R > K  Closed(port, counters)      for each port that closes; ClosedQuery and ClosedAnswer ask for them, across the tree
//! R ^ C  Finalize                    when all have come: no more checkpoints
//! C v R  FinalizeDone                processes may end
//! K ^ C  Ended(status)               all have ended
//! ```
//!
//! **Between nodes**, all the time (R30, R31).
//!
//! ```text
//! K ^ C  Heartbeat(keepers, asked)   who is there
//! C v K  Lease(asked, left)          the answer, while a majority is there; a keeper without one ends its ranks
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod config;
pub mod control;
pub mod coordinator;
pub mod diagnosis;
pub mod duration;
pub mod enrolment;
pub mod error;
pub mod interval;
pub mod job;
pub mod keeper;
pub mod layout;
pub mod limits;
pub mod names;
pub mod participant;
pub mod pmi;
pub mod protection;
pub mod protocols;
mod queue;
pub mod rails;
pub mod recovery;
pub mod sabotage;
#[cfg(test)]
mod table;

pub use config::{JobConfig, OnFault};
pub use control::{Control, ControlKey, ControlReader, ControlWriter, Decision, Message};
pub use duration::{parse_duration, write_duration};
pub use enrolment::Enrolment;
pub use error::{ConfigError, LayoutError, Malformed};
pub use job::{Job, JobSettings};
pub use keeper::Keeper;
pub use layout::{Layout, Share};
pub use names::{ExitStatus, GenerationId, ImageDigest, NodeIndex, NotAGenerationId, Party};
pub use participant::Participant;
pub use recovery::Recovery;
pub use sabotage::{Rule, Sabotage};
