//! The limit of a protector's processor time, as the system counts it. A file of its own: nothing else may run in this process.

use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Plan, life};
use nix::time::{ClockId, clock_gettime};
use protector::Limits;
use store::GenerationId;
use transport::Epoch;

const CORES: f64 = 0.1;
const NODES: usize = 3;
const BYTES: usize = 32 << 20;

/// Processor time that this process has used.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("a clock").into()
}

/// Protects a generation of that life. Returns a node's processor time, by the system's count and by its protector's, and the elapsed time.
fn measured(cluster: &Cluster, counter: u32) -> (Duration, Duration, Duration) {
    let id = GenerationId { life: life(counter), epoch: Epoch(counter) };
    cluster.write_images(id);
    let (before, start) = (used(), Instant::now());
    let statistics = cluster.protect(id, None);
    let (of_all, elapsed) = (used() - before, start.elapsed());
    let counted = statistics.iter().map(|statistics| statistics.seconds.processor).sum::<f64>();
    let nodes = u32::try_from(NODES).expect("few");
    (of_all / nodes, Duration::from_secs_f64(counted) / nodes, elapsed)
}

// Both sides are processor time: other work of the machine makes the allowed time longer, not the used one.
#[test]
fn a_tenth_of_a_core_is_not_exceeded() {
    let mut cluster = Cluster::new(Plan::new(NODES, 1, BYTES));
    let (free, _, _) = measured(&cluster, 1);
    cluster.limit(|_| Limits { cores: Some(CORES), ..Limits::default() }, 2);
    cluster.decide(2, None);
    let (limited, counted, elapsed) = measured(&cluster, 2);
    println!("a node: free {free:?}, limited {limited:?}, counted {counted:?}, in {elapsed:?}");
    // The permitted burst, and the last pieces of each thread, after which no thread pauses.
    let ahead = Duration::from_millis(20);
    let allowed = elapsed.mul_f64(CORES);
    assert!(counted < allowed + ahead, "{counted:?} of {allowed:?}");
    // Threads of its endpoint wake up for frames, outside the limit.
    assert!(limited < allowed.mul_f64(1.5) + ahead, "{limited:?} of {allowed:?}");
    // It was the limit that was waited for: without one so much would have been used in a shorter time.
    assert!(elapsed.mul_f64(CORES) > free / 3, "{elapsed:?} for {free:?}");
}
