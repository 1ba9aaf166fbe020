//! Small changes cost little: by the protectors' own counters.

use crate::cluster::{Cluster, Plan, generation};
use protector::{Event, Request, Shape, Statistics};
use store::limits::PAGE_BYTES;

const PAGES: usize = 1500;

/// Messages, and bytes that were sent, read and written, of all nodes together.
fn costs(statistics: &[Statistics]) -> [u64; 4] {
    let sum = |of: fn(&Statistics) -> u64| statistics.iter().map(of).sum();
    [
        sum(|node| node.sent_messages),
        sum(|node| node.sent_bytes),
        sum(|node| node.read_bytes),
        sum(|node| node.written_bytes),
    ]
}

/// Protects images as a whole, then deltas over them with 1, 10 and 100 percent of their pages; returns the cost of each of the four.
fn protected(shape: Shape) -> [[u64; 4]; 4] {
    let cluster = Cluster::new(Plan { shape: Some(shape), ..Plan::new(4, 1, PAGES * PAGE_BYTES) });
    let whole = generation(1, 1);
    let claims = cluster.write_images(whole);
    let first = costs(&cluster.protect(whole, None));
    let deltas = [1, 10, 100].map(|percent| {
        let id = generation(1, 1 + percent);
        cluster.write_deltas(id, &claims, whole, PAGES * usize::try_from(percent).unwrap() / 100);
        let cost = costs(&cluster.protect(id, Some(whole)));
        for node in &cluster.nodes {
            node.protector.send(Request::Abandon { generation: id });
            assert!(matches!(node.wait(), Event::Abandoned { .. }));
        }
        cost
    });
    let [few, some, all] = deltas;
    [first, few, some, all]
}

#[test]
fn few_changed_pages_cost_few_messages_and_few_bytes_by_every_shape() {
    for shape in Shape::ALL {
        let [whole, few, some, all] = protected(shape);
        eprintln!("{shape}: whole {whole:?}, 1 % {few:?}, 10 % {some:?}, 100 % {all:?}");
        for (at, what) in (0..).zip(["messages", "bytes sent", "bytes read", "bytes written"]).skip(1) {
            // Nine parts of a hundred more, and ninety.
            let (nine, ninety) = (some[at] - few[at], all[at] - some[at]);
            assert!(
                (8 * ninety..=12 * ninety).contains(&(100 * nine)),
                "{shape}: {what}: {few:?} {some:?} {all:?}"
            );
            assert!(few[at] * 25 < whole[at], "{shape}: {what}: {few:?} for 1 %, {whole:?} for all");
        }
        // All nodes together send at most the messages of one window: 4 flows by 3 hops.
        let windows = if shape == Shape::Pipeline { 5 } else { 1 };
        assert!(few[0] <= windows * 12, "{shape}: {} messages for 1 %, {} for all", few[0], whole[0]);
    }
}
