//! One rank's process: ports, NICs, program, and when it wants to run.

use ckpt_glue::enrolment::AddressTable;
use ckpt_glue::{Enrolment, Message as ControlMessage, Participant};
use transport::message::{Outgoing, Payload, Receive};
use transport::{Buffers, FrozenPort, Life, OpId, Port, PortId, Rank, Space};

use super::image::Image;
use super::port_freeze::PortFreeze;
use super::rails::RankRails;
use super::tx_fast_path::TxFastPath;

use crate::engine::queue::Nanos;
use crate::judge::cut::CutJudge;
use crate::workload::program::Body;
use crate::workload::script::{Message, Wanted};
use crate::workload::{Host, Program, Refused};

/// Never.
pub(crate) const NEVER: Nanos = Nanos::MAX;

/// Activity of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Its NICs are open, its image is being read.
    Restoring,
    /// It has said hello and waits for everybody's addresses.
    Enrolling,
    /// Its ports are open, its program runs.
    Running,
    /// It stands still, and its NICs are giving their buffers back.
    Quiescing,
    /// It has frozen its ports for a cut.
    Frozen,
    /// It has ended or was ended.
    Dead,
}

/// An image on its way to the disk.
#[derive(Debug)]
pub(crate) struct Writing {
    /// Number of this attempt among those of the process.
    pub(crate) attempt: u32,
    pub(crate) epoch: u32,
    pub(crate) image: Image,
}

/// A rank's process. See the module.
#[derive(Debug)]
pub(crate) struct Process {
    /// Number of this process in the world; never used again.
    pub(crate) number: u32,
    pub(crate) rank: u32,
    pub(crate) node: u32,
    /// The keeper that started it.
    pub(crate) keeper: u32,
    /// The life it belongs to, as the job names it and as the world counts it.
    pub(crate) life: Life,
    pub(crate) life_number: u32,
    pub(crate) epoch: u32,
    pub(crate) phase: Phase,
    pub(crate) ports: Vec<Port>,
    /// Its ports while they come to a stand.
    pub(crate) freezing: Option<PortFreeze>,
    pub(crate) frozen: Vec<FrozenPort>,
    /// Its NICs, by port and rail.
    pub(crate) stations: Vec<usize>,
    /// Its part in a change to another NIC.
    pub(crate) rails: RankRails,
    /// How often it has moved in its life.
    pub(crate) moves: u32,
    /// Where everybody is.
    pub(crate) addresses: AddressTable,
    pub(crate) program: Program,
    pub(crate) enrolment: Option<Enrolment>,
    pub(crate) participant: Option<Participant>,
    /// Control messages that wait until it runs.
    pub(crate) mailbox: Vec<ControlMessage>,
    /// The counted point last given to the participant.
    pub(crate) point_given: Option<u64>,
    pub(crate) writing: Option<Writing>,
    /// Digest of the program's memory at the cut, while it stands still after it.
    pub(crate) memory_at_cut: Option<u64>,
    pub(crate) writes: u32,
    /// The program has gone through all its rounds.
    pub(crate) finished: bool,
    /// The program computes until then.
    pub(crate) busy_until: Nanos,
    /// The scheduler keeps the whole process from running until then.
    pub(crate) stalled_until: Nanos,
    /// When the earliest pending [`Wake`](super::event::Event::Wake) comes, and the earliest pending
    /// [`Timer`](super::event::Event::Timer).
    pub(crate) wake_at: Nanos,
    pub(crate) timer_at: Nanos,
}

impl Process {
    /// Whether it exists.
    pub(crate) fn is_alive(&self) -> bool {
        self.phase != Phase::Dead
    }
}

/// The ports of one process as its program sees them.
pub(crate) struct PortHost<'a> {
    pub(crate) process: u32,
    pub(crate) ports: &'a mut [Port],
    pub(crate) judge: &'a mut CutJudge,
    /// By which messages leave at once.
    pub(crate) fast_path: TxFastPath,
}

impl PortHost<'_> {
    fn port(&mut self, port: u32) -> Result<&mut Port, Refused> {
        self.ports.get_mut(usize::try_from(port).unwrap_or(usize::MAX)).ok_or(Refused)
    }
}

impl Host for PortHost<'_> {
    fn send(
        &mut self,
        message: &Message,
        port: u32,
        data: u64,
        silent: bool,
        body: Body<'_>,
    ) -> Result<OpId, Refused> {
        let number = port;
        let port = self.ports.get_mut(usize::try_from(port).unwrap_or(usize::MAX)).ok_or(Refused)?;
        let link = port.connect(PortId::of_rank(Rank(message.to), number));
        let outgoing = Outgoing { space: Space(0), tag: message.tag(), data, context: 0, silent };
        let payload = match body {
            Body::Copied(bytes) => Payload::Copied(bytes),
            Body::User(bytes) => Payload::User { bytes },
        };
        let fast = match body {
            Body::Copied(bytes) => self.fast_path.send(port, number, link, &outgoing, bytes),
            Body::User(_) => None,
        };
        let op = match fast {
            Some(op) => op,
            None => port.send(link, outgoing, payload).map_err(|_| Refused)?,
        };
        self.judge.handed_over(self.process, message.to, number);
        Ok(op)
    }

    fn post(
        &mut self,
        port: u32,
        wanted: &Wanted,
        bytes_max: u64,
        context: u64,
        buffers: &mut impl Buffers,
    ) -> Result<OpId, Refused> {
        let number = port;
        let port = self.port(port)?;
        let source = wanted.source.map(|rank| port.connect(PortId::of_rank(Rank(rank), number)));
        let receive = Receive {
            space: Space(0),
            source,
            tag: wanted.tag,
            ignore: wanted.ignore,
            bytes_max,
            context,
            multi: None,
        };
        port.post_receive(receive, buffers).map_err(|_| Refused)
    }
}
