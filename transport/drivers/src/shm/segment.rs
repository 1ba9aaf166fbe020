//! Making a segment, and finding another process's.
//!
//! A segment has no name: it is a memfd, which others open through `/proc/PID/fd`. So it ends with the last
//! process that uses it, however it ends. It cannot collide with a name, it does not depend on the size
//! of `/dev/shm`, and it can be sealed: no process can shrink it under the others. The kernel lets only
//! processes of the same user open it. The bell, an anonymous pipe, is found the same way.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::atomic::AtomicU16;

use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{ftruncate, pipe2};

use super::address::SegmentAddress;
use super::barrier;
use super::host::{Host, Process, is_apart, processes};
use super::layout::{
    ACTIVE, ACTIVE_WORDS, AREA_BYTES, ARMED, FRONT_BYTES, HEADER_AREA_BYTES, HEADER_BARRIER, HEADER_BELL,
    HEADER_CLOSED, HEADER_KEY_ADDRESS, HEADER_MAGIC, HEADER_PID, HEADER_RINGS, HEADER_SERIAL,
    HEADER_SLOT_BYTES, HEADER_SLOTS, HEADER_START, HEADER_VERSION, MAGIC, RING_BYTES, RINGS_MAX,
    SEGMENT_BYTES, SLOT_BYTES, SLOTS, VERSION, ring_at,
};
use super::map::Mapping;
use crate::error::{DriverError, Errno, Operation};
use crate::sync::{Ordering, fence, light_fence};

/// The seals that keep the length of a segment.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// The layout in the header, by place; ours and a peer's must be the same.
const GEOMETRY: [(usize, usize); 4] = [
    (HEADER_RINGS, RINGS_MAX),
    (HEADER_SLOTS, SLOTS),
    (HEADER_SLOT_BYTES, SLOT_BYTES),
    (HEADER_AREA_BYTES, AREA_BYTES),
];

/// The own segment: others write to it, and this process reads it.
pub(super) struct Inbox {
    file: OwnedFd,
    pub(super) front: Mapping,
    /// The end that is read, and the one that others open for writing.
    bell: (File, OwnedFd),
    pub(super) place: SegmentAddress,
    /// Peers rely on it that barriers are made for them.
    barriers: bool,
}

impl Inbox {
    pub(super) fn create() -> Result<Inbox, DriverError> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let system = |error: &std::io::Error| cannot(Operation::FindHost, Errno::from(error));
        let place = SegmentAddress {
            host: Host::this().map_err(|error| system(&error))?,
            owner: Process::this().map_err(|error| system(&error))?,
            descriptor: 0,
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        Inbox::make(place).map_err(|errno| cannot(Operation::CreateSegment, errno))
    }

    fn make(mut place: SegmentAddress) -> Result<Inbox, Errno> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"stillwire", flags).map_err(errno)?;
        fchmod(file.as_fd(), Mode::S_IRUSR | Mode::S_IWUSR).map_err(errno)?;
        let bytes = i64::try_from(SEGMENT_BYTES).map_err(|_| Errno(libc::EFBIG))?;
        // Beyond the bound (`ulimit -f`) the kernel would send a signal that ends the process.
        if getrlimit(Resource::RLIMIT_FSIZE).map_err(errno)?.0 < SEGMENT_BYTES as u64 {
            return Err(Errno(libc::EFBIG));
        }
        ftruncate(file.as_fd(), bytes).map_err(errno)?;
        fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(SEALS)).map_err(errno)?;
        let front = Mapping::new(file.as_fd(), 0, FRONT_BYTES)?;
        let (listened, rung) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(errno)?;
        place.descriptor = u32::try_from(file.as_raw_fd()).map_err(|_| Errno(libc::EBADF))?;
        let bell = u32::try_from(rung.as_raw_fd()).map_err(|_| Errno(libc::EBADF))?;
        for (at, value) in GEOMETRY {
            let value = u32::try_from(value).map_err(|_| Errno(libc::EFBIG))?;
            front.u32(at).store(value, Ordering::Relaxed);
        }
        front.u32(HEADER_PID).store(place.owner.pid, Ordering::Relaxed);
        front.u32(HEADER_START).store(place.owner.start, Ordering::Relaxed);
        front.u32(HEADER_SERIAL).store(u32::from(place.serial), Ordering::Relaxed);
        front.u32(HEADER_BELL).store(bell, Ordering::Relaxed);
        let barriers = barrier::take_part() && barrier::everywhere();
        front.u32(HEADER_BARRIER).store(u32::from(barriers), Ordering::Relaxed);
        front.u32(HEADER_VERSION).store(VERSION, Ordering::Relaxed);
        front.u64(HEADER_MAGIC).store(MAGIC, Ordering::Release);
        let inbox = Inbox { file, front, bell: (File::from(listened), rung), place, barriers };
        // Opens the segment as every peer will. It reports at once if there is no `/proc`, or if this process
        // may not be looked at.
        Outbox::open(&inbox.place).map_err(|refused| match refused {
            Refused::Gone => Errno(libc::ENOENT),
            Refused::Forbidden(errno) => errno,
            Refused::Foreign | Refused::Full => Errno(libc::EINVAL),
        })?;
        Ok(inbox)
    }

    pub(super) fn map_ring(&self, ring: usize) -> Result<Mapping, Errno> {
        Mapping::new(self.file.as_fd(), ring_at(ring), RING_BYTES)
    }

    /// Readable after a sender has rung.
    pub(super) fn bell(&self) -> &File {
        &self.bell.0
    }

    pub(super) fn descriptors(&self) -> [RawFd; 3] {
        [self.file.as_raw_fd(), self.bell.0.as_raw_fd(), self.bell.1.as_raw_fd()]
    }

    /// Empties the bell's pipe.
    pub(super) fn silence(&self) {
        let mut rung = [0; 64];
        // Nothing to read: no sender has rung.
        let _ = (&self.bell.0).read(&mut rung);
    }

    /// Between saying that we sleep, or do not look at a ring any more, and the last look: the other side of [`Outbox::announce`]. False: a
    /// frame may be missed.
    pub(super) fn meet_senders(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.barriers || barrier::everywhere()
    }

    /// Which rings have a bit in word `word`.
    pub(super) fn active(&self, word: usize) -> u64 {
        debug_assert!(word < ACTIVE_WORDS);
        self.front.u64(ACTIVE + word * 8).load(Ordering::Acquire)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.front.u32(HEADER_CLOSED).store(1, Ordering::Release);
    }
}

/// Why a segment could not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// There is no such process, or it has closed it.
    Gone,
    /// The system does not let us.
    Forbidden(Errno),
    /// All its rings have living owners.
    Full,
    /// It is something else, or of another layout.
    Foreign,
}

/// Another process's segment, or our own as a sender sees it.
pub(super) struct Outbox {
    pub(super) front: Mapping,
    file: OwnedFd,
    owner: Process,
    /// The owner makes our barriers.
    spared: bool,
    /// The other end of its bell, once it had to be rung.
    bell: Option<File>,
}

impl Outbox {
    pub(super) fn open(place: &SegmentAddress) -> Result<Outbox, Refused> {
        let path = format!("{}/{}/fd/{}", processes(), place.owner.pid, place.descriptor);
        let file = open(&path, libc::O_CLOEXEC | libc::O_NONBLOCK)?;
        let facts = file.metadata().map_err(|_| Refused::Gone)?;
        let seals = fcntl(file.as_fd(), FcntlArg::F_GET_SEALS).unwrap_or(0);
        let sealed = SealFlag::from_bits_truncate(seals).contains(SEALS);
        if !facts.is_file() || facts.len() != SEGMENT_BYTES as u64 || !sealed {
            // Its descriptor has become another one's.
            return Err(Refused::Gone);
        }
        let file = OwnedFd::from(file);
        let front = Mapping::new(file.as_fd(), 0, FRONT_BYTES).map_err(Refused::Forbidden)?;
        if front.u64(HEADER_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(Refused::Gone);
        }
        let same_layout = front.u32(HEADER_VERSION).load(Ordering::Relaxed) == VERSION
            && GEOMETRY.iter().all(|(at, value)| front.u32(*at).load(Ordering::Relaxed) as usize == *value);
        if !same_layout {
            return Err(Refused::Foreign);
        }
        let same = front.u32(HEADER_PID).load(Ordering::Relaxed) == place.owner.pid
            && front.u32(HEADER_START).load(Ordering::Relaxed) == place.owner.start
            && front.u32(HEADER_SERIAL).load(Ordering::Relaxed) == u32::from(place.serial);
        if !same {
            return Err(Refused::Gone);
        }
        let spared = front.u32(HEADER_BARRIER).load(Ordering::Relaxed) == 1 && barrier::take_part();
        Ok(Outbox { front, file, owner: place.owner, spared, bell: None })
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        core::iter::once(self.file.as_raw_fd()).chain(self.bell.as_ref().map(AsRawFd::as_raw_fd))
    }

    pub(super) fn map_ring(&self, ring: usize) -> Result<Mapping, Errno> {
        Mapping::new(self.file.as_fd(), ring_at(ring), RING_BYTES)
    }

    /// Whether its owner has closed it. One that was killed has not.
    pub(super) fn is_closed(&self) -> bool {
        self.front.u32(HEADER_CLOSED).load(Ordering::Relaxed) != 0
    }

    /// Where the owner's key lies in its memory; `None`: its memory is not to be read.
    pub(super) fn key_address(&self) -> Option<u64> {
        // process_vm_readv(2) takes ids of the own namespace alone.
        if is_apart() {
            return None;
        }
        Some(self.front.u64(HEADER_KEY_ADDRESS).load(Ordering::Acquire)).filter(|address| *address != 0)
    }

    pub(super) fn owner(&self) -> Process {
        self.owner
    }

    /// Notifies the owner of written frames in ring `ring`: makes sure that it looks there, and wakes it if it sleeps.
    pub(super) fn announce(&mut self, ring: usize) {
        // The owner does the same the other way round: it announces that it stops looking, or sleeps, and
        // then looks once more. Either it sees the frames, or we see its announcement.
        if self.spared {
            light_fence();
        } else {
            fence(Ordering::SeqCst);
        }
        let (word, bit) = (ACTIVE + ring / 64 * 8, 1u64 << (ring % 64));
        let active = self.front.u64(word);
        if active.load(Ordering::Relaxed) & bit == 0 {
            active.fetch_or(bit, Ordering::SeqCst);
            // An owner that is about to sleep looks for the bit: the two steps need a fence between them, too. (On x86-64 the
            // exchange is one.)
            fence(Ordering::SeqCst);
        }
        let armed = self.front.u32(ARMED);
        if armed.load(Ordering::Relaxed) != 0 && armed.swap(0, Ordering::SeqCst) != 0 {
            self.ring_bell();
        }
    }

    #[cold]
    fn ring_bell(&mut self) {
        if self.bell.is_none() {
            let descriptor = self.front.u32(HEADER_BELL).load(Ordering::Relaxed);
            let path = format!("{}/{}/fd/{descriptor}", processes(), self.owner.pid);
            // For reading too: then writing never raises SIGPIPE, even if the peer has died.
            self.bell = open(&path, libc::O_CLOEXEC | libc::O_NONBLOCK)
                .ok()
                .filter(|file| file.metadata().is_ok_and(|facts| facts.file_type().is_fifo()));
        }
        if let Some(bell) = &mut self.bell {
            // Full: it has been rung already. A receiver that cannot be woken finds the frame when its sleep is over.
            let _ = bell.write(&[1]);
        }
    }
}

fn open(path: &str, flags: i32) -> Result<File, Refused> {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM | libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                Refused::Forbidden(Errno::from(&error))
            }
            _ => Refused::Gone,
        }
    })
}

fn errno(error: nix::errno::Errno) -> Errno {
    Errno(error as i32)
}

fn cannot(operation: Operation, errno: Errno) -> DriverError {
    DriverError::CannotOpen { operation, errno }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_segment_is_opened_by_its_place_and_by_no_other() {
        let inbox = Inbox::create().expect("a segment");
        let place = inbox.place;
        assert!(Outbox::open(&place).is_ok_and(|outbox| !outbox.is_closed()));
        let refused = |place: SegmentAddress| Outbox::open(&place).err();
        assert_eq!(refused(SegmentAddress { serial: place.serial ^ 1, ..place }), Some(Refused::Gone));
        let owner = Process { start: place.owner.start + 1, ..place.owner };
        assert_eq!(refused(SegmentAddress { owner, ..place }), Some(Refused::Gone));
        // Standard input is no segment, and the last has no such descriptor.
        for descriptor in [0, 1 << 30] {
            assert_eq!(refused(SegmentAddress { descriptor, ..place }), Some(Refused::Gone));
        }
        let outbox = Outbox::open(&place).expect("still open");
        drop(inbox);
        assert!(outbox.is_closed());
        // Which reason depends on the later use of the descriptor in this process.
        assert!(refused(place).is_some());
    }

    #[test]
    fn another_layout_is_refused() {
        let inbox = Inbox::create().expect("a segment");
        for at in [HEADER_VERSION, HEADER_RINGS, HEADER_SLOTS, HEADER_SLOT_BYTES, HEADER_AREA_BYTES] {
            let good = inbox.front.u32(at).load(Ordering::Relaxed);
            inbox.front.u32(at).store(good ^ 4, Ordering::Relaxed);
            assert_eq!(Outbox::open(&inbox.place).err(), Some(Refused::Foreign), "field at {at}");
            inbox.front.u32(at).store(good, Ordering::Relaxed);
        }
        inbox.front.u64(HEADER_MAGIC).store(MAGIC ^ 1, Ordering::Relaxed);
        assert_eq!(Outbox::open(&inbox.place).err(), Some(Refused::Gone));
    }

    #[test]
    fn nobody_can_shrink_a_segment() {
        let inbox = Inbox::create().expect("a segment");
        let outbox = Outbox::open(&inbox.place).expect("our own");
        assert_eq!(ftruncate(outbox.file.as_fd(), 0), Err(nix::errno::Errno::EPERM));
        let mode =
            File::from(outbox.file.try_clone().expect("a descriptor")).metadata().expect("a file").mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
