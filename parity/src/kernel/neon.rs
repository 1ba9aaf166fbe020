//! NEON: each half of a byte is looked up by a table instruction.

use std::arch::aarch64::{
    uint8x16_t, vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8,
};

use super::{ROWS, SOURCES, scalar};
use crate::field::HALVES;

const _: () = assert!(ROWS == 4, "the kernels are made for one to four destinations");

/// See [`scalar::product`].
#[target_feature(enable = "neon")]
pub(super) fn product(adds: bool, factors: &[u8], sources: &[&[u8]], into: &mut [&mut [u8]]) {
    let plain = factors.iter().all(|factor| *factor == 1);
    match (into, plain) {
        ([], _) => {}
        ([a], true) => rows::<1, true>(adds, factors, sources, [a]),
        ([a], false) => rows::<1, false>(adds, factors, sources, [a]),
        ([a, b], _) => rows::<2, false>(adds, factors, sources, [a, b]),
        ([a, b, c], _) => rows::<3, false>(adds, factors, sources, [a, b, c]),
        ([a, b, c, d], _) => rows::<4, false>(adds, factors, sources, [a, b, c, d]),
        _ => unreachable!("a pass has at most {ROWS} destinations"),
    }
}

#[target_feature(enable = "neon")]
fn rows<const D: usize, const PLAIN: bool>(
    adds: bool,
    factors: &[u8],
    sources: &[&[u8]],
    mut into: [&mut [u8]; D],
) {
    const WIDTH: usize = 16;
    let length = into[0].len();
    assert!(factors.len() == sources.len() * D && sources.len() <= SOURCES);
    assert!(
        into.iter().all(|slice| slice.len() == length) && sources.iter().all(|slice| slice.len() == length)
    );
    let half = vdupq_n_u8(15);
    let table = |table: &[u8; 32], from: usize| {
        // SAFETY: 16 bytes from 0 or 16 on lie in the 32 of the table.
        unsafe { vld1q_u8(table[from..from + 16].as_ptr()) }
    };
    let times = |low: uint8x16_t, high: uint8x16_t, factor: u8| {
        let halves = &HALVES[usize::from(factor)];
        veorq_u8(vqtbl1q_u8(table(halves, 0), low), vqtbl1q_u8(table(halves, 16), high))
    };
    let mut at = 0;
    while at + WIDTH <= length {
        let mut sums = [vdupq_n_u8(0); D];
        if adds {
            for (sum, slice) in sums.iter_mut().zip(&into) {
                // SAFETY: all slices are `length` bytes long, and `at + WIDTH <= length`.
                *sum = unsafe { vld1q_u8(slice.as_ptr().add(at)) };
            }
        }
        for (column, source) in sources.iter().enumerate() {
            // SAFETY: as before.
            let bytes = unsafe { vld1q_u8(source.as_ptr().add(at)) };
            if PLAIN {
                sums[0] = veorq_u8(sums[0], bytes);
                continue;
            }
            let (low, high) = (vandq_u8(bytes, half), vshrq_n_u8::<4>(bytes));
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = veorq_u8(*sum, times(low, high, factors[column * D + row]));
            }
        }
        for (sum, slice) in sums.iter().zip(&mut into) {
            // SAFETY: as before, and the slice is borrowed exclusively.
            unsafe { vst1q_u8(slice.as_mut_ptr().add(at), *sum) };
        }
        at += WIDTH;
    }
    let mut tails = [&[][..]; SOURCES];
    for (tail, source) in tails.iter_mut().zip(sources) {
        *tail = &source[at..];
    }
    scalar::product(
        adds,
        factors,
        &tails[..sources.len()],
        &mut into.each_mut().map(|slice| &mut slice[at..]),
    );
}
