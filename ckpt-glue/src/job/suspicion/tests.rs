use alloc::vec;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn at(ms: u32) -> Instant {
    Instant::ZERO + MS * ms
}

/// Four nodes with two ranks each; a heartbeat every 250 ms, lost after 5 s.
fn watched() -> Suspicions {
    let mut all = Suspicions::new(false);
    let layout = Layout::even(8, 4, 2).expect("a small layout");
    all.begin(at(0), Watch::new(MS * 250, MS * 5000), &layout);
    all
}

/// Runs until then. Nodes in `gone` do not answer. Returns the events, with their time.
fn run(all: &mut Suspicions, from: u32, until: u32, gone: &[u32]) -> Vec<(u32, SuspicionEvent)> {
    let mut events = Vec::new();
    for ms in from..until {
        all.due(at(ms));
        let mut asked = Vec::new();
        while let Some(action) = all.poll() {
            match action {
                Action::Ask { node, number } => asked.push((node, number)),
                Action::Event(event) => events.push((ms, event)),
            }
        }
        for (node, number) in asked {
            if !gone.contains(&node.0) {
                all.answered(at(ms), node, number);
            }
        }
        while let Some(action) = all.poll() {
            if let Action::Event(event) = action {
                events.push((ms, event));
            }
        }
    }
    events
}

fn raised(node: u32, by: Monitor) -> SuspicionEvent {
    SuspicionEvent::Raised { node: NodeIndex(node), by }
}

#[test]
fn nodes_that_answer_are_trusted() {
    let mut all = watched();
    assert_eq!(run(&mut all, 0, 20_000, &[]), []);
    assert_eq!(all.suspects().count(), 0);
}

#[test]
fn a_round_asks_one_node_after_the_other_once_a_heartbeat() {
    let mut all = watched();
    let mut asked = Vec::new();
    for ms in 0..500 {
        all.due(at(ms));
        while let Some(Action::Ask { node, number }) = all.poll() {
            asked.push(node.0);
            all.answered(at(ms), node, number);
        }
    }
    assert_eq!(asked, [0, 1, 2, 3, 0, 1, 2, 3]);
}

/// The probe's own time to suspicion: the rest of the round, and the time for an answer.
#[test]
fn the_probe_suspects_a_silent_node_and_the_round_goes_on_without_it() {
    let mut all = watched();
    assert_eq!(run(&mut all, 0, 1000, &[]), []);
    let events = run(&mut all, 1000, 3000, &[2]);
    let (first, event) = &events[0];
    assert_eq!(*event, raised(2, Monitor::Probe));
    assert!((1500..1750).contains(first), "{first}");
    assert!(matches!(events[1].1, SuspicionEvent::Lasts { node: NodeIndex(2), .. }), "{events:?}");
    assert_eq!(events.len(), 2, "once, and no other node: {events:?}");
    // A second one is suspected as soon as if the first were there.
    let events = run(&mut all, 3000, 3750, &[1, 2]);
    assert_eq!(events.iter().map(|(_, event)| event).collect::<Vec<_>>(), [&raised(1, Monitor::Probe)]);
}

#[test]
fn a_suspicion_asks_at_once_and_an_answer_withdraws_it() {
    let mut all = watched();
    run(&mut all, 0, 100, &[]);
    all.overdue(at(100), NodeIndex(3));
    let asked = [all.poll(), all.poll()];
    let [Some(Action::Event(event)), Some(Action::Ask { node, number })] = asked else {
        panic!("{asked:?}");
    };
    assert_eq!((event, node), (raised(3, Monitor::Heartbeats), NodeIndex(3)));
    // Of an older question: it proves nothing.
    all.answered(at(101), node, number - 1);
    assert_eq!(all.suspects().count(), 1);
    all.answered(at(140), node, number);
    let lasted = MS * 40;
    let event = SuspicionEvent::Withdrawn { node, by: Monitor::Heartbeats, lasted };
    assert_eq!(all.poll(), Some(Action::Event(event)));
    assert_eq!(all.suspects().count(), 0);
    assert_eq!((all.false_alarms(Monitor::Heartbeats), all.false_alarms(Monitor::Probe)), (1, 0));
}

#[test]
fn ranks_of_one_node_count_as_one_and_the_node_that_most_do_not_hear_is_suspected() {
    let mut all = watched();
    run(&mut all, 0, 1100, &[]);
    let second = MS * 1000;
    // The cable of node 2 (ranks 4 and 5) is out. Its own ranks are the first to report.
    all.rank_silent(at(1100), Rank(0), Rank(4), second);
    assert_eq!(run(&mut all, 1100, 1151, &[]), [(1150, raised(0, Monitor::DataPath))]);
    for by in [0, 1, 3, 6] {
        all.rank_silent(at(1151), Rank(4), Rank(by), second);
    }
    all.rank_silent(at(1151), Rank(6), Rank(5), second);
    run(&mut all, 1151, 1202, &[]);
    let suspects: Vec<_> = all.suspects().map(|(node, by, _)| (node.0, by)).collect();
    assert_eq!(suspects, [(2, vec![Monitor::DataPath])]);
    // Its keeper answers, so it is shown as what it is.
    let events = run(&mut all, 1202, 3300, &[]);
    let shown = SuspicionEvent::DataSilent {
        node: NodeIndex(2),
        others: [0, 1, 3, 6].map(Rank).into(),
        lasted: MS * 3101,
    };
    assert_eq!(events.last(), Some(&(3201, shown)), "{events:?}");
    // While it heals, no other node is suspected for a moment.
    for (rank, by) in [(4, 0), (4, 1), (4, 3), (4, 6), (6, 5), (0, 4)] {
        all.rank_heard(at(3300), Rank(rank), Rank(by));
    }
    let event =
        SuspicionEvent::Withdrawn { node: NodeIndex(2), by: Monitor::DataPath, lasted: MS * (3350 - 1201) };
    assert_eq!(run(&mut all, 3300, 3400, &[]), [(3350, event)]);
    assert_eq!(all.suspects().count(), 0);
}

/// Nobody owes the ranks of node 2 an answer, so only they report: one node explains it all.
#[test]
fn a_node_whose_ranks_alone_report_many_others_is_the_one_that_is_cut_off() {
    let mut all = watched();
    all.rank_silent(at(5), Rank(0), Rank(4), MS * 1000);
    all.rank_silent(at(6), Rank(6), Rank(5), MS * 1000);
    assert_eq!(run(&mut all, 5, 100, &[]), [(55, raised(2, Monitor::DataPath))]);
    // One of the two is heard again: of a single silence, the node that is not heard is suspected.
    all.rank_heard(at(100), Rank(6), Rank(5));
    run(&mut all, 100, 200, &[]);
    let suspects: Vec<_> = all.suspects().map(|(node, ..)| node.0).collect();
    assert_eq!(suspects, [0]);
}

#[test]
fn two_nodes_that_do_not_hear_each_other_are_both_suspected() {
    let mut all = watched();
    all.rank_silent(at(5), Rank(0), Rank(2), MS * 1000);
    all.rank_silent(at(5), Rank(2), Rank(0), MS * 1000);
    let events = run(&mut all, 5, 100, &[]);
    assert_eq!(events, [(55, raised(0, Monitor::DataPath)), (55, raised(1, Monitor::DataPath))]);
}

#[test]
fn a_rank_that_its_neighbour_does_not_hear_is_no_matter_of_the_network() {
    let mut all = watched();
    all.rank_silent(at(5), Rank(4), Rank(5), MS * 1000);
    assert_eq!(run(&mut all, 5, 100, &[]), []);
}

#[test]
fn no_more_pairs_are_kept_than_the_bound() {
    let mut all = Suspicions::new(false);
    let layout = Layout::even(600, 2, 2).expect("a small layout");
    all.begin(at(0), Watch::new(MS * 250, MS * 5000), &layout);
    for (rank, by) in (0..300).flat_map(|rank| (300..600).map(move |by| (rank, by))) {
        all.rank_silent(at(1), Rank(rank), Rank(by), MS);
    }
    assert_eq!(all.watched.as_ref().map(|watched| watched.silences.len()), Some(SILENT_PAIRS_MAX));
}

#[test]
fn without_a_life_nothing_is_watched() {
    let mut all = watched();
    all.overdue(at(5), NodeIndex(1));
    all.end();
    all.overdue(at(6), NodeIndex(2));
    assert_eq!((all.suspects().count(), all.poll_timeout()), (0, None));
}
