use super::*;

const SETTINGS: Settings = Settings { ranks: 128, ranks_per_node: 8, fan_out: 4, checkpoints: 1 };

/// The computation above [`EVENTS_RANKS_MAX`] gives the same result as the events, to the nanosecond, for jobs of many shapes: commands that come at
/// once or far apart, one rank on a node or all.
#[test]
fn computed_markers_and_scheduled_ones_agree() {
    for (ranks, per_node, fan_out) in [
        (2, 1, 1),
        (3, 1, 1),
        (5, 2, 2),
        (16, 16, 16),
        (16, 1, 1),
        (40, 1, 3),
        (100, 7, 2),
        (256, 64, 16),
        (300, 8, 4),
    ] {
        let nodes = u32::div_ceil(ranks, per_node);
        let take = |flushing| {
            let mut job = LargeJob::start(ranks, nodes, fan_out, flushing).expect("a job");
            [job.checkpoint().expect("a checkpoint"), job.checkpoint().expect("another")]
        };
        let (events, aggregate) = (take(Flushing::EventByEvent), take(Flushing::Aggregate));
        assert_eq!(events, aggregate, "{ranks} ranks, {per_node} on a node, fan-out {fan_out}");
    }
}

#[test]
fn a_flush_sends_a_marker_over_every_channel_and_nothing_else_more() {
    let report = scale(SETTINGS, &mut |_| {}).expect("a small job");
    assert_eq!(report.rows.iter().map(|row| row.ranks).collect::<Vec<_>>(), [16, 32, 64, 128]);
    for row in &report.rows {
        let ranks = u64::from(row.ranks);
        assert_eq!(row.flush.markers, ranks * (ranks - 1));
        assert_eq!(row.flush.messages - row.flush.markers, row.ours.messages);
        assert_eq!(row.ours.markers, 0);
        assert!(row.flush.durable_ns > row.ours.durable_ns, "{row:?}");
        assert_eq!(row.ours.still_ns, costs::CUT_NS, "nobody waits for anybody");
        assert!(row.flush.still_ns > 2 * (ranks - 1) * costs::message_ns(costs::MARKER_BYTES), "{row:?}");
    }
}

/// The command goes down to each keeper and rank, an image comes up from each rank, a report from each keeper, the
/// commit goes down again: each exactly once.
#[test]
fn ours_are_three_messages_for_each_rank_and_keeper() {
    let report = scale(SETTINGS, &mut |_| {}).expect("a small job");
    for row in &report.rows {
        let (ranks, nodes) = (u64::from(row.ranks), u64::from(row.nodes));
        assert_eq!(row.ours.messages, 3 * (ranks + nodes), "{row:?}");
    }
}

#[test]
fn messages_grow_linearly_here_and_with_the_square_there() {
    let report = scale(Settings { ranks: 512, ..SETTINGS }, &mut |_| {}).expect("a job");
    let (ours, flush) = (report.ours_exponent.expect("sizes"), report.flush_exponent.expect("sizes"));
    assert!((0.95..1.05).contains(&ours), "{ours}");
    assert!((1.85..2.05).contains(&flush), "{flush}");
    assert_eq!(slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]), Some(2.0));
    assert_eq!(slope(&[(4.0, 1.0)]), None);
}

#[test]
fn further_checkpoints_cost_the_same_messages() {
    let messages = |checkpoints| {
        let settings = Settings { ranks: 64, checkpoints, ..SETTINGS };
        let rows = scale(settings, &mut |_| {}).expect("a job").rows;
        rows.iter().map(|row| (row.ours.messages, row.flush.messages)).collect::<Vec<_>>()
    };
    assert_eq!(messages(1), messages(3));
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let refused = |settings| scale(settings, &mut |_| {}).expect_err("it cannot be").to_string();
    assert_eq!(refused(Settings { ranks: 15, ..SETTINGS }), "expected 16 to 131072 ranks, found 15");
    assert_eq!(refused(Settings { ranks: 131_073, ..SETTINGS }), "expected 16 to 131072 ranks, found 131073");
    let many = refused(Settings { ranks: 65_536, ranks_per_node: 1, ..SETTINGS });
    assert_eq!(many, "expected at most 4096 nodes, found 65536: put more ranks on each");
    assert!(refused(Settings { fan_out: 0, ..SETTINGS }).contains('0'));
    assert!(refused(Settings { checkpoints: 0, ..SETTINGS }).contains("at least one checkpoint"));
}

/// All ranks run again soon after the lost node's time-out, and it is never declared lost before (R31), in jobs of many shapes.
#[test]
fn a_lost_node_is_suspected_declared_replaced_and_all_ranks_run_again() {
    for (ranks, ranks_per_node, fan_out) in [(16, 8, 16), (64, 4, 2), (64, 4, 16), (512, 8, 4)] {
        let settings = Settings { ranks, ranks_per_node, fan_out, checkpoints: 1 };
        let loss = lose(&settings, ranks).expect("it recovers");
        let watch = ckpt_glue::JobConfig::default().keeper.watch();
        let nanos = |time: core::time::Duration| u64::try_from(time.as_nanos()).unwrap();
        // The last heartbeat before the loss counts: half an interval before it.
        let heard = watch.beat_ns / 2;
        assert!(loss.suspected_ns + heard >= nanos(watch.suspicion()), "{loss:?}");
        assert!(loss.declared_ns + heard >= nanos(watch.silence()), "{loss:?}");
        assert!(loss.suspected_ns < loss.declared_ns && loss.declared_ns < loss.decided_ns, "{loss:?}");
        // A spare host begins, rebuilds its images, and every process starts: all of that lies between.
        let images = u64::from(ranks_per_node) * costs::IMAGE_BYTES / costs::REBUILT_BYTES_PER_NS;
        assert!(loss.decided_ns > loss.declared_ns + costs::KEEPER_NS + images, "{loss:?}");
        assert!(loss.running_ns > loss.decided_ns + costs::PROCESS_NS, "{loss:?}");
        // Each rank at least registers, gets its start, and reports that it runs.
        assert!(loss.messages > 3 * u64::from(ranks), "{loss:?}");
    }
}

/// A heartbeat of each keeper but the root passes through the launcher, and so does its lease: four messages, four times a second; the root's is two.
#[test]
fn heartbeats_at_the_launcher_grow_with_the_nodes() {
    let per_second = |ranks| {
        let settings = Settings { ranks, ranks_per_node: 4, ..SETTINGS };
        lose(&settings, ranks).expect("it recovers").launcher_messages_per_s
    };
    for ranks in [32, 64, 128] {
        let nodes = u64::from(ranks / 4);
        let beats = 4 * (4 * (nodes - 1) + 2);
        let probes = 2 * (4 * nodes).min(100);
        let found = per_second(ranks);
        assert!(
            (beats + probes).abs_diff(found) <= beats / 4 + 8,
            "{ranks} ranks: {found}, not {beats} and {probes}"
        );
    }
}
