//! The speed of this machine's memory on one core.

use ::parity::{Kernel, Matrix};

use super::{CACHE_BYTES_ASSUMED, CACHES, last_level_cache_bytes, timed};
use crate::statistics::{percentile, sorted};

/// Most bytes of a buffer: beside groups of nodes these rates matter little, and some machines have less memory than five of their caches twice.
const BUFFER_BYTES_MAX: usize = 512 << 20;

/// Runs of each.
const RUNS: usize = 5;

/// Gigabytes per second over buffers that are longer than four last-level caches, unless those are huge.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) copy: f64,
    /// One slice added to another, which the papers call exclusive or.
    pub(super) add: f64,
}

impl Memory {
    pub(super) fn measure() -> Memory {
        let caches = CACHES * last_level_cache_bytes().unwrap_or(CACHE_BYTES_ASSUMED);
        let bytes = caches.min(BUFFER_BYTES_MAX);
        let (source, mut into) = (vec![1u8; bytes], vec![2u8; bytes]);
        let mut median = |work: &mut dyn FnMut(&[u8], &mut [u8])| {
            let rates = (0..RUNS).map(|_| timed(bytes, || work(&source, &mut into))).collect();
            percentile(&sorted(rates), 0.5)
        };
        let (kernel, one) = (Kernel::best(), Matrix::identity(1));
        let copy = median(&mut |source, into| into.copy_from_slice(source));
        let add = median(&mut |source, into| kernel.multiply_add(&one, &[source], &mut [into]));
        Memory { copy, add }
    }
}
