//! Pages of parity on their way.

use std::collections::BTreeMap;

use parity::{Kernel, Matrix};

use crate::limits::PAGE_BYTES;

/// Pages of a chunk: as many as a number of 16 bits has, and as a unit has by default.
pub const CHUNK_PAGES: u64 = 16;

/// The contribution of one or several members to the parity that another one keeps: pages by number. A page that is not
/// in it is zero and is not sent.
///
/// Contributions add up in any order. So strips travel on every route (each to the keeper, around a ring, along a
/// tree), and each hop calls [`Strip::add`]. Pages lie together in chunks of [`CHUNK_PAGES`], because an operation on
/// many pages at once costs less than one on each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strip(BTreeMap<u64, Chunk>);

/// Pages 16 n to 16 n + 15, as far as they are there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chunk {
    /// Bit i: page 16 n + i is there.
    mask: u16,
    /// Those that are there, one after the other.
    pages: Vec<u8>,
}

impl Strip {
    /// The pages by rising number.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.chunks().flat_map(|(number, mask, pages)| {
            let numbers = (0..CHUNK_PAGES).filter(move |i| mask & (1 << i) != 0);
            numbers.map(move |i| number * CHUNK_PAGES + i).zip(pages.chunks_exact(PAGE_BYTES))
        })
    }

    /// The chunks by rising number: number, which of its pages are there (bit by bit), and these one after the other.
    pub fn chunks(&self) -> impl Iterator<Item = (u64, u16, &[u8])> {
        self.0.iter().map(|(number, chunk)| (*number, chunk.mask, chunk.pages.as_slice()))
    }

    /// Number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.values().map(|chunk| chunk.mask.count_ones() as usize).sum()
    }

    /// Bytes of all pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.values().map(|chunk| chunk.pages.len()).sum()
    }

    /// Whether nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds pages that follow each other.
    ///
    /// # Panics
    /// If they are not whole pages.
    pub fn add_pages(&mut self, kernel: Kernel, first: u64, mut pages: &[u8]) {
        assert_eq!(pages.len() % PAGE_BYTES, 0, "strips consist of whole pages");
        let mut at = first;
        while !pages.is_empty() {
            let within = at % CHUNK_PAGES;
            let fits = usize::try_from(CHUNK_PAGES - within).expect("few") * PAGE_BYTES;
            let (part, rest) = pages.split_at(fits.min(pages.len()));
            let count = (part.len() / PAGE_BYTES) as u64;
            let mask = u16::try_from(((1u32 << count) - 1) << within).expect("within a chunk");
            self.add_chunk(kernel, at / CHUNK_PAGES, mask, part);
            (at, pages) = (at + count, rest);
        }
    }

    /// Adds a chunk as [`Strip::chunks`] returns it.
    ///
    /// # Panics
    /// If there are not as many pages as bits.
    pub fn add_chunk(&mut self, kernel: Kernel, number: u64, mask: u16, pages: &[u8]) {
        assert_eq!(pages.len(), mask.count_ones() as usize * PAGE_BYTES, "one page for each bit");
        if mask == 0 {
            return;
        }
        match self.0.get_mut(&number) {
            Some(chunk) => chunk.add(kernel, mask, pages),
            None => drop(self.0.insert(number, Chunk { mask, pages: pages.to_vec() })),
        }
    }

    /// Adds another strip for the same keeper.
    pub fn add(&mut self, kernel: Kernel, other: Strip) {
        for (number, added) in other.0 {
            match self.0.get_mut(&number) {
                Some(chunk) => chunk.add(kernel, added.mask, &added.pages),
                None => drop(self.0.insert(number, added)),
            }
        }
    }
}

impl Chunk {
    fn add(&mut self, kernel: Kernel, mask: u16, pages: &[u8]) {
        let one = Matrix::identity(1);
        if mask & !self.mask != 0 {
            self.widen(mask);
        }
        if mask == self.mask {
            return kernel.multiply_add(&one, &[pages], &mut [&mut self.pages]);
        }
        let bits = (0..CHUNK_PAGES).filter(|i| mask & (1 << i) != 0);
        for (bit, page) in bits.zip(pages.chunks_exact(PAGE_BYTES)) {
            let at = self.place(bit);
            kernel.multiply_add(&one, &[page], &mut [&mut self.pages[at..at + PAGE_BYTES]]);
        }
    }

    /// Where the page of that bit lies.
    fn place(&self, bit: u64) -> usize {
        (self.mask & ((1 << bit) - 1)).count_ones() as usize * PAGE_BYTES
    }

    /// Makes room for these pages too; they are zero.
    fn widen(&mut self, mask: u16) {
        let all = self.mask | mask;
        let mut pages = Vec::with_capacity(all.count_ones() as usize * PAGE_BYTES);
        for bit in (0..CHUNK_PAGES).filter(|i| all & (1 << i) != 0) {
            let at = self.place(bit);
            match self.mask & (1 << bit) {
                0 => pages.resize(pages.len() + PAGE_BYTES, 0),
                _ => pages.extend_from_slice(&self.pages[at..at + PAGE_BYTES]),
            }
        }
        (self.mask, self.pages) = (all, pages);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The meaning of a strip: pages by number.
    fn plain(runs: &[(u64, Vec<u8>)]) -> BTreeMap<u64, Vec<u8>> {
        let mut pages: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (first, run) in runs {
            for (number, byte) in (*first..).zip(run) {
                let page = pages.entry(number).or_insert_with(|| vec![0; PAGE_BYTES]);
                page.iter_mut().for_each(|sum| *sum ^= byte);
            }
        }
        pages
    }

    proptest! {
        #[test]
        fn strips_are_sums_of_pages(
            left in prop::collection::vec((0..50u64, prop::collection::vec(1..=255u8, 1..40)), 0..6),
            right in prop::collection::vec((0..50u64, prop::collection::vec(1..=255u8, 1..40)), 0..6),
        ) {
            let strip = |runs: &[(u64, Vec<u8>)]| {
                let mut strip = Strip::default();
                for (first, run) in runs {
                    let pages: Vec<u8> = run.iter().flat_map(|byte| [*byte; PAGE_BYTES]).collect();
                    strip.add_pages(Kernel::best(), *first, &pages);
                }
                strip
            };
            let both: Vec<_> = left.iter().chain(&right).cloned().collect();
            let mut sum = strip(&left);
            sum.add(Kernel::best(), strip(&right));
            let found: BTreeMap<u64, Vec<u8>> = sum.pages().map(|(at, page)| (at, page.to_vec())).collect();
            prop_assert_eq!(sum.len(), found.len());
            prop_assert_eq!(found, plain(&both));
            prop_assert!(sum == strip(&both));
        }
    }
}
