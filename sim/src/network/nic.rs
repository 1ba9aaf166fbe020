//! A simulated NIC that owns its buffers.
//!
//! Two sides meet here. The *program's* side is [`drivers::Driver`]: lease, commit, flush, receive, drain. The *hardware's*
//! side is driven by the world: it reads staged frames some time after the flush, reports completions later still, writes
//! arriving frames into receive buffers whenever it likes (also while the program is frozen), and may die at any instant.
//!
//! ```text
//!  completed     done       read       flushed     staged
//! ----|--reported--|--late----|--to read--|--to flush--|-- free --
//! ```

use core::ops::Range;
use core::task::Poll;
use core::time::Duration;

use drivers::{Armed, Caps, Counters, Driver, DriverError, Errno, Operation, Path, Payload, Wake};
use transport::{AddressId, RawAddress};

use super::FrameOrigin;
use crate::limits::{NIC_ADDRESSES_MAX, NIC_RECEIVE_FRAMES};

/// First bytes of a simulated address: kind and version.
const ENCODING: [u8; 2] = [0x51, 1];
const EXPECTED: &str = "an address of a NIC in the same simulated world";
/// ENODEV: the kernel's error for a NIC that has gone.
const DEVICE_GONE: Errno = Errno(19);

/// Number of a NIC in its world; numbers are never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NicId(pub u32);

impl NicId {
    /// The address under which others reach the NIC.
    #[must_use]
    pub fn address(self) -> RawAddress {
        let mut bytes = [0; 6];
        bytes[..2].copy_from_slice(&ENCODING);
        bytes[2..].copy_from_slice(&self.0.to_le_bytes());
        RawAddress::new(&bytes).unwrap_or(RawAddress::NONE)
    }

    /// The NIC at `address`; `None` for an address of another kind.
    #[must_use]
    pub fn at(address: &RawAddress) -> Option<NicId> {
        let [kind, version, id @ ..] = <[u8; 6]>::try_from(address.as_bytes()).ok()?;
        ([kind, version] == ENCODING).then(|| NicId(u32::from_le_bytes(id)))
    }
}

#[derive(Debug)]
struct SendSlot {
    to: NicId,
    /// Unusable frames complete without leaving.
    leaves: bool,
    frame_bytes: u32,
    payload: Payload,
    origin: FrameOrigin,
}

/// A frame that the NIC has read out of memory.
#[derive(Clone, Copy, Debug)]
pub struct Outbound<'a> {
    /// The NIC it is for.
    pub to: NicId,
    /// The leased part.
    pub head: &'a [u8],
    /// The gathered part.
    pub payload: &'a [u8],
    /// Its true sender.
    pub origin: FrameOrigin,
}

/// One NIC. See the module.
#[derive(Debug)]
pub struct SimNic {
    id: NicId,
    caps: Caps,
    counters: Counters,
    dead: bool,
    peers: Vec<Option<NicId>>,

    slots: Box<[SendSlot]>,
    frames: Box<[u8]>,
    staged: u64,
    flushed: u64,
    read: u64,
    done: u64,
    completed: u64,
    /// The present committer: judges compare the frame's fate with it.
    sender: FrameOrigin,

    receive_frames: Box<[u8]>,
    receive_bytes: Box<[u32]>,
    receive_truths: Box<[FrameOrigin]>,
    arrived: u64,
    taken: u64,
}

fn addresses(memory: &[u8]) -> Range<usize> {
    let Range { start, end } = memory.as_ptr_range();
    start.addr()..end.addr()
}

/// `slots` is a power of two.
fn slot_of(number: u64, slots: usize) -> usize {
    usize::try_from(number).unwrap_or(0) & (slots - 1)
}

impl SimNic {
    /// A NIC for frames of up to `frame_bytes_max` bytes, of which it holds `send_frames` on the way out: a power of two.
    #[must_use]
    pub fn new(id: NicId, frame_bytes_max: usize, send_frames: usize) -> SimNic {
        let slot = || SendSlot {
            to: id,
            leaves: false,
            frame_bytes: 0,
            payload: Payload::EMPTY,
            origin: FrameOrigin::default(),
        };
        SimNic {
            id,
            caps: Caps {
                kind: "sim",
                frame_bytes_max,
                burst: send_frames,
                gather: true,
                ordered: false,
                receive_bytes: NIC_RECEIVE_FRAMES * frame_bytes_max,
                within_host: false,
            },
            counters: Counters::default(),
            dead: false,
            peers: Vec::new(),
            slots: (0..send_frames).map(|_| slot()).collect(),
            frames: vec![0; send_frames * frame_bytes_max].into_boxed_slice(),
            staged: 0,
            flushed: 0,
            read: 0,
            done: 0,
            completed: 0,
            sender: FrameOrigin::default(),
            receive_frames: vec![0; NIC_RECEIVE_FRAMES * frame_bytes_max].into_boxed_slice(),
            receive_bytes: vec![0; NIC_RECEIVE_FRAMES].into_boxed_slice(),
            receive_truths: vec![FrameOrigin::default(); NIC_RECEIVE_FRAMES].into_boxed_slice(),
            arrived: 0,
            taken: 0,
        }
    }

    /// Becomes a new NIC at the same place: it has nothing of the old one's contents.
    pub fn renew(&mut self) {
        for slot in &mut self.slots {
            slot.payload = Payload::EMPTY;
        }
        self.counters = Counters::default();
        self.dead = false;
        self.peers.clear();
        (self.staged, self.flushed, self.read, self.done, self.completed) = (0, 0, 0, 0, 0);
        (self.arrived, self.taken) = (0, 0);
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> NicId {
        self.id
    }

    fn alive(&self, operation: Operation) -> Result<(), DriverError> {
        if self.dead { Err(DriverError::RailDead { operation, errno: DEVICE_GONE }) } else { Ok(()) }
    }

    fn frame_at(&self, slot: usize, bytes: u32) -> &[u8] {
        let start = slot * self.caps.frame_bytes_max;
        let end = start + usize::try_from(bytes).unwrap_or(usize::MAX);
        &self.frames[start..end]
    }

    fn collect_completions(&mut self) {
        self.completed = self.done;
    }

    /// Hardware: reads the next flushed frame out of memory; `None` if there is none, or the NIC is dead. Frames that cannot
    /// leave (unknown address) are passed over.
    pub fn read_next(&mut self) -> Option<Outbound<'_>> {
        if self.dead {
            return None;
        }
        while self.read < self.flushed {
            let slot = slot_of(self.read, self.slots.len());
            self.read += 1;
            let SendSlot { to, leaves, frame_bytes, origin, .. } = self.slots[slot];
            if leaves {
                let head = self.frame_at(slot, frame_bytes);
                let payload = self.slots[slot].payload.as_slice();
                return Some(Outbound { to, head, payload, origin });
            }
        }
        None
    }

    /// Hardware: every frame read so far is done with; the driver sees it at its next call.
    pub fn complete_read(&mut self) {
        while self.done < self.read {
            self.slots[slot_of(self.done, self.slots.len())].payload = Payload::EMPTY;
            self.done += 1;
        }
    }

    /// Frames that wait for a flush, or completions that a flush would collect.
    #[must_use]
    #[inline]
    pub fn has_staged(&self) -> bool {
        !self.dead && (self.flushed < self.staged || self.completed < self.done)
    }

    /// Hardware: frames flushed and not yet read.
    #[must_use]
    #[inline]
    pub fn has_to_read(&self) -> bool {
        !self.dead && self.read < self.flushed
    }

    /// Hardware: frames read whose completion has not been made known.
    #[must_use]
    pub fn has_to_complete(&self) -> bool {
        !self.dead && self.done < self.read
    }

    /// Hardware: writes an arriving frame into the next receive buffer. False if the frame was dropped: no buffer is posted,
    /// it is longer than a buffer, or the NIC is dead.
    pub fn write_arriving(&mut self, frame: &[u8], origin: FrameOrigin) -> bool {
        let max = self.caps.frame_bytes_max;
        if self.dead || frame.len() > max || self.arrived - self.taken >= NIC_RECEIVE_FRAMES as u64 {
            self.counters.lost_receive_overflow += u64::from(!self.dead);
            return false;
        }
        let slot = slot_of(self.arrived, NIC_RECEIVE_FRAMES);
        self.receive_frames[slot * max..slot * max + frame.len()].copy_from_slice(frame);
        self.receive_bytes[slot] = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        self.receive_truths[slot] = origin;
        self.arrived += 1;
        true
    }

    /// Sets the committer of frames from now on.
    pub fn set_sender(&mut self, sender: FrameOrigin) {
        self.sender = sender;
    }

    /// The true sender of the frame that [`Driver::receive`] will give out next.
    #[must_use]
    pub fn next_origin(&self) -> Option<FrameOrigin> {
        (self.taken < self.arrived).then(|| self.receive_truths[slot_of(self.taken, NIC_RECEIVE_FRAMES)])
    }

    /// Frames that wait for the program.
    #[must_use]
    #[inline]
    pub fn waiting(&self) -> u64 {
        self.arrived - self.taken
    }

    /// Hardware: the NIC stops, with all frames in it.
    pub fn die(&mut self) {
        self.dead = true;
    }

    /// Whether it has died.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead
    }
}

impl Driver for SimNic {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn local_address(&self) -> RawAddress {
        self.id.address()
    }

    fn resolve(&mut self, address: &RawAddress) -> Result<AddressId, DriverError> {
        let Some(nic) = NicId::at(address) else {
            return Err(DriverError::AddressUnusable { address: *address, expected: EXPECTED });
        };
        let at = match self.peers.iter().position(|peer| *peer == Some(nic)) {
            Some(at) => at,
            None if self.peers.len() >= NIC_ADDRESSES_MAX => {
                return Err(DriverError::AddressesFull { addresses: NIC_ADDRESSES_MAX });
            }
            None => {
                self.peers.push(Some(nic));
                self.peers.len() - 1
            }
        };
        Ok(AddressId(u32::try_from(at).unwrap_or(u32::MAX)))
    }

    fn forget(&mut self, address: AddressId) {
        if let Some(peer) = usize::try_from(address.0).ok().and_then(|at| self.peers.get_mut(at)) {
            *peer = None;
        }
    }

    fn path(&self, to: AddressId) -> Option<Path> {
        let peer = self.peers.get(usize::try_from(to.0).ok()?)?;
        peer.map(|_| Path { frame_bytes_max: self.caps.frame_bytes_max, on_host: false })
    }

    fn lease(&mut self) -> Option<&mut [u8]> {
        if self.dead || self.staged - self.completed >= self.slots.len() as u64 {
            return None;
        }
        let start = slot_of(self.staged, self.slots.len()) * self.caps.frame_bytes_max;
        Some(&mut self.frames[start..start + self.caps.frame_bytes_max])
    }

    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) {
        if self.staged - self.completed >= self.slots.len() as u64 {
            // Nothing is leased: there is no slot to stage it in.
            self.counters.lost_other += 1;
            return;
        }
        let peer = usize::try_from(to.0).ok().and_then(|at| self.peers.get(at)).copied().flatten();
        let fits = frame_bytes + payload.len() <= self.caps.frame_bytes_max;
        self.counters.lost_no_address += u64::from(peer.is_none());
        self.counters.lost_too_long += u64::from(peer.is_some() && !fits);
        let leaves = peer.is_some() && fits;
        let sender = self.sender;
        let slot = &mut self.slots[slot_of(self.staged, self.slots.len())];
        slot.to = peer.unwrap_or(self.id);
        slot.leaves = leaves;
        slot.frame_bytes = u32::try_from(frame_bytes).unwrap_or(u32::MAX);
        slot.origin = sender;
        slot.payload = if leaves { payload } else { Payload::EMPTY };
        self.staged += 1;
    }

    fn flush(&mut self) -> Result<usize, DriverError> {
        self.alive(Operation::Send)?;
        let frames = self.staged - self.flushed;
        self.flushed = self.staged;
        self.counters.frames_sent += frames;
        self.counters.send_calls += u64::from(frames > 0);
        self.collect_completions();
        Ok(usize::try_from(frames).unwrap_or(usize::MAX))
    }

    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        self.alive(Operation::Receive)?;
        self.collect_completions();
        let max = self.caps.frame_bytes_max;
        let mut given = 0;
        while given < frames_max && self.taken < self.arrived {
            let slot = slot_of(self.taken, NIC_RECEIVE_FRAMES);
            let bytes = usize::try_from(self.receive_bytes[slot]).unwrap_or(0);
            each(&self.receive_frames[slot * max..slot * max + bytes]);
            self.counters.bytes_received += bytes as u64;
            self.taken += 1;
            given += 1;
        }
        self.counters.frames_received += given as u64;
        self.counters.receive_calls += u64::from(given > 0);
        self.counters.empty_polls += u64::from(given == 0);
        Ok(given)
    }

    fn staged_total(&self) -> u64 {
        self.staged
    }

    fn completed_total(&self) -> u64 {
        self.completed
    }

    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        self.alive(Operation::Drain)?;
        // Frames that were not flushed never reached the NIC: they are dropped here, but counted as complete only in their turn.
        for number in self.flushed..self.staged {
            let slot = &mut self.slots[slot_of(number, self.slots.len())];
            self.counters.lost_drained += u64::from(slot.leaves);
            slot.leaves = false;
            slot.payload = Payload::EMPTY;
        }
        self.flushed = self.staged;
        while self.read < self.flushed && !self.slots[slot_of(self.read, self.slots.len())].leaves {
            self.read += 1;
        }
        while self.done < self.read && !self.slots[slot_of(self.done, self.slots.len())].leaves {
            self.done += 1;
        }
        self.collect_completions();
        Ok(if self.completed == self.staged { Poll::Ready(()) } else { Poll::Pending })
    }

    fn device_mappings(&self) -> Vec<Range<usize>> {
        [&self.frames, &self.receive_frames].map(|buffers| addresses(buffers)).to_vec()
    }

    fn arm(&mut self) -> Result<Armed, DriverError> {
        self.alive(Operation::Wait)?;
        Ok(if self.waiting() > 0 { Armed::FrameWaiting } else { Armed::Sleep })
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, DriverError> {
        self.alive(Operation::Wait)?;
        // Virtual time passes only between calls.
        let _ = timeout;
        Ok(if self.waiting() > 0 { Wake::Frame } else { Wake::Timeout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_device_writes_while_a_port_stands_still_is_its_own() {
        let mut nic = SimNic::new(NicId(0), 64, 4);
        assert_eq!(nic.drain(), Ok(Poll::Ready(())));
        let mappings = nic.device_mappings();
        let is_inside = |memory: &[u8]| {
            let found = addresses(memory);
            mappings.iter().any(|mapping| mapping.start <= found.start && found.end <= mapping.end)
        };
        assert!(nic.write_arriving(&[7; 64], FrameOrigin::default()));
        assert!(is_inside(nic.lease().expect("all are free")));
        let mut given = 0;
        nic.receive(8, &mut |frame| given += usize::from(is_inside(frame) && frame == [7; 64]))
            .expect("alive");
        assert_eq!(given, 1);
        assert!(!is_inside(&[0; 8]), "somebody else's");
    }
}
