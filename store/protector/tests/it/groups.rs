//! Whole groups: protect, lose, repair.

use crate::cluster::{Cluster, Plan, generation, subsets};
use drivers::fault::Faults;
use protector::Shape;
use transport::config::AuthLevel;

/// Protects three generations, each upon the one before, then loses every set of nodes that may be lost.
fn survives(plan: Plan) {
    let (members, losses) = (plan.members, plan.losses);
    let mut cluster = Cluster::new(plan);
    let (first, statistics) = cluster.checkpoint(generation(1, 1), None);
    let whole: u64 = statistics.iter().map(|statistics| statistics.sent_bytes).sum();
    cluster.check(&first);
    cluster.work(1, 5);
    let (second, statistics) = cluster.checkpoint(generation(1, 2), Some(generation(1, 1)));
    let delta: u64 = statistics.iter().map(|statistics| statistics.sent_bytes).sum();
    assert!(delta * 3 < whole, "{delta} bytes were sent for a few pages, {whole} for all");
    cluster.check(&second);
    // Folded in, and one more that is not.
    cluster.collect(1);
    cluster.work(2, 5);
    let (third, _) = cluster.checkpoint(generation(1, 3), Some(generation(1, 2)));
    let mut counter = 1;
    subsets(members, losses, &mut |lost| {
        counter += 1;
        cluster.replace(lost, counter);
        for repaired in cluster.repair(lost, third.generation) {
            assert!(repaired.expect("as many may be lost").files > 0);
        }
        cluster.check(&third);
    });
}

#[test]
fn partners_survive_each_other() {
    survives(Plan::new(2, 1, 100_000));
}

#[test]
fn four_nodes_survive_any_one_by_every_shape() {
    for shape in Shape::ALL {
        survives(Plan { shape: Some(shape), ..Plan::new(4, 1, 300_000) });
    }
}

#[test]
fn six_nodes_survive_any_two_by_every_shape() {
    for shape in Shape::ALL {
        survives(Plan { shape: Some(shape), ..Plan::new(6, 2, 300_000) });
    }
}

#[test]
fn three_nodes_with_large_images_and_ordinary_units() {
    survives(Plan { unit_pages: 16, ..Plan::new(3, 1, 9 << 20) });
}

fn faults(text: &str) -> Faults {
    text.parse().expect("faults")
}

// Frames are retransmitted, and duplicate or reordered ones count once: the kept data equals the memories.
#[test]
fn links_that_lose_and_double_and_mix_up_frames_make_no_difference() {
    let faults = faults("loss=3%,dup=3%,reorder=3%,side=both");
    for shape in Shape::ALL {
        survives(Plan { shape: Some(shape), faults: vec![faults], ..Plan::new(4, 1, 300_000) });
    }
    survives(Plan { faults: vec![faults], ..Plan::new(5, 2, 100_000) });
}

// Between hosts the key covers payload.
#[test]
fn links_that_flip_bits_make_no_difference() {
    let faults = faults("corrupt=3%,truncate=1%,side=both");
    survives(Plan { faults: vec![faults], auth: AuthLevel::Full, ..Plan::new(4, 1, 300_000) });
}
