//! Reading ahead: packets are read one by one, and a request to an object store takes as long for a packet as for many.

use std::cell::RefCell;

use store::StorageError;
use store::packets::Source;

/// Bytes that are read at once; where several files are read in turns, they share them.
const WINDOW_BYTES: u64 = 4 << 20;
const WINDOW_BYTES_MIN: u64 = 512 << 10;

/// Places that are read from in turns: packets and their table.
const WINDOWS: usize = 2;

/// A source that remembers the windows it has read last.
pub(crate) struct Windows<T> {
    of: T,
    window_bytes: u64,
    /// The one used last at the end.
    windows: RefCell<Vec<(u64, Vec<u8>)>>,
}

impl<T: Source> Windows<T> {
    pub(crate) fn new(of: T) -> Windows<T> {
        Windows::among(of, 1)
    }

    /// One of so many files that are read in turns.
    pub(crate) fn among(of: T, files: usize) -> Windows<T> {
        let window_bytes = (WINDOW_BYTES / (files as u64).max(1)).max(WINDOW_BYTES_MIN);
        Windows { of, window_bytes, windows: RefCell::default() }
    }
}

impl<T: Source> Source for Windows<T> {
    fn bytes(&self) -> u64 {
        self.of.bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let end = offset.saturating_add(into.len() as u64);
        if end > self.of.bytes() {
            return self.of.read_at(offset, into);
        }
        let mut windows = self.windows.borrow_mut();
        let holds = |(start, bytes): &(u64, Vec<u8>)| *start <= offset && start + bytes.len() as u64 >= end;
        let window = match windows.iter().position(holds) {
            Some(at) => windows.remove(at),
            None => {
                let length = (self.of.bytes() - offset).min(self.window_bytes.max(into.len() as u64));
                let mut bytes = if windows.len() == WINDOWS { windows.remove(0).1 } else { Vec::new() };
                bytes.resize(usize::try_from(length).expect("a window fits into memory"), 0);
                self.of.read_at(offset, &mut bytes)?;
                (offset, bytes)
            }
        };
        let start = usize::try_from(offset - window.0).expect("within the window");
        into.copy_from_slice(&window.1[start..start + into.len()]);
        windows.push(window);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Counted(Vec<u8>, Cell<u32>);

    impl Source for &Counted {
        fn bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
            self.1.set(self.1.get() + 1);
            self.0.read_at(offset, into)
        }
    }

    #[test]
    fn what_is_read_is_right_and_read_once() {
        let content: Vec<u8> = (0..9_000_000u32).map(|at| (at * 7 % 251).to_le_bytes()[0]).collect();
        let counted = Counted(content.clone(), Cell::new(0));
        let windows = Windows::new(&counted);
        let mut piece = vec![0; 60_000];
        // As packets are read: an entry of the table, then the packet.
        for (entry, at) in (8_990_000..).step_by(24).zip((0..8_900_000).step_by(60_000)) {
            windows.read_at(entry as u64, &mut piece[..24]).unwrap();
            assert_eq!(piece[..24], content[entry..entry + 24]);
            windows.read_at(at as u64, &mut piece).unwrap();
            assert_eq!(piece, content[at..at + 60_000]);
        }
        assert!(counted.1.get() <= 4, "{} requests", counted.1.get());
        assert!(windows.read_at(8_999_999, &mut piece).is_err());
    }
}
