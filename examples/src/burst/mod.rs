//! The burst test: every rank sends bursts of asynchronous messages, back to back, to every other rank.
//!
//! A burst is received only after the next point, so at each point whole bursts are on their way from every rank to
//! every other one: the hardest moment to save a job at. Each message names its sender, receiver, number and contents,
//! so the receiver can recognise a lost, doubled, overtaken, misrouted or damaged one.

pub mod around;
pub mod message;
pub mod report;

use std::time::Instant;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::collective;
use crate::communicator::{Communicator, OpenSends, Region, State, Tag};
use crate::error::ExampleError;
use crate::limits::{BURST_MESSAGE_BYTES_MAX, BURST_MESSAGES_MAX};

pub use around::Bursting;
pub use report::BurstReport;

/// The parameters of a run. All ranks must be given the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstConfig {
    /// Messages to each peer in each burst; the paper sent 32.
    pub messages: u32,
    /// Bytes of each message, at least [`message::HEADER_BYTES`].
    pub bytes: usize,
    /// Bursts.
    pub rounds: u64,
}

impl Default for BurstConfig {
    fn default() -> Self {
        BurstConfig { messages: 32, bytes: 64, rounds: 1000 }
    }
}

/// How far a rank has come. Plain numbers, so it is saved as it lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Progress {
    /// Messages of a burst: detects a restart with another number.
    pub messages: u64,
    /// Bytes of a message: detects a restart with another size.
    pub bytes: u64,
    /// Bursts received from every peer.
    pub rounds_done: u64,
    /// 1 while a burst has been sent that is not yet received.
    pub in_flight: u64,
    /// Requests of the burst that has been sent.
    pub open: OpenSends,
    /// Messages that came as they had to.
    pub received: u64,
    /// Time in bursts, in nanoseconds, of all lives together.
    pub elapsed_ns: u64,
    /// Times that the program was restarted from a saved state.
    pub restarts: u64,
}

impl State for Progress {
    fn regions(&mut self) -> Vec<Region<'_>> {
        vec![Region { id: 1, bytes: self.as_mut_bytes() }]
    }
}

/// Runs the test, or the rest of it after a restart. Every rank gets the same report.
///
/// # Errors
/// [`ExampleError::Burst`] for the first message that is not as it must be, an impossible configuration, or
/// the errors of the communicator.
pub fn run(
    world: &mut dyn Communicator,
    config: &BurstConfig,
    on_round: &mut dyn FnMut(&Progress),
) -> Result<BurstReport, ExampleError> {
    check(config)?;
    let (messages, bytes) = (u64::from(config.messages), config.bytes as u64);
    let mut progress = Progress { messages, bytes, ..Progress::default() };
    if world.restore(&mut progress).map_err(ExampleError::Communication)? {
        check_same_run(world.rank(), config, &progress)?;
        progress.restarts += 1;
    }
    let mut started = Instant::now();
    while progress.rounds_done < config.rounds {
        if progress.in_flight == 0 {
            send_burst(world, config, progress.rounds_done, &mut progress.open)?;
            progress.in_flight = 1;
            account(&mut progress, &mut started);
            world.point(&mut progress).map_err(ExampleError::Communication)?;
        }
        progress.received += receive_burst(world, config, progress.rounds_done)?;
        progress.open.end(world)?;
        progress.in_flight = 0;
        progress.rounds_done += 1;
        on_round(&progress);
    }
    account(&mut progress, &mut started);
    check_nothing_follows(world, config)?;
    summarize(world, config, &progress)
}

fn account(progress: &mut Progress, started: &mut Instant) {
    let now = Instant::now();
    let lap = now - std::mem::replace(started, now);
    progress.elapsed_ns += u64::try_from(lap.as_nanos()).unwrap_or(u64::MAX);
}

fn check(config: &BurstConfig) -> Result<(), ExampleError> {
    let limits = [
        ("--messages", u64::from(config.messages), 1, u64::from(BURST_MESSAGES_MAX)),
        ("--bytes", config.bytes as u64, message::HEADER_BYTES as u64, BURST_MESSAGE_BYTES_MAX as u64),
        ("--rounds", config.rounds, 1, u64::MAX),
    ];
    for (name, found, least, most) in limits {
        if !(least..=most).contains(&found) {
            let hint = "choose a number between them";
            return Err(ExampleError::OutOfRange { name, found, least, most, hint });
        }
    }
    Ok(())
}

fn check_same_run(rank: u32, config: &BurstConfig, progress: &Progress) -> Result<(), ExampleError> {
    let fields = [
        ("--messages", progress.messages, u64::from(config.messages)),
        ("--bytes", progress.bytes, config.bytes as u64),
    ];
    for (name, saved, given) in fields {
        if saved != given {
            return Err(ExampleError::OtherRun { rank, name, saved, given });
        }
    }
    Ok(())
}

/// The other ranks, beginning with the next one, so that not all ranks send to the same one at once.
fn peers(world: &dyn Communicator) -> impl Iterator<Item = u32> + use<> {
    let (rank, size) = (world.rank(), world.size());
    (1..size).map(move |distance| (rank + distance) % size)
}

fn send_burst(
    world: &mut dyn Communicator,
    config: &BurstConfig,
    round: u64,
    open: &mut OpenSends,
) -> Result<(), ExampleError> {
    let rank = world.rank();
    for to in peers(world) {
        for index in 0..u64::from(config.messages) {
            let counter = round * u64::from(config.messages) + index;
            let bytes = message::compose(rank, to, counter, config.bytes);
            open.begin(world, to, Tag::BURST, bytes)?;
        }
    }
    Ok(())
}

fn receive_burst(
    world: &mut dyn Communicator,
    config: &BurstConfig,
    round: u64,
) -> Result<u64, ExampleError> {
    let mut received = 0;
    for from in peers(world) {
        for index in 0..u64::from(config.messages) {
            let counter = round * u64::from(config.messages) + index;
            receive_one(world, config, from, counter)?;
            received += 1;
        }
    }
    Ok(received)
}

fn receive_one(
    world: &mut dyn Communicator,
    config: &BurstConfig,
    from: u32,
    counter: u64,
) -> Result<(), ExampleError> {
    let rank = world.rank();
    let bytes = world.receive(from, Tag::BURST).map_err(ExampleError::Communication)?;
    message::check(&bytes, from, rank, counter, config.bytes).map_err(|fault| ExampleError::Burst {
        rank,
        from,
        counter,
        fault,
    })
}

/// One more message on each link, which must be the next to come: a doubled last message would come before it.
fn check_nothing_follows(world: &mut dyn Communicator, config: &BurstConfig) -> Result<(), ExampleError> {
    let last = BurstConfig { messages: 1, ..*config };
    let counter = config.rounds * u64::from(config.messages);
    let mut open = OpenSends::default();
    send_burst(world, &last, counter, &mut open)?;
    receive_burst(world, &last, counter)?;
    open.end(world)
}

fn summarize(
    world: &mut dyn Communicator,
    config: &BurstConfig,
    progress: &Progress,
) -> Result<BurstReport, ExampleError> {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let mut received = [signed(progress.received)];
    collective::all_reduce(world, &mut received, |a, b| a + b)?;
    let mut worst = [signed(progress.elapsed_ns), signed(progress.restarts)];
    collective::all_reduce(world, &mut worst, i64::max)?;
    Ok(BurstReport::new(config, world.size(), received[0].unsigned_abs(), worst.map(i64::unsigned_abs)))
}
