//! Notices of a running job.

use std::time::{Duration, Instant};

use ckpt_glue::control::{JobStatus, Source};
use ckpt_glue::job::{Event, SuspicionEvent};
use ckpt_glue::names::ExitStatus;
use ckpt_glue::pmi::{Member, Ranks};
use nix::unistd::Pid;
use store::GenerationId;
use store::job::Damage;
use transport::{Epoch, Rank};

use super::flush::SoFar;
use super::lines::Channel;

/// Something that happened to a job.
#[derive(Debug)]
#[expect(missing_docs, reason = "the line above names its fields")]
pub enum Notice<'a> {
    /// An event of the coordinator.
    Event(&'a Event),
    /// A process exists.
    Spawned {
        rank: Rank,
        pid: Pid,
    },
    /// A process could not be started.
    NotSpawned {
        rank: Rank,
        problem: &'a str,
    },
    /// A process has ended. `has_finished`: as it may, and no fault is reported, however it has.
    Ended {
        rank: Rank,
        status: ExitStatus,
        has_finished: bool,
    },
    /// A generation that is newer than the one that will be restored, and why it cannot be.
    Damaged {
        generation: GenerationId,
        damages: &'a [Damage],
    },
    /// A generation that cannot be restored from the nodes' data, and why.
    Lost {
        generation: GenerationId,
        why: &'a str,
    },
    /// Progress of rebuilding lost data of nodes.
    Repair {
        words: &'a str,
    },
    /// Something that a component has said or done.
    Component {
        words: &'a str,
    },
    /// A component does not answer any more, and the built-in part takes over.
    ComponentFailed {
        words: &'a str,
    },
    /// A record could not be written, or the store not be read.
    Store {
        what: &'a str,
        error: &'a str,
    },
    /// A node's keeper is gone, or of no use, and why.
    KeeperLost {
        host: &'a str,
        why: &'a str,
    },
    /// A node may be gone, or is there again; the name of its host, and the silence after which it is lost.
    Suspicion {
        event: &'a SuspicionEvent,
        host: &'a str,
        timeout: Duration,
    },
    /// The job has not come up for a while, how far it is, and the obstacle.
    NotRunningYet {
        status: &'a JobStatus,
        why: Option<&'a str>,
    },
    /// Nobody has connected yet, so there are no checkpoints, which somebody wants; and why, if that can be seen.
    NotSavedYet {
        why: Option<&'a str>,
    },
    /// A checkpoint has failed, and why.
    NotSaved {
        epoch: Epoch,
        source: Source,
        words: &'a str,
    },
    /// A rank sent an invalid message, or does not read: it is ended.
    Misbehaves {
        rank: Rank,
        reason: String,
    },
    /// A rank's rail over this NIC has died, and its address with it. Whether all can go on over another one.
    RailLost {
        rank: Rank,
        nic: &'a str,
        is_possible: bool,
    },
    /// All have, or why not.
    RailReplaced {
        nic: &'a str,
        refused: Option<&'a str>,
    },
    /// Something about copies outside the nodes.
    Copy(CopyNotice<'a>),
    /// Something that only jobs of MPI libraries have.
    Mpi(MpiNotice<'a>),
    /// So many bytes of standard input are kept for a rollback, and no more is read before the next commit.
    InputFull {
        held: u64,
    },
    /// Standard input cannot be read, or not be kept.
    InputFailed {
        error: &'a str,
    },
    /// A line that a process printed; `is_part`: a piece of one whose end has not come.
    Line {
        member: Member,
        channel: Channel,
        line: &'a [u8],
        is_part: bool,
    },
    /// All ranks stand still, and go on, because a shell wants it.
    Suspended,
    Resumed,
    /// Nothing runs any more.
    Over,
}

/// Something about copies outside the nodes.
#[derive(Debug)]
#[expect(missing_docs, reason = "the line above names its fields")]
pub enum CopyNotice<'a> {
    /// One is being written, so far.
    Progress(SoFar),
    /// One exists.
    Written { generation: GenerationId, bytes: u64, new_bytes: u64, took: Duration },
    /// There will be none of this generation, and why.
    Failed { generation: GenerationId, error: &'a str },
    /// Older ones could not be removed.
    Unremoved { error: &'a str },
    /// One is left out, because an older one is still being written and a newer one is there.
    LeftOut { generation: GenerationId },
    /// The job is over, and one is still being written.
    Awaited(SoFar),
    /// A person was asked to signal once more, to end the wait for a copy.
    Again,
    /// One has made no progress for so long, and is given up.
    Silent { so_far: SoFar, patience: Duration },
    /// It is not waited for any longer, why, and the newest generation of which this run has made a copy.
    GivenUp { so_far: SoFar, why: &'a str, newest: Option<GenerationId> },
}

/// Something that happened to a job of an MPI library.
#[derive(Debug)]
#[expect(missing_docs, reason = "the line above names its fields")]
pub enum MpiNotice<'a> {
    /// The launcher ends the job, and why.
    BrokenOff { words: &'a str },
    /// A process asked for more processes, which are not started.
    SpawnRefused { by: Member, why: &'a str },
    /// Ranks have spawned processes.
    Spawned { by: Member, world: u32, processes: u32 },
    /// A spawned process has ended.
    Ended { member: Member, status: ExitStatus },
    /// All ranks have ended, and so many spawned processes have not.
    SpawnedRemain { processes: usize },
    /// Processes of a world have been waiting at a barrier of PMI for those.
    Barrier { world: u32, missing: &'a Ranks, waited: Duration },
    /// Two processes share memory of their MPI library.
    SharedMemory { words: &'a str },
    /// Ranks have ended without MPI_Finalize.
    Unfinished { words: &'a str },
    /// A checkpoint was asked for, of a program that has none.
    NoCheckpoints,
    /// A rank cannot be saved, because nothing of ours is in it.
    NoAgent { rank: Rank },
}

/// An observer of a job's events.
pub trait Observer {
    /// Something happened, so long after the start.
    fn notice(&mut self, at: Duration, notice: &Notice<'_>);

    /// Whether it has room for more lines of the ranks. While it has none, nobody reads their output.
    fn takes_lines(&self) -> bool {
        true
    }

    /// Whether the beginning of a line is shown before its end has come.
    fn shows_parts(&self) -> bool {
        false
    }

    /// Waits for a moment until the lines of the ranks have been shown, if somebody reads.
    fn settle(&mut self, _limit: Duration) {}

    /// The job is over: all notices have been printed when this returns, or `limit` has passed (false).
    fn finish(&mut self, _limit: Option<Duration>) -> bool {
        true
    }

    /// When [`Observer::act`] wants to be called.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// It is due.
    fn act(&mut self, _now: Instant) {}
}
