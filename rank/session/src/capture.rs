//! The cut: one instant in which port and memory are copied.

use core::time::Duration;
use std::time::Instant;

use ckpt_glue::control::{CutStatistics, MessageStates};
use client::input;
use endpoint::{Completion, Endpoint, EndpointError};
use store::kinds;
use transport::Epoch;
use transport::config::STOPPED_MIN;
use transport::port::Census;

use crate::limits::{COPY_BYTES_PER_SECOND, DRAIN_MAX, PORT_ROOM_BYTES_MAX};
use crate::message::{Message, Outcome};
use crate::port_section;
use crate::region::{Protect, Region};
use crate::requests::{self, SessionState};
use crate::session::Peers;
use crate::writer::{Image, OwnedSection};

/// Version of a protected region's section: the bytes as they lay in memory.
const REGION_VERSION: u16 = 1;

/// Why a port could not be captured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    #[error(transparent)]
    Freeze(#[from] EndpointError),
    #[error(transparent)]
    Dump(#[from] nic_freeze::DumpError),
}

/// State that is captured besides the port.
pub(crate) trait Memory {
    /// About how many bytes that will be.
    fn bytes(&mut self) -> u64;
    /// Takes a message that had arrived before the cut and the program has not seen.
    fn take(&mut self, completion: Completion);
    /// A copy of everything.
    fn sections(&mut self) -> Vec<OwnedSection>;
}

/// A program at one of its points.
pub(crate) struct ProgramMemory<'a> {
    pub(crate) state: &'a mut SessionState,
    pub(crate) peers: &'a Peers,
    pub(crate) program: &'a mut dyn Protect,
}

impl Memory for ProgramMemory<'_> {
    fn bytes(&mut self) -> u64 {
        self.program.regions().iter().map(|region| region.as_bytes().len() as u64).sum()
    }

    fn take(&mut self, completion: Completion) {
        note(self.state, self.peers, completion);
    }

    fn sections(&mut self) -> Vec<OwnedSection> {
        let mut sections = vec![session_section(self.state.emit())];
        sections.extend(self.program.regions().iter().map(region_section));
        sections
    }
}

/// A program that has finished: its memory and its messages are not needed any more.
pub(crate) struct FinishedMemory {
    pub(crate) state: Vec<u8>,
}

impl Memory for FinishedMemory {
    fn bytes(&mut self) -> u64 {
        0
    }

    fn take(&mut self, _completion: Completion) {}

    fn sections(&mut self) -> Vec<OwnedSection> {
        vec![session_section(self.state.clone())]
    }
}

fn session_section(bytes: Vec<u8>) -> OwnedSection {
    OwnedSection { kind: kinds::SESSION_STATE, version: requests::VERSION, id: 0, bytes }
}

fn region_section(region: &Region<'_>) -> OwnedSection {
    let bytes = region.as_bytes().to_vec();
    OwnedSection { kind: kinds::SESSION_REGION, version: REGION_VERSION, id: region.id().into(), bytes }
}

/// Enters the end of an operation into the table of requests. Other fields of a completion are not state.
pub(crate) fn note(state: &mut SessionState, peers: &Peers, completion: Completion) {
    match completion {
        Completion::Received { context, source, tag, bytes, sent_bytes, buffer, .. } => {
            let mut contents = buffer.unwrap_or_default();
            contents.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
            let source = peers.rank(source).unwrap_or(u32::MAX);
            state.finish(context, Outcome::Received(Message { source, tag, bytes: contents, sent_bytes }));
        }
        Completion::SendDone { context, .. } => state.finish(context, Outcome::Sent),
        Completion::SendFailed { context, .. } | Completion::ReceiveFailed { context, .. } => {
            state.finish(context, Outcome::Failed);
        }
        _ => {}
    }
}

/// Freezes the port, raises its epoch, copies port and memory, thaws. `entered`: when the program stopped. `port_bytes`: of
/// the port's section, the last time and this time.
pub(crate) fn capture(
    endpoint: &Endpoint,
    entered: Instant,
    epoch: Epoch,
    memory: &mut dyn Memory,
    port_bytes: &mut usize,
) -> Result<Image, CaptureError> {
    let mut room = Vec::new();
    nic_freeze::make_room(&mut room, (*port_bytes).min(PORT_ROOM_BYTES_MAX));
    let expected = Duration::from_nanos(memory.bytes().saturating_mul(1_000_000_000) / COPY_BYTES_PER_SECOND);
    if expected >= STOPPED_MIN {
        endpoint.announce_pause(expected);
    }
    endpoint.warm();
    let stop = entered.elapsed();
    let mut frozen = endpoint.freeze(DRAIN_MAX)?;
    let freeze = frozen.split().freeze;
    let dumping = Instant::now();
    frozen.port_mut().set_epoch(epoch);
    for completion in frozen.take_completions() {
        memory.take(completion);
    }
    let messages = states(frozen.port().census());
    let mut sections = memory.sections();
    let port = port_section::dump(&frozen, room)?;
    *port_bytes = port.bytes.len();
    sections.push(port);
    let dump = dumping.elapsed();
    let thaw = frozen.thaw();
    let statistics = CutStatistics {
        stop_ns: nanos(stop),
        freeze_ns: nanos(freeze),
        dump_ns: nanos(dump),
        thaw_ns: nanos(thaw),
        write_ns: 0,
        delay_ns: None,
        messages,
        input_read: input::look(),
    };
    Ok(Image { epoch, sections, statistics, cut: Instant::now() })
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn states(census: Census) -> MessageStates {
    MessageStates {
        to_send: census.to_be_sent,
        unacknowledged: census.sent_unacknowledged,
        acknowledged: census.acknowledged,
        unanswered: census.received_unacknowledged,
        delivered: census.delivered_waiting,
    }
}
