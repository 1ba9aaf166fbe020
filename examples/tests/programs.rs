//! The programs, whole: on any number of ranks, saved at every point, killed and gone on with.

use std::sync::Arc;

use examples::burst::{self, BurstConfig};
use examples::is::{self, Class, IsConfig, IsReport};
use examples::threads::{Plan, run};
use examples::{ExampleError, ring};

fn sort(ranks: u32, plan: &Plan, config: IsConfig) -> (Vec<Result<IsReport, ExampleError>>, Plan) {
    let outcome = run(ranks, plan, |world| is::run(world, &config, &mut |_| {}));
    (outcome.ranks, Plan { from: outcome.cut, ..Plan::default() })
}

fn verified(reports: Vec<Result<IsReport, ExampleError>>) {
    for report in reports {
        let report = report.unwrap();
        assert!(report.verified, "{report}");
        assert_eq!(report.partial_expected, u64::from(report.rounds * report.iterations) * 5);
    }
}

#[test]
fn class_s_verifies_on_every_power_of_two() {
    for ranks in [1, 2, 4, 8, 16, 32, 64] {
        verified(sort(ranks, &Plan::default(), IsConfig::official(Class::S)).0);
    }
}

#[test]
fn class_w_and_several_rounds_verify() {
    verified(sort(4, &Plan::default(), IsConfig { rounds: 2, ..IsConfig::official(Class::W) }).0);
    verified(sort(4, &Plan::default(), IsConfig { rounds: 5, ..IsConfig::official(Class::S) }).0);
}

#[test]
fn class_a_verifies() {
    verified(sort(2, &Plan::default(), IsConfig::official(Class::A)).0);
}

#[test]
fn sort_restarts_from_every_point_and_counts_each_test_key_once() {
    let config = IsConfig { class: Class::S, iterations: 3, rounds: 2 };
    // Two points in each of the 6 iterations and in the untimed one.
    for point in 1..=14 {
        let plan = Plan { cut_at: Some(point), ..Plan::default() };
        let (reports, again) = sort(4, &plan, config);
        verified(reports);
        let cut = again.from.as_ref().expect("every rank passes the point");
        assert!(point % 2 == 1 || cut.messages_in_flight() > 0, "keys travel at point {point}");
        let (reports, _) = sort(4, &again, config);
        assert!(reports.iter().flatten().all(|report| report.restarts == 1));
        verified(reports);
    }
}

#[test]
fn sort_survives_the_death_of_any_rank_and_a_second_one() {
    let config = IsConfig { class: Class::S, iterations: 4, rounds: 1 };
    for victim in 0..4 {
        let plan = Plan { cut_at: Some(4), dies_at: Some((victim, 7)), ..Plan::default() };
        let (reports, first) = sort(4, &plan, config);
        assert!(reports.iter().all(Result::is_err), "nobody finishes without rank {victim}");
        let from = Some(Arc::clone(first.from.as_ref().expect("the cut was before the death")));
        let (reports, second) =
            sort(4, &Plan { cut_at: Some(8), dies_at: Some((3 - victim, 9)), from }, config);
        assert!(reports.iter().all(Result::is_err), "nobody finishes without rank {}", 3 - victim);
        verified(sort(4, &second, config).0);
    }
}

#[test]
fn a_restart_with_other_arguments_is_refused() {
    let config = IsConfig { class: Class::S, iterations: 2, rounds: 1 };
    let (_, again) = sort(2, &Plan { cut_at: Some(2), ..Plan::default() }, config);
    let (reports, _) = sort(2, &again, IsConfig { iterations: 3, ..config });
    let message = reports[0].as_ref().unwrap_err().to_string();
    assert!(message.contains("iterations = 2") && message.contains("this one 3"), "{message}");
}

#[test]
fn impossible_sorts_are_refused_with_advice() {
    let message = |ranks, iterations| {
        let config = IsConfig { class: Class::S, iterations, rounds: 1 };
        sort(ranks, &Plan::default(), config).0.remove(0).unwrap_err().to_string()
    };
    assert!(message(3, 10).contains("power of two"));
    assert!(message(1, 11).contains("--rounds"));
    assert!(message(1, 0).contains("1..=10"));
}

#[test]
fn bursts_arrive_exactly_once_and_in_order_at_any_size() {
    for (ranks, bytes) in [(1, 64), (2, 24), (4, 64), (5, 3000)] {
        let config = BurstConfig { messages: 32, bytes, rounds: 20 };
        let outcome = run(ranks, &Plan::default(), |world| burst::run(world, &config, &mut |_| {}));
        for report in outcome.ranks {
            let report = report.unwrap();
            assert!(report.verified, "{report}");
            assert_eq!(report.received, u64::from(ranks * (ranks - 1)) * 32 * 20);
        }
    }
}

#[test]
fn whole_bursts_are_in_flight_at_each_cut_and_none_is_lost() {
    let config = BurstConfig { messages: 32, bytes: 64, rounds: 10 };
    for point in 1..=10 {
        let dies_at = (point < 10).then_some((1, point + 1));
        let plan = Plan { cut_at: Some(point), dies_at, ..Plan::default() };
        let outcome = run(4, &plan, |world| burst::run(world, &config, &mut |_| {}));
        let from = outcome.cut;
        let in_flight = from.as_ref().expect("every rank passes the point").messages_in_flight();
        assert!((1..=4 * 3 * 32).contains(&in_flight), "{in_flight} messages in flight at point {point}");
        let again = Plan { from, ..Plan::default() };
        for report in run(4, &again, |world| burst::run(world, &config, &mut |_| {})).ranks {
            let report = report.unwrap();
            assert!(report.verified && report.restarts == 1, "{report}");
        }
    }
}

#[test]
fn impossible_bursts_are_refused() {
    for config in [
        BurstConfig { messages: 0, ..BurstConfig::default() },
        BurstConfig { bytes: 23, ..BurstConfig::default() },
        BurstConfig { rounds: 0, ..BurstConfig::default() },
    ] {
        let outcome = run(1, &Plan::default(), |world| burst::run(world, &config, &mut |_| {}));
        assert!(matches!(outcome.ranks[0], Err(ExampleError::OutOfRange { .. })), "{config:?}");
    }
}

#[test]
fn tokens_go_round_and_on_after_a_restart() {
    for ranks in 1..=5 {
        let plan = Plan { cut_at: Some(13), dies_at: Some((ranks - 1, 20)), ..Plan::default() };
        let outcome = run(ranks, &plan, |world| ring::run(world, 40));
        assert!(outcome.ranks[ranks as usize - 1].is_err());
        let again = Plan { from: outcome.cut, ..Plan::default() };
        for value in run(ranks, &again, |world| ring::run(world, 40)).ranks {
            assert!(value.unwrap() >= 40);
        }
    }
}
