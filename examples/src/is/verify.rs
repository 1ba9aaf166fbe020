//! The benchmark's two verifications.

use crate::collective;
use crate::communicator::{Communicator, Tag};
use crate::error::ExampleError;

use super::class::{Class, TEST_KEYS};
use super::sort::Ranked;
use super::state::IsState;

/// Partial verification, in every iteration: how many of the test keys in this rank's range have the rank that the
/// benchmark's authors computed.
pub fn partial(class: Class, state: &IsState, ranked: &Ranked, iteration: u32) -> u64 {
    let values = &state.totals[state.totals.len() - TEST_KEYS..];
    let mut passed = 0;
    for (index, value) in values.iter().enumerate() {
        let found = u32::try_from(*value).ok().and_then(|key| ranked.rank_of(key));
        if found == Some(class.expected_rank(index, iteration)) {
            passed += 1;
        }
    }
    passed
}

/// Full verification, after a round: puts every key at the place of its rank. Then it looks whether the
/// sequence ascends inside of each rank and from each rank to the next, and whether no key is missing.
///
/// # Errors
/// The communicator's error.
pub fn full(world: &mut dyn Communicator, class: Class, ranked: Ranked) -> Result<bool, ExampleError> {
    let Ranked { first_key, keys_before: _, mut smaller, keys } = ranked;
    let mut sorted = vec![0_u32; keys.len()];
    let mut placed = vec![false; keys.len()];
    for key in keys {
        let next = &mut smaller[(key - first_key) as usize];
        if let Some(slot) = sorted.get_mut(*next as usize) {
            *slot = key;
            placed[*next as usize] = true;
        }
        *next += 1;
    }
    let complete = placed.iter().all(|placed| *placed);
    let ascends = sorted.is_sorted();
    let largest_before = pass_largest_on(world, sorted.last().copied())?;
    let follows = sorted.first().is_none_or(|first| largest_before.is_none_or(|before| before <= *first));

    let mut held = [i64::try_from(sorted.len()).expect("at most 2^25")];
    collective::all_reduce(world, &mut held, |a, b| a + b)?;
    let none_missing = u64::try_from(held[0]).is_ok_and(|held| held == class.keys());
    Ok(complete && ascends && follows && none_missing)
}

/// Sends the largest key up to here to the next rank, and returns the largest one before this rank. A rank without keys
/// passes on the key that it got.
fn pass_largest_on(world: &mut dyn Communicator, largest: Option<u32>) -> Result<Option<u32>, ExampleError> {
    let (rank, size) = (world.rank(), world.size());
    let before = if rank == 0 {
        None
    } else {
        let bytes = collective::receive_exactly(world, rank - 1, Tag::NEIGHBOUR, 8)?;
        collective::decode_i64(&bytes).next().and_then(|value| u32::try_from(value).ok())
    };
    if rank + 1 < size {
        // -1 stands for "no key so far".
        let value = largest.or(before).map_or(-1, i64::from);
        world
            .send(rank + 1, Tag::NEIGHBOUR, collective::encode_i64(&[value]))
            .map_err(ExampleError::Communication)?;
    }
    Ok(before)
}
