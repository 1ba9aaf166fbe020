//! Tokens go round and round: the smallest program that survives a restart.

use crate::collective::receive_exactly;
use crate::communicator::{Communicator, Region, State, Tag};
use crate::error::ExampleError;

/// All that must be kept: the steps done, and the token. Two numbers, saved as bytes.
#[derive(Default)]
struct Token([u8; 16]);

impl Token {
    fn step(&self) -> u64 {
        u64::from_le_bytes(*self.0.first_chunk().expect("16 bytes"))
    }

    fn value(&self) -> u64 {
        u64::from_le_bytes(*self.0.last_chunk().expect("16 bytes"))
    }

    fn set(&mut self, step: u64, value: u64) {
        self.0[..8].copy_from_slice(&step.to_le_bytes());
        self.0[8..].copy_from_slice(&value.to_le_bytes());
    }
}

impl State for Token {
    fn regions(&mut self) -> Vec<Region<'_>> {
        vec![Region { id: 1, bytes: &mut self.0 }]
    }
}

/// Every rank adds its number plus one to the token it holds and hands it to the next rank, `steps` times. Returns the
/// value of the token it holds at the end.
///
/// # Errors
/// [`ExampleError::Token`] when a step was lost or done twice, or the errors of the communicator.
pub fn run(world: &mut dyn Communicator, steps: u64) -> Result<u64, ExampleError> {
    let (rank, size) = (world.rank(), world.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut token = Token::default();
    world.restore(&mut token).map_err(ExampleError::Communication)?;
    while token.step() < steps {
        let value = token.value() + u64::from(rank) + 1;
        world
            .send(next, Tag::NEIGHBOUR, value.to_le_bytes().to_vec())
            .map_err(ExampleError::Communication)?;
        let bytes = receive_exactly(world, previous, Tag::NEIGHBOUR, 8)?;
        token.set(token.step() + 1, u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes")));
        world.point(&mut token).map_err(ExampleError::Communication)?;
    }
    let (found, expected) = (token.value(), expected(rank, size, steps));
    if found == expected { Ok(found) } else { Err(ExampleError::Token { rank, steps, expected, found }) }
}

/// The sum that the ranks add to the token that rank `rank` holds after `steps` steps.
fn expected(rank: u32, size: u32, steps: u64) -> u64 {
    let (rank, size) = (u64::from(rank), u64::from(size));
    let first = (rank + size - steps % size) % size;
    (0..steps).map(|step| (first + step) % size + 1).sum()
}

/// The result of a run, as the command line prints it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RingReport {
    /// Value of the token that the first rank holds at the end.
    pub value: u64,
    /// Steps of each token.
    pub steps: u64,
    /// Every step was done exactly once.
    pub verified: bool,
}

impl std::fmt::Display for RingReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ring: {} steps, token {}, verification successful", self.steps, self.value)
    }
}
