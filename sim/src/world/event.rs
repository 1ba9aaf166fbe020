//! The events of a world.

use ckpt_glue::control::{Decision, ExitedRecord, ImageReport};
use ckpt_glue::protection::nodes::{Answer, Question, Refusal};
use ckpt_glue::{Control, ExitStatus, GenerationId};
use transport::{Life, Rank};

use crate::network::{FrameId, NetworkConditions};

/// An event in the queue. Small, because thousands pass through it in each history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Event {
    /// A frame reaches the NIC that it is for.
    Arrive(FrameId),
    /// A NIC reads the frames that were flushed to it.
    Read(u32),
    /// A process looks at its NICs, its timers, its program.
    Wake(u32),
    /// A timer of a process may have run out.
    Timer(u32),
    /// The timer of the coordinator with this number may have run out.
    JobTimer(u32),
    /// The timer of this keeper may have run out.
    KeeperTimer(u32),
    /// The timer of the nodes' machine of the coordinator with this number may have run out.
    NodesTimer(u32),
    /// Something that happens rarely: its place in the table of tasks.
    Task(u32),
}

impl Event {
    /// Kind and subject as one number, for the digest of the history.
    #[inline]
    pub(crate) fn code(self) -> u64 {
        let (kind, subject) = match self {
            Event::Arrive(frame) => (1, frame.slot()),
            Event::Read(station) => (2, station),
            Event::Wake(process) => (3, process),
            Event::Timer(process) => (4, process),
            Event::JobTimer(job) => (5, job),
            Event::KeeperTimer(keeper) => (6, keeper),
            Event::Task(place) => (7, place),
            Event::NodesTimer(job) => (8, job),
        };
        kind << 32 | u64::from(subject)
    }
}

/// One incarnation of a sender and receiver of control messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    /// The coordinator with this number.
    Job(u32),
    /// The keeper with this number.
    Keeper(u32),
    /// The process with this number.
    Process(u32),
}

/// Something that happens rarely and needs more room than an [`Event`] has.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// A control message arrives.
    Control { to: Endpoint, from: Endpoint, control: Box<Control>, connection: u32 },
    /// A keeper's node starts the process of a rank.
    Spawn { keeper: u32, rank: Rank, decision: Decision },
    /// The process has read its image.
    Restore { process: u32, decision: Decision },
    /// A keeper ends the process of a rank.
    Kill { keeper: u32, rank: Rank, life: Life },
    /// A keeper learns that a process has ended.
    Reaped { keeper: u32, rank: Rank, life: Life, status: ExitStatus },
    /// A process looks whether its NICs have given their buffers back.
    Freeze { process: u32 },
    /// A process thaws after a cut.
    Thaw { process: u32 },
    /// A process goes on elsewhere.
    Arrive { process: u32 },
    /// A process hears that a rank has moved, and where its ports are.
    HearMoved { process: u32, moved: Box<crate::world::moves::Moved> },
    /// A process has written its image.
    ImageWritten { process: u32, epoch: u32, attempt: u32 },
    /// A keeper has written the image of a rank that has ended.
    ExitedImageWritten { keeper: u32, rank: Rank, generation: GenerationId, record: ExitedRecord },
    /// A coordinator has written a commit record.
    CommitWritten { job: u32, generation: GenerationId, images: Vec<ImageReport> },
    /// A coordinator has written a decision.
    DecisionWritten { job: u32, decision: Decision },
    /// The store has been fenced.
    StoreFenced { job: u32, counter: u32 },
    /// A step of the plan is due; `cause` is the rank that brought its moment.
    Step { step: usize, cause: Option<u32> },
    /// A broken rail is opened anew.
    RailUp { process: u32, port: u32, rail: u32 },
    /// A request that all ranks use another NIC, at the latest at `until`.
    ChangeRails { frame_bytes_max: u32, until: crate::engine::queue::Nanos },
    /// A message about it to a rank.
    RailMessage { process: u32, life: Life, message: Box<ckpt_glue::Message> },
    /// A rank's answer has come.
    RailSaid { life: Life, rank: Rank, message: Box<ckpt_glue::Message> },
    /// A rank looks how far it is.
    RailLook { process: u32 },
    /// The time of a step may be over.
    RailsDue,
    /// A node runs again.
    NodeUp { node: u32 },
    /// The keeper's connection to its coordinator is gone: it ends its ranks and itself.
    KeeperOrphaned { keeper: u32 },
    /// A keeper tries to take the lock of its node.
    TakeLock { keeper: u32 },
    /// The lease of a keeper's ranks that lasts until then is over.
    LeaseOver { keeper: u32, until: crate::engine::queue::Nanos },
    /// No rank of it may run any more.
    JudgeLease { keeper: u32, until: crate::engine::queue::Nanos },
    /// A keeper that was stopped goes on.
    KeeperResumes { keeper: u32 },
    /// The launcher sees that a keeper has connected.
    KeeperConnects { keeper: u32 },
    /// The launcher sees that the connection to a keeper has ended.
    KeeperDisconnected { keeper: u32 },
    /// A keeper has worked off a question about its node's directory.
    NodeWorks { keeper: u32, number: u64, question: Question },
    /// Its answer reaches the launcher.
    NodeAnswers { keeper: u32, number: u64, answer: Box<Result<Answer, Refusal>> },
    /// The launcher starts a keeper on a node whose keeper is gone.
    KeeperAgain { node: u32, job: u32 },
    /// An operator starts the job again.
    Operator,
    /// A patient person looks whether a checkpoint can be asked for.
    Ask { until: crate::engine::queue::Nanos },
    /// It may have been calm for long.
    AskInCalm,
    /// The rank can be saved again.
    Savable { process: u32 },
    /// The storm is over.
    Calm { conditions: NetworkConditions },
}
