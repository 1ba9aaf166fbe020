//! The demo's program on each rank: the integer sort, with bursts of messages in flight at every point.

use std::process::ExitCode;

use examples::burst::{BurstConfig, Bursting};
use examples::is::{Class, IsConfig, IsReport};
use examples::{Communicator as _, ExampleError, collective, is};
use serde::{Deserialize, Serialize};
use session::Session;

use crate::arguments::DemoRankArguments;
use crate::exit::Exit;

/// Burst messages to each peer at each point: as many as the paper that measured freezing sent back to back.
const BURST_MESSAGES: u32 = 32;

/// Bytes of each of them.
const BURST_BYTES: usize = 256;

/// The line that the first rank prints at the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Every verification of the sort was successful, and every burst message came once, whole and in order.
    pub(crate) verified: bool,
    /// Rounds of the sort.
    pub(crate) rounds: u32,
    /// Keys of one round, all ranks together.
    pub(crate) keys: u64,
    /// Test keys that had the rank they must have.
    pub(crate) partial_passed: u64,
    /// Test keys that were looked at.
    pub(crate) partial_expected: u64,
    /// Full verifications passed.
    pub(crate) full_passed: u64,
    /// Full verifications done.
    pub(crate) full_expected: u64,
    /// Burst messages received and checked, all ranks together.
    pub(crate) burst_messages: u64,
}

pub(crate) fn main(arguments: &DemoRankArguments) -> ExitCode {
    match run(arguments) {
        Ok(true) => Exit::Success.into(),
        Ok(false) => Exit::Unverified.into(),
        Err(error) => {
            eprintln!("error: {error}");
            Exit::Failed.into()
        }
    }
}

fn run(arguments: &DemoRankArguments) -> Result<bool, ExampleError> {
    let failed = |error: session::SessionError| ExampleError::Communication(error.into());
    let mut session = Session::open().map_err(failed)?;
    let verified = session.had_finished() || sort(&mut session, arguments)?;
    session.finalize().map_err(failed)?;
    Ok(verified)
}

fn sort(session: &mut Session, arguments: &DemoRankArguments) -> Result<bool, ExampleError> {
    let class = match arguments.class.as_str() {
        "A" | "a" => Class::A,
        "W" | "w" => Class::W,
        _ => Class::S,
    };
    let config = IsConfig { rounds: arguments.rounds, ..IsConfig::official(class) };
    let bursts = BurstConfig { messages: BURST_MESSAGES, bytes: BURST_BYTES, rounds: 0 };
    let mut world = Bursting::new(session, bursts);
    let report = is::run_until(&mut world, &config, &mut || arguments.until.exists(), &mut |_| {})?;
    let mut received = [i64::try_from(world.received()).unwrap_or(i64::MAX)];
    collective::all_reduce(&mut world, &mut received, |a, b| a + b)?;
    if world.rank() == 0 {
        print(&report, received[0].unsigned_abs())?;
    }
    Ok(report.verified)
}

fn print(report: &IsReport, burst_messages: u64) -> Result<(), ExampleError> {
    let outcome = Outcome {
        verified: report.verified,
        rounds: report.rounds,
        keys: report.keys,
        partial_passed: report.partial_passed,
        partial_expected: report.partial_expected,
        full_passed: report.full_passed,
        full_expected: report.full_expected,
        burst_messages,
    };
    println!("{}", serde_json::to_string(&outcome).map_err(std::io::Error::from)?);
    Ok(())
}
