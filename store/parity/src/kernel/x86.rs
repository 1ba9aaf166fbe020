//! AVX2: each half of a byte is looked up by a byte shuffle. AVX-512 with GFNI: a byte is multiplied by a matrix of bits.

use std::arch::x86_64::{
    __m256i, __m512i, __mmask64, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16,
    _mm256_storeu_si256, _mm256_xor_si256, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512,
    _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_set1_epi64, _mm512_setzero_si512,
    _mm512_storeu_si512, _mm512_xor_si512,
};

use super::{ROWS, SOURCES, scalar};
use crate::field::{BITS, HALVES};

const _: () = assert!(ROWS == 4, "the kernels are made for one to four destinations");

/// See [`scalar::product`].
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(super) fn product_avx512(adds: bool, factors: &[u8], sources: &[&[u8]], into: &mut [&mut [u8]]) {
    let plain = factors.iter().all(|factor| *factor == 1);
    match (into, plain) {
        ([], _) => {}
        ([a], true) => rows_avx512::<1, true>(adds, factors, sources, [a]),
        ([a], false) => rows_avx512::<1, false>(adds, factors, sources, [a]),
        ([a, b], _) => rows_avx512::<2, false>(adds, factors, sources, [a, b]),
        ([a, b, c], _) => rows_avx512::<3, false>(adds, factors, sources, [a, b, c]),
        ([a, b, c, d], _) => rows_avx512::<4, false>(adds, factors, sources, [a, b, c, d]),
        _ => unreachable!("a pass has at most {ROWS} destinations"),
    }
}

/// Each byte times a constant; with `PLAIN` the constant is 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn times_avx512<const PLAIN: bool>(bytes: __m512i, bits: i64) -> __m512i {
    if PLAIN { bytes } else { _mm512_gf2p8affine_epi64_epi8::<0>(bytes, _mm512_set1_epi64(bits)) }
}

// Loops count, because iterators that do not get inlined here would carry vectors through memory.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn rows_avx512<const D: usize, const PLAIN: bool>(
    adds: bool,
    factors: &[u8],
    sources: &[&[u8]],
    mut into: [&mut [u8]; D],
) {
    const WIDTH: usize = 64;
    let (length, columns) = (into[0].len(), sources.len());
    assert!(factors.len() == columns * D && columns <= SOURCES);
    assert!(
        into.iter().all(|slice| slice.len() == length) && sources.iter().all(|slice| slice.len() == length)
    );
    let mut bits = [[0; D]; SOURCES];
    let mut from = [std::ptr::null(); SOURCES];
    for column in 0..columns {
        from[column] = sources[column].as_ptr();
        for row in 0..D {
            bits[column][row] = BITS[usize::from(factors[column * D + row])].cast_signed();
        }
    }
    let to = into.each_mut().map(|slice| slice.as_mut_ptr());
    // Vectors that lie across two lines of the cache take longer, stores most of all.
    let lead = to[0].align_offset(WIDTH).min(length);
    let mut at = 0;
    while at < length {
        if at >= lead && length - at >= 2 * WIDTH {
            let mut sums = [[_mm512_setzero_si512(); 2]; D];
            if adds {
                for row in 0..D {
                    // SAFETY: all slices are `length` bytes long, of which 2 * WIDTH are left; loads need no alignment.
                    unsafe {
                        sums[row][0] = _mm512_loadu_si512(to[row].add(at).cast());
                        sums[row][1] = _mm512_loadu_si512(to[row].add(at + WIDTH).cast());
                    }
                }
            }
            for column in 0..columns {
                // SAFETY: all slices are `length` bytes long, of which 2 * WIDTH are left; loads need no alignment.
                let (first, second) = unsafe {
                    let place = from[column].add(at);
                    (_mm512_loadu_si512(place.cast()), _mm512_loadu_si512(place.add(WIDTH).cast()))
                };
                for row in 0..D {
                    let bits = bits[column][row];
                    sums[row][0] = _mm512_xor_si512(sums[row][0], times_avx512::<PLAIN>(first, bits));
                    sums[row][1] = _mm512_xor_si512(sums[row][1], times_avx512::<PLAIN>(second, bits));
                }
            }
            for row in 0..D {
                // SAFETY: all slices are `length` bytes long, of which 2 * WIDTH are left, and borrowed exclusively.
                unsafe {
                    _mm512_storeu_si512(to[row].add(at).cast(), sums[row][0]);
                    _mm512_storeu_si512(to[row].add(at + WIDTH).cast(), sums[row][1]);
                }
            }
            at += 2 * WIDTH;
            continue;
        }
        let end = if at < lead { lead } else { length };
        let count = (end - at).min(WIDTH);
        let mask: __mmask64 = if count == WIDTH { u64::MAX } else { (1 << count) - 1 };
        for row in 0..D {
            let mut sum = _mm512_setzero_si512();
            if adds {
                // SAFETY: the mask covers `count` of the bytes that are left; others are not touched.
                sum = unsafe { _mm512_maskz_loadu_epi8(mask, to[row].add(at).cast()) };
            }
            for column in 0..columns {
                // SAFETY: as before.
                let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, from[column].add(at).cast()) };
                sum = _mm512_xor_si512(sum, times_avx512::<PLAIN>(bytes, bits[column][row]));
            }
            // SAFETY: as before, and the slice is borrowed exclusively.
            unsafe { _mm512_mask_storeu_epi8(to[row].add(at).cast(), mask, sum) };
        }
        at += count;
    }
}

/// See [`scalar::product`].
#[target_feature(enable = "avx2")]
pub(super) fn product_avx2(adds: bool, factors: &[u8], sources: &[&[u8]], into: &mut [&mut [u8]]) {
    let plain = factors.iter().all(|factor| *factor == 1);
    match (into, plain) {
        ([], _) => {}
        ([a], true) => rows_avx2::<1, true>(adds, factors, sources, [a]),
        ([a], false) => rows_avx2::<1, false>(adds, factors, sources, [a]),
        ([a, b], _) => rows_avx2::<2, false>(adds, factors, sources, [a, b]),
        ([a, b, c], _) => rows_avx2::<3, false>(adds, factors, sources, [a, b, c]),
        ([a, b, c, d], _) => rows_avx2::<4, false>(adds, factors, sources, [a, b, c, d]),
        _ => unreachable!("a pass has at most {ROWS} destinations"),
    }
}

/// Each byte, given as its two halves, times a constant, by the tables of its products.
#[inline]
#[target_feature(enable = "avx2")]
fn times_avx2(low: __m256i, high: __m256i, tables: &[u8; 32]) -> __m256i {
    // SAFETY: the tables are two times 16 bytes; loads need no alignment.
    let (of_low, of_high) =
        unsafe { (_mm_loadu_si128(tables.as_ptr().cast()), _mm_loadu_si128(tables.as_ptr().add(16).cast())) };
    let of_low = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(of_low), low);
    _mm256_xor_si256(of_low, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(of_high), high))
}

// Loops count: see above.
#[target_feature(enable = "avx2")]
fn rows_avx2<const D: usize, const PLAIN: bool>(
    adds: bool,
    factors: &[u8],
    sources: &[&[u8]],
    mut into: [&mut [u8]; D],
) {
    const WIDTH: usize = 32;
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
    let half = _mm256_set1_epi8(15);
    let mut at = 0;
    while length - at >= 2 * WIDTH {
        let mut sums = [[_mm256_setzero_si256(); 2]; D];
        if adds {
            for row in 0..D {
                // SAFETY: all slices are `length` bytes long, of which 2 * WIDTH are left; loads need no alignment.
                unsafe {
                    sums[row][0] = _mm256_loadu_si256(to[row].add(at).cast());
                    sums[row][1] = _mm256_loadu_si256(to[row].add(at + WIDTH).cast());
                }
            }
        }
        for column in 0..columns {
            // SAFETY: all slices are `length` bytes long, of which 2 * WIDTH are left; loads need no alignment.
            let both = unsafe {
                let place = from[column].add(at);
                [_mm256_loadu_si256(place.cast()), _mm256_loadu_si256(place.add(WIDTH).cast())]
            };
            for i in 0..2 {
                let low = _mm256_and_si256(both[i], half);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both[i]), half);
                for row in 0..D {
                    let product = if PLAIN { both[i] } else { times_avx2(low, high, tables[column][row]) };
                    sums[row][i] = _mm256_xor_si256(sums[row][i], product);
                }
            }
        }
        for row in 0..D {
            // SAFETY: all slices are `length` bytes long, of which 2 * WIDTH are left, and borrowed exclusively.
            unsafe {
                _mm256_storeu_si256(to[row].add(at).cast(), sums[row][0]);
                _mm256_storeu_si256(to[row].add(at + WIDTH).cast(), sums[row][1]);
            }
        }
        at += 2 * WIDTH;
    }
    let mut tails = [&[][..]; SOURCES];
    for column in 0..columns {
        tails[column] = &sources[column][at..];
    }
    scalar::product(adds, factors, &tails[..columns], &mut into.each_mut().map(|slice| &mut slice[at..]));
}
