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

/// Each byte, given as its two halves, times a constant, by the tables of its products.
#[inline]
#[target_feature(enable = "neon")]
fn times(low: uint8x16_t, high: uint8x16_t, tables: &[u8; 32]) -> uint8x16_t {
    // SAFETY: the tables are two times 16 bytes.
    let (of_low, of_high) = unsafe { (vld1q_u8(tables.as_ptr()), vld1q_u8(tables.as_ptr().add(16))) };
    veorq_u8(vqtbl1q_u8(of_low, low), vqtbl1q_u8(of_high, high))
}

// Loops count, because iterators that do not get inlined here would carry vectors through memory.
#[target_feature(enable = "neon")]
fn rows<const D: usize, const PLAIN: bool>(
    adds: bool,
    factors: &[u8],
    sources: &[&[u8]],
    mut into: [&mut [u8]; D],
) {
    const WIDTH: usize = 16;
    let (length, columns) = (into[0].len(), sources.len());
    assert!(factors.len() == columns * D && columns <= SOURCES);
    assert!(
        into.iter().all(|slice| slice.len() == length) && sources.iter().all(|slice| slice.len() == length)
    );
    let mut tables = [[&HALVES[0]; D]; SOURCES];
    let mut from = [std::ptr::null(); SOURCES];
    for column in 0..columns {
        from[column] = sources[column].as_ptr();
        for row in 0..D {
            tables[column][row] = &HALVES[usize::from(factors[column * D + row])];
        }
    }
    let to = into.each_mut().map(|slice| slice.as_mut_ptr());
    let half = vdupq_n_u8(15);
    let mut at = 0;
    while length - at >= WIDTH {
        let mut sums = [vdupq_n_u8(0); D];
        if adds {
            for row in 0..D {
                // SAFETY: all slices are `length` bytes long, of which WIDTH are left.
                sums[row] = unsafe { vld1q_u8(to[row].add(at)) };
            }
        }
        for column in 0..columns {
            // SAFETY: as before.
            let bytes: uint8x16_t = unsafe { vld1q_u8(from[column].add(at)) };
            let (low, high) = (vandq_u8(bytes, half), vshrq_n_u8::<4>(bytes));
            for row in 0..D {
                let product = if PLAIN { bytes } else { times(low, high, tables[column][row]) };
                sums[row] = veorq_u8(sums[row], product);
            }
        }
        for row in 0..D {
            // SAFETY: as before, and the slices are borrowed exclusively.
            unsafe { vst1q_u8(to[row].add(at), sums[row]) };
        }
        at += WIDTH;
    }
    let mut tails = [&[][..]; SOURCES];
    for column in 0..columns {
        tails[column] = &sources[column][at..];
    }
    scalar::product(adds, factors, &tails[..columns], &mut into.each_mut().map(|slice| &mut slice[at..]));
}
