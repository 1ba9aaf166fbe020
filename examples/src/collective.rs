//! Collective operations built from messages alone, so a [`Communicator`] need not offer any.

use crate::communicator::{Communicator, Tag};
use crate::error::ExampleError;

/// Combines over a binomial tree towards rank 0, then spreads the result along the same tree: 2 (n - 1) messages, and
/// the same order of combining for every run, so the result does not depend on timing.
///
/// # Errors
/// [`ExampleError::Length`] when the ranks disagree about the number of values, or the errors of the
/// communicator.
pub fn all_reduce(
    world: &mut dyn Communicator,
    values: &mut [i64],
    combine: fn(i64, i64) -> i64,
) -> Result<(), ExampleError> {
    let (rank, size) = (world.rank(), world.size());
    let mut step = 1;
    while step < size && rank & step == 0 {
        let child = rank + step;
        if child < size {
            let bytes = receive_exactly(world, child, Tag::REDUCE, values.len() * 8)?;
            for (value, theirs) in values.iter_mut().zip(decode_i64(&bytes)) {
                *value = combine(*value, theirs);
            }
        }
        step *= 2;
    }
    if rank != 0 {
        let parent = rank - step;
        world.send(parent, Tag::REDUCE, encode_i64(values)).map_err(ExampleError::Communication)?;
        let bytes = receive_exactly(world, parent, Tag::SPREAD, values.len() * 8)?;
        for (value, result) in values.iter_mut().zip(decode_i64(&bytes)) {
            *value = result;
        }
    }
    while step > 1 {
        step /= 2;
        if rank + step < size {
            world.send(rank + step, Tag::SPREAD, encode_i64(values)).map_err(ExampleError::Communication)?;
        }
    }
    Ok(())
}

/// One number from every rank to every other one.
///
/// # Errors
/// [`ExampleError::Length`] when a block has another size, or the errors of the communicator.
pub fn all_to_all(world: &mut dyn Communicator, blocks: &[u32]) -> Result<Vec<u32>, ExampleError> {
    assert_eq!(blocks.len(), world.size() as usize, "one block for each rank");
    let rank = world.rank();
    for (to, block) in (0..world.size()).zip(blocks) {
        if to != rank {
            world.send(to, Tag::BLOCKS, block.to_le_bytes().to_vec()).map_err(ExampleError::Communication)?;
        }
    }
    let mut received = blocks.to_vec();
    for (from, block) in (0..world.size()).zip(&mut received) {
        if from != rank {
            let bytes = receive_exactly(world, from, Tag::BLOCKS, 4)?;
            *block = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }
    Ok(received)
}

/// Returns when every rank has come here.
///
/// # Errors
/// As for [`all_reduce`].
pub fn barrier(world: &mut dyn Communicator) -> Result<(), ExampleError> {
    all_reduce(world, &mut [], |a, _| a)
}

/// Receives a message that must have `expected` bytes.
///
/// # Errors
/// [`ExampleError::Length`], or the errors of the communicator.
pub fn receive_exactly(
    world: &mut dyn Communicator,
    from: u32,
    tag: Tag,
    expected: usize,
) -> Result<Vec<u8>, ExampleError> {
    let bytes = world.receive(from, tag).map_err(ExampleError::Communication)?;
    if bytes.len() != expected {
        let rank = world.rank();
        return Err(ExampleError::Length { rank, from, tag: tag.0, expected, found: bytes.len() });
    }
    Ok(bytes)
}

/// Numbers as they travel: little-endian, 8 bytes each.
pub fn encode_i64(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Reads values that [`encode_i64`] wrote.
pub fn decode_i64(bytes: &[u8]) -> impl Iterator<Item = i64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|chunk| i64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{Plan, run};

    #[test]
    fn every_rank_gets_the_same_sums_for_any_number_of_ranks() {
        for size in 1..=9 {
            let results = run(size, &Plan::default(), |world| {
                let mut values = [i64::from(world.rank()), 1, -5];
                all_reduce(world, &mut values, |a, b| a + b)?;
                let mut largest = [i64::from(world.rank())];
                all_reduce(world, &mut largest, i64::max)?;
                barrier(world)?;
                Ok((values, largest))
            });
            let n = i64::from(size);
            for result in results.ranks {
                assert_eq!(result.unwrap(), ([n * (n - 1) / 2, n, -5 * n], [n - 1]));
            }
        }
    }

    #[test]
    fn blocks_are_transposed() {
        let results = run(5, &Plan::default(), |world| {
            let blocks: Vec<u32> = (0..5).map(|to| world.rank() * 10 + to).collect();
            all_to_all(world, &blocks)
        });
        for (rank, result) in (0..5).zip(results.ranks) {
            assert_eq!(result.unwrap(), (0..5).map(|from| from * 10 + rank).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn ranks_that_disagree_about_the_number_of_values_are_reported_so() {
        let results = run(2, &Plan::default(), |world| {
            let mut values = vec![0; 3 + world.rank() as usize];
            all_reduce(world, &mut values, |a, b| a + b)
        });
        let message = results.ranks[0].as_ref().unwrap_err().to_string();
        assert!(message.contains("32 bytes") && message.contains("24"), "{message}");
    }
}
