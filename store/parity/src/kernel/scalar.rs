//! The oracle: one look-up for each byte of each source. Also computes the rest at the end of vectors.

use crate::field::PRODUCTS;

/// Sets `into`, or adds to it, the sums of `sources` times `factors` (by source, then by destination).
pub(super) fn product(adds: bool, factors: &[u8], sources: &[&[u8]], into: &mut [&mut [u8]]) {
    let rows = into.len();
    for (row, destination) in into.iter_mut().enumerate() {
        if !adds {
            destination.fill(0);
        }
        for (column, source) in sources.iter().enumerate() {
            let products = &PRODUCTS[usize::from(factors[column * rows + row])];
            for (to, from) in destination.iter_mut().zip(*source) {
                *to ^= products[usize::from(*from)];
            }
        }
    }
}
