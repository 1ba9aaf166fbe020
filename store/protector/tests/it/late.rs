//! A generation that takes too long is abandoned, and each member reports how it spent its time: so the slow member can
//! be named.

use std::time::Duration;

use crate::cluster::{Cluster, Plan, generation};
use ckpt_glue::protection::Account;
use protector::{Event, Limits, ProtectorError, Request, Shape};
use store::GenerationId;

const NODES: usize = 4;
/// The one that is slow.
const SLOW: usize = 2;

/// An encoding in which one member has these limits, as it is after a while.
fn under_way(shape: Shape, limits: Limits) -> (Cluster, GenerationId) {
    let plan = Plan { shape: Some(shape), unit_pages: 16, ..Plan::new(NODES, 1, 400_000) };
    let mut cluster = Cluster::new(plan);
    let id = generation(1, 1);
    cluster.limit(|node| if node == SLOW { limits } else { Limits::default() }, 2);
    cluster.decide(2, None);
    let id = GenerationId { life: crate::cluster::life(2), ..id };
    cluster.write_images(id);
    (0..NODES).for_each(|node| cluster.order_protect(node, id, None));
    std::thread::sleep(Duration::from_secs(1));
    (cluster, id)
}

/// Gives it up. How each one's time went.
fn given_up(shape: Shape, limits: Limits) -> Vec<Account> {
    let (cluster, id) = under_way(shape, limits);
    for node in &cluster.nodes {
        node.protector.send(Request::Abandon { generation: id });
    }
    let account = |node: &crate::cluster::Node| loop {
        match node.wait() {
            Event::Failed { .. } => {}
            Event::Abandoned { account, .. } => return account.expect("it was being protected"),
            other => panic!("{other:?}"),
        }
    };
    let accounts: Vec<Account> = cluster.nodes.iter().map(account).collect();
    for account in &accounts {
        assert!(account.elapsed >= Duration::from_millis(900), "{accounts:?}");
        assert!(account.windows.is_none_or(|(closed, all)| closed < all), "{accounts:?}");
    }
    accounts
}

/// For most of the time.
fn long(time: Duration, account: &Account) -> bool {
    time > account.elapsed.mul_f64(0.7)
}

// It would write for minutes more, and is woken when the result is not needed.
#[test]
fn a_member_with_a_slow_disk_had_something_to_do_and_the_others_waited() {
    for shape in Shape::ALL {
        let accounts = given_up(shape, Limits { disk_bytes_per_s: Some(1_000), ..Limits::default() });
        for (node, account) in accounts.iter().enumerate() {
            assert_eq!(long(account.own, account), node == SLOW, "{shape} {node}: {accounts:?}");
        }
    }
}

#[test]
fn a_member_with_little_processor_time_had_something_to_do() {
    let accounts = given_up(Shape::Broadcast, Limits { cores: Some(0.001), ..Limits::default() });
    for (node, account) in accounts.iter().enumerate() {
        assert_eq!(long(account.own, account), node == SLOW, "{node}: {accounts:?}");
    }
}

#[test]
fn a_member_with_a_limited_link_waited_for_its_limit() {
    for shape in Shape::ALL {
        let accounts = given_up(shape, Limits { link_bytes_per_s: Some(1_000), ..Limits::default() });
        for (node, account) in accounts.iter().enumerate() {
            assert_eq!(long(account.limited, account), node == SLOW, "{shape} {node}: {accounts:?}");
            assert!(!long(account.own, account), "{shape} {node}: {accounts:?}");
        }
    }
}

// It learns this before it is ordered to give up itself.
#[test]
fn a_member_does_not_wait_for_its_limit_after_another_gave_up() {
    // Its first piece takes hours.
    let limits = Limits { disk_bytes_per_s: Some(1), ..Limits::default() };
    let (cluster, id) = under_way(Shape::Ring, limits);
    cluster.nodes[0].protector.send(Request::Abandon { generation: id });
    let slow = &cluster.nodes[SLOW];
    let heard = slow.wait();
    let gave_up = matches!(heard, Event::Failed { error: ProtectorError::PeerGaveUp { peer: 0, .. }, .. });
    assert!(gave_up, "{heard:?}");
    slow.protector.send(Request::Abandon { generation: id });
    let abandoned = slow.wait();
    assert!(matches!(abandoned, Event::Abandoned { .. }), "{abandoned:?}");
}
