//! Several generations are kept: each of them is rebuilt on a node that was emptied, and none of them costs another one its parity.

use std::time::Duration;

use crate::cluster::{Cluster, JOB, Plan, generation, life, wait_for};
use protector::{Event, Limits, ProtectorError, Request, RequestKind};
use store::{Decision, GenerationId, Manifest};

/// A generation, and the memory of every node at that time.
type Taken = (Manifest, Vec<Vec<u8>>);

/// Three generations of four nodes, each upon the one before.
fn three() -> (Cluster, [Taken; 3]) {
    let mut cluster = Cluster::new(Plan::new(4, 1, 200_000));
    let taken = [1, 2, 3].map(|epoch| {
        let from = (epoch > 1).then(|| generation(1, epoch - 1));
        let (manifest, _) = cluster.checkpoint(generation(1, epoch), from);
        let memories = cluster.memories();
        cluster.work(u64::from(epoch), 9);
        (manifest, memories)
    });
    (cluster, taken)
}

fn rebuild(cluster: &mut Cluster, lost: usize, counter: u32, generations: &[&Taken]) {
    cluster.replace(&[lost], counter);
    for (manifest, _) in generations {
        cluster.repair(&[lost], manifest.generation).remove(0).expect("one may be lost");
    }
    for (manifest, memories) in generations {
        cluster.check_as(manifest, memories);
    }
}

// In any order: each leaves the parity of the others alone.
#[test]
fn every_generation_is_rebuilt_and_then_every_other_node() {
    let (mut cluster, [first, second, third]) = three();
    rebuild(&mut cluster, 1, 2, &[&third, &second, &first]);
    rebuild(&mut cluster, 3, 3, &[&first, &third, &second]);
    rebuild(&mut cluster, 0, 4, &[&second, &first, &third]);
}

#[test]
fn what_was_rebuilt_is_built_upon_and_collected_like_the_rest() {
    let (mut cluster, [first, second, third]) = three();
    rebuild(&mut cluster, 1, 2, &[&third, &second, &first]);
    cluster.decide(2, Some(generation(1, 3)));
    let (fourth, _) = cluster.checkpoint(generation(2, 4), Some(generation(1, 3)));
    let fourth = (fourth, cluster.memories());
    cluster.collect_but(2, 3, &[]);
    cluster.check_as(&second.0, &second.1);
    rebuild(&mut cluster, 2, 3, &[&fourth, &third, &second]);
    // As requested before a life begins.
    let decided = [(1, None), (2, Some(generation(1, 3)))];
    let decided = decided.map(|(counter, from)| Decision { job: JOB, life: life(counter), from });
    cluster.job(2).adopt_decisions(&decided).expect("records");
    cluster.collect_but(2, 1, &[]);
    rebuild(&mut cluster, 1, 4, &[&fourth]);
    for node in &cluster.nodes {
        let parity = std::fs::read_dir(node.directory.join("parity")).expect("a folder").count();
        assert_eq!(parity, 1, "what is not kept has no parity");
    }
}

// A copy of the first is being written while the second goes.
#[test]
fn parity_that_builds_upon_what_goes_stands_alone() {
    let (mut cluster, [first, _, third]) = three();
    cluster.collect_but(1, 1, &[first.0.generation]);
    rebuild(&mut cluster, 2, 2, &[&third, &first]);
}

/// A repair of an older generation is under way: its disk lets nothing through.
fn with_a_repair_under_way() -> (Cluster, GenerationId) {
    let (mut cluster, [first, _, third]) = three();
    cluster.replace(&[0], 2);
    cluster.repair(&[0], third.0.generation).remove(0).expect("one may be lost");
    cluster.job(0).adopt(&third.0).expect("a record");
    let crawling = Limits { disk_bytes_per_s: Some(200_000), ..Limits::default() };
    cluster.limit(|node| if node == 0 { crawling } else { Limits::default() }, 3);
    cluster.decide(3, Some(third.0.generation));
    let id = first.0.generation;
    cluster.nodes[0].protector.send(Request::Repair { generation: id });
    cluster.nodes[0].protector.send(Request::Repair { generation: generation(1, 2) });
    let folder = cluster.nodes[0].directory.join(store::job::folder(id));
    wait_for("a file that was lost is begun anew", || {
        std::fs::read_dir(&folder).is_ok_and(|mut files| files.next().is_some())
    });
    (cluster, id)
}

#[test]
fn a_checkpoint_goes_before_repairs() {
    let (cluster, id) = with_a_repair_under_way();
    let next = generation(3, 4);
    cluster.write_images(next);
    for node in 0..4 {
        cluster.order_protect(node, next, Some(generation(1, 3)));
    }
    for expected in [generation(1, 2), id] {
        match cluster.nodes[0].wait() {
            Event::Failed {
                request: RequestKind::Repair,
                generation: Some(_),
                error: ProtectorError::Ended { by: "a checkpoint goes first" },
            } => {}
            other => panic!("{other:?} instead of the end of the repair of {expected}"),
        }
    }
    for node in &cluster.nodes {
        let event = node.wait_until(std::time::Instant::now() + Duration::from_secs(60));
        assert!(
            matches!(event, Some(Event::Protected { generation, .. }) if generation == next),
            "{event:?}"
        );
    }
    // The repairs that had begun are done again.
    let mut cluster = cluster;
    cluster.limit(|_| Limits::default(), 4);
    cluster.repair(&[0], id).remove(0).expect("one may be lost");
}
