//! The NAS integer sort (IS): rank `2^16`...`2^25` keys over all ranks, ten times, and check the ranks.
//!
//! Each iteration counts the keys in buckets (one reduction), deals the buckets out evenly, sends every key to the rank
//! that owns its bucket (all to all), and counts. The paper on parity among nodes measured its checkpoints with this
//! program. There are two points in each iteration: one at its begin, and one while all keys are on their way.

pub mod class;
pub mod random;
pub mod report;
pub mod sort;
pub mod state;
pub mod verify;

use std::time::Instant;

use crate::collective;
use crate::communicator::Communicator;
use crate::error::ExampleError;
use crate::limits::IS_ITERATIONS_MAX;

pub use class::Class;
pub use report::IsReport;
pub use state::{IsState, Progress, stage};

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct IsConfig {
    /// The problem class.
    pub class: Class,
    /// Iterations of a round, 1..=10; the benchmark has 10.
    pub iterations: u32,
    /// How often the benchmark is repeated, each time with all its verifications; at least 1.
    pub rounds: u32,
}

impl IsConfig {
    /// The benchmark as it is defined.
    pub fn official(class: Class) -> IsConfig {
        IsConfig { class, iterations: IS_ITERATIONS_MAX, rounds: 1 }
    }
}

/// An iteration that has been done.
#[derive(Clone, Copy, Debug)]
pub struct IterationDone {
    /// The round, from 1.
    pub round: u64,
    /// The iteration, from 1; 0 is the untimed one.
    pub iteration: u64,
    /// Test keys of this rank with the expected rank, up to now.
    pub partial_passed: u64,
}

/// Runs the benchmark, or the rest of it after a restart. Every rank gets the same report.
///
/// # Errors
/// A number of ranks or iterations that is not possible, a restart with other arguments, or the errors of the
/// communicator. A failed verification is not an error: it is in the report.
pub fn run(
    world: &mut dyn Communicator,
    config: &IsConfig,
    on_iteration: &mut dyn FnMut(&IterationDone),
) -> Result<IsReport, ExampleError> {
    run_until(world, config, &mut || true, on_iteration)
}

/// As [`run`], and repeats the benchmark beyond the configured rounds until the first rank finds it `enough`.
///
/// # Errors
/// As for [`run`].
pub fn run_until(
    world: &mut dyn Communicator,
    config: &IsConfig,
    enough: &mut dyn FnMut() -> bool,
    on_iteration: &mut dyn FnMut(&IterationDone),
) -> Result<IsReport, ExampleError> {
    let class = config.class;
    let mut state = IsState::new(class, world.size(), config.iterations)?;
    if world.restore(&mut state).map_err(ExampleError::Communication)? {
        state.check_same_run(world.rank(), class, config.iterations)?;
        state.progress.restarts += 1;
    } else {
        state.generate(class, world.rank());
    }
    let mut clock = Clock(Instant::now());
    while goes_on(world, config, &state.progress, enough)? {
        let iteration = state.progress.iteration;
        let ranked = iterate(world, class, &mut state, &mut clock)?;
        if iteration > 0 {
            state.progress.partial_passed += verify::partial(class, &state, &ranked, counted(iteration));
        }
        let (round, partial_passed) = (state.progress.rounds_done + 1, state.progress.partial_passed);
        on_iteration(&IterationDone { round, iteration, partial_passed });
        if iteration == u64::from(config.iterations) {
            let passed = verify::full(world, class, ranked)?;
            end_round(world.rank(), class, &mut state, passed);
            clock.lap_ns();
        } else {
            state.progress.iteration += 1;
        }
    }
    summarize(world, config, &state.progress)
}

/// Whether there is another iteration. Beyond the configured rounds the first rank decides for all, before each round.
fn goes_on(
    world: &mut dyn Communicator,
    config: &IsConfig,
    progress: &Progress,
    enough: &mut dyn FnMut() -> bool,
) -> Result<bool, ExampleError> {
    let begins = progress.iteration <= 1 && progress.stage == stage::BEGIN;
    if !begins || progress.rounds_done < u64::from(config.rounds) {
        return Ok(true);
    }
    let mut stops = [i64::from(world.rank() == 0 && enough())];
    collective::all_reduce(world, &mut stops, i64::max)?;
    Ok(stops[0] == 0)
}

/// Does one iteration from the stage at which the state stands.
fn iterate(
    world: &mut dyn Communicator,
    class: Class,
    state: &mut IsState,
    clock: &mut Clock,
) -> Result<sort::Ranked, ExampleError> {
    if state.progress.stage == stage::BEGIN {
        state.account(clock.lap_ns());
        world.point(state).map_err(ExampleError::Communication)?;
        sort::send_keys(world, class, state, counted(state.progress.iteration))?;
        state.progress.stage = stage::KEYS_SENT;
        state.account(clock.lap_ns());
        world.point(state).map_err(ExampleError::Communication)?;
    }
    let ranked = sort::receive_keys(world, class, state)?;
    state.progress.stage = stage::BEGIN;
    state.account(clock.lap_ns());
    Ok(ranked)
}

/// The untimed iteration counts as the first one.
fn counted(iteration: u64) -> u32 {
    u32::try_from(iteration.max(1)).expect("at most IS_ITERATIONS_MAX")
}

fn end_round(rank: u32, class: Class, state: &mut IsState, passed: bool) {
    state.progress.full_passed += u64::from(passed);
    state.progress.rounds_done += 1;
    state.progress.iteration = 1;
    if rank == 0 {
        state.undo_changes(class);
    }
}

fn summarize(
    world: &mut dyn Communicator,
    config: &IsConfig,
    progress: &Progress,
) -> Result<IsReport, ExampleError> {
    let mut passed = [progress.partial_passed, progress.full_passed].map(signed);
    collective::all_reduce(world, &mut passed, |a, b| a + b)?;
    let mut worst = [progress.elapsed_ns, progress.restarts].map(signed);
    collective::all_reduce(world, &mut worst, i64::max)?;
    let rounds = u32::try_from(progress.rounds_done).unwrap_or(u32::MAX);
    let done = IsConfig { rounds, ..*config };
    Ok(IsReport::new(&done, world.size(), passed.map(i64::unsigned_abs), worst.map(i64::unsigned_abs)))
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The time since it was last read.
struct Clock(Instant);

impl Clock {
    fn lap_ns(&mut self) -> u64 {
        let now = Instant::now();
        let lap = now - std::mem::replace(&mut self.0, now);
        u64::try_from(lap.as_nanos()).unwrap_or(u64::MAX)
    }
}
