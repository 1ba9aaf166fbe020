//! AVX2: each half of a byte is looked up by a byte shuffle. AVX-512 with GFNI: a byte is multiplied by a matrix of bits.

use std::arch::x86_64::{
    __m256i, __m512i, __mmask64, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16,
    _mm256_storeu_si256, _mm256_xor_si256, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512,
    _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_set1_epi64, _mm512_setzero_si512,
    _mm512_storeu_si512, _mm512_xor_si512,
};

use super::{FACTORS, ROWS, SOURCES, scalar};
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

#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn rows_avx512<const D: usize, const PLAIN: bool>(
    adds: bool,
    factors: &[u8],
    sources: &[&[u8]],
    mut into: [&mut [u8]; D],
) {
    const WIDTH: usize = 64;
    let length = into[0].len();
    assert!(factors.len() == sources.len() * D && sources.len() <= SOURCES);
    assert!(
        into.iter().all(|slice| slice.len() == length) && sources.iter().all(|slice| slice.len() == length)
    );
    let mut bits = [0u64; FACTORS];
    for (slot, factor) in bits.iter_mut().zip(factors) {
        *slot = BITS[usize::from(*factor)];
    }
    let times = |bytes: __m512i, place: usize| {
        if PLAIN {
            return bytes;
        }
        #[expect(clippy::cast_possible_wrap, reason = "64 bits, whatever they are called")]
        let bits = _mm512_set1_epi64(bits[place] as i64);
        _mm512_gf2p8affine_epi64_epi8::<0>(bytes, bits)
    };
    let mut at = 0;
    while at + 2 * WIDTH <= length {
        let mut sums = [[_mm512_setzero_si512(); 2]; D];
        if adds {
            for (sum, slice) in sums.iter_mut().zip(&into) {
                // SAFETY: all slices are `length` bytes long, and `at + 2 * WIDTH <= length`.
                let place = unsafe { slice.as_ptr().add(at) };
                // SAFETY: as before; loads need no alignment.
                *sum = unsafe {
                    [_mm512_loadu_si512(place.cast()), _mm512_loadu_si512(place.add(WIDTH).cast())]
                };
            }
        }
        for (column, source) in sources.iter().enumerate() {
            // SAFETY: all slices are `length` bytes long, and `at + 2 * WIDTH <= length`.
            let place = unsafe { source.as_ptr().add(at) };
            // SAFETY: as before; loads need no alignment.
            let bytes =
                unsafe { [_mm512_loadu_si512(place.cast()), _mm512_loadu_si512(place.add(WIDTH).cast())] };
            for (row, sum) in sums.iter_mut().enumerate() {
                sum[0] = _mm512_xor_si512(sum[0], times(bytes[0], column * D + row));
                sum[1] = _mm512_xor_si512(sum[1], times(bytes[1], column * D + row));
            }
        }
        for (sum, slice) in sums.iter().zip(&mut into) {
            // SAFETY: all slices are `length` bytes long, and `at + 2 * WIDTH <= length`.
            let place = unsafe { slice.as_mut_ptr().add(at) };
            // SAFETY: as before, and the slice is borrowed exclusively; stores need no alignment.
            unsafe {
                _mm512_storeu_si512(place.cast(), sum[0]);
                _mm512_storeu_si512(place.add(WIDTH).cast(), sum[1]);
            }
        }
        at += 2 * WIDTH;
    }
    while at < length {
        let count = (length - at).min(WIDTH);
        let mask: __mmask64 = if count == WIDTH { u64::MAX } else { (1 << count) - 1 };
        for (row, slice) in into.iter_mut().enumerate() {
            let mut sum = _mm512_setzero_si512();
            if adds {
                // SAFETY: the mask covers `count` bytes from `at` on, and `at + count <= length`; masked bytes are not touched.
                sum = unsafe { _mm512_maskz_loadu_epi8(mask, slice.as_ptr().add(at).cast()) };
            }
            for (column, source) in sources.iter().enumerate() {
                // SAFETY: as before.
                let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, source.as_ptr().add(at).cast()) };
                sum = _mm512_xor_si512(sum, times(bytes, column * D + row));
            }
            // SAFETY: as before, and the slice is borrowed exclusively.
            unsafe { _mm512_mask_storeu_epi8(slice.as_mut_ptr().add(at).cast(), mask, sum) };
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

#[target_feature(enable = "avx2")]
fn rows_avx2<const D: usize, const PLAIN: bool>(
    adds: bool,
    factors: &[u8],
    sources: &[&[u8]],
    mut into: [&mut [u8]; D],
) {
    const WIDTH: usize = 32;
    let length = into[0].len();
    assert!(factors.len() == sources.len() * D && sources.len() <= SOURCES);
    assert!(
        into.iter().all(|slice| slice.len() == length) && sources.iter().all(|slice| slice.len() == length)
    );
    let half = _mm256_set1_epi8(15);
    let table = |table: &[u8; 32], from: usize| {
        // SAFETY: 16 bytes from 0 or 16 on lie in the 32 of the table; loads need no alignment.
        _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table[from..from + 16].as_ptr().cast()) })
    };
    let times = |low: __m256i, high: __m256i, factor: u8| {
        let halves = &HALVES[usize::from(factor)];
        _mm256_xor_si256(
            _mm256_shuffle_epi8(table(halves, 0), low),
            _mm256_shuffle_epi8(table(halves, 16), high),
        )
    };
    let mut at = 0;
    while at + WIDTH <= length {
        let mut sums = [_mm256_setzero_si256(); D];
        if adds {
            for (sum, slice) in sums.iter_mut().zip(&into) {
                // SAFETY: all slices are `length` bytes long, and `at + WIDTH <= length`; loads need no alignment.
                *sum = unsafe { _mm256_loadu_si256(slice.as_ptr().add(at).cast()) };
            }
        }
        for (column, source) in sources.iter().enumerate() {
            // SAFETY: as before.
            let bytes = unsafe { _mm256_loadu_si256(source.as_ptr().add(at).cast()) };
            if PLAIN {
                sums[0] = _mm256_xor_si256(sums[0], bytes);
                continue;
            }
            let (low, high) =
                (_mm256_and_si256(bytes, half), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), half));
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_xor_si256(*sum, times(low, high, factors[column * D + row]));
            }
        }
        for (sum, slice) in sums.iter().zip(&mut into) {
            // SAFETY: as before, and the slice is borrowed exclusively; stores need no alignment.
            unsafe { _mm256_storeu_si256(slice.as_mut_ptr().add(at).cast(), *sum) };
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
