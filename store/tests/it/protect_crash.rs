//! Power is lost on all nodes after any storage operation of any of them, and any M nodes are lost for good at that instant: the newest committed
//! generation comes back.

use crate::group::{Calls, Cluster, Random, generation, life, subsets};
use store::GenerationId;
use store::protect::ProtectError;

/// The results that the program got before the crash.
#[derive(Clone, Copy, Debug, Default)]
struct Acknowledged {
    committed: Option<GenerationId>,
    /// Begun, but not acknowledged as committed: may or may not exist.
    attempted: Option<GenerationId>,
}

const EPOCHS: u32 = 3;

/// Three generations in life `counter`, each built upon the one before; the older ones are collected.
fn work(
    cluster: &mut Cluster,
    acknowledged: &mut Acknowledged,
    counter: u32,
    mut from: Option<GenerationId>,
) -> Result<(), ProtectError> {
    cluster.start(counter, from)?;
    let first = from.map_or(1, |from| from.epoch.0 + 1);
    for epoch in first..first + EPOCHS {
        let id = generation(counter, epoch);
        acknowledged.attempted = Some(id);
        let claims = cluster.protect(id, from)?;
        cluster.commit(id, claims, || acknowledged.committed = Some(id))?;
        from = Some(id);
        cluster.collect(life(counter), 1)?;
    }
    Ok(())
}

/// Repairs the lost nodes for the newest generation that any node knows as committed; it is the acknowledged one, or
/// the one attempted.
fn recover(cluster: &mut Cluster, acknowledged: &Acknowledged, lost: &[usize]) -> Option<GenerationId> {
    cluster.replace(lost);
    let committed = cluster.committed();
    let Some(newest) = committed.first() else {
        assert_eq!(acknowledged.committed, None, "nobody knows what was told as committed");
        return None;
    };
    let found = Some(newest.generation);
    assert!(
        found == acknowledged.committed || found == acknowledged.attempted,
        "found {found:?}, {acknowledged:?}"
    );
    // Empty nodes learn of the job and its life.
    cluster.start(1, None).unwrap();
    cluster.repair_and_check(newest, lost).unwrap();
    found
}

/// Runs the work with a loss of power after each number of operations, until one run passes unharmed.
fn every_operation(
    members: usize,
    losses: usize,
    step: u64,
    deltas: u32,
    mut after: impl FnMut(u64, &Cluster, &Acknowledged),
) -> u64 {
    for operations in (0..).map(|n| n * step) {
        let mut cluster = Cluster::new(members, losses);
        cluster.deltas = deltas;
        let mut acknowledged = Acknowledged::default();
        cluster.fuse.set(Some(operations));
        let result = work(&mut cluster, &mut acknowledged, 1, None);
        if cluster.fuse.left().is_some_and(|left| left > 0) {
            assert_eq!(result, Ok(()));
            return operations;
        }
        after(operations, &cluster, &acknowledged);
    }
    unreachable!()
}

/// The three ways in which changes that were not durable are lost: all of them, none, some of them.
fn crashed(cluster: &Cluster, seed: u64, way: u64) -> Cluster {
    let mut cluster = cluster.copy();
    let mut random = Random::new(seed << 8 | way);
    match way {
        0 => cluster.lose_power(&mut |_| 0),
        1 => cluster.lose_power(&mut |_| 1),
        _ => cluster.lose_power(&mut |bound| random.below(bound)),
    }
    cluster
}

/// The data lost with the power at each of these operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    All,
    /// One of them, in turns: so more operations are tried in the same time.
    InTurns,
}

fn any_crash_and_any_losses(members: usize, losses: usize, step: u64, deltas: u32, ways: Ways) -> u64 {
    every_operation(members, losses, step, deltas, |operations, cluster, acknowledged| {
        let turn = operations / step % 3;
        for way in (0..3).filter(|way| ways == Ways::All || *way == turn) {
            let crashed = crashed(cluster, operations, way);
            subsets(members, losses, &mut |lost| {
                recover(&mut crashed.copy(), acknowledged, lost);
            });
        }
    })
}

#[test]
fn one_of_three_nodes_is_lost_at_any_operation() {
    let operations = any_crash_and_any_losses(3, 1, 1, 0, Ways::All);
    assert!(operations > 300, "only {operations} operations: the work is not what it was");
}

#[test]
fn a_node_or_its_partner_is_lost_at_any_operation() {
    any_crash_and_any_losses(2, 1, 1, 0, Ways::All);
}

#[test]
fn two_of_five_nodes_are_lost_at_every_third_operation() {
    any_crash_and_any_losses(5, 2, 3, 0, Ways::InTurns);
}

// The second and the third generation have the first one's images below theirs, which is collected meanwhile.
#[test]
fn images_over_a_base_come_back_with_it() {
    any_crash_and_any_losses(3, 1, 1, 2, Ways::InTurns);
    any_crash_and_any_losses(4, 2, 3, 2, Ways::InTurns);
}

#[test]
fn after_a_crash_the_job_goes_on_and_loses_nodes_again() {
    every_operation(4, 2, 1, 0, |operations, cluster, acknowledged| {
        let mut random = Random::new(operations);
        let mut cluster = crashed(cluster, operations, operations % 3);
        let mut two = || {
            let first = usize::try_from(random.below(4)).unwrap();
            let second = (first + 1 + usize::try_from(random.below(3)).unwrap()) % 4;
            [first.min(second), first.max(second)]
        };
        let Some(from) = recover(&mut cluster, acknowledged, &two()) else { return };
        let mut acknowledged = Acknowledged::default();
        work(&mut cluster, &mut acknowledged, 2, Some(from)).unwrap();
        assert_eq!(acknowledged.committed, Some(generation(2, from.epoch.0 + EPOCHS)));
        let lost = two();
        cluster.replace(&lost);
        let newest = cluster.committed().remove(0);
        assert_eq!(Some(newest.generation), acknowledged.committed);
        cluster.start(2, Some(from)).unwrap();
        cluster.repair_and_check(&newest, &lost).unwrap();
    });
}

#[test]
fn a_repair_that_loses_power_at_any_operation_is_done_again() {
    let mut whole = Cluster::new(4, 2);
    let mut acknowledged = Acknowledged::default();
    work(&mut whole, &mut acknowledged, 1, None).unwrap();
    let manifest = whole.committed().remove(0);
    let (lost, id) = ([0, 2], manifest.generation);
    for operations in 0.. {
        let mut cluster = whole.copy();
        cluster.replace(&lost);
        cluster.start(1, None).unwrap();
        cluster.fuse.set(Some(operations));
        let mut result = Ok(());
        for node in lost {
            result = result.and_then(|()| {
                let mut others = Calls::new(&cluster, node, &lost);
                cluster.member(node).repair(id, &mut others).map(|_| ())
            });
        }
        if cluster.fuse.left().is_some_and(|left| left > 0) {
            assert!(result.is_ok() && operations > 60, "{operations}");
            // The repaired data is durable.
            cluster.lose_power(&mut |_| 0);
            for node in 0..4 {
                assert!(cluster.member(node).holds(id, true).unwrap(), "node {node}");
            }
            return;
        }
        for way in 0..3 {
            let mut crashed = crashed(&cluster, operations, way);
            crashed.repair_and_check(&manifest, &lost).unwrap();
        }
    }
}
