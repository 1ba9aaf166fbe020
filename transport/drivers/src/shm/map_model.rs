//! A segment as the model checker sees it: words of its own for each place that `layout` names, and tracked cells for bytes. Stands in for
//! `map.rs`: the file that is mapped is real, and only tells segments apart.

use core::ops::Range;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use loom::cell::UnsafeCell;
use nix::sys::stat::fstat;

use super::layout::{
    ACTIVE, ACTIVE_WORDS, AREA, AREA_BYTES, ARMED, ENTRY_KEY, ENTRY_KEY_ADDRESS, ENTRY_OWNER, ENTRY_PULL,
    ENTRY_TAKEN, HEADER_AREA_BYTES, HEADER_BARRIER, HEADER_BELL, HEADER_CLOSED, HEADER_KEY_ADDRESS,
    HEADER_MAGIC, HEADER_PID, HEADER_RINGS, HEADER_SERIAL, HEADER_SLOT_BYTES, HEADER_SLOTS, HEADER_START,
    HEADER_VERSION, SLOT_ADDRESS, SLOT_BODY, SLOT_BYTES, SLOT_HEAD, SLOT_LINE_BYTES, SLOT_LONG_BYTES,
    SLOT_PAYLOAD_BYTES, SLOT_PLACE, SLOT_STATE, SLOTS, entry, ring_at,
};
use crate::error::Errno;
use crate::sync::{AtomicU32, AtomicU64};

/// Rings that a model uses: each word costs every execution time.
const RINGS: usize = 2;

/// Bytes of one tracked cell: what the area gives out is a multiple of this.
const CELL_BYTES: usize = 64;

/// Words and bytes of one segment.
struct Memory {
    narrow: BTreeMap<usize, AtomicU32>,
    wide: BTreeMap<usize, AtomicU64>,
    /// By where they begin.
    bytes: BTreeMap<usize, Cell>,
}

/// Bytes that are written and read together.
struct Cell {
    bytes: UnsafeCell<Vec<u8>>,
    len: usize,
}

// SAFETY: the model checker runs all threads of a model on one thread, and reports the races that are looked for.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Memory {
        let header = [
            HEADER_VERSION,
            HEADER_RINGS,
            HEADER_SLOTS,
            HEADER_SLOT_BYTES,
            HEADER_AREA_BYTES,
            HEADER_PID,
            HEADER_START,
            HEADER_SERIAL,
            HEADER_BELL,
            HEADER_CLOSED,
            HEADER_BARRIER,
            ARMED,
        ];
        let mut memory = Memory { narrow: BTreeMap::new(), wide: BTreeMap::new(), bytes: BTreeMap::new() };
        header.into_iter().for_each(|at| memory.narrow(at));
        [HEADER_MAGIC, HEADER_KEY_ADDRESS].into_iter().for_each(|at| memory.wide(at));
        (0..ACTIVE_WORDS).for_each(|word| memory.wide(ACTIVE + word * 8));
        for ring in 0..RINGS {
            for at in [ENTRY_OWNER, ENTRY_KEY_ADDRESS, ENTRY_KEY, ENTRY_TAKEN] {
                memory.wide(entry(ring, at));
            }
            memory.narrow(entry(ring, ENTRY_PULL));
            for slot in (0..SLOTS).map(|slot| ring_at(ring) + slot * SLOT_BYTES) {
                for at in [0, SLOT_ADDRESS] {
                    memory.wide(slot + at);
                }
                for at in [SLOT_PLACE, SLOT_LONG_BYTES, SLOT_PAYLOAD_BYTES, SLOT_STATE] {
                    memory.narrow(slot + at);
                }
                // Pieces that are copied apart.
                memory.cells(slot + SLOT_BODY, slot + SLOT_HEAD);
                memory.cells(slot + SLOT_HEAD, slot + SLOT_LINE_BYTES);
                memory.cells(slot + SLOT_LINE_BYTES, slot + SLOT_BYTES);
            }
            let area = ring_at(ring) + AREA;
            for at in (area..area + AREA_BYTES).step_by(CELL_BYTES) {
                memory.cells(at, at + CELL_BYTES);
            }
        }
        memory
    }

    fn narrow(&mut self, at: usize) {
        self.narrow.insert(at, AtomicU32::new(0));
    }

    fn wide(&mut self, at: usize) {
        self.wide.insert(at, AtomicU64::new(0));
    }

    fn cells(&mut self, from: usize, to: usize) {
        self.bytes.insert(from, Cell { bytes: UnsafeCell::new(vec![0; to - from]), len: to - from });
    }

    /// The cells of a range of bytes, with the part of each, and of the range. Words in the range count as touched.
    fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (&Cell, Range<usize>, Range<usize>)> {
        let (start, end) = (range.start, range.end);
        self.narrow.range(range.clone()).for_each(|(_, word)| word.is_touched());
        self.wide.range(range.clone()).for_each(|(_, word)| word.is_touched());
        let first = self.bytes.range(..=start).next_back().map_or(start, |(at, _)| *at);
        let cells = if range.is_empty() { first..first } else { first..end };
        self.bytes.range(cells).map(move |(at, cell)| {
            let (from, to) = (start.max(*at), end.min(at + cell.len));
            assert!(from < to, "bytes at {start} that no cell holds");
            (cell, from - at..to - at, from - start..to - start)
        })
    }
}

/// Segments that are mapped now, by the file's number.
static SEGMENTS: LazyLock<Mutex<HashMap<u64, Weak<Memory>>>> = LazyLock::new(Mutex::default);

/// A mapped part of a segment.
pub(super) struct Mapping {
    memory: Arc<Memory>,
    start: usize,
    bytes: usize,
}

impl Mapping {
    pub(super) fn new(file: BorrowedFd<'_>, start: usize, bytes: usize) -> Result<Mapping, Errno> {
        let number = fstat(file).map_err(|error| Errno(error as i32))?.st_ino;
        let mut segments = SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = segments.get(&number).and_then(Weak::upgrade).unwrap_or_else(|| {
            let memory = Arc::new(Memory::new());
            segments.insert(number, Arc::downgrade(&memory));
            memory
        });
        Ok(Mapping { memory, start, bytes })
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    pub(super) fn u32(&self, at: usize) -> &AtomicU32 {
        &self.memory.narrow[&(self.start + at)]
    }

    pub(super) fn u64(&self, at: usize) -> &AtomicU64 {
        &self.memory.wide[&(self.start + at)]
    }

    pub(super) fn read(&self, at: usize, to: &mut [u8]) {
        let start = self.start + at;
        for (cell, part, of_all) in self.memory.parts(start..start + to.len()) {
            // SAFETY: the checker has found that nothing writes the cell meanwhile.
            cell.bytes.with(|bytes| to[of_all].copy_from_slice(unsafe { &(&*bytes)[part] }));
        }
    }

    pub(super) fn write(&self, at: usize, from: &[u8]) {
        let start = self.start + at;
        for (cell, part, of_all) in self.memory.parts(start..start + from.len()) {
            // SAFETY: the checker has found that nothing else uses the cell meanwhile.
            cell.bytes.with_mut(|bytes| unsafe { (&mut *bytes)[part].copy_from_slice(&from[of_all]) });
        }
    }
}
