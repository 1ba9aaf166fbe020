//! What goes wrong costs one encoding, with a reason, and nothing else.

mod cluster;

use std::time::{Duration, Instant};

use cluster::{Cluster, Plan, generation};
use protector::{Asked, Event, Limits, Order, ProtectorError};

/// A group that has a committed generation, and the images of a second one.
fn with_second_generation(plan: Plan) -> (Cluster, store::Manifest) {
    let mut cluster = Cluster::new(plan);
    let (manifest, _) = cluster.checkpoint(generation(1, 1), None);
    cluster.work(1, 2000);
    cluster.write_images(generation(1, 2));
    (cluster, manifest)
}

fn failure(event: Event) -> ProtectorError {
    match event {
        Event::Failed { asked: Asked::Protect, generation: Some(id), error } => {
            assert_eq!(id, generation(1, 2));
            error
        }
        other => panic!("{other:?}"),
    }
}

/// The first generation is as it was, and survives the loss of a node.
fn first_is_untouched(mut cluster: Cluster, manifest: &store::Manifest, lost: usize) {
    // Memory has gone on since.
    let memories: Vec<Vec<u8>> = (0..cluster.nodes.len())
        .map(|node| {
            let mut job = cluster.job(node);
            let rank = transport::Rank(u32::try_from(node).unwrap());
            let image = job.open_committed_image(manifest.generation, rank).unwrap();
            image.read_section(job.storage(), 0).unwrap()
        })
        .collect();
    for (node, memory) in cluster.nodes.iter_mut().zip(memories) {
        node.memory = memory;
    }
    cluster.check(manifest);
    cluster.replace(&[lost], 2);
    let repaired = cluster.repair(&[lost], manifest.generation).remove(0);
    repaired.expect("one node may be lost");
    cluster.check(manifest);
}

/// What the nodes that are left are told: somebody names who is silent; the others name that one, or who gave up.
fn named(cluster: &Cluster, silent: u32, left: &[usize]) {
    let mut seen = 0;
    for node in left {
        match failure(cluster.nodes[*node].wait()) {
            ProtectorError::Silent { peer, what, .. } => {
                assert_eq!(peer, silent, "{what}");
                assert!(what.contains("generation 1."), "{what}");
                seen += 1;
            }
            ProtectorError::PeerGaveUp { reason, .. } => {
                assert!(reason.contains(&format!("node {silent} has been silent")), "{reason}");
            }
            other => panic!("{other}"),
        }
    }
    assert!(seen > 0, "nobody names node {silent}");
}

#[test]
fn a_node_that_never_comes_is_named() {
    let plan = Plan { patience: Duration::from_secs(1), ..Plan::new(4, 1, 50_000) };
    let (mut cluster, manifest) = with_second_generation(plan);
    cluster.stop(3);
    for node in 0..3 {
        cluster.order_protect(node, generation(1, 2), Some(generation(1, 1)));
    }
    named(&cluster, 3, &[0, 1, 2]);
    first_is_untouched(cluster, &manifest, 3);
}

#[test]
fn a_node_that_dies_in_the_middle_is_named_by_every_shape() {
    for shape in protector::Shape::ALL {
        // More than a second.
        let limits = Limits { link_bytes_per_s: Some(300_000), ..Limits::default() };
        let plan = Plan {
            patience: Duration::from_secs(1),
            shape: Some(shape),
            limits,
            unit_pages: 16,
            ..Plan::new(4, 1, 400_000)
        };
        let (mut cluster, manifest) = with_second_generation(plan);
        for node in 0..4 {
            cluster.order_protect(node, generation(1, 2), Some(generation(1, 1)));
        }
        std::thread::sleep(Duration::from_millis(150));
        assert!(cluster.nodes[0].wait_until(Instant::now()).is_none(), "it was too quick to be stopped");
        cluster.stop(2);
        named(&cluster, 2, &[0, 1, 3]);
        first_is_untouched(cluster, &manifest, 2);
    }
}

#[test]
fn a_node_with_another_key_is_not_heard() {
    let mut plan = Plan { patience: Duration::from_secs(1), ..Plan::new(3, 1, 50_000) };
    plan.keys[1] = [9; 16];
    let cluster = Cluster::new(plan);
    let id = generation(1, 2);
    cluster.write_images(id);
    for node in 0..3 {
        cluster.order_protect(node, id, None);
    }
    named(&cluster, 1, &[0, 2]);
    let error = failure(cluster.nodes[1].wait());
    assert!(matches!(error, ProtectorError::Silent { peer: 0 | 2, .. }), "{error}");
}

#[test]
fn a_disk_that_fails_on_one_node_ends_it_on_all() {
    let (cluster, manifest) = with_second_generation(Plan::new(4, 1, 50_000));
    let id = generation(1, 2);
    // Where parity is to be written, a directory is in the way.
    let image = cluster.job(1).image_path(id, transport::Rank(1));
    let place = cluster.nodes[1].directory.join(image);
    let folder = place.parent().unwrap();
    std::fs::create_dir(folder.join("parity.tmp")).unwrap();
    for node in 0..4 {
        cluster.order_protect(node, id, Some(generation(1, 1)));
    }
    let error = failure(cluster.nodes[1].wait());
    assert!(error.to_string().contains("parity.tmp"), "{error}");
    for node in [0, 2, 3] {
        match failure(cluster.nodes[node].wait()) {
            ProtectorError::PeerGaveUp { peer: 1, reason, .. } => {
                assert!(reason.contains("parity.tmp"), "{reason}")
            }
            other => panic!("{other}"),
        }
    }
    std::fs::remove_dir(folder.join("parity.tmp")).unwrap();
    first_is_untouched(cluster, &manifest, 1);
}

#[test]
fn members_that_build_upon_different_generations_say_so() {
    let (cluster, manifest) = with_second_generation(Plan::new(3, 1, 50_000));
    let id = generation(1, 2);
    cluster.order_protect(0, id, Some(generation(1, 1)));
    cluster.order_protect(1, id, None);
    cluster.order_protect(2, id, Some(generation(1, 1)));
    let errors: Vec<ProtectorError> = cluster.nodes.iter().map(|node| failure(node.wait())).collect();
    assert!(errors.iter().any(|error| matches!(error, ProtectorError::Disagree { .. })), "{errors:?}");
    first_is_untouched(cluster, &manifest, 0);
}

#[test]
fn an_abandoned_encoding_is_followed_by_the_next_one() {
    let limits = Limits { link_bytes_per_s: Some(1 << 20), ..Limits::default() };
    let (mut cluster, _) =
        with_second_generation(Plan { limits, unit_pages: 16, ..Plan::new(4, 1, 300_000) });
    let id = generation(1, 2);
    for node in 0..4 {
        cluster.order_protect(node, id, Some(generation(1, 1)));
    }
    std::thread::sleep(Duration::from_millis(100));
    for node in &cluster.nodes {
        node.protector.tell(Order::Abandon { generation: id });
    }
    for node in &cluster.nodes {
        let error = failure(node.wait());
        let expected = matches!(&error, ProtectorError::Ended { .. } | ProtectorError::PeerGaveUp { .. });
        assert!(expected, "{error}");
        assert!(matches!(node.wait(), Event::Abandoned { .. }));
    }
    cluster.work(7, 10);
    let (third, _) = cluster.checkpoint(generation(1, 3), Some(generation(1, 1)));
    cluster.check(&third);
}

#[test]
fn orders_that_cannot_be_carried_out_are_refused() {
    let cluster = Cluster::new(Plan::new(2, 1, 10_000));
    let other_life = generation(2, 1);
    cluster.order_protect(0, other_life, None);
    match cluster.nodes[0].wait() {
        Event::Failed { asked: Asked::Protect, error: ProtectorError::NotOpen { node: 0, .. }, .. } => {}
        other => panic!("{other:?}"),
    }
    // More is lost than parity makes up for.
    let (manifest, _) = cluster.checkpoint(generation(1, 1), None);
    let mut cluster = cluster;
    cluster.replace(&[0, 1], 2);
    match cluster.repair(&[0], manifest.generation).remove(0) {
        Err(ProtectorError::Protect(error)) => {
            assert!(error.to_string().contains("start from another generation"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
