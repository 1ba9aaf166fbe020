//! Small matrices over the field.

use crate::field::{inverse, multiply};

/// A matrix; row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    columns: usize,
    elements: Vec<u8>,
}

impl Matrix {
    /// The matrix of `rows` x `columns` elements that `element(row, column)` returns.
    pub fn from_fn(rows: usize, columns: usize, mut element: impl FnMut(usize, usize) -> u8) -> Matrix {
        let elements = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        Matrix { columns, elements: elements.map(|(row, column)| element(row, column)).collect() }
    }

    /// The matrix that leaves everything as it is.
    #[must_use]
    pub fn identity(size: usize) -> Matrix {
        Matrix::from_fn(size, size, |row, column| u8::from(row == column))
    }

    /// Number of rows: slices that a product gives.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.elements.len().checked_div(self.columns).unwrap_or(0)
    }

    /// Number of columns: slices that a product takes.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// One element.
    #[must_use]
    pub fn get(&self, row: usize, column: usize) -> u8 {
        self.elements[row * self.columns + column]
    }

    /// One row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[u8] {
        &self.elements[row * self.columns..][..self.columns]
    }

    /// This matrix times `right`.
    ///
    /// # Panics
    /// If `right` has not as many rows as this one has columns.
    #[must_use]
    pub fn times(&self, right: &Matrix) -> Matrix {
        assert_eq!(self.columns, right.rows(), "matrices that do not fit each other");
        Matrix::from_fn(self.rows(), right.columns, |row, column| {
            (0..self.columns).fold(0, |sum, i| sum ^ multiply(self.get(row, i), right.get(i, column)))
        })
    }

    /// The matrix that undoes this one; `None` if there is none.
    ///
    /// # Panics
    /// If it is not square.
    #[must_use]
    pub fn inverted(&self) -> Option<Matrix> {
        let size = self.columns;
        assert_eq!(self.rows(), size, "only a square matrix can have an inverse");
        let (mut rest, mut inverted) = (self.clone(), Matrix::identity(size));
        for pivot in 0..size {
            let found = (pivot..size).find(|row| rest.get(*row, pivot) != 0)?;
            let factor = inverse(rest.get(found, pivot));
            for matrix in [&mut rest, &mut inverted] {
                matrix.swap_rows(pivot, found);
                matrix.scale_row(pivot, factor);
            }
            for row in (0..size).filter(|row| *row != pivot) {
                let factor = rest.get(row, pivot);
                rest.add_row(row, pivot, factor);
                inverted.add_row(row, pivot, factor);
            }
        }
        Some(inverted)
    }

    fn swap_rows(&mut self, a: usize, b: usize) {
        for column in 0..self.columns {
            self.elements.swap(a * self.columns + column, b * self.columns + column);
        }
    }

    fn scale_row(&mut self, row: usize, factor: u8) {
        for element in &mut self.elements[row * self.columns..][..self.columns] {
            *element = multiply(*element, factor);
        }
    }

    /// Adds `factor` times the row `from` to the row `to`.
    fn add_row(&mut self, to: usize, from: usize, factor: u8) {
        for column in 0..self.columns {
            let added = multiply(self.get(from, column), factor);
            self.elements[to * self.columns + column] ^= added;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inverse_undoes_and_a_singular_matrix_has_none() {
        let matrix = Matrix::from_fn(3, 3, |row, column| [[0, 2, 7], [1, 0, 9], [200, 3, 0]][row][column]);
        let inverted = matrix.inverted().expect("it is regular");
        assert_eq!(inverted.times(&matrix), Matrix::identity(3));
        assert_eq!(matrix.times(&inverted), Matrix::identity(3));
        assert_eq!(Matrix::from_fn(2, 2, |_, _| 5).inverted(), None);
    }
}
