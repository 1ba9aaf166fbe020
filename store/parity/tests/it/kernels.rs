//! Every kernel gives the oracle's bytes, for all lengths and places of the slices.

use parity::{Kernel, Matrix};
use proptest::prelude::*;

/// Bytes that look random; the same for ever.
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes()[0]
    };
    (0..count).map(|_| next()).collect()
}

/// The result by the definition, computed with nothing but multiplication in the field.
fn defined(matrix: &Matrix, sources: &[&[u8]], destinations: &[Vec<u8>], adds: bool) -> Vec<Vec<u8>> {
    let byte = |row: usize, at: usize, before: u8| {
        let terms = sources.iter().enumerate().filter_map(|(column, source)| {
            source.get(at).map(|byte| parity::field::multiply(matrix.get(row, column), *byte))
        });
        terms.fold(if adds { before } else { 0 }, |sum, term| sum ^ term)
    };
    let of_row = |(row, slice): (usize, &Vec<u8>)| {
        slice.iter().enumerate().map(|(at, before)| byte(row, at, *before)).collect()
    };
    destinations.iter().enumerate().map(of_row).collect()
}

/// Runs every kernel on slices that begin at odd places of larger ones, and looks that nothing beside them is touched.
fn compare(matrix: &Matrix, length: usize, offset: usize, short_by: &[usize], adds: bool) {
    let sources: Vec<Vec<u8>> = (0..matrix.columns()).map(|i| bytes(i as u64 + 1, offset + length)).collect();
    let slices: Vec<&[u8]> = sources
        .iter()
        .zip(short_by.iter().chain(std::iter::repeat(&0)))
        .map(|(source, short_by)| &source[offset..offset + length.saturating_sub(*short_by)])
        .collect();
    let before: Vec<Vec<u8>> = (0..matrix.rows()).map(|i| bytes(i as u64 + 1000, length)).collect();
    let expected = defined(matrix, &slices, &before, adds);
    for kernel in Kernel::available() {
        let padded = |slice: &Vec<u8>| [vec![0xa5; offset], slice.clone(), vec![0x5a; 70]].concat();
        let mut whole: Vec<Vec<u8>> = before.iter().map(padded).collect();
        let mut parts: Vec<&mut [u8]> =
            whole.iter_mut().map(|slice| &mut slice[offset..offset + length]).collect();
        if adds {
            kernel.multiply_add(matrix, &slices, &mut parts);
        } else {
            kernel.multiply(matrix, &slices, &mut parts);
        }
        let expected: Vec<Vec<u8>> = expected.iter().map(padded).collect();
        assert!(whole == expected, "{kernel:?}, {length} bytes from {offset} on, adds: {adds}");
    }
}

#[cfg(target_arch = "aarch64")]
#[test]
fn the_best_kernel_is_neon() {
    assert_eq!(format!("{:?}", Kernel::best()), "Kernel(neon)");
}

#[test]
fn every_constant_times_every_byte() {
    let all: Vec<u8> = (0..=255).collect();
    for kernel in Kernel::available() {
        for factor in 0..=255 {
            let mut product = [0; 256];
            kernel.multiply(&Matrix::from_fn(1, 1, |_, _| factor), &[&all], &mut [&mut product]);
            let expected = all.iter().map(|byte| parity::field::multiply(factor, *byte));
            assert!(product.iter().copied().eq(expected), "{kernel:?}, {factor}");
        }
    }
}

#[test]
fn every_length_around_the_widths_of_vectors() {
    let matrix = |rows: usize, columns: usize| {
        Matrix::from_fn(rows, columns, |row, column| {
            u8::try_from((row * 31 + column * 17 + 2) % 256).unwrap()
        })
    };
    for length in (0..=300).chain([4095, 4096, 4097, 20_000]) {
        compare(&matrix(1, 1), length, length % 67, &[], true);
        compare(&matrix(3, 2), length, length % 5, &[], false);
    }
    for (rows, columns) in [(1, 40), (4, 16), (5, 17), (12, 12), (9, 33)] {
        compare(&matrix(rows, columns), 17_001, 3, &[], true);
        compare(&matrix(rows, columns), 17_001, 1, &[], false);
    }
}

#[test]
fn without_sources_a_product_is_zero_and_a_sum_is_unchanged() {
    compare(&Matrix::from_fn(2, 1, |_, _| 9), 100, 0, &[100], false);
    compare(&Matrix::from_fn(2, 1, |_, _| 9), 100, 0, &[100], true);
}

#[test]
#[should_panic(expected = "a source is longer than the destinations")]
fn a_source_that_is_too_long_is_refused() {
    Kernel::best().multiply(&Matrix::identity(1), &[&[1, 2]], &mut [&mut [0]]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 400 }))]
    #[test]
    fn kernels_equal_the_definition(
        (rows, columns) in (1..7usize, 1..20usize),
        seed in any::<u64>(),
        plain in any::<bool>(),
        length in 0..700usize,
        offset in 0..65usize,
        short_by in prop::collection::vec(0..300usize, 0..20),
        adds in any::<bool>(),
    ) {
        let elements = bytes(seed, rows * columns);
        let element = |row: usize, column: usize| if plain { 1 } else { elements[row * columns + column] };
        compare(&Matrix::from_fn(rows, columns, element), length, offset, &short_by, adds);
    }
}
