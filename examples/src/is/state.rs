//! All that a rank keeps between two points.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::communicator::{OpenSends, Region, State};
use crate::error::ExampleError;
use crate::limits::{IS_ITERATIONS_MAX, IS_RANKS_MAX};

use super::class::{Class, TEST_KEYS};
use super::random::Keys;

/// Where in an iteration a rank stands at a point.
pub mod stage {
    /// The iteration has not begun.
    pub const BEGIN: u64 = 0;
    /// Its keys are on their way to their new owners, and none has been received.
    pub const KEYS_SENT: u64 = 1;
}

/// How far a rank has come. Plain numbers, so it is saved as it lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Progress {
    /// Keys of the class: detects a restart with another class.
    pub keys: u64,
    /// Iterations of a round: detects a restart with another number.
    pub iterations: u64,
    /// Rounds finished.
    pub rounds_done: u64,
    /// Iteration of the round, from 1; 0 is the untimed one before the first round.
    pub iteration: u64,
    /// A value of [`stage`].
    pub stage: u64,
    /// Requests of the keys on their way; valid in [`stage::KEYS_SENT`].
    pub open: OpenSends,
    /// Test keys of this rank that had their expected rank.
    pub partial_passed: u64,
    /// Rounds whose full verification this rank passed.
    pub full_passed: u64,
    /// Time in timed iterations, in nanoseconds, of all lives together.
    pub elapsed_ns: u64,
    /// Times that the program was restarted from a saved state.
    pub restarts: u64,
}

/// The state that one rank of the sort needs to continue from a point.
#[derive(Clone, Debug)]
pub struct IsState {
    /// How far it has come.
    pub progress: Progress,
    /// The rank's share of the keys, as the current iteration has changed them.
    pub keys: Vec<u32>,
    /// Keys of each bucket, all ranks together, then the values of the test keys; valid in [`stage::KEYS_SENT`].
    pub totals: Vec<i64>,
    /// Keys that each rank has announced for this one; valid in [`stage::KEYS_SENT`].
    pub announced: Vec<u32>,
}

impl IsState {
    /// The state of a rank that has done nothing, without its keys, which [`IsState::generate`] makes.
    ///
    /// # Errors
    /// [`ExampleError::Ranks`] and [`ExampleError::OutOfRange`].
    pub fn new(class: Class, size: u32, iterations: u32) -> Result<IsState, ExampleError> {
        if !size.is_power_of_two() || size > IS_RANKS_MAX {
            return Err(ExampleError::Ranks { ranks: size, ranks_max: IS_RANKS_MAX });
        }
        if !(1..=IS_ITERATIONS_MAX).contains(&iterations) {
            return Err(ExampleError::OutOfRange {
                name: "--iterations",
                found: u64::from(iterations),
                least: 1,
                most: u64::from(IS_ITERATIONS_MAX),
                hint: "repeat the benchmark with --rounds",
            });
        }
        let share = usize::try_from(class.keys() / u64::from(size)).expect("a share fits into memory");
        let progress =
            Progress { keys: class.keys(), iterations: u64::from(iterations), ..Progress::default() };
        Ok(IsState {
            progress,
            keys: vec![0; share],
            totals: vec![0; (1 << class.buckets_log2()) + TEST_KEYS],
            announced: vec![0; size as usize],
        })
    }

    /// Makes the rank's share of the global sequence.
    pub fn generate(&mut self, class: Class, rank: u32) {
        let first = u64::from(rank) * self.keys.len() as u64;
        for (slot, key) in self.keys.iter_mut().zip(Keys::starting_at(first, class.key_limit_log2())) {
            *slot = key;
        }
    }

    /// Puts back the keys that the iterations of a round have changed; only the first rank holds any.
    pub fn undo_changes(&mut self, class: Class) {
        let changed = 2 * IS_ITERATIONS_MAX as usize + 1;
        for (slot, key) in
            self.keys.iter_mut().zip(Keys::starting_at(0, class.key_limit_log2())).take(changed)
        {
            *slot = key;
        }
    }

    /// Adds to the time that counts; the untimed iteration does not.
    pub fn account(&mut self, lap_ns: u64) {
        if self.progress.iteration > 0 {
            self.progress.elapsed_ns += lap_ns;
        }
    }

    /// Whether a restored state belongs to a run with these arguments.
    ///
    /// # Errors
    /// [`ExampleError::OtherRun`].
    pub fn check_same_run(&self, rank: u32, class: Class, iterations: u32) -> Result<(), ExampleError> {
        let fields = [
            ("keys", self.progress.keys, class.keys()),
            ("iterations", self.progress.iterations, u64::from(iterations)),
        ];
        for (name, saved, given) in fields {
            if saved != given {
                return Err(ExampleError::OtherRun { rank, name, saved, given });
            }
        }
        Ok(())
    }
}

impl State for IsState {
    fn regions(&mut self) -> Vec<Region<'_>> {
        vec![
            Region { id: 1, bytes: self.progress.as_mut_bytes() },
            Region { id: 2, bytes: self.keys.as_mut_bytes() },
            Region { id: 3, bytes: self.totals.as_mut_bytes() },
            Region { id: 4, bytes: self.announced.as_mut_bytes() },
        ]
    }
}
