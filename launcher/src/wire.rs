//! Messages of coordinator and keepers besides control messages: one byte stream each way, the standard input and output of the keeper's
//! process. The starter of that process chooses the way: a pipe on this host, a remote shell (which authenticates and encrypts) to another one.
//!
//! One frame: its length in bytes (32 bits, little-endian, at most [`LINK_FRAME_BYTES_MAX`]), then a [`ToKeeper`] or [`FromKeeper`] as `postcard`
//! writes it. The first frame each way has the program's version, for nothing else can be relied on between two versions: so these stay as they are in every
//! version. [`ToKeeper::Begin`] and [`FromKeeper::Ready`] are the first of their kind, and begin with it (0, its length, its letters); [`FromKeeper::Unfit`]
//! is the second, and has nothing but a text. The version is read, and compared, before anything else is.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use ckpt_glue::control::{Control, ControlKey, stream};
use ckpt_glue::error::Malformed;
use ckpt_glue::keeper::RankPhase;
use ckpt_glue::names::{ExitStatus, GenerationId, NodeIndex, Party};
use ckpt_glue::pmi::{Member, SpawnCommand};
use ckpt_glue::protection::nodes::Refusal;
use copies::Packed;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store::Key;
use transport::Life;

use super::flush::wire::PartRequest;
use super::limits::{LINK_FRAME_BYTES_MAX, READ_BYTES, VERSION_BYTES_MAX};
use super::nodes::NodeRoot;
use super::nodes::wire::{Membership, NodeDone, NodeTask};
use super::succession::SuccessorPlace;
use super::terminal::{Size, TerminalSpec};
use super::version::VERSION;
use crate::mpi::replacement::Replacement;

/// The number under which a control message is sealed that lies in a frame: the order of frames is the stream's matter.
const NUMBER: u64 = 1;

/// A control message, sealed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Sealed(Vec<u8>);

impl Sealed {
    pub(crate) fn new(key: &ControlKey, control: &Control) -> Sealed {
        let mut bytes = Vec::new();
        stream::emit(key, NUMBER, control, &mut bytes);
        Sealed(bytes)
    }

    pub(crate) fn open(&self, key: &ControlKey) -> Result<Control, Malformed> {
        stream::parse(key, &self.0).map(|(_, control)| control)
    }
}

/// The first message to a keeper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// The coordinator's [`VERSION`].
    pub(crate) version: String,
    pub(crate) job: u128,
    /// The job's secret.
    pub(crate) key: [u8; 16],
    pub(crate) node: u32,
    /// Another keeper of this node has been there, and gave its word to this coordinator.
    pub(crate) again: bool,
    /// Ranks of the job, and most of them that this node keeps.
    pub(crate) ranks: u32,
    pub(crate) share: u32,
    pub(crate) command: Vec<OsString>,
    /// Working directory of the program.
    pub(crate) program_directory: OsString,
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The environment below that; `None`: the keeper's own.
    pub(crate) inherited: Option<Vec<(OsString, OsString)>>,
    /// The job's directory, if this host has it.
    pub(crate) directory: OsString,
    /// Where the nodes' own directories lie, in which images are; `None`: images lie in the job's.
    pub(crate) node_root: Option<NodeRoot>,
    pub(crate) bind: SocketAddr,
    /// This node on its other networks.
    pub(crate) further: Vec<IpAddr>,
    /// Tags cover the payload too.
    pub(crate) full_tags: bool,
    pub(crate) provider: Option<OsString>,
    pub(crate) is_mpi: bool,
    /// The MPI library that programs get in place of their own.
    pub(crate) replacement: Option<Replacement>,
    pub(crate) saves_processes: bool,
    /// The node's part in protecting images, if it has a directory of its own.
    pub(crate) own: Option<Membership>,
    /// Restored processes and their threads get the ids that they had.
    pub(crate) keeps_ids: bool,
    /// The key with which images are encrypted, if they are.
    pub(crate) encryption: Option<Key>,
    /// The beginning of a line is handed over without waiting for its end.
    pub(crate) shows_parts: bool,
    /// The only rank has a terminal.
    pub(crate) terminal: Option<TerminalSpec>,
    /// This host may have to continue the job.
    pub(crate) successor: Option<SuccessorPlace>,
}

/// From the coordinator's shell to a keeper's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToKeeper {
    /// First.
    Begin(Box<Begin>),
    /// For the keeper's machine: from the coordinator, from another keeper, or from a rank that the coordinator's shell speaks for.
    Control(Sealed),
    /// The PMI server answers a rank's agent.
    PmiAnswer { rank: u32, answer: Sealed },
    /// To processes of ranks, past the machine.
    ToProcesses { ranks: Vec<u32>, control: Sealed },
    /// Over which NIC all ranks reach other hosts that are started from now on.
    Nic { nic: String },
    /// The coordinator's shell speaks for this rank from now on: it gets the machine's messages to the rank.
    SpeakFor { rank: u32 },
    /// A line of the PMI server to a process.
    PmiLine { who: Member, line: String },
    /// Before [`ToKeeper::Judged`]: this rank's ports count as closed, because no other rank runs that could need them.
    Excuse { rank: u32, life: Life },
    /// To [`FromKeeper::Ended`]: how the machine is to see it.
    Judged { rank: u32, life: Life, status: ExitStatus },
    /// End a process.
    Kill { who: Member },
    /// To [`FromKeeper::ExitedImage`]: with the rank's part in PMI.
    WriteExited { rank: u32, generation: GenerationId, record: Vec<u8>, pmi: Vec<u8> },
    /// Start processes that a rank spawns, all or none; answered by [`FromKeeper::WorldStarted`]. `life`: of the ranks that are saved as whole processes.
    StartWorld { world: u32, running: u32, commands: Vec<SpawnCommand>, life: Option<Life> },
    /// The life of all spawned processes is over, or the job: end them. No more messages about them follow.
    EndSpawned,
    /// Look at the mappings of these processes; no first look at their worlds is due any more. Answered by [`FromKeeper::Found`], which
    /// has the same number.
    Look { number: u64, worlds: Vec<u32>, members: Vec<Member> },
    /// Processes of an MPI world of this name begin.
    NameWorld { name: String },
    /// Note which files in memory the processes have now.
    NoteFiles,
    /// A life begins in which these ranks of the node read standard input, each from this byte on. Bytes before `replay_end` were there before.
    InputLife { life: Life, ranks: Vec<(u32, u64)>, replay_end: u64 },
    /// Bytes of standard input for a rank in a life, from this one on; `end`: nothing follows.
    Input { rank: u32, life: Life, offset: u64, bytes: Vec<u8>, end: bool },
    /// The launcher is there.
    Alive,
    /// Stop all ranks, and time; answered by [`FromKeeper::Suspended`].
    Suspend,
    /// They go on.
    Resume,
    /// The launcher's terminal has another size.
    Resize(Size),
    /// Hand over all that has been printed until now, then answer with [`FromKeeper::Drained`].
    Drain { number: u64 },
    /// So many bytes of lines have been shown.
    Shown { bytes: u64 },
    /// To be done in the node's own directory, and answered by [`FromKeeper::NodeDone`].
    Node { number: u64, task: NodeTask },
    /// Pack a part of a copy; answered by [`FromKeeper::CopyDone`].
    Copy(Box<PartRequest>),
    /// It need not be packed any more; it is answered all the same.
    GiveUpCopy { number: u64 },
    /// The launcher ends with an error: the keeper ends everything, and leaves no candidate behind.
    GiveUp,
    /// The job is over.
    Leave,
}

/// From a keeper's shell to the coordinator's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FromKeeper {
    /// First: it is there.
    Ready { version: String, host: String },
    /// First, instead: ranks cannot be started there, and why.
    Unfit { problem: String },
    /// From the keeper's machine, to the coordinator or another keeper.
    Control { to: Receiver, control: Sealed },
    /// The machine's message to a rank that the coordinator's shell speaks for.
    ForRank { rank: u32, control: Sealed },
    /// A request or a state report from a rank's agent to the PMI server.
    Pmi { control: Sealed },
    /// A rank that was restored has no part in PMI to report.
    PmiNothing { rank: u32 },
    /// Bytes that a process sent over PMI.
    PmiBytes { who: Member, bytes: Vec<u8> },
    /// A process does not read the PMI server's answers.
    PmiUnread { who: Member },
    /// A process has printed a line; `is_part`: a piece of one whose end has not come.
    Line { who: Member, is_error: bool, line: Vec<u8>, is_part: bool },
    /// To [`ToKeeper::Suspend`]: the ranks of the node stand still.
    Suspended,
    /// A person at the launcher's terminal has typed the key that stops a program.
    SuspendWanted,
    /// Bytes of standard input up to this one are in a rank's pipe; `open`: it can have more.
    InputTaken { rank: u32, life: Life, offset: u64, open: bool },
    /// A process of a rank exists.
    Spawned { rank: u32, pid: i32 },
    /// Over which NIC it reaches other hosts, in words.
    Nic { rank: u32, words: String },
    /// Why a rank has no image, in words.
    Unsaved { rank: u32, reason: String },
    /// It has taken a request for another NIC, or reports why not.
    HandedOver { rank: u32, number: u64, refused: String },
    /// A rank's message about a change of all ranks to another NIC, or about a rail that has died with its address.
    Rail { rank: u32, control: Sealed },
    /// It could not be started.
    NotSpawned { rank: u32, problem: String },
    /// A rank had ended when the generation was taken, with its part in PMI from its image.
    ExitedInImage { rank: u32, pmi: Vec<u8> },
    /// A process of a rank has ended. `is_new`: it had not come up.
    Ended { rank: u32, life: Life, status: ExitStatus, is_new: bool },
    /// The machine has taken [`ToKeeper::Judged`]: its own messages about that have been sent before.
    Settled { rank: u32, status: ExitStatus },
    /// A spawned process has ended of itself.
    SpawnedEnded { who: Member, status: ExitStatus },
    /// A rank is ended, because it sent an invalid message or did not read.
    Misbehaves { rank: u32, reason: String },
    /// An error of the job's directory.
    Store { what: String, error: String },
    /// The machine wants the image of a rank that has ended.
    ExitedImage { rank: u32, generation: GenerationId, record: Vec<u8> },
    /// Ranks that have changed: each with its phase and the last epoch that it has reported.
    Ranks(Vec<(u32, RankPhase, u32)>),
    /// To [`ToKeeper::StartWorld`]: how many processes, or in one word and in a sentence why none.
    WorldStarted { world: u32, outcome: Result<u32, (String, String)> },
    /// To [`ToKeeper::Look`].
    Found {
        number: u64,
        without_provider: Vec<Member>,
        elsewhere: Vec<(Member, String)>,
        shared: Option<(Member, Member, String)>,
    },
    /// Why a rank has not come up, as far as it can be seen.
    Silent { why: Option<String> },
    /// To [`ToKeeper::Drain`].
    Drained { number: u64 },
    /// To [`ToKeeper::Node`]: there is progress, and so many more bytes have come.
    NodeBusy { number: u64, bytes: u64 },
    /// To [`ToKeeper::Node`].
    NodeDone { number: u64, outcome: Result<NodeDone, Refusal> },
    /// To [`ToKeeper::Copy`]: there is progress, and so many more bytes have been read.
    Copying { number: u64, bytes: u64 },
    /// To [`ToKeeper::Copy`]: the packed images of its ranks, or the error.
    CopyDone { number: u64, outcome: Result<Vec<Packed>, String> },
    /// The keeper has heard from no majority for too long: it has ended its ranks, and ends itself.
    LeaseOver,
    /// The lock of the node is not free, in words.
    LockHeld { words: String },
}

/// The receiver of a message that a keeper's machine sends beyond its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Receiver {
    Coordinator,
    Keeper(u32),
}

impl Receiver {
    /// `None`: a party on the node, or a tool, which takes no messages over a link.
    pub(crate) fn of(party: Party) -> Option<Receiver> {
        match party {
            Party::Coordinator => Some(Receiver::Coordinator),
            Party::Keeper(NodeIndex(node)) => Some(Receiver::Keeper(node)),
            _ => None,
        }
    }
}

/// A message in its frame, for several receivers: a manifest has a line for each rank, and is not written once for each node.
#[derive(Debug)]
pub(crate) struct Frame(Vec<u8>);

impl Frame {
    pub(crate) fn new(message: &impl Serialize) -> Frame {
        let mut bytes = Vec::new();
        append_frame(message, &mut bytes);
        Frame(bytes)
    }
}

fn append_frame(message: &impl Serialize, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    match postcard::to_extend(message, core::mem::take(bytes)) {
        Ok(extended) => *bytes = extended,
        Err(error) => unreachable!("plain data into memory: {error}"),
    }
    let length = bytes.len() - start - 4;
    if length > LINK_FRAME_BYTES_MAX {
        // Its lists are as long as records on disk are many. The other end reads the length, and says so.
        bytes.truncate(start + 4);
    }
    bytes[start..start + 4].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

/// One end of a link. Nothing blocks.
#[derive(Debug)]
pub(crate) struct Link {
    from: File,
    to: File,
    held: Vec<u8>,
    waiting: Vec<u8>,
    /// The other end's version is known to be this one, or it has sent something else first.
    is_known: bool,
}

/// Where bytes most often come from that belong to nobody.
const STRAY: &str = "does a shell at the other end print something when it starts?";

/// The version with which a first frame begins; `None`: this one has no version.
fn version(frame: &[u8]) -> Option<String> {
    let (first, rest) = frame.split_first()?;
    let (text, _) = postcard::take_from_bytes::<&str>(rest).ok()?;
    let is_version = text.starts_with(|first: char| first.is_ascii_digit())
        && text.len() <= VERSION_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte));
    (*first == 0 && is_version).then(|| text.to_owned())
}

/// Why nothing more comes over a link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error(
        "the bytes received are no frame of a keeper's link ({found} bytes announced, at most {LINK_FRAME_BYTES_MAX} expected); {STRAY} Or has the job very many generations (--keep)?"
    )]
    TooLong { found: usize },
    #[error("the bytes received are no frame of a keeper's link ({0}); {STRAY}")]
    NoFrame(#[from] postcard::Error),
    #[error("it has version {found} of stillwire, and this is {VERSION}: install the same on both")]
    OtherVersion { found: String },
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a control message in it is malformed: {0}")]
    Malformed(#[from] Malformed),
    #[error("the other end has closed it")]
    Closed,
}

impl Link {
    /// Both descriptors must not block.
    pub(crate) fn new(from: OwnedFd, to: OwnedFd) -> Link {
        Link { from: from.into(), to: to.into(), held: Vec::new(), waiting: Vec::new(), is_known: false }
    }

    pub(crate) fn from(&self) -> &File {
        &self.from
    }

    pub(crate) fn to(&self) -> &File {
        &self.to
    }

    /// Sends, or keeps it until the other end reads. Returns how many bytes wait.
    pub(crate) fn send(&mut self, message: &impl Serialize) -> usize {
        append_frame(message, &mut self.waiting);
        self.flush();
        self.waiting.len()
    }

    /// As [`Link::send`], of a message that others receive too.
    pub(crate) fn send_frame(&mut self, frame: &Frame) -> usize {
        self.waiting.extend_from_slice(&frame.0);
        self.flush();
        self.waiting.len()
    }

    /// Bytes that wait for the other end to read.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends the waiting bytes, as far as the other end reads.
    pub(crate) fn flush(&mut self) {
        let mut sent = 0;
        while sent < self.waiting.len() {
            match self.to.write(&self.waiting[sent..]) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // It is gone; the next read reports that.
                Err(_) => sent = self.waiting.len(),
            }
        }
        self.waiting.drain(..sent);
    }

    /// Reads once, and hands out whole messages. After an error nothing more comes.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self, messages: &mut Vec<T>) -> Result<(), LinkError> {
        let mut chunk = vec![0; READ_BYTES];
        let read = match self.from.read(&mut chunk) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        self.held.extend_from_slice(&chunk[..read]);
        let mut taken = 0;
        while let Some(length) = self.held[taken..].first_chunk::<4>() {
            let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
            if length > LINK_FRAME_BYTES_MAX {
                return Err(LinkError::TooLong { found: length });
            }
            let Some(frame) = self.held.get(taken + 4..taken + 4 + length) else { break };
            if !core::mem::replace(&mut self.is_known, true)
                && let Some(found) = version(frame).filter(|found| found != VERSION)
            {
                return Err(LinkError::OtherVersion { found });
            }
            messages.push(postcard::from_bytes(frame)?);
            taken += 4 + length;
        }
        self.held.drain(..taken);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nix::fcntl::OFlag;
    use nix::unistd::pipe2;

    use super::*;

    #[test]
    fn a_frame_for_several_is_received_as_a_message_for_one() {
        let (ours, theirs) =
            (pipe2(OFlag::O_NONBLOCK).expect("a pipe"), pipe2(OFlag::O_NONBLOCK).expect("a pipe"));
        let (mut near, mut far) = (Link::new(ours.0, theirs.1), Link::new(theirs.0, ours.1));
        let said = || ToKeeper::Shown { bytes: 300 };
        let frame = Frame::new(&said());
        near.send(&said());
        near.send_frame(&frame);
        near.send_frame(&frame);
        let mut received: Vec<ToKeeper> = Vec::new();
        far.receive(&mut received).expect("whole frames");
        assert_eq!(received.len(), 3);
        assert!(received.iter().all(|message| matches!(message, ToKeeper::Shown { bytes: 300 })));
    }

    // As many manifests as a directory holds may be in one.
    #[test]
    fn a_frame_that_is_too_long_ends_the_link_and_not_its_sender() {
        let (ours, theirs) =
            (pipe2(OFlag::O_NONBLOCK).expect("a pipe"), pipe2(OFlag::O_NONBLOCK).expect("a pipe"));
        let (mut near, mut far) = (Link::new(ours.0, theirs.1), Link::new(theirs.0, ours.1));
        near.send_frame(&Frame::new(&vec![0u8; LINK_FRAME_BYTES_MAX + 1]));
        let mut received: Vec<ToKeeper> = Vec::new();
        let error = far.receive(&mut received).expect_err("no frame");
        assert!(matches!(error, LinkError::TooLong { found } if found > LINK_FRAME_BYTES_MAX), "{error}");
        assert!(error.to_string().contains("--keep"), "{error}");
    }
}
