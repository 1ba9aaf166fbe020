//! The interface between the programs and their world: ranks, messages, and points at which they may be
//! saved.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::ExampleError;

/// Why the layer below could not do its part; its message names ranks and a remedy.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;

/// The purpose of a message. Messages of one sender with one tag arrive in the order in which they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub u64);

impl Tag {
    /// Towards the root of a reduction.
    pub const REDUCE: Tag = Tag(1);
    /// From the root of a reduction to all.
    pub const SPREAD: Tag = Tag(2);
    /// One block for each rank.
    pub const BLOCKS: Tag = Tag(3);
    /// Keys on their way to the rank that owns their range.
    pub const KEYS: Tag = Tag(4);
    /// A value for the next rank.
    pub const NEIGHBOUR: Tag = Tag(5);
    /// A message of a burst.
    pub const BURST: Tag = Tag(6);
}

/// A piece of memory that belongs to a saved program.
///
/// The bytes are saved and put back as they lie in memory: an image is restarted on machines of the kind it came from.
#[derive(Debug)]
pub struct Region<'a> {
    /// Distinguishes this region from the program's others; the same at every point and after a restart.
    pub id: u32,
    /// Its contents. The length stays the same for the whole run.
    pub bytes: &'a mut [u8],
}

/// All that a program must keep to go on from a point.
pub trait State {
    /// The regions, always the same ones in the same order.
    fn regions(&mut self) -> Vec<Region<'_>>;
}

/// Messages that are sent before a point and received after it: their requests, begun one after the other. Plain numbers,
/// so it is saved as it lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenSends {
    /// The first request.
    pub from: u64,
    /// The one behind the last.
    pub until: u64,
}

impl OpenSends {
    /// Begins to send one more.
    ///
    /// # Errors
    /// The communicator's error.
    pub fn begin(
        &mut self,
        world: &mut dyn Communicator,
        to: u32,
        tag: Tag,
        bytes: Vec<u8>,
    ) -> Result<(), ExampleError> {
        let request = world.begin_send(to, tag, bytes).map_err(ExampleError::Communication)?;
        if self.from == self.until {
            self.from = request;
        }
        self.until = request + 1;
        Ok(())
    }

    /// Waits until all have been received: a message that a peer needs before its next point must be on its
    /// way before ours.
    ///
    /// # Errors
    /// The communicator's error.
    pub fn end(&mut self, world: &mut dyn Communicator) -> Result<(), ExampleError> {
        for request in self.from..self.until {
            world.end_send(request).map_err(ExampleError::Communication)?;
        }
        self.from = self.until;
        Ok(())
    }
}

/// The world of one rank.
///
/// Messages that were sent and not yet received belong to the communicator: at a point it keeps them with the saved
/// state, so a program never waits for its messages before it may be saved.
pub trait Communicator {
    /// This rank's number, from 0.
    fn rank(&self) -> u32;

    /// The number of ranks of the job.
    fn size(&self) -> u32;

    /// Hands a message over and returns without waiting for its receiver. It arrives exactly once. The receiver takes it
    /// before the next point.
    ///
    /// # Errors
    /// When the communicator cannot take messages for `to` any more.
    fn send(&mut self, to: u32, tag: Tag, bytes: Vec<u8>) -> Result<(), Fault>;

    /// As [`Communicator::send`], for a message that the receiver takes only after the next point. Returns the number of the
    /// request, which means the same after a restart.
    ///
    /// # Errors
    /// As for [`Communicator::send`].
    fn begin_send(&mut self, to: u32, tag: Tag, bytes: Vec<u8>) -> Result<u64, Fault>;

    /// Waits until the message of a request has been received.
    ///
    /// # Errors
    /// When it never can be.
    fn end_send(&mut self, request: u64) -> Result<(), Fault>;

    /// Waits for the next message of `from` with that tag.
    ///
    /// # Errors
    /// When such a message can never come.
    fn receive(&mut self, from: u32, tag: Tag) -> Result<Vec<u8>, Fault>;

    /// Fills `state` when this process is the restart of a saved one; `false` when it is a fresh start. Called once,
    /// before the first message.
    ///
    /// # Errors
    /// When the saved regions are not the ones that `state` names, in number or in length.
    fn restore(&mut self, state: &mut dyn State) -> Result<bool, Fault>;

    /// A place where the program may be saved: `state` is complete here. Every rank passes the same number of points,
    /// and messages sent after a rank's point `n` are needed by the others only after theirs.
    ///
    /// # Errors
    /// When the job is to stop.
    fn point(&mut self, state: &mut dyn State) -> Result<(), Fault>;
}
