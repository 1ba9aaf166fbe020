//! Which pages of a process are its own, and their way into a file. Runs in the forked child, or while all threads stand
//! still: no allocation, no lock, no panic.

mod cover;
mod scan;
mod select;
mod write;

pub(crate) use scan::Scanner;
pub(crate) use select::{Plan, Saved};
pub(crate) use write::{InUse, Progress, Target, write, write_some};

use crate::arch::PAGE_BYTES;
use crate::sys::{Answer, Errno};

/// Computes the checksum of the section of pages. In the forked child: it may not allocate, nor take a lock.
pub trait Sum {
    /// Adds the next bytes.
    fn update(&mut self, bytes: &[u8]);
    /// Of everything so far.
    fn value(&self) -> u64;
}

/// Bytes of the tag of a page that is covered.
pub const COVER_TAG_BYTES: usize = 16;

/// Makes pages unreadable for others on their way into the file. In the forked child: it may not allocate, nor take a lock.
pub trait Cover {
    /// Changes, in place, the page that is the how-manieth of the section, and gives its tag.
    fn cover(&self, page: u64, bytes: &mut [u8]) -> [u8; COVER_TAG_BYTES];
}

/// Limits the rate of writing pages while the program runs. In the forked child: it may not allocate, nor take a lock.
pub trait Pace {
    /// How much to write at once, at most. Whole pages are written, and at least one.
    fn piece_bytes(&self) -> u64;
    /// So many bytes more have been written: how long to wait before the next ones, ns.
    fn wait_ns(&mut self, bytes: u64) -> u64;
}

/// Pages that lie one after the other, and where their content is read: there, or in a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Run {
    pub(crate) address: u64,
    pub(crate) source: u64,
    pub(crate) pages: u64,
}

impl Run {
    pub(crate) fn in_place(address: u64, bytes: u64) -> Run {
        Run { address, source: address, pages: bytes / PAGE_BYTES }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES
    }
}

/// Runs, as many as there is room for.
pub(crate) struct Runs<'a> {
    room: &'a mut [Run],
    filled: usize,
}

impl<'a> Runs<'a> {
    pub(crate) fn new(room: &'a mut [Run]) -> Runs<'a> {
        Runs { room, filled: 0 }
    }

    pub(crate) fn push(&mut self, run: Run) -> Answer<()> {
        if run.pages == 0 {
            return Ok(());
        }
        if let Some(last) = self.filled.checked_sub(1).and_then(|last| self.room.get_mut(last))
            && last.address + last.bytes() == run.address
            && last.source + last.bytes() == run.source
        {
            last.pages += run.pages;
            return Ok(());
        }
        *self.room.get_mut(self.filled).ok_or(Errno(libc::ENOBUFS))? = run;
        self.filled += 1;
        Ok(())
    }

    pub(crate) fn as_slice(&self) -> &[Run] {
        self.room.get(..self.filled).unwrap_or(&[])
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.as_slice().iter().map(Run::bytes).sum()
    }
}
