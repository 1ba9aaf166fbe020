//! One iteration of the sort: deal the key ranges out evenly, send every key to the owner of its range, count.

use std::ops::Range;

use crate::collective;
use crate::communicator::{Communicator, Tag};
use crate::error::ExampleError;

use super::class::{Class, TEST_KEYS};
use super::state::IsState;

/// Which buckets belong to which rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deal {
    /// The buckets of each rank, in order of rank and of key.
    pub buckets: Vec<Range<usize>>,
    /// Keys that belong to ranks before each rank: the global rank of its smallest key.
    pub keys_before: Vec<i64>,
}

impl Deal {
    /// Deals the buckets out: a rank takes buckets until the ranks so far have their share, so that each has
    /// about equally many keys. A rank may stay without any when one bucket holds more than a share.
    pub fn new(bucket_totals: &[i64], ranks: usize, share: i64) -> Deal {
        let (mut buckets, mut keys_before) = (Vec::with_capacity(ranks), Vec::with_capacity(ranks));
        let (mut bucket, mut keys_so_far, mut due) = (0, 0, 0);
        for _ in 0..ranks {
            let first = bucket;
            keys_before.push(keys_so_far);
            due += share;
            while bucket < bucket_totals.len() && keys_so_far < due {
                keys_so_far += bucket_totals[bucket];
                bucket += 1;
            }
            buckets.push(first..bucket);
        }
        // Empty buckets at the end belong to the owner of the last keys.
        if let Some(last) = buckets.last_mut() {
            last.end = bucket_totals.len();
        }
        Deal { buckets, keys_before }
    }
}

/// The keys of one rank's range, counted.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// The smallest key of the range.
    pub first_key: u32,
    /// Global rank of the smallest key of the range.
    pub keys_before: i64,
    /// For each key of the range: how many keys of the range are smaller.
    pub smaller: Vec<u32>,
    /// The keys, as they came.
    pub keys: Vec<u32>,
}

impl Ranked {
    /// The global rank of `key`, when it lies in this rank's range.
    pub fn rank_of(&self, key: u32) -> Option<i64> {
        let offset = key.checked_sub(self.first_key)?;
        self.smaller.get(offset as usize).map(|smaller| self.keys_before + i64::from(*smaller))
    }
}

/// Changes the two keys that distinguish `iteration` from the others, counts the buckets over all ranks, and sends
/// every key to its new owner. Nothing has been received when this returns, except the counts.
///
/// # Errors
/// The communicator's error.
pub fn send_keys(
    world: &mut dyn Communicator,
    class: Class,
    state: &mut IsState,
    iteration: u32,
) -> Result<(), ExampleError> {
    if world.rank() == 0 {
        state.keys[iteration as usize] = iteration;
        state.keys[(iteration + 10) as usize] = (1 << class.key_limit_log2()) - iteration;
    }
    count_buckets(world.rank(), class, state);
    collective::all_reduce(world, &mut state.totals, |a, b| a + b)?;
    let deal = deal(class, state, world.size());

    let owners = owners(&deal);
    let shift = class.key_limit_log2() - class.buckets_log2();
    let mut blocks = vec![Vec::new(); world.size() as usize];
    for block in &mut blocks {
        block.reserve(state.keys.len() * 4 / world.size() as usize);
    }
    for key in &state.keys {
        let owner = owners[(key >> shift) as usize];
        blocks[owner].extend_from_slice(&key.to_le_bytes());
    }
    let counts: Vec<u32> = blocks.iter().map(|block| count_of(block)).collect();
    state.announced = collective::all_to_all(world, &counts)?;
    for (to, block) in (0..world.size()).zip(blocks) {
        // A rank's own keys do not travel: it finds them again in `keys`, which this iteration leaves alone.
        if to != world.rank() {
            state.progress.open.begin(world, to, Tag::KEYS, block)?;
        }
    }
    Ok(())
}

/// Receives the keys of this rank's range and counts them. When this returns, the others have received theirs of this rank.
///
/// # Errors
/// The errors of the communicator, and [`ExampleError::Length`] when a block has not the announced size.
pub fn receive_keys(
    world: &mut dyn Communicator,
    class: Class,
    state: &mut IsState,
) -> Result<Ranked, ExampleError> {
    let (rank, size) = (world.rank(), world.size());
    let deal = deal(class, state, size);
    let shift = class.key_limit_log2() - class.buckets_log2();
    let own = deal.buckets[rank as usize].clone();
    let total: u64 = state.announced.iter().map(|count| u64::from(*count)).sum();
    let mut keys = Vec::with_capacity(usize::try_from(total).expect("fits into memory"));
    for (from, announced) in (0..size).zip(&state.announced) {
        if from == rank {
            keys.extend(state.keys.iter().filter(|key| own.contains(&((**key >> shift) as usize))));
        } else {
            let block = collective::receive_exactly(world, from, Tag::KEYS, *announced as usize * 4)?;
            keys.extend(block.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)));
        }
    }
    let first_key = u32::try_from(own.start << shift).expect("a key has at most 21 bits");
    state.progress.open.end(world)?;
    let mut smaller = vec![0_u32; own.len() << shift];
    for key in &keys {
        smaller[(key - first_key) as usize] += 1;
    }
    let mut sum = 0;
    for slot in &mut smaller {
        sum += std::mem::replace(slot, sum);
    }
    Ok(Ranked { first_key, keys_before: deal.keys_before[rank as usize], smaller, keys })
}

/// Fills `totals` with this rank's part: keys of each bucket, and the test keys that this rank holds.
fn count_buckets(rank: u32, class: Class, state: &mut IsState) {
    let shift = class.key_limit_log2() - class.buckets_log2();
    let IsState { keys, totals, .. } = state;
    totals.fill(0);
    for key in keys.iter() {
        totals[(key >> shift) as usize] += 1;
    }
    let bucket_count = totals.len() - TEST_KEYS;
    let share = keys.len() as u64;
    for (slot, position) in totals[bucket_count..].iter_mut().zip(class.test_positions()) {
        if position / share == u64::from(rank) {
            let index = usize::try_from(position % share).expect("an index into memory");
            *slot = i64::from(keys[index]);
        }
    }
}

fn deal(class: Class, state: &IsState, size: u32) -> Deal {
    let bucket_totals = &state.totals[..1 << class.buckets_log2()];
    let share = i64::try_from(class.keys() / u64::from(size)).expect("at most 2^25");
    Deal::new(bucket_totals, size as usize, share)
}

fn owners(deal: &Deal) -> Vec<usize> {
    deal.buckets.iter().enumerate().flat_map(|(rank, buckets)| buckets.clone().map(move |_| rank)).collect()
}

fn count_of(block: &[u8]) -> u32 {
    u32::try_from(block.len() / 4).expect("at most 2^25 keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_dealt_out_in_order_and_without_gaps() {
        let deal = Deal::new(&[3, 1, 4, 0, 2, 2, 0, 0], 4, 3);
        assert_eq!(deal.buckets, [0..1, 1..3, 3..5, 5..8]);
        assert_eq!(deal.keys_before, [0, 3, 8, 10]);
    }

    #[test]
    fn a_bucket_of_several_shares_leaves_ranks_without_keys() {
        let deal = Deal::new(&[0, 8, 0, 0], 4, 2);
        assert_eq!(deal.buckets, [0..2, 2..2, 2..2, 2..4]);
        assert_eq!(deal.keys_before, [0, 8, 8, 8]);
    }
}
