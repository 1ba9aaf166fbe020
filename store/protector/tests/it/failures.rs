//! A failure costs one encoding, with a reason, and nothing else.

use std::time::Duration;

use crate::cluster::{Cluster, Plan, generation, life, wait_for};
use protector::{Event, Limits, ProtectorError, Request, RequestKind};
use store::GenerationId;

/// A group that has a committed generation, and the images of a second one.
fn with_second_generation(plan: Plan) -> (Cluster, store::Manifest) {
    let mut cluster = Cluster::new(plan);
    let (manifest, _) = cluster.checkpoint(generation(1, 1), None);
    cluster.work(1, 2000);
    cluster.write_images(generation(1, 2));
    (cluster, manifest)
}

fn failure(event: Event, of: GenerationId) -> ProtectorError {
    match event {
        Event::Failed { request: RequestKind::Protect, generation: Some(id), error } => {
            assert_eq!(id, of);
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
    cluster.replace(&[lost], 9);
    let repaired = cluster.repair(&[lost], manifest.generation).remove(0);
    repaired.expect("one node may be lost");
    cluster.check(manifest);
}

/// The errors at the remaining nodes: at least one names the silent node; the others name that one, or a node that gave
/// up.
fn named(cluster: &Cluster, id: GenerationId, silent: u32, left: &[usize]) {
    let mut seen = 0;
    for node in left {
        match failure(cluster.nodes[*node].wait(), id) {
            ProtectorError::Silent { peer, what, .. } => {
                assert_eq!(peer, silent, "{what}");
                assert!(what.contains(&format!("generation {id}")), "{what}");
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
    named(&cluster, generation(1, 2), 3, &[0, 1, 2]);
    first_is_untouched(cluster, &manifest, 3);
}

#[test]
fn a_node_that_dies_in_the_middle_is_named_by_every_shape() {
    for shape in protector::Shape::ALL {
        let plan = Plan {
            patience: Duration::from_secs(1),
            shape: Some(shape),
            unit_pages: 16,
            ..Plan::new(4, 1, 400_000)
        };
        let (mut cluster, manifest) = with_second_generation(plan);
        // The second generation would take hours.
        cluster.limit(|_| Limits { link_bytes_per_s: Some(10), ..Limits::default() }, 2);
        cluster.decide(2, Some(generation(1, 1)));
        let id = generation(2, 2);
        cluster.write_images(id);
        for node in 0..4 {
            cluster.order_protect(node, id, Some(generation(1, 1)));
        }
        cluster.wait_for_contents(&[0, 1, 2, 3], id);
        cluster.stop(2);
        named(&cluster, id, 2, &[0, 1, 3]);
        cluster.limit(|_| Limits::default(), 3);
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
    named(&cluster, id, 1, &[0, 2]);
    let error = failure(cluster.nodes[1].wait(), id);
    assert!(matches!(error, ProtectorError::Silent { peer: 0 | 2, .. }), "{error}");
}

#[test]
fn a_disk_that_fails_on_one_node_ends_it_on_all() {
    let (cluster, manifest) = with_second_generation(Plan::new(4, 1, 50_000));
    let id = generation(1, 2);
    // A directory is in the way of the parity file.
    let image = cluster.job(1).image_path(id, transport::Rank(1));
    let place = cluster.nodes[1].directory.join(image);
    let folder = place.parent().unwrap();
    std::fs::create_dir(folder.join("parity.tmp")).unwrap();
    for node in 0..4 {
        cluster.order_protect(node, id, Some(generation(1, 1)));
    }
    let error = failure(cluster.nodes[1].wait(), id);
    assert!(error.to_string().contains("parity.tmp"), "{error}");
    for node in [0, 2, 3] {
        match failure(cluster.nodes[node].wait(), id) {
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
    let errors: Vec<ProtectorError> = cluster.nodes.iter().map(|node| failure(node.wait(), id)).collect();
    assert!(errors.iter().any(|error| matches!(error, ProtectorError::Disagree { .. })), "{errors:?}");
    first_is_untouched(cluster, &manifest, 0);
}

#[test]
fn an_abandoned_encoding_is_followed_by_the_next_one() {
    let limits = Limits { link_bytes_per_s: Some(300_000), ..Limits::default() };
    let (mut cluster, _) =
        with_second_generation(Plan { limits, unit_pages: 16, ..Plan::new(4, 1, 300_000) });
    let id = generation(1, 2);
    for node in 0..4 {
        cluster.order_protect(node, id, Some(generation(1, 1)));
    }
    cluster.wait_for_contents(&[0, 1, 2, 3], id);
    for node in &cluster.nodes {
        node.protector.send(Request::Abandon { generation: id });
    }
    for node in &cluster.nodes {
        // The links leave a second for it. If that was not enough, the abandoned generation is complete.
        let event = node.wait();
        if !matches!(event, Event::Protected { .. }) {
            let error = failure(event, id);
            let expected = matches!(&error, ProtectorError::Ended { .. } | ProtectorError::PeerGaveUp { .. });
            assert!(expected, "{error}");
        }
        assert!(matches!(node.wait(), Event::Abandoned { .. }));
    }
    cluster.work(7, 10);
    let (third, _) = cluster.checkpoint(generation(1, 3), Some(generation(1, 1)));
    cluster.check(&third);
}

#[test]
fn a_member_that_crawls_is_not_taken_for_dead_and_costs_one_encoding() {
    let patience = Duration::from_millis(300);
    let (mut cluster, manifest) =
        with_second_generation(Plan { patience, unit_pages: 16, ..Plan::new(4, 1, 400_000) });
    // Its part of the second generation would take hours.
    let crawling = Limits { link_bytes_per_s: Some(10), ..Limits::default() };
    cluster.limit(|node| if node == 2 { crawling } else { Limits::default() }, 2);
    cluster.decide(2, Some(generation(1, 1)));
    let id = generation(2, 2);
    cluster.write_images(id);
    for node in 0..4 {
        cluster.order_protect(node, id, Some(generation(1, 1)));
    }
    cluster.wait_for_contents(&[0, 1, 2, 3], id);
    let early = cluster.nodes[0].wait_until(std::time::Instant::now() + 3 * patience);
    assert!(early.is_none(), "it answers, and {early:?}");
    for node in &cluster.nodes {
        node.protector.send(Request::Abandon { generation: id });
    }
    for node in &cluster.nodes {
        let error = failure(node.wait(), id);
        let expected = matches!(&error, ProtectorError::Ended { .. } | ProtectorError::PeerGaveUp { .. });
        assert!(expected, "{error}");
        assert!(matches!(node.wait(), Event::Abandoned { .. }));
    }
    cluster.limit(|_| Limits::default(), 3);
    first_is_untouched(cluster, &manifest, 2);
}

#[test]
fn orders_that_cannot_be_carried_out_are_refused() {
    let cluster = Cluster::new(Plan::new(2, 1, 10_000));
    let other_life = generation(2, 1);
    cluster.order_protect(0, other_life, None);
    match cluster.nodes[0].wait() {
        Event::Failed {
            request: RequestKind::Protect,
            error: ProtectorError::NotOpen { node: 0, life: wanted, open: Some(open) },
            ..
        } => assert_eq!((wanted, open), (life(2), life(1))),
        other => panic!("{other:?}"),
    }
    // A new endpoint knows no peer.
    cluster.nodes[0].protector.send(Request::Open { life: life(2) });
    assert!(matches!(cluster.nodes[0].wait(), Event::Opened { .. }));
    cluster.order_protect(0, other_life, None);
    cluster.nodes[0].protector.send(Request::Repair { generation: generation(1, 1) });
    for _ in 0..2 {
        match cluster.nodes[0].wait() {
            Event::Failed { error: ProtectorError::NotMet { node: 0 }, .. } => {}
            other => panic!("{other:?}"),
        }
    }
    cluster.open(3);
    cluster.decide(3, None);
    // More is lost than parity makes up for.
    let (manifest, _) = cluster.checkpoint(generation(3, 1), None);
    let mut cluster = cluster;
    cluster.replace(&[0, 1], 4);
    match cluster.repair(&[0], manifest.generation).remove(0) {
        Err(ProtectorError::Protect(error)) => {
            let words = error.to_string();
            assert!(words.contains("start from another generation"), "{words}");
            assert!(words.contains("node 1 cannot report its data"), "{words}");
        }
        other => panic!("{other:?}"),
    }
}

/// A disk on which nothing comes to an end.
const NO_DISK: Limits = Limits { link_bytes_per_s: None, disk_bytes_per_s: Some(1), cores: None };

/// A group of three with a committed generation; one node is new, and this one's disk stands still.
fn with_a_disk_that_stands_still(lost: usize, slow: usize, patience: Duration) -> (Cluster, GenerationId) {
    let mut cluster = Cluster::new(Plan { patience, ..Plan::new(3, 1, 50_000) });
    let (manifest, _) = cluster.checkpoint(generation(1, 1), None);
    cluster.replace(&[lost], 2);
    cluster.limit(|node| if node == slow { NO_DISK } else { Limits::default() }, 3);
    (cluster, manifest.generation)
}

#[test]
fn a_member_that_lives_and_does_not_answer_ends_a_repair_and_is_named() {
    let (cluster, id) = with_a_disk_that_stands_still(0, 2, Duration::from_millis(200));
    let error = cluster.repair(&[0], id).remove(0).expect_err("one node is lost, and one does not answer");
    assert!(error.to_string().contains("node 2 does not answer"), "{error}");
}

/// Begins a repair that cannot come to its end: it waits for its disk.
fn with_a_repair_under_way() -> Cluster {
    let (cluster, id) = with_a_disk_that_stands_still(0, 0, Duration::from_secs(1 << 20));
    cluster.nodes[0].protector.send(Request::Repair { generation: id });
    let folder = cluster.nodes[0].directory.join(store::job::folder(id));
    wait_for("a file that was lost is begun anew", || {
        std::fs::read_dir(&folder).is_ok_and(|mut files| files.next().is_some())
    });
    cluster
}

#[test]
fn a_new_life_ends_a_repair() {
    let cluster = with_a_repair_under_way();
    cluster.nodes[0].protector.send(Request::Repair { generation: generation(1, 7) });
    let life = life(4);
    cluster.nodes[0].protector.send(Request::Open { life });
    let mut ended = Vec::new();
    for _ in 0..2 {
        match cluster.nodes[0].wait() {
            Event::Failed {
                request: RequestKind::Repair,
                generation,
                error: ProtectorError::Ended { .. },
            } => {
                ended.extend(generation);
            }
            other => panic!("{other:?}"),
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, [generation(1, 1), generation(1, 7)], "what is under way, and what waits");
    assert!(matches!(cluster.nodes[0].wait(), Event::Opened { life: open, .. } if open == life));
}

#[test]
fn a_protector_ends_at_once_whatever_it_waits_for() {
    let mut cluster = with_a_repair_under_way();
    let (gone, reported) = std::sync::mpsc::channel();
    let node = cluster.nodes.remove(0);
    std::thread::spawn(move || {
        drop(node);
        // The waiting caller may have given up.
        let _ = gone.send(());
    });
    reported.recv_timeout(Duration::from_secs(60)).expect("it does not wait for its disk");
}

#[test]
fn a_group_whose_links_lose_everything_is_silent() {
    let faults = "loss=100%".parse().expect("faults");
    let plan = Plan { patience: Duration::from_secs(1), faults: vec![faults], ..Plan::new(3, 1, 50_000) };
    let cluster = Cluster::new(plan);
    let id = generation(1, 2);
    cluster.write_images(id);
    for node in 0..3 {
        cluster.order_protect(node, id, None);
    }
    for node in &cluster.nodes {
        let error = failure(node.wait(), id);
        assert!(matches!(error, ProtectorError::Silent { .. }), "{error}");
    }
}
