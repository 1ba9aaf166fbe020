//! The [`Driver`] trait: the interface between a port and a NIC.
//!
//! Written for NICs that own their buffers. The order of calls on the way out is
//!
//! ```text
//!   lease -> fill -> commit   (any number of times)   -> flush  -> ... -> completed_total reaches staged_total
//! ```
//!
//! and on the way in `receive`, which lends each frame to a closure. No call blocks but `wait`.

use core::ops::Range;
use core::task::Poll;
use core::time::Duration;
use std::os::fd::{BorrowedFd, RawFd};

use transport::{AddressId, RawAddress};

use crate::counters::Counters;
use crate::error::DriverError;
use crate::payload::Payload;

/// A driver's capabilities; this does not change while it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Name of the kind of driver, for reports.
    pub kind: &'static str,
    /// Bytes of the largest frame on any path; also the length of a leased buffer. A path may take less: [`Driver::path`].
    pub frame_bytes_max: usize,
    /// Frames that can be staged between two flushes.
    pub burst: usize,
    /// Payload is referenced until the frame is completed; otherwise `commit` copies it.
    pub gather: bool,
    /// Frames to one address arrive in the order of their commits, if they arrive.
    pub ordered: bool,
    /// Bytes of frames that can wait for the owner before the NIC drops more. A hint for the window to advertise.
    pub receive_bytes: usize,
    /// The rail ends at this host, and only processes of this user can write into it: its frames need no tag.
    pub within_host: bool,
}

/// A driver's facts about the path to one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Bytes of the largest frame; longer ones are dropped and counted.
    pub frame_bytes_max: usize,
    /// The address is on this host: its frames cross no network, so authenticating headers is enough by default.
    pub on_host: bool,
}

/// Something that a driver found out by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The path takes only smaller frames from now on; frames staged for it may have been dropped.
    PathShrunk {
        /// Whose path.
        to: AddressId,
        /// Bytes of the largest frame now.
        frame_bytes_max: usize,
    },
    /// Frames to this address over this rail will never arrive, or not as long as others occupy the resources
    /// that they need.
    PathLost {
        /// Whose path.
        to: AddressId,
    },
    /// The helper that has the program at the device is gone, and the program with it: from now on frames
    /// come through the kernel.
    HelperGone,
}

/// Answer of [`Driver::arm`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    /// A frame may be waiting already: call `receive`, do not sleep.
    FrameWaiting,
    /// `fd` becomes readable when a frame arrives.
    Sleep,
}

/// Why [`Driver::wait`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// A frame may be there.
    Frame,
    /// The time is over.
    Timeout,
    /// A signal arrived.
    Interrupted,
}

/// The payload of a frame that the NIC has not brought yet.
pub trait DeferredPayload {
    /// Its length.
    fn bytes(&self) -> usize;

    /// Copies it to a buffer of exactly that length. Once. False: it is no longer available, and the buffer's contents
    /// are arbitrary.
    fn fetch(&mut self, to: &mut [u8]) -> bool;
}

/// Takes a whole frame, or a head and its payload that has not been brought yet.
pub type EachFrame<'a> = dyn FnMut(&[u8], Option<&mut dyn DeferredPayload>) + 'a;

/// One opened NIC.
///
/// A frame may be lost, repeated or reordered; none of that is an error, and every loss that the driver sees
/// is counted. It must not be altered (but for `FaultDriver`, which does so on purpose), nor merged with or
/// split from another, as far as callers see: frames that share a datagram on the way ([`crate::pack`]) come
/// apart again. No frame begins with the magic of a pack.
///
/// An error that [is not a dead rail](DriverError::is_rail_dead) leaves the driver as it was before the call. After a dead
/// rail the caller drops the driver. Dropping returns only when the NIC can touch no buffer any more.
pub trait Driver: Send {
    /// This driver's capabilities. AF_XDP: frames as long as up to four chunks hold, `gather: false`. Verbs:
    /// the port's active MTU, `gather: false`.
    fn caps(&self) -> &Caps;

    /// The counters.
    fn counters(&self) -> &Counters;

    /// Where others reach this rail. AF_XDP: IP address and UDP port of the shadow socket. Verbs: GID, queue pair number, key.
    fn local_address(&self) -> RawAddress;

    /// Makes an address usable, whether or not a peer listens there. The same address gives the same id until `forget`.
    /// AF_XDP: route and neighbour become a prepared Ethernet/IP/UDP header. Verbs: an address handle.
    ///
    /// # Errors
    /// `AddressUnusable` for another driver's, version's or family's address; `AddressesFull`; `Transient`.
    fn resolve(&mut self, address: &RawAddress) -> Result<AddressId, DriverError>;

    /// Ends the use of an id. Frames staged for it may be dropped; the id may be given out again much later.
    fn forget(&mut self, address: AddressId);

    /// Known facts about the way to an address; `None` for an unknown id.
    fn path(&self, to: AddressId) -> Option<Path>;

    /// The next frame buffer, `frame_bytes_max` long, contents arbitrary; headroom for the NIC's headers is already set
    /// aside. `None`: every buffer is staged or with the NIC; flush, and come back after some have completed. Until the
    /// `commit`, another `lease` gives the same buffer with its contents. AF_XDP: a slot of the umem from the free
    /// list, behind its headroom. Verbs: a registered frame.
    fn lease(&mut self) -> Option<&mut [u8]>;

    /// Stages the leased buffer's first `frame_bytes` bytes, followed by `payload`, as one frame. The payload is dropped when
    /// the NIC does not need it any more, at the latest when `completed_total` counts the frame. A frame that cannot be sent
    /// (unknown address, longer than the path takes) is dropped and counted, and completes in its turn. A path may have become
    /// shorter since the frame was cut: send it if that can be done at all. Without a lease nothing is staged; that is
    /// counted as `lost_other`.
    /// AF_XDP: copies the payload into the slot, or frame and payload behind those before it in theirs. Verbs: copies it into the slot.
    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload);

    /// Hands one short frame over at once, as lease, commit and flush would. False: it cannot go this way, because frames are staged before it,
    /// or for any other reason; nothing has happened then.
    fn send_fast(&mut self, to: AddressId, frame: &[u8]) -> bool {
        let _ = (to, frame);
        false
    }

    /// Hands staged frames to the NIC, and collects completions. Returns how many frames it handed over; those it could not
    /// (the NIC is full) stay staged for the next flush.
    /// AF_XDP: publishes the TX ring, `sendto` only under need_wakeup, reads the completion ring. Verbs: one `post_send` of a
    /// chain, `poll_cq` of the send queue.
    ///
    /// # Errors
    /// `Transient` or `RailDead`; never for a lost frame.
    fn flush(&mut self) -> Result<usize, DriverError>;

    /// Gives up to `frames_max` whole frames to `each`, without the NIC's headers, and returns how many. The
    /// bytes are lent for the call only. One call looks at the NIC at most a few times: 0 or fewer than
    /// `frames_max` does not mean that nothing more will be found by the next call. Also collects
    /// completions. AF_XDP: RX ring, then the chunks go to the fill ring. Verbs: `poll_cq`, skips the 40-byte
    /// GRH, posts the buffers again in one chain.
    ///
    /// # Errors
    /// `Transient` or `RailDead`; frames already given to `each` stay given.
    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError>;

    /// As `receive`, but where a payload lies somewhere else, `each` gets the head alone, and has the payload brought straight to where it
    /// belongs, or does not want it.
    ///
    /// # Errors
    /// As `receive`.
    fn receive_deferred(
        &mut self,
        frames_max: usize,
        each: &mut EachFrame<'_>,
    ) -> Result<usize, DriverError> {
        self.receive(frames_max, &mut |frame| each(frame, None))
    }

    /// Reads `to.len()` bytes at `place` of the memory of the process that holds the address, a peer on this
    /// host (R11). False: that is not possible, not permitted, or the peer has dropped its driver; the
    /// content of `to` is arbitrary then. Bytes that were read had lain there while the peer still had its
    /// driver.
    fn pull(&mut self, from: AddressId, place: u64, to: &mut [u8]) -> bool {
        let _ = (from, place, to);
        false
    }

    /// Whether a `receive` would find and do nothing, as far as a few loads can show. False is always right.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Frames committed since the driver was opened.
    fn staged_total(&self) -> u64;

    /// Of those, how many the NIC is done with, in the order of the commits: when this reaches the
    /// `staged_total` that followed a commit, that frame's payload may be written again. It shows nothing
    /// about delivery. Advances in `commit`, `flush`, `receive` and `drain` only.
    fn completed_total(&self) -> u64;

    /// Takes every buffer back. `Ready`: no staged frame is left, `completed_total` equals `staged_total`, the NIC
    /// reads no user payload and writes nothing outside `device_mappings`. `Pending`: the NIC has not let go of all
    /// yet; call again, the deadline is the caller's. Frames staged and not flushed are dropped (a caller that wants
    /// them sent flushes first); those with the NIC may still go out. The driver stays usable; the first `commit`
    /// afterwards ends the drained state. AF_XDP: waits for the completion ring; the fill ring's chunks stay, they are
    /// device memory. Verbs: waits for send completions; slots posted for receiving stay likewise.
    ///
    /// # Errors
    /// `Transient` or `RailDead`.
    fn drain(&mut self) -> Result<Poll<()>, DriverError>;

    /// Address ranges of this process that are the device's, in whole pages: rings, umem, doorbells. Never part of an
    /// image; a restore of the process opens a new driver.
    fn device_mappings(&self) -> Vec<Range<usize>> {
        Vec::new()
    }

    /// Descriptors that this driver has opened, and those of peers that it holds. Like the mappings, never part of an image.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// Something that the driver found out since the last call. Poll after `flush`.
    fn poll_notice(&mut self) -> Option<Notice> {
        None
    }

    /// Prepares a sleep on [`fd`](Driver::fd) *outside* the lock that guards the driver: `Sleep` promises that a frame which
    /// arrives from now on makes `fd` readable. A pending wake is taken back by the next `receive`.
    /// AF_XDP: nothing, the RX ring makes the socket readable. Verbs: `req_notify_cq`, then one more `poll_cq`.
    ///
    /// # Errors
    /// `Transient` or `RailDead`.
    fn arm(&mut self) -> Result<Armed, DriverError>;

    /// A descriptor that can be polled for readability after `arm`; `None`: this driver can only be polled by
    /// `receive`. Verbs: the completion channel.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Blocks until a frame may be there, at most for `timeout`. A sleep costs about 15 us of latency: spin first.
    ///
    /// # Errors
    /// `Transient` or `RailDead`.
    fn wait(&mut self, timeout: Duration) -> Result<Wake, DriverError>;
}

impl<D: Driver + ?Sized> Driver for Box<D> {
    fn caps(&self) -> &Caps {
        (**self).caps()
    }
    fn counters(&self) -> &Counters {
        (**self).counters()
    }
    fn local_address(&self) -> RawAddress {
        (**self).local_address()
    }
    fn resolve(&mut self, address: &RawAddress) -> Result<AddressId, DriverError> {
        (**self).resolve(address)
    }
    fn forget(&mut self, address: AddressId) {
        (**self).forget(address);
    }
    fn path(&self, to: AddressId) -> Option<Path> {
        (**self).path(to)
    }
    fn lease(&mut self) -> Option<&mut [u8]> {
        (**self).lease()
    }
    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) {
        (**self).commit(to, frame_bytes, payload);
    }
    fn send_fast(&mut self, to: AddressId, frame: &[u8]) -> bool {
        (**self).send_fast(to, frame)
    }
    fn flush(&mut self) -> Result<usize, DriverError> {
        (**self).flush()
    }
    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        (**self).receive(frames_max, each)
    }
    fn receive_deferred(
        &mut self,
        frames_max: usize,
        each: &mut EachFrame<'_>,
    ) -> Result<usize, DriverError> {
        (**self).receive_deferred(frames_max, each)
    }
    fn pull(&mut self, from: AddressId, place: u64, to: &mut [u8]) -> bool {
        (**self).pull(from, place, to)
    }
    fn is_quiet(&self) -> bool {
        (**self).is_quiet()
    }
    fn staged_total(&self) -> u64 {
        (**self).staged_total()
    }
    fn completed_total(&self) -> u64 {
        (**self).completed_total()
    }
    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        (**self).drain()
    }
    fn device_mappings(&self) -> Vec<Range<usize>> {
        (**self).device_mappings()
    }
    fn descriptors(&self) -> Vec<RawFd> {
        (**self).descriptors()
    }
    fn poll_notice(&mut self) -> Option<Notice> {
        (**self).poll_notice()
    }
    fn arm(&mut self) -> Result<Armed, DriverError> {
        (**self).arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }
    fn wait(&mut self, timeout: Duration) -> Result<Wake, DriverError> {
        (**self).wait(timeout)
    }
}
