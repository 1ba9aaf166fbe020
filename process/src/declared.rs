//! Declarations by parts of a process that know of checkpoints: which of its resources are not saved, because their
//! owner makes them anew.

use std::ops::Range;
use std::os::fd::RawFd;
use std::path::PathBuf;

/// Descriptors and memory that are not saved.
///
/// A number that is declared and not open is passed over. All numbers that share one open file description share the
/// declaration of one of them: a program may have duplicated its standard output.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Declared {
    /// Descriptors that the starter of the restored process hands in, by name.
    pub handed_in: Vec<(String, RawFd)>,
    /// Descriptors that their owner in the process makes anew after the restore, such as the transport's
    /// sockets, with the owner's name.
    pub remade: Vec<(String, RawFd)>,
    /// Addresses whose pages and mappings are left out, because their owner maps them anew before anybody touches them.
    pub ignored_memory: Vec<Range<u64>>,
    /// Addresses that the process's own tracker watches ([`crate::track::Tracker::declare`]), rising, without overlap. Memory
    /// that is watched by others cannot be saved.
    pub tracked_memory: Vec<Range<u64>>,
    /// In a pid namespace of its own: where processes outside of it are found.
    pub outside: Option<Outside>,
    /// Called at the cut.
    pub at_cut: Option<AtCut>,
}

/// Called while all other threads stand still, when descriptors are looked at: it must not allocate, nor take a lock.
#[derive(Clone, Copy, Debug)]
pub struct AtCut(pub fn());

impl PartialEq for AtCut {
    fn eq(&self, other: &AtCut) -> bool {
        core::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for AtCut {}

/// Another view of the processes of this machine than the own `/proc`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outside {
    /// A directory as `/proc`.
    pub folder: PathBuf,
    /// This process's id there.
    pub own_id: u32,
}

impl Declared {
    /// Nothing declared.
    #[must_use]
    pub fn new() -> Declared {
        Declared::default()
    }

    /// Whether an address lies in memory that is left out.
    #[must_use]
    pub fn ignores(&self, address: u64) -> bool {
        self.ignored_memory.iter().any(|range| range.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_before_its_end() {
        let declared = Declared { ignored_memory: vec![0x1000..0x2000, 0x5000..0x6000], ..Declared::new() };
        let seen = [0xfff, 0x1000, 0x1fff, 0x2000, 0x5000, 0x6000].map(|address| declared.ignores(address));
        assert_eq!(seen, [false, true, true, false, true, false]);
    }
}
