//! Products of a matrix with slices, by the instructions that this processor has.
//!
//! Every source is read once for up to `ROWS` destinations, and destinations are read and written once for up to
//! `SOURCES` sources, because reading memory dominates the cost. With more of either, the work is done in strips that
//! stay in the cache.

mod scalar;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

use crate::matrix::Matrix;

/// Destinations of one pass: with two vectors of sums each they leave registers for sources.
const ROWS: usize = 4;

/// Sources of one pass: about as many streams as a processor fetches ahead of a program.
const SOURCES: usize = 16;

/// Bytes of each slice that are worked on at once where a pass does not do everything: 16 sources and 4 destinations
/// of so many bytes are a fraction of any second-level cache.
const STRIP_BYTES: usize = 8 << 10;

/// A way to compute products. All give the same bytes.
///
/// A value proves that this processor has the instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Kernel(Way);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Kernel {
    /// Table look-ups, byte by byte: the oracle.
    #[must_use]
    pub fn scalar() -> Kernel {
        Kernel(Way::Scalar)
    }

    /// Those that this processor can run, the best one first.
    #[must_use]
    pub fn available() -> Vec<Kernel> {
        let mut ways = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            if wide && is_x86_feature_detected!("gfni") {
                ways.push(Way::Avx512);
            }
            if is_x86_feature_detected!("avx2") {
                ways.push(Way::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            ways.push(Way::Neon);
        }
        ways.push(Way::Scalar);
        ways.into_iter().map(Kernel).collect()
    }

    /// The best one for this processor.
    #[must_use]
    pub fn best() -> Kernel {
        Kernel::available()[0]
    }

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Way::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Way::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Way::Avx512 => "avx512-gfni",
            #[cfg(target_arch = "aarch64")]
            Way::Neon => "neon",
        }
    }

    /// Sets `destinations` to `matrix` times `sources`. Sources may be shorter than the destinations: the
    /// missing bytes count as zeros.
    ///
    /// # Panics
    /// If slices and matrix do not fit each other: as many destinations as rows, all of one length; as many sources as
    /// columns, none longer than the destinations.
    pub fn multiply(self, matrix: &Matrix, sources: &[&[u8]], destinations: &mut [&mut [u8]]) {
        self.product(matrix, sources, destinations, false);
    }

    /// Adds `matrix` times `sources` to `destinations`; otherwise like [`Kernel::multiply`].
    ///
    /// # Panics
    /// See there.
    pub fn multiply_add(self, matrix: &Matrix, sources: &[&[u8]], destinations: &mut [&mut [u8]]) {
        self.product(matrix, sources, destinations, true);
    }

    fn product(self, matrix: &Matrix, sources: &[&[u8]], destinations: &mut [&mut [u8]], adds: bool) {
        assert_eq!(matrix.rows(), destinations.len(), "one destination for each row");
        assert_eq!(matrix.columns(), sources.len(), "one source for each column");
        let length = destinations.first().map_or(0, |first| first.len());
        assert!(destinations.iter().all(|slice| slice.len() == length), "destinations differ in length");
        assert!(
            sources.iter().all(|slice| slice.len() <= length),
            "a source is longer than the destinations"
        );

        let one_pass = destinations.len() <= ROWS && sources.len() <= SOURCES;
        let strip = if one_pass { length } else { STRIP_BYTES };
        let mut start = 0;
        while start < length {
            // Within a strip each source is there as a whole or not at all.
            let ends = sources.iter().map(|slice| slice.len()).filter(|end| *end > start);
            let end = ends.chain([start.saturating_add(strip).min(length)]).min().unwrap_or(length);
            for first_row in (0..destinations.len()).step_by(ROWS) {
                let rows = destinations.len().min(first_row + ROWS) - first_row;
                let mut into: [&mut [u8]; ROWS] = Default::default();
                for (slot, slice) in into.iter_mut().zip(&mut destinations[first_row..][..rows]) {
                    *slot = &mut slice[start..end];
                }
                let mut pass =
                    Pass { kernel: self, adds, count: 0, sources: [&[]; SOURCES], factors: [0; FACTORS] };
                for (column, source) in sources.iter().enumerate().filter(|(_, source)| source.len() > start)
                {
                    let factors = (first_row..first_row + rows).map(|row| matrix.get(row, column));
                    pass.take(&source[start..end], factors, &mut into[..rows]);
                }
                pass.flush(&mut into[..rows]);
                if !pass.adds {
                    into[..rows].iter_mut().for_each(|slice| slice.fill(0));
                }
            }
            start = end;
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.name())
    }
}

const FACTORS: usize = ROWS * SOURCES;

/// Sources that wait for their pass over the destinations.
struct Pass<'a> {
    kernel: Kernel,
    /// False until something has been written to the destinations.
    adds: bool,
    count: usize,
    sources: [&'a [u8]; SOURCES],
    /// By source, then by destination.
    factors: [u8; FACTORS],
}

impl<'a> Pass<'a> {
    fn take(&mut self, source: &'a [u8], factors: impl Iterator<Item = u8>, into: &mut [&mut [u8]]) {
        if self.count == SOURCES {
            self.flush(into);
        }
        self.sources[self.count] = source;
        for (row, factor) in factors.enumerate() {
            self.factors[self.count * into.len() + row] = factor;
        }
        self.count += 1;
    }

    fn flush(&mut self, into: &mut [&mut [u8]]) {
        if self.count == 0 {
            return;
        }
        let (sources, factors) = (&self.sources[..self.count], &self.factors[..self.count * into.len()]);
        match self.kernel.0 {
            Way::Scalar => scalar::product(self.adds, factors, sources, into),
            // SAFETY: `Way::Avx2` is only made where the processor was found to have AVX2.
            #[cfg(target_arch = "x86_64")]
            Way::Avx2 => unsafe { x86::product_avx2(self.adds, factors, sources, into) },
            // SAFETY: `Way::Avx512` is only made where the processor was found to have AVX-512 F and BW, and GFNI.
            #[cfg(target_arch = "x86_64")]
            Way::Avx512 => unsafe { x86::product_avx512(self.adds, factors, sources, into) },
            // SAFETY: `Way::Neon` is only made where the processor was found to have NEON.
            #[cfg(target_arch = "aarch64")]
            Way::Neon => unsafe { neon::product(self.adds, factors, sources, into) },
        }
        self.adds = true;
        self.count = 0;
    }
}
