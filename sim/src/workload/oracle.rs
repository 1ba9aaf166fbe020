//! The result of a script, computed round by round without any transport: the required end of every history.

use super::program::{content_digest, end_of_round, first_digest, message_data};
use super::script::Script;

/// The state of each rank after its last round.
#[must_use]
pub fn final_digests(script: &Script) -> Vec<u64> {
    let mut digests: Vec<u64> = (0..script.ranks).map(|rank| first_digest(script, rank)).collect();
    for number in 0..script.round_count() {
        let mut gathered = vec![0u64; digests.len()];
        for from in 0..script.ranks {
            for n in 0..script.sends(number, from) {
                let Some(message) = script.nth_send(number, from, n) else { continue };
                let data = message_data(digests[at(from)], &message);
                let sum = &mut gathered[at(message.to)];
                *sum = sum.wrapping_add(content_digest(message.from, message.tag(), data, message.bytes));
            }
        }
        for (digest, sum) in digests.iter_mut().zip(gathered) {
            *digest = end_of_round(*digest, sum);
        }
    }
    digests
}

fn at(rank: u32) -> usize {
    usize::try_from(rank).unwrap_or(usize::MAX)
}
