//! Small jobs, each as a line for every rank, and the causes that are found in it.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use transport::{Instant, Rank};

use super::*;
use crate::control::{Message, OwedLink, Wait};
use crate::limits::{WAIT_ANSWER_MAX, WAIT_ROUNDS_APART, WAITS_PER_RANK_MAX};

/// A rank: what it does, and for whom it waits.
///
/// | word     | meaning                                                         |
/// |----------|-----------------------------------------------------------------|
/// | `recv 3` | waits for a message of rank 3; `recv *`: of any                 |
/// | `send 3` | waits for rank 3 to receive                                     |
/// | `finish` | has finished its work                                           |
/// | `owes 3` | rank 3 owes it acknowledgements for 5 s; `slow 3`: for 0.1 s    |
/// | `polls`  | looks for messages without an open operation                    |
/// | `runs`   | computes, whatever is open; `moves`: begins operations          |
/// | `silent`, `ended`, `gate`, `starts` | others speak for it                  |
fn reports(lines: &[&str]) -> (Reports, Reports) {
    let both = lines.iter().zip(0..).map(|(line, rank)| (report(line, rank, 0), report(line, rank, 1)));
    both.map(|(a, b)| ((a.rank, a), (b.rank, b))).unzip()
}

fn report(line: &str, rank: u32, round: u64) -> RankReport {
    let mut report = RankReport::of(Rank(rank), Found::NotAttached);
    let (mut runs, mut begun) = (false, 7);
    let mut words = line.split_whitespace();
    let mut op = 0;
    while let Some(word) = words.next() {
        let mut peer = || words.next().and_then(|word| word.parse().ok()).map(Rank);
        op += 1;
        let wait = |kind, peer| Wait { kind, peer, op, tag: 7, ignore: 0, bytes: 8, age_ns: 3_000_000_000 };
        let owed = |peer: Option<Rank>, silent_ns| OwedLink {
            peer: peer.unwrap_or(Rank(u32::MAX)),
            frames: 2,
            silent_ns,
            is_broken: false,
        };
        match word {
            "recv" => report.waits.push(wait(WaitKind::Receive, peer())),
            "send" => report.waits.push(wait(WaitKind::Match, peer())),
            "finish" => report.waits.push(wait(WaitKind::Finish, None)),
            "owes" => report.links.push(owed(peer(), 5_000_000_000)),
            "slow" => report.links.push(owed(peer(), 100_000_000)),
            "polls" => {}
            "runs" => runs = true,
            "moves" => begun += round,
            "silent" => return RankReport::of(Rank(rank), Found::Silent { waited_ns: 2_000_000_000 }),
            "gate" => return RankReport::of(Rank(rank), Found::GateHeld { tried_ns: 200_000_000 }),
            "ended" => return RankReport::of(Rank(rank), Found::Ended),
            "starts" => return report,
            word => panic!("{word}"),
        }
    }
    let looks = if runs { 0 } else { round };
    report.found = Found::Answered { in_call: false, sleeps: false, looks, begun };
    report
}

/// The causes in a job, one a line.
fn causes(lines: &[&str]) -> Vec<String> {
    let (first, second) = reports(lines);
    let ranks = u32::try_from(lines.len()).expect("few");
    let words = |finding: &Finding| {
        let cause = match &finding.cause {
            Cause::Deadlock { ranks, cycle } => format!("deadlock {ranks:?} cycle {cycle:?}"),
            Cause::Silent { rank, waited_ms, .. } => format!("silent {rank} for {waited_ms}"),
            Cause::LostLink { from, to, silent_ms, .. } => format!("lost {from} to {to} for {silent_ms}"),
            Cause::Ended { rank } => format!("ended {rank}"),
            Cause::Straggler { rank } => format!("straggler {rank}"),
            Cause::CircularWait { ranks, cycle } => format!("circle {ranks:?} cycle {cycle:?}"),
        };
        format!("{cause} waiting {:?}", finding.waiting)
    };
    Diagnosis::new(ranks, &first, &second).findings.iter().map(words).collect()
}

#[test]
fn ranks_that_wait_for_each_other_are_a_deadlock() {
    let table: &[(&[&str], &[&str])] = &[
        (&["recv 1", "recv 0"], &["deadlock [0, 1] cycle [0, 1] waiting []"]),
        (&["send 1", "recv 2", "send 0"], &["deadlock [0, 1, 2] cycle [0, 1, 2] waiting []"]),
        // The third waits behind it, and so does the fourth.
        (&["recv 1", "recv 0", "recv 1", "recv 2"], &["deadlock [0, 1] cycle [0, 1] waiting [2, 3]"]),
        // Two of them.
        (
            &["recv 1", "recv 0", "recv 3", "recv 2", "recv 2"],
            &["deadlock [2, 3] cycle [2, 3] waiting [4]", "deadlock [0, 1] cycle [0, 1] waiting []"],
        ),
        // A message to itself that nobody sends.
        (&["recv 0", "runs"], &["deadlock [0] cycle [0] waiting []"]),
    ];
    for (lines, expected) in table {
        assert_eq!(causes(lines), *expected, "{lines:?}");
    }
}

#[test]
fn a_wait_for_any_rank_is_a_deadlock_only_if_all_others_are_stuck() {
    let table: &[(&[&str], &[&str])] = &[
        (&["recv *", "recv 0"], &["deadlock [0, 1] cycle [0, 1] waiting []"]),
        (&["recv *", "recv *", "recv *"], &["deadlock [0, 1, 2] cycle [0, 1] waiting []"]),
        // Rank 2 computes, and may send something to rank 0.
        (&["recv *", "recv 0", "runs"], &["straggler 2 waiting [0, 1]"]),
        (&["recv *", "recv 0", "moves"], &[]),
        // Ordinary work: nobody is to blame.
        (&["recv *", "runs", "runs"], &[]),
        // With another open operation that rank 2 may complete, the circle of the first two may end.
        (
            &["recv 1 recv 2", "recv 0", "runs"],
            &["straggler 2 waiting [0, 1]", "circle [0, 1] cycle [0, 1] waiting []"],
        ),
        (&["recv 1 recv 2", "recv 0", "recv 0"], &["deadlock [0, 1, 2] cycle [0, 1] waiting []"]),
        // A rank that has ended sends nothing any more.
        (&["recv *", "recv 0", "ended"], &["deadlock [0, 1] cycle [0, 1] waiting []"]),
        (&["recv 1 recv 2", "recv 0", "ended"], &["deadlock [0, 1] cycle [0, 1] waiting []"]),
        (&["recv *", "ended"], &["ended 1 waiting [0]"]),
        // Looks for messages, and has nothing open: a probe of any source.
        (&["polls", "recv 0"], &["deadlock [0, 1] cycle [0, 1] waiting []"]),
        (&["polls", "recv 0", "silent"], &["silent 2 for 2000 waiting [0, 1]"]),
    ];
    for (lines, expected) in table {
        assert_eq!(causes(lines), *expected, "{lines:?}");
    }
}

#[test]
fn a_rank_that_others_wait_for_is_the_cause_if_it_is_silent_has_ended_or_computes() {
    let table: &[(&[&str], &[&str])] = &[
        (&["recv 1", "silent"], &["silent 1 for 2000 waiting [0]"]),
        (&["recv 1", "recv 2", "gate"], &["silent 2 for 200 waiting [0, 1]"]),
        (&["recv 1", "ended"], &["ended 1 waiting [0]"]),
        (&["runs", "ended"], &[]),
        (&["recv 1", "recv 2", "runs", "recv 2"], &["straggler 2 waiting [0, 1, 3]"]),
        // It has posted a receive and computes: nobody waits for it, and it waits for nobody.
        (&["recv 1 runs", "runs"], &[]),
        (&["recv 1", "starts"], &[]),
        // A cycle comes before a rank that does not answer; both are causes.
        (
            &["recv 1", "recv 0", "silent", "recv 2"],
            &["deadlock [0, 1] cycle [0, 1] waiting []", "silent 2 for 2000 waiting [3]"],
        ),
        // Rank 0 may be helped by rank 2 as well: the circle would end with that.
        (&["recv 1 recv 2", "recv 0", "silent"], &["silent 2 for 2000 waiting [0, 1]"]),
    ];
    for (lines, expected) in table {
        assert_eq!(causes(lines), *expected, "{lines:?}");
    }
}

#[test]
fn finished_ranks_wait_for_all_others() {
    let table: &[(&[&str], &[&str])] = &[
        (&["finish", "finish", "runs"], &["straggler 2 waiting [0, 1]"]),
        (&["finish", "recv 0"], &["deadlock [0, 1] cycle [0, 1] waiting []"]),
        // A computing rank does not help: the second rank needs rank 0, which needs all.
        (
            &["finish", "recv 0", "runs"],
            &["deadlock [0, 1] cycle [0, 1] waiting []", "straggler 2 waiting []"],
        ),
        (&["finish", "recv 2", "silent"], &["silent 2 for 2000 waiting [0, 1]"]),
        (&["finish", "finish"], &[]),
        (&["finish", "ended"], &[]),
    ];
    for (lines, expected) in table {
        assert_eq!(causes(lines), *expected, "{lines:?}");
    }
}

#[test]
fn a_lost_link_is_the_cause_and_not_the_circle_over_it() {
    let table: &[(&[&str], &[&str])] = &[
        // Rank 1 has sent, and waits for the answer.
        (&["recv 1", "recv 0 owes 0"], &["lost 1 to 0 for 5000 waiting [0, 1]"]),
        (&["recv 1 owes 1", "recv 0 owes 0", "recv 0"], &["lost 0 to 1 for 5000 waiting [0, 1, 2]"]),
        // Frames are on their way, as always.
        (&["recv 1", "recv 0 slow 0"], &["deadlock [0, 1] cycle [0, 1] waiting []"]),
        // Its peer does not answer either: nothing points to the link.
        (&["recv 1 owes 1", "silent"], &["silent 1 for 2000 waiting [0]"]),
        // Another link than the one that is waited for.
        (
            &["recv 1", "recv 0 owes 2", "runs"],
            &["deadlock [0, 1] cycle [0, 1] waiting []", "lost 1 to 2 for 5000 waiting []"],
        ),
    ];
    for (lines, expected) in table {
        assert_eq!(causes(lines), *expected, "{lines:?}");
    }
}

#[test]
fn what_has_changed_between_two_answers_is_no_wait() {
    let (first, mut second) = reports(&["recv 1", "recv 0"]);
    assert_eq!(Diagnosis::new(2, &first, &second).findings.len(), 1);
    // Another receive of the same message.
    second.get_mut(&Rank(1)).expect("it is there").waits[0].op += 1;
    let diagnosis = Diagnosis::new(2, &first, &second);
    assert_eq!(diagnosis.each_rank[1].state, RankState::Communicating);
    assert!(diagnosis.findings.is_empty(), "{diagnosis:?}");
    // It has answered one question alone.
    let (mut first, second) = reports(&["recv 1", "recv 0"]);
    first.remove(&Rank(0));
    assert!(Diagnosis::new(2, &first, &second).findings.is_empty());
    // Operations that are not known may be completed by anybody.
    let (mut first, mut second) = reports(&["recv 1", "recv 0", "runs"]);
    for reports in [&mut first, &mut second] {
        reports.get_mut(&Rank(0)).expect("it is there").more_waits = 1;
    }
    let causes: Vec<Cause> =
        Diagnosis::new(3, &first, &second).findings.into_iter().map(|finding| finding.cause).collect();
    assert!(!causes.iter().any(|cause| matches!(cause, Cause::Deadlock { .. })), "{causes:?}");
}

#[test]
fn many_ranks_behind_one_are_counted_and_not_listed() {
    let lines: Vec<String> = (1..=20_000).map(|next| format!("recv {next}")).chain(["runs".into()]).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let (first, second) = reports(&lines);
    let diagnosis = Diagnosis::new(20_001, &first, &second);
    let [Finding { cause: Cause::Straggler { rank: 20_000 }, waiting, waiting_total: 20_000 }] =
        &diagnosis.findings[..]
    else {
        panic!("{:?}", diagnosis.findings)
    };
    assert_eq!(*waiting, (19_984..20_000).collect::<Vec<u32>>(), "the nearest");
    // More causes than are listed.
    let mut lines = vec!["silent"; 100];
    lines[0] = "recv 1";
    let (first, second) = reports(&lines);
    let diagnosis = Diagnosis::new(100, &first, &second);
    assert_eq!((diagnosis.findings.len(), diagnosis.more_findings), (FINDINGS_MAX, 99 - 64));
    assert_eq!(diagnosis.findings[0].waiting, [0], "the one that a rank waits for comes first");
}

#[test]
fn a_report_is_cut_to_what_a_message_holds() {
    let mut report = report("recv 1", 0, 0);
    report.waits = vec![report.waits[0]; WAITS_PER_RANK_MAX + 5];
    report.more_waits = 1;
    let report = report.bounded();
    assert_eq!((report.waits.len(), report.more_waits), (WAITS_PER_RANK_MAX, 6));
}

#[test]
fn ranks_are_asked_twice_and_missing_ones_are_named() {
    let lines = ["recv 1", "recv 0", "silent"];
    let (first, second) = reports(&lines);
    let at = |past: core::time::Duration| Instant::from_nanos(5) + past;
    let zero = core::time::Duration::ZERO;
    let (mut collection, message) = Collection::begin(at(zero), 8, 3);
    assert!(matches!(message, Message::WaitQuery { query: 8, .. }));
    assert_eq!(collection.take(at(zero), 7, first.values().cloned()), None, "another question's");
    assert_eq!(collection.poll_timeout(), at(WAIT_ANSWER_MAX));
    // The third does not answer: the time is over.
    assert_eq!(collection.take(at(zero), 8, first.values().take(2).cloned()), None);
    assert_eq!(collection.handle_timeout(at(zero)), None, "it is not due");
    assert_eq!(collection.handle_timeout(at(WAIT_ANSWER_MAX)), None);
    let again = WAIT_ANSWER_MAX + WAIT_ROUNDS_APART;
    assert_eq!(collection.poll_timeout(), at(again));
    let step = collection.handle_timeout(at(again));
    assert!(matches!(step, Some(Step::Ask(Message::WaitQuery { query: 9, .. }))), "{step:?}");
    assert_eq!(collection.take(at(again), 9, second.values().take(2).cloned()), None);
    let Some(Step::Done(diagnosis)) = collection.handle_timeout(at(again + WAIT_ANSWER_MAX)) else {
        panic!("it is over")
    };
    assert_eq!(diagnosis.each_rank[2].state, RankState::NodeSilent);
    let causes: Vec<&Cause> = diagnosis.findings.iter().map(|finding| &finding.cause).collect();
    assert!(matches!(causes[0], Cause::Deadlock { .. }), "{causes:?}");
    assert!(matches!(causes[1], Cause::Silent { rank: 2, waited_ms: 2000, .. }), "{causes:?}");
    // All answer: it ends at once.
    let (mut collection, _) = Collection::begin(at(zero), 1, 3);
    collection.take(at(zero), 1, first.into_values());
    collection.handle_timeout(at(WAIT_ROUNDS_APART));
    let step = collection.take(at(WAIT_ROUNDS_APART), 2, second.into_values());
    assert!(matches!(step, Some(Step::Done(_))), "{step:?}");
}
