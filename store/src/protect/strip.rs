//! Pages of parity on their way.

use std::collections::BTreeMap;

use parity::{Kernel, Matrix};

use crate::limits::PAGE_BYTES;

/// One page.
pub(crate) type Page = Box<[u8]>;

/// What one or several members contribute to the parity that another one keeps: pages by their number. A page that is not
/// in it is zero, and nobody sends it.
///
/// Contributions add up in any order. So whatever the way is (each to the keeper, around a ring, along a tree), what passes
/// on it is a strip, and what is done there is [`Strip::add`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strip(BTreeMap<u64, Page>);

impl Strip {
    /// The pages by rising number.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.0.iter().map(|(number, page)| (*number, &**page))
    }

    /// Number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a page.
    ///
    /// # Panics
    /// If it is not as long as a page.
    pub fn add_page(&mut self, kernel: Kernel, number: u64, page: &[u8]) {
        assert_eq!(page.len(), PAGE_BYTES, "strips consist of whole pages");
        match self.0.get_mut(&number) {
            Some(sum) => kernel.multiply_add(&Matrix::identity(1), &[page], &mut [sum]),
            None => drop(self.0.insert(number, page.into())),
        }
    }

    /// Adds another strip for the same keeper.
    pub fn add(&mut self, kernel: Kernel, other: Strip) {
        for (number, page) in other.0 {
            match self.0.get_mut(&number) {
                Some(sum) => kernel.multiply_add(&Matrix::identity(1), &[&page], &mut [sum]),
                None => drop(self.0.insert(number, page)),
            }
        }
    }
}
