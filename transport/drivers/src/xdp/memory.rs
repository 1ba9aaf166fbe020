//! Mapped memory of sockets: rings, and memory for frames.

use core::ffi::c_void;
use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::stat::fstat;
use nix::unistd::{SysconfVar, ftruncate, sysconf};

use crate::error::Errno;

/// A file that others may be given is never cut short or made longer: its pages are pinned.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// Mapped memory, unmapped at the end.
pub(super) struct Mapping {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; only its owner reaches into it, through `&mut self`.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Memory of our own for frames.
    pub(super) fn anonymous(bytes: usize) -> Result<Mapping, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let start = unsafe { mmap_anonymous(None, length(bytes)?, access(), MapFlags::MAP_PRIVATE) };
        let mapping = Mapping { start: start.map_err(known)?.cast(), bytes };
        mapping.keep_from_children()
    }

    /// Memory for frames that another process can be given, too, as a file without a name.
    pub(super) fn shared(bytes: usize) -> Result<(Mapping, OwnedFd), Errno> {
        let file = memfd_create(c"stillwire-xdp", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING);
        let file = file.map_err(known)?;
        ftruncate(&file, i64::try_from(bytes).unwrap_or(i64::MAX)).map_err(known)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)).map_err(known)?;
        let how = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let start = unsafe { mmap(None, length(bytes)?, access(), how, file.as_fd(), 0) };
        let mapping = Mapping { start: start.map_err(known)?.cast(), bytes };
        Ok((mapping.keep_from_children()?, file))
    }

    /// The whole of a file that [`Mapping::shared`] has made in another process; `EINVAL`: it is another kind of file, or has another length.
    pub(super) fn of_file(file: BorrowedFd<'_>, bytes: usize) -> Result<Mapping, Errno> {
        // Only files in memory have seals, and one that is sealed keeps its pages.
        let sealed = fcntl(file, FcntlArg::F_GET_SEALS).map_err(known)?;
        let found = usize::try_from(fstat(file).map_err(known)?.st_size).ok();
        if !SealFlag::from_bits_truncate(sealed).contains(SEALS) || found != Some(bytes) {
            return Err(Errno(libc::EINVAL));
        }
        let how = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let start = unsafe { mmap(None, length(bytes)?, access(), how, file, 0) };
        let mapping = Mapping { start: start.map_err(known)?.cast(), bytes };
        mapping.keep_from_children()
    }

    /// A ring of a socket.
    pub(super) fn ring(socket: BorrowedFd<'_>, page: i64, bytes: usize) -> Result<Mapping, Errno> {
        let how = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let start = unsafe { mmap(None, length(bytes)?, access(), how, socket, page) };
        let mapping = Mapping { start: start.map_err(known)?.cast(), bytes };
        mapping.keep_from_children()
    }

    /// No child gets it. A forked copy of a ring would keep the socket open, and with it the device's queue; one of the frames would be copied at
    /// the fork, because the kernel has pinned them.
    fn keep_from_children(self) -> Result<Mapping, Errno> {
        // SAFETY: the whole of our own mapping; sets only the behaviour of a fork.
        let advised = unsafe { madvise(self.start.cast(), self.bytes, MmapAdvise::MADV_DONTFORK) };
        advised.map_err(known)?;
        Ok(self)
    }

    /// The whole pages that it takes.
    pub(super) fn range(&self) -> Range<usize> {
        let page =
            sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|bytes| usize::try_from(bytes).ok());
        let start = self.start.as_ptr() as usize;
        start..start + self.bytes.next_multiple_of(page.unwrap_or(4096))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: an owner of pointers into the mapping holds the mapping too, and is dropped with it.
        let _ = unsafe { munmap(self.start.cast::<c_void>(), self.bytes) };
    }
}

fn access() -> ProtFlags {
    ProtFlags::PROT_READ | ProtFlags::PROT_WRITE
}

fn length(bytes: usize) -> Result<NonZeroUsize, Errno> {
    NonZeroUsize::new(bytes).ok_or(Errno(libc::EINVAL))
}

fn known(error: nix::errno::Errno) -> Errno {
    Errno(error as i32)
}
