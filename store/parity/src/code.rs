//! A code of K data and M parity slices of which any M may be lost.

use crate::field::{inverse, multiply};
use crate::kernel::Kernel;
use crate::matrix::Matrix;

/// Data and parity slices of one code together: elements of the field that the matrix needs, less the one for "none".
pub const MEMBERS_MAX: usize = 255;

/// The coefficient of data `column` in parity `row`: the same for every K and M, so a group may grow and keep
/// its computed parity.
///
/// Every square part of a Cauchy matrix, 1 / (x + y) with all x and y different, can be inverted. That stays so when rows
/// and columns are multiplied by constants, which here makes the first row and the first column ones: with M = 1 parity is
/// the exclusive or of the data.
fn coefficient(row: usize, column: usize) -> u8 {
    let difference = |row: usize, column: usize| {
        let x =
            u8::try_from(MEMBERS_MAX - row).expect("rows and columns of one code are at most 255 together");
        x ^ u8::try_from(column).expect("rows and columns of one code are at most 255 together")
    };
    let scales = multiply(difference(0, column), difference(row, 0));
    multiply(scales, inverse(multiply(difference(row, column), difference(0, 0))))
}

/// The reason why there is no such code, or why lost members cannot be rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// K, M, or both together are out of bounds.
    #[error(
        "a code of {data} data and {parity} parity blocks was requested; there must be at least 1 of each and at most {MEMBERS_MAX} together"
    )]
    Shape {
        /// K.
        data: usize,
        /// M.
        parity: usize,
    },
    /// More is lost than there is parity.
    #[error("{needed} of {members} blocks are needed, {present} are left; nothing can be computed from them")]
    TooFew {
        /// K.
        needed: usize,
        /// K + M.
        members: usize,
        /// How many are there.
        present: usize,
    },
    /// A slice that the code does not have, or has twice.
    #[error("block {found} was named twice, or is not among the {members} of the code; report this bug")]
    NoSuchMember {
        /// Its number.
        found: usize,
        /// K + M.
        members: usize,
    },
}

/// A systematic code: members 0 to K - 1 are data, K to K + M - 1 parity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    data: usize,
    matrix: Matrix,
}

impl Code {
    /// The code of `data` and `parity` slices.
    ///
    /// # Errors
    /// [`CodeError::Shape`].
    pub fn new(data: usize, parity: usize) -> Result<Code, CodeError> {
        if data == 0 || parity == 0 || data.saturating_add(parity) > MEMBERS_MAX {
            return Err(CodeError::Shape { data, parity });
        }
        Ok(Code { data, matrix: Matrix::from_fn(parity, data, coefficient) })
    }

    /// K.
    #[must_use]
    pub fn data(&self) -> usize {
        self.data
    }

    /// M.
    #[must_use]
    pub fn parity(&self) -> usize {
        self.matrix.rows()
    }

    /// The coefficients: one row for each parity slice.
    #[must_use]
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Computes all parity slices. Data that is shorter than parity counts as filled up with zeros.
    ///
    /// # Panics
    /// If there are not K and M slices, or lengths do not fit ([`Kernel::multiply`]).
    pub fn encode(&self, kernel: Kernel, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        kernel.multiply(&self.matrix, data, parity);
    }

    /// Adds the contribution of data slice `column` to all parity slices.
    ///
    /// # Panics
    /// If there are not M slices, or lengths do not fit ([`Kernel::multiply`]).
    pub fn add(&self, kernel: Kernel, column: usize, data: &[u8], parity: &mut [&mut [u8]]) {
        kernel.multiply_add(&self.part(0..self.parity(), &[column]), &[data], parity);
    }

    /// Changes all parity slices as it must be when data slice `column` changes from `old` to `new`.
    ///
    /// # Panics
    /// If there are not M slices, or lengths do not fit ([`Kernel::multiply`]).
    pub fn update(&self, kernel: Kernel, column: usize, old: &[u8], new: &[u8], parity: &mut [&mut [u8]]) {
        // The code is linear: c (new xor old) = c new xor c old.
        kernel.multiply_add(&self.part(0..self.parity(), &[column, column]), &[old, new], parity);
    }

    fn part(&self, rows: std::ops::Range<usize>, columns: &[usize]) -> Matrix {
        Matrix::from_fn(rows.len(), columns.len(), |row, i| self.matrix.get(rows.start + row, columns[i]))
    }

    /// How the members `lost` are computed from K of the members `present` (the first K, as they are named).
    ///
    /// # Errors
    /// [`CodeError::TooFew`] if fewer than K are present.
    pub fn recovery(&self, present: &[usize], lost: &[usize]) -> Result<Recovery, CodeError> {
        let members = self.data + self.parity();
        let mut seen = vec![false; members];
        for found in present.iter().chain(lost).copied() {
            if found >= members || std::mem::replace(&mut seen[found], true) {
                return Err(CodeError::NoSuchMember { found, members });
            }
        }
        let Some(sources) = present.get(..self.data) else {
            return Err(CodeError::TooFew { needed: self.data, members, present: present.len() });
        };
        let of_data = |member: usize, column: usize| match member.checked_sub(self.data) {
            None => u8::from(member == column),
            Some(row) => self.matrix.get(row, column),
        };
        let from_data = Matrix::from_fn(self.data, self.data, |i, column| of_data(sources[i], column));
        let to_data = from_data.inverted().expect("every square part of a Cauchy matrix can be inverted");
        let wanted = Matrix::from_fn(lost.len(), self.data, |i, column| of_data(lost[i], column));
        Ok(Recovery { sources: sources.to_vec(), matrix: wanted.times(&to_data) })
    }
}

/// How lost members are computed from others. See [`Code::recovery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    sources: Vec<usize>,
    matrix: Matrix,
}

impl Recovery {
    /// The members that are needed, in the order in which [`Recovery::run`] takes them.
    #[must_use]
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// The contribution of each source to each lost member: one row for each lost one.
    #[must_use]
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Computes the lost members. Bytes that a source lacks at its end count as zeros.
    ///
    /// # Panics
    /// If there is not one slice for each source and each lost member, or lengths do not fit ([`Kernel::multiply`]).
    pub fn run(&self, kernel: Kernel, sources: &[&[u8]], lost: &mut [&mut [u8]]) {
        kernel.multiply(&self.matrix, sources, lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_row_and_the_first_column_are_ones() {
        let code = Code::new(200, 55).expect("a shape");
        assert!(code.matrix().row(0).iter().all(|element| *element == 1));
        assert!((0..55).all(|row| code.matrix().get(row, 0) == 1));
        assert!((1..55).all(|row| (1..200).all(|column| code.matrix().get(row, column) > 1)));
    }

    #[test]
    fn a_group_that_grows_keeps_its_coefficients() {
        let (small, large) = (Code::new(3, 2).expect("a shape"), Code::new(9, 4).expect("a shape"));
        assert!((0..2).all(|row| small.matrix().row(row) == &large.matrix().row(row)[..3]));
    }

    #[test]
    fn shapes_out_of_bounds_are_refused() {
        for (data, parity) in [(0, 1), (1, 0), (255, 1), (1, 255), (usize::MAX, 2)] {
            let error = Code::new(data, parity).expect_err("it is out of bounds");
            assert_eq!(error, CodeError::Shape { data, parity });
            assert!(error.to_string().contains(&format!("{data} data and {parity} parity")), "{error}");
        }
        assert!(Code::new(254, 1).is_ok() && Code::new(1, 254).is_ok());
    }

    #[test]
    fn what_cannot_be_recovered_is_refused() {
        let code = Code::new(3, 2).expect("a shape");
        let too_few = CodeError::TooFew { needed: 3, members: 5, present: 2 };
        assert_eq!(code.recovery(&[0, 4], &[1]), Err(too_few));
        for (present, lost) in [([0, 1, 1], 2), ([0, 1, 5], 2), ([0, 1, 2], 2)] {
            assert!(matches!(code.recovery(&present, &[lost]), Err(CodeError::NoSuchMember { .. })));
        }
    }
}
