use alloc::vec::Vec;

use transport::{Instant, Rank};

use super::*;
use crate::config::{OnExit, OnFault};
use crate::control::FaultReport;
use crate::layout::Layout;
use crate::names::{ExitStatus, NodeIndex};
use crate::recovery::{Confidence, Detector, Fault, FaultSite, Plan, RecoveryView, StopReason};

const VIEW: RecoveryView = RecoveryView {
    newest: None,
    attempts: 0,
    in_a_row: 0,
    restarts_max: 5,
    back_off: Duration::from_millis(200),
    on_fault: OnFault::Restart,
    on_exit: OnExit::Fail,
    has_other_hosts: true,
    all_run: true,
    rolls_back: true,
};

/// Two nodes of two ranks each.
fn layout() -> Layout {
    Layout::even(4, 2, 2).expect("a layout")
}

fn at(seconds: u32) -> Instant {
    Instant::ZERO + Duration::from_secs(1) * seconds
}

fn killed(rank: u32) -> FaultReport {
    FaultReport::RankDied { rank: Rank(rank), status: ExitStatus::Signal(9) }
}

fn classified(report: FaultReport) -> Fault {
    Detector::default().classify(&report, &layout()).expect("a fault")
}

fn with(change: &str) -> Policy {
    let mut policy = Policy::default();
    policy.change(change).expect("a change");
    policy
}

#[test]
fn a_report_has_a_model_a_site_and_a_confidence() {
    let node = NodeIndex(1);
    let cases = [
        (killed(2), FaultModel::Process, FaultSite::Rank(Rank(2), node), Confidence::Certain),
        (
            FaultReport::KeeperSilent { node },
            FaultModel::Transient,
            FaultSite::Node(node),
            Confidence::TimedOut,
        ),
        (
            FaultReport::NodeSuspected { node },
            FaultModel::Permanent,
            FaultSite::Node(node),
            Confidence::Person,
        ),
        (
            FaultReport::NodeCutOff { node, silent_ms: 9 },
            FaultModel::Network,
            FaultSite::Node(node),
            Confidence::TimedOut,
        ),
        (
            FaultReport::StartTimedOut { running: 1, ranks: 4 },
            FaultModel::Process,
            FaultSite::Job,
            Confidence::TimedOut,
        ),
    ];
    for (report, model, site, confidence) in cases {
        assert_eq!(classified(report), Fault { model, site, confidence, report });
    }
    assert_eq!(Detector::default().classify(&FaultReport::KeeperOverdue { node }, &layout()), None);
}

/// Kills of these ranks at these seconds: the models.
fn models(kills: &[(u32, u32)]) -> Vec<FaultModel> {
    let mut detector = Detector::default();
    let count = |(second, rank): &(u32, u32)| {
        let mut fault = classified(killed(*rank));
        detector.count(at(*second), &mut fault, &Thresholds::default());
        fault.model
    };
    kills.iter().map(count).collect()
}

#[test]
fn process_faults_of_one_node_in_a_short_time_are_a_fault_of_the_node() {
    use FaultModel::{Process, Repeated};
    assert_eq!(models(&[(0, 0), (10, 1), (20, 0), (30, 1)]), [Process, Process, Repeated, Repeated]);
    assert_eq!(models(&[(0, 0), (10, 2), (20, 1), (30, 3)]), [Process; 4], "two of each node");
    assert_eq!(models(&[(0, 0), (10, 0), (611, 0), (612, 0)]), [Process, Process, Process, Process]);
    assert_eq!(models(&[(0, 0), (10, 0), (611, 0), (612, 0), (613, 0)])[4], Repeated);
}

#[test]
fn another_host_begins_without_the_faults_of_the_one_before_it() {
    let mut detector = Detector::default();
    let mut last = None;
    for second in 0..4 {
        let mut fault = classified(killed(0));
        detector.count(at(second), &mut fault, &Thresholds::default());
        last = Some(fault.model);
        if second == 2 {
            assert_eq!(last, Some(FaultModel::Repeated));
            detector.forget(NodeIndex(0));
        }
    }
    assert_eq!(last, Some(FaultModel::Process));
}

#[test]
fn the_policy_names_the_reaction() {
    let node = NodeIndex(1);
    let after = Duration::ZERO;
    let repeated = Fault { model: FaultModel::Repeated, ..classified(killed(2)) };
    let network = classified(FaultReport::NodeCutOff { node, silent_ms: 9 });
    let suspected = classified(FaultReport::NodeSuspected { node });
    let silent = classified(FaultReport::KeeperSilent { node });
    let restart = Some(Plan::Restart { after });
    let migrate = |fallback| Some(Plan::Migrate { node, after, fallback });
    let stop = |model| Some(Plan::Stop { reason: StopReason::Policy { model } });
    let cases = [
        ("process=restart", classified(killed(2)), restart),
        ("process=stop", classified(killed(2)), stop(FaultModel::Process)),
        ("process=migration, stop", classified(killed(2)), migrate(Fallback::Stop)),
        ("repeated=migration,restart", repeated, migrate(Fallback::Restart)),
        ("repeated=migration", repeated, migrate(Fallback::Stop)),
        ("repeated=restart", repeated, restart),
        ("network=wait", network, None),
        ("network=migration,restart", network, migrate(Fallback::Restart)),
        ("network=stop", network, stop(FaultModel::Network)),
        ("permanent=migration,restart", suspected, migrate(Fallback::Restart)),
        ("permanent=restart", suspected, restart),
        ("transient=restart", silent, restart),
        ("transient=migration,restart", silent, migrate(Fallback::Restart)),
    ];
    for (change, fault, expected) in cases {
        assert_eq!(with(change).plan(&VIEW, &fault), expected, "{change}");
    }
}

#[test]
fn a_policy_does_not_outlive_the_bounds_of_the_job() {
    let policy = with("process=migration,restart");
    let abort = RecoveryView { on_fault: OnFault::Abort, ..VIEW };
    let stop = |reason| Some(Plan::Stop { reason });
    assert_eq!(policy.plan(&abort, &classified(killed(0))), stop(StopReason::OnFaultAbort));
    let used_up = RecoveryView { attempts: 5, ..VIEW };
    let reason = StopReason::AttemptsUsedUp { attempts: 5 };
    assert_eq!(policy.plan(&used_up, &classified(killed(0))), stop(reason));
    let suspected = classified(FaultReport::NodeSuspected { node: NodeIndex(1) });
    assert!(matches!(policy.plan(&used_up, &suspected), Some(Plan::Migrate { .. })), "no attempt to recover");
    let alone = RecoveryView { has_other_hosts: false, ..VIEW };
    assert_eq!(policy.plan(&alone, &classified(killed(0))), Some(Plan::Restart { after: Duration::ZERO }));
    let reason = StopReason::NoOtherHost { node: NodeIndex(0) };
    assert_eq!(with("process=migration").plan(&alone, &classified(killed(0))), stop(reason));
    let later = RecoveryView { in_a_row: 2, ..VIEW };
    let Some(Plan::Migrate { after, .. }) = policy.plan(&later, &classified(killed(0))) else {
        panic!("another host takes the place")
    };
    assert_eq!(after, Duration::from_millis(400));
}

// R37
#[test]
fn a_rank_that_has_ended_is_ignored_however_it_has_ended() {
    let (rank, after) = (Rank(2), Duration::ZERO);
    let code = |code| FaultReport::RankDied { rank, status: ExitStatus::Code(code) };
    let ignored = |status| Some(Plan::Ignore { rank, status });
    let policy = with("process=ignore, restart");
    assert_eq!(policy.plan(&VIEW, &classified(killed(2))), ignored(ExitStatus::Signal(9)));
    for number in [0, 1] {
        assert_eq!(policy.plan(&VIEW, &classified(code(number))), ignored(ExitStatus::Code(number)));
    }
    // It is the program's word that all end.
    let aborted = classified(FaultReport::Aborted { rank, code: 3 });
    let stop = |reason| Some(Plan::Stop { reason });
    assert_eq!(policy.plan(&VIEW, &aborted), stop(StopReason::ProgramAborted));
    // While ranks come up there is no life that could go on.
    let early = RecoveryView { all_run: false, ..VIEW };
    assert_eq!(policy.plan(&early, &classified(killed(2))), Some(Plan::Restart { after }));
    let alone = with("process=ignore");
    let reason = StopReason::Policy { model: FaultModel::Process };
    assert_eq!(alone.plan(&early, &classified(killed(2))), stop(reason));
    assert_eq!(alone.plan(&early, &classified(code(1))), stop(StopReason::ProgramExited));
    let not_started = classified(FaultReport::RankNotStarted { rank, errno: 2 });
    assert_eq!(policy.plan(&VIEW, &not_started), Some(Plan::Restart { after }));
    // Without checkpoints, too, but not against the person's word.
    let fixed = RecoveryView { rolls_back: false, ..VIEW };
    assert_eq!(policy.plan(&fixed, &classified(killed(2))), ignored(ExitStatus::Signal(9)));
    assert_eq!(policy.plan(&fixed, &not_started), stop(StopReason::OnFaultAbort));
    let abort = RecoveryView { on_fault: OnFault::Abort, ..VIEW };
    assert_eq!(policy.plan(&abort, &classified(killed(2))), stop(StopReason::OnFaultAbort));
    let repeated = Fault { model: FaultModel::Repeated, ..classified(killed(2)) };
    let node = NodeIndex(1);
    let moved = Plan::Migrate { node, after, fallback: Fallback::Restart };
    assert_eq!(policy.plan(&VIEW, &repeated), Some(moved), "the node is at fault");
    assert_eq!(with("repeated=ignore").plan(&VIEW, &repeated), ignored(ExitStatus::Signal(9)));
}

#[test]
fn a_wrong_change_leaves_the_policy_as_it_is() {
    let mut policy = with("repeated=stop");
    let before = policy.clone();
    for wrong in [
        "repeated",
        "repeated=",
        "disk=restart",
        "program=restart",
        "repeated=wait",
        "transient=stop",
        "repeated=restart,stop",
        "repeated=migration,restart,stop",
        "repeated=migration,migration",
        "repeated=transfer",
        "permanent=ignore",
        "network=ignore",
        "process=restart,ignore",
        "process=ignore,migration",
    ] {
        assert!(policy.change(wrong).is_err(), "{wrong}");
        assert_eq!(policy, before, "{wrong}");
    }
}
