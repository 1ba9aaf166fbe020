//! How far nodes are from each other counts from the first encoding of a life on.

use std::time::Duration;

use crate::cluster::{Cluster, Plan, generation};
use drivers::fault::{Delay, Faults, Rate};
use protector::{Limits, Shape};

/// One way.
const WAY: Duration = Duration::from_millis(20);

#[test]
fn the_first_encoding_of_far_nodes_goes_straight() {
    let faults = Faults { delay: Rate::percent(100), delay_by: Delay::Time(WAY), ..Faults::NONE };
    let limits = Limits {
        link_bytes_per_s: Some(50_000_000),
        disk_bytes_per_s: Some(50_000_000),
        ..Limits::default()
    };
    let plan = Plan { unit_pages: 16, faults: vec![faults], limits, ..Plan::new(4, 1, 1 << 20) };
    let cluster = Cluster::new(plan);
    // Their first messages when they meet are on their way, and perhaps once more: the first probes leave before an answer can arrive.
    std::thread::sleep(20 * WAY);
    cluster.write_images(generation(1, 1));
    for found in cluster.protect(generation(1, 1), None) {
        // Were they near, blocks that are short would be under way soonest: by a chain.
        assert_eq!(found.shape, Some(Shape::Broadcast));
        // Two and a half round trips, and the time that the limits need.
        let predicted = Duration::from_secs_f64(found.seconds.predicted);
        assert!((5 * WAY..15 * WAY).contains(&predicted), "{predicted:?} for a way of {WAY:?}");
    }
}
