//! Nodes on several networks: parity goes over all of them, and over those that are left.

use std::path::Path;

use crate::cluster::{Cluster, Plan, generation};
use drivers::fault::Faults;
use protector::Statistics;

/// Bytes of an image that keep two rails busy.
const BYTES: usize = 6 << 20;

fn plan(faults: [&str; 2]) -> Plan {
    let read = |text: &str| if text.is_empty() { Faults::NONE } else { text.parse().expect("faults") };
    Plan { unit_pages: 16, faults: faults.map(read).to_vec(), ..Plan::new(4, 1, BYTES) }
}

/// The parity that each node keeps of the first generation.
fn parity(cluster: &Cluster) -> Vec<Vec<u8>> {
    let folder = |node: &crate::cluster::Node| node.directory.join(store::job::folder(generation(1, 1)));
    let read = |folder: &Path| std::fs::read(folder.join("parity")).expect("parity");
    cluster.nodes.iter().map(|node| read(&folder(node))).collect()
}

/// Protects one generation, and compares the kept data with that of nodes on one network.
fn protect(plan: Plan) -> (Cluster, Vec<Statistics>) {
    let alone = Cluster::new(Plan { faults: vec![Faults::NONE], cut_off: Vec::new(), ..plan.clone() });
    alone.checkpoint(generation(1, 1), None);
    let cluster = Cluster::new(plan);
    let (manifest, statistics) = cluster.checkpoint(generation(1, 1), None);
    assert!(parity(&cluster) == parity(&alone), "the parity is another one");
    let mut cluster = cluster;
    cluster.replace(&[2], 2);
    cluster.repair(&[2], manifest.generation).remove(0).expect("one may be lost");
    cluster.check(&manifest);
    (cluster, statistics)
}

#[test]
fn parity_goes_over_every_rail() {
    let (_cluster, statistics) = protect(plan(["", ""]));
    for found in statistics {
        let [first, second, ..] = found.rail_frames;
        // They take turns with a few frames each.
        assert!(first.min(second) * 3 > first.max(second), "{first} and {second} frames");
        assert_eq!(found.rails_lost, 0);
    }
}

#[test]
fn a_rail_that_dies_during_an_encoding_costs_none() {
    let (_cluster, statistics) = protect(plan(["", "die=60"]));
    for found in &statistics {
        // Where the rails of the peers die first, a node passes its own over (R24) before it has carried as many frames as let it die.
        match found.rails_lost {
            0 => assert!(found.rail_frames[1] < 60, "{:?}", found.rail_frames),
            lost => assert_eq!((lost, found.rail_frames[1]), (1, 0), "it died under way"),
        }
        assert!(found.rail_frames[0] > 60, "{:?}", found.rail_frames);
    }
    assert!(statistics.iter().any(|found| found.rails_lost == 1), "none died under way");
}

#[test]
fn a_network_that_loses_everything_costs_no_encoding() {
    let (_cluster, statistics) = protect(plan(["loss=100%,side=both", ""]));
    for found in statistics {
        let [broken, other, ..] = found.rail_frames;
        assert!(0 < broken && broken < other, "{broken} frames into nowhere, {other} over the other rail");
    }
}

#[test]
fn a_node_without_one_of_its_networks_uses_the_other() {
    // Nodes 0 and 1 have no network in common: frames between them go from one network to the other, as on hosts that route.
    let (_cluster, statistics) = protect(Plan { cut_off: vec![(0, 0), (1, 1)], ..plan(["", ""]) });
    for (node, found) in statistics.iter().enumerate() {
        let uses = [found.rail_frames[0] > 0, found.rail_frames[1] > 0];
        assert_eq!(
            (uses, found.rails_lost),
            match node {
                0 => ([false, true], 1),
                1 => ([true, false], 1),
                _ => ([true, true], 0),
            }
        );
    }
}
