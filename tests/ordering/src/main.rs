//! Runs the models of what threads and processes share, and shows for each ordering in the modelled code that a model fails without it.
//!
//! usage: `stillwire-ordering [--mutations [--all]]`, or `--model NAME [--weaken FILE:LINE:COLUMN:HALF]`, which the first two start.

mod endpoint;
#[path = "../../../store/protector/src/mailbox.rs"]
#[allow(dead_code, reason = "only the mailbox is modelled")]
mod mailbox;
mod mutations;
mod shm;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A model by its name.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    run: fn(),
}

pub(crate) const MODELS: &[Model] = &[
    Model { name: "shm: short frames", run: shm::short_frames },
    Model { name: "shm: long frames", run: shm::long_frames },
    Model { name: "shm: doorbell, fences", run: shm::doorbell_with_fences },
    Model { name: "shm: doorbell, barriers", run: shm::doorbell_with_barriers },
    Model { name: "shm: doorbell, fast path", run: shm::doorbell_of_the_fast_path },
    Model { name: "shm: quiet ring, fences", run: shm::quiet_ring_with_fences },
    Model { name: "shm: quiet ring, barriers", run: shm::quiet_ring_with_barriers },
    Model { name: "shm: claims", run: shm::claims },
    Model { name: "shm: succession", run: shm::succession },
    Model { name: "shm: withdrawn offer", run: shm::withdrawn_offer },
    Model { name: "shm: copied offer", run: shm::copied_offer },
    Model { name: "endpoint: own condition", run: endpoint::own_condition },
    Model { name: "endpoint: two sleepers", run: endpoint::two_sleepers },
    Model { name: "endpoint: sleeper and poller", run: endpoint::sleeper_and_poller },
    Model { name: "endpoint: helper", run: endpoint::helper },
    Model { name: "endpoint: helper ends", run: endpoint::helper_ends },
    Model { name: "protector: mailbox", run: endpoint::mailbox },
    Model { name: "protector: mailbox, early", run: endpoint::mailbox_without_endpoint },
];

/// Executions of the models so far.
static EXECUTIONS: AtomicU64 = AtomicU64::new(0);

/// Executes `model` under each order of its steps with at most so many preemptions, and each value that a load may find.
pub(crate) fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // Far more than any model takes that ends.
    builder.max_branches = 20_000;
    builder.check(move || {
        EXECUTIONS.fetch_add(1, Ordering::Relaxed);
        drivers::sync::model::begin();
        model();
    });
}

fn run(model: &Model) {
    let (before, started) = (EXECUTIONS.load(Ordering::Relaxed), Instant::now());
    (model.run)();
    let executions = EXECUTIONS.load(Ordering::Relaxed) - before;
    println!("{:28} {executions:8} executions {:6.1} s", model.name, started.elapsed().as_secs_f64());
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let named = |name: &str| MODELS.iter().find(|model| model.name == name);
    match arguments[..] {
        [] => MODELS.iter().for_each(run),
        ["--mutations"] => return mutations::check(false),
        ["--mutations", "--all"] => return mutations::check(true),
        ["--model", name, ref weakened @ ..] => {
            let Some(model) = named(name) else {
                eprintln!("ordering: no model is named '{name}'");
                return ExitCode::from(2);
            };
            if let ["--weaken", site] = *weakened {
                mutations::weaken(site);
            }
            run(model);
            mutations::print_met();
        }
        _ => {
            eprintln!(
                "usage: stillwire-ordering [--mutations [--all]] | --model NAME [--weaken FILE:LINE:COLUMN:HALF]"
            );
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
