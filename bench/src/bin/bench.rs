//! The benches as a program of their own: `cargo run --release -p stillwire-bench --bin bench -- latency --json`.

use std::process::ExitCode;

use bench::command::Bench;
use clap::Parser;

#[derive(Parser)]
#[command(about = "Measures stillwire against bare baselines")]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
    /// Print one JSON object.
    #[arg(long, global = true)]
    json: bool,
}

/// The exit code if a bench's programs came to a wrong result; the same as `stillwire`'s.
const WRONG: u8 = 3;

fn main() -> ExitCode {
    bench::run_if_worker();
    let arguments = Arguments::parse();
    match arguments.bench.run(arguments.json) {
        Ok(outcome) => {
            println!("{}", outcome.report);
            if outcome.right { ExitCode::SUCCESS } else { ExitCode::from(WRONG) }
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
