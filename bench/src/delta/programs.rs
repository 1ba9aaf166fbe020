//! Two programs whose memory is saved again and again: those with which incremental checkpoints have been measured before
//! (`docs/measurements.md`).

/// A program that can be stopped between two steps.
pub(crate) trait Program {
    /// Its name in reports.
    fn name(&self) -> &'static str;
    /// Does the work between two checkpoints.
    fn step(&mut self);
    /// Its memory.
    fn arrays(&self) -> Vec<&[f64]>;
    /// Of each array, the part that the last step has written.
    fn written(&self) -> Vec<std::ops::Range<usize>>;

    /// Its memory as bytes.
    fn content(&self, into: &mut Vec<u8>) {
        into.clear();
        for array in self.arrays() {
            into.extend(array.iter().flat_map(|value| value.to_le_bytes()));
        }
    }
}

/// Numbers from 0 to 1, the same in every run.
fn random(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    let value = (*state >> 11) as f64;
    value / 9_007_199_254_740_992.0
}

/// A multiplication of matrices, row by row.
pub(crate) struct Multiplication {
    n: usize,
    rows_per_step: usize,
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    next: usize,
}

impl Multiplication {
    /// Other numbers for each seed.
    pub(crate) fn new(n: usize, rows_per_step: usize, seed: u64) -> Multiplication {
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ seed;
        let mut matrix = || (0..n * n).map(|_| random(&mut state)).collect();
        Multiplication { n, rows_per_step, a: matrix(), b: matrix(), c: vec![0.0; n * n], next: 0 }
    }
}

impl Program for Multiplication {
    fn name(&self) -> &'static str {
        "MAT"
    }

    fn step(&mut self) {
        let n = self.n;
        for row in (self.next..self.next + self.rows_per_step).map(|row| row % n) {
            let into = &mut self.c[row * n..(row + 1) * n];
            into.fill(0.0);
            for (k, of_b) in self.b.chunks_exact(n).enumerate() {
                let factor = self.a[row * n + k];
                into.iter_mut().zip(of_b).for_each(|(sum, value)| *sum += factor * value);
            }
        }
        self.next = (self.next + self.rows_per_step) % n;
    }

    fn arrays(&self) -> Vec<&[f64]> {
        vec![&self.a, &self.b, &self.c]
    }

    fn written(&self) -> Vec<std::ops::Range<usize>> {
        let end = if self.next == 0 { self.n } else { self.next };
        vec![0..0, 0..0, (end - self.rows_per_step) * self.n..end * self.n]
    }
}

/// Variables at each point.
const VARIABLES: usize = 5;
const BLOCK: usize = VARIABLES * VARIABLES;

/// Relaxation of five coupled equations on a grid, by a lower and an upper sweep with blocks of 5 x 5: the arrays of NPB LU and its order of points, with other equations
/// (diffusion with a coupling that depends on the solution) and a stronger damping, which solves them too.
pub(crate) struct Relaxation {
    n: usize,
    u: Vec<f64>,
    residual: Vec<f64>,
    forcing: Vec<f64>,
    speed: Vec<f64>,
    density: Vec<f64>,
    /// Blocks a, b, c (neighbours) and d (diagonal) of one plane.
    blocks: [Vec<f64>; 4],
}

const RELAXATION: f64 = 1.2;

impl Relaxation {
    /// Other numbers for each seed.
    pub(crate) fn new(n: usize, seed: u64) -> Relaxation {
        let points = n * n * n;
        let mut state = 0x2545_f491_4f6c_dd1d ^ seed;
        let forcing = (0..points * VARIABLES).map(|_| random(&mut state)).collect();
        let blocks = core::array::from_fn(|_| vec![0.0; n * n * BLOCK]);
        let (u, residual) = (vec![0.0; points * VARIABLES], vec![0.0; points * VARIABLES]);
        Relaxation { n, u, residual, forcing, speed: vec![0.0; points], density: vec![0.0; points], blocks }
    }

    fn at(&self, k: usize, j: usize, i: usize) -> usize {
        (k * self.n + j) * self.n + i
    }

    /// Computes the residual of the equations at each inner point.
    fn right_side(&mut self) {
        let (n, plane) = (self.n, self.n * self.n);
        for point in 0..n * n * n {
            let own = &self.u[point * VARIABLES..][..VARIABLES];
            self.density[point] = 1.0 / (1.0 + own[0].abs());
            self.speed[point] =
                0.5 * own.iter().map(|value| value * value).sum::<f64>() * self.density[point];
        }
        for k in 1..n - 1 {
            for j in 1..n - 1 {
                for i in 1..n - 1 {
                    let point = self.at(k, j, i);
                    for m in 0..VARIABLES {
                        let value = |of: usize| self.u[of * VARIABLES + m];
                        let sum =
                            [1, n, plane].iter().map(|d| value(point - d) + value(point + d)).sum::<f64>();
                        let flow = 6.0 * value(point) - sum + 0.1 * self.speed[point] * value(point);
                        self.residual[point * VARIABLES + m] = self.forcing[point * VARIABLES + m] - flow;
                    }
                }
            }
        }
    }

    /// The blocks of plane `k`.
    fn jacobian(&mut self, k: usize) {
        let n = self.n;
        for point in 0..n * n {
            let (speed, density) = (self.speed[k * n * n + point], self.density[k * n * n + point]);
            for entry in 0..BLOCK {
                let diagonal = f64::from(u8::from(entry / VARIABLES == entry % VARIABLES));
                let coupling = 0.01 * density * f64::from(u8::from(entry / VARIABLES > entry % VARIABLES));
                for neighbour in &mut self.blocks[..3] {
                    neighbour[point * BLOCK + entry] = -diagonal - coupling;
                }
                self.blocks[3][point * BLOCK + entry] = diagonal * (6.0 + 0.1 * speed) + coupling;
            }
        }
    }

    /// Solves for one point, `towards` being the distances to the three neighbours that are done.
    fn point(&mut self, k: usize, j: usize, i: usize, towards: [isize; 3]) {
        let (point, in_plane) = (self.at(k, j, i), (j * self.n + i) * BLOCK);
        let mut right: [f64; VARIABLES] = core::array::from_fn(|m| self.residual[point * VARIABLES + m]);
        for (blocks, distance) in self.blocks[..3].iter().zip(towards) {
            let other = point.wrapping_add_signed(distance) * VARIABLES;
            for (m, sum) in right.iter_mut().enumerate() {
                let row = &blocks[in_plane + m * VARIABLES..][..VARIABLES];
                let product: f64 = row.iter().zip(&self.residual[other..]).map(|(a, v)| a * v).sum();
                *sum -= RELAXATION * product / 3.0;
            }
        }
        let mut diagonal: [f64; BLOCK] = core::array::from_fn(|entry| self.blocks[3][in_plane + entry]);
        for pivot in 0..VARIABLES {
            for row in pivot + 1..VARIABLES {
                let factor = diagonal[row * VARIABLES + pivot] / diagonal[pivot * VARIABLES + pivot];
                for column in pivot..VARIABLES {
                    diagonal[row * VARIABLES + column] -= factor * diagonal[pivot * VARIABLES + column];
                }
                right[row] -= factor * right[pivot];
            }
        }
        for row in (0..VARIABLES).rev() {
            let known: f64 = (row + 1..VARIABLES).map(|c| diagonal[row * VARIABLES + c] * right[c]).sum();
            right[row] = (right[row] - known) / diagonal[row * VARIABLES + row];
        }
        self.residual[point * VARIABLES..][..VARIABLES].copy_from_slice(&right);
    }
}

impl Program for Relaxation {
    fn name(&self) -> &'static str {
        "LU"
    }

    fn step(&mut self) {
        self.right_side();
        let inner = 1..self.n - 1;
        let strides = [1, self.n, self.n * self.n].map(|stride| isize::try_from(stride).unwrap_or(0));
        for k in inner.clone() {
            self.jacobian(k);
            for j in inner.clone() {
                for i in inner.clone() {
                    self.point(k, j, i, strides.map(|stride| -stride));
                }
            }
        }
        for k in inner.clone().rev() {
            self.jacobian(k);
            for j in inner.clone().rev() {
                for i in inner.clone().rev() {
                    self.point(k, j, i, strides);
                }
            }
        }
        self.u.iter_mut().zip(&self.residual).for_each(|(u, change)| *u += 0.5 * change);
    }

    fn arrays(&self) -> Vec<&[f64]> {
        let [a, b, c, d] = &self.blocks;
        vec![&self.u, &self.residual, &self.forcing, &self.speed, &self.density, a, b, c, d]
    }

    fn written(&self) -> Vec<std::ops::Range<usize>> {
        let written = |(number, array): (usize, &&[f64])| if number == 2 { 0..0 } else { 0..array.len() };
        self.arrays().iter().enumerate().map(written).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_one() {
        let mut program = Multiplication::new(16, 4, 0);
        (0..4).for_each(|_| program.step());
        for row in 0..16 {
            for column in 0..16 {
                let sum: f64 = (0..16).map(|k| program.a[row * 16 + k] * program.b[k * 16 + column]).sum();
                assert!((program.c[row * 16 + column] - sum).abs() < 1e-12);
            }
        }
        assert_eq!(program.written()[2], 12 * 16..256);
    }

    /// The sweeps solve their equations: the residual vanishes.
    #[test]
    fn the_relaxation_converges() {
        let mut program = Relaxation::new(10, 0);
        let lacking = |program: &mut Relaxation| {
            program.right_side();
            program.residual.iter().map(|value| value * value).sum::<f64>().sqrt()
        };
        let before = lacking(&mut program);
        for _ in 0..400 {
            program.step();
        }
        let after = lacking(&mut program);
        assert!(after < before / 100.0, "{before} -> {after}");
    }
}
