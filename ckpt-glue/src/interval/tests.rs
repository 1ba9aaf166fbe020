use alloc::format;
use alloc::string::ToString as _;

use super::*;
use crate::control::{CutStatistics, ImageContent};
use crate::names::ImageDigest;
use transport::Rank;

const SECOND: Duration = Duration::from_secs(1);

fn image(rank: u32, pause: Duration, delay: Option<Duration>) -> ImageReport {
    let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap();
    let statistics = CutStatistics {
        stop_ns: nanos(pause).cast_unsigned(),
        delay_ns: delay.map(nanos),
        ..CutStatistics::default()
    };
    ImageReport {
        rank: Rank(rank),
        digest: ImageDigest(1),
        bytes: 1 << 20,
        content: ImageContent::Commanded,
        statistics,
    }
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + SECOND * u32::try_from(seconds).unwrap()
}

fn auto() -> AutoInterval {
    let mut auto = AutoInterval::new(None, Percentage::ALL);
    auto.begin_life(Instant::ZERO);
    auto
}

/// The expected time for a unit of work by Daly's model (equation 20), which has nothing of the approximation that is tested: `every` of work, then a
/// checkpoint, as often as it takes.
fn time_per_work(every: f64, cost: f64, mtbf: f64) -> f64 {
    mtbf * libm::expm1((every + cost) / mtbf) / every
}

#[test]
fn no_interval_is_noticeably_better_than_the_chosen_one() {
    for (cost, mtbf) in [(0.001, 60.0), (0.1, 60.0), (1.0, 60.0), (10.0, 60.0), (60.0, 600.0), (1.0, 86400.0)]
    {
        let chosen = time_per_work(daly(cost, mtbf), cost, mtbf);
        let best = (1..4000).map(|step| time_per_work(mtbf * f64::from(step) / 1000.0, cost, mtbf));
        let finer = (1..4000).map(|step| time_per_work(mtbf * f64::from(step) / 1e6, cost, mtbf));
        let best = best.chain(finer).fold(f64::INFINITY, f64::min);
        assert!(chosen <= best * 1.01, "cost {cost}, mtbf {mtbf}: {chosen}, best {best}");
    }
    assert!(daly(200.0, 60.0) == 60.0, "a checkpoint takes longer than the job lives");
}

fn one_node() -> Layout {
    Layout::even(64, 1, 1).unwrap()
}

/// One more checkpoint.
fn commit(auto: &mut AutoInterval, took: Duration, images: &[ImageReport]) {
    auto.committed(took, images, &one_node());
}

#[test]
fn the_interval_grows_while_nothing_fails() {
    let mut auto = auto();
    commit(&mut auto, SECOND / 2, &[image(0, SECOND / 100, Some(SECOND / 10))]);
    let estimates = [10, 100, 1000, 10_000].map(|seconds| auto.estimate(at(seconds)));
    let chosen = estimates.map(|estimate| estimate.every);
    assert!(chosen.is_sorted() && chosen[3] > chosen[0] * 10, "{chosen:?}");
    assert_eq!(estimates[3].cause(Some(&estimates[0])), Cause::NoFailures);
    assert_eq!(estimates[0].cause(None), Cause::First);
}

#[test]
fn failures_shorten_it() {
    let mut auto = auto();
    commit(&mut auto, SECOND / 2, &[image(0, SECOND / 100, Some(SECOND / 10))]);
    let before = auto.estimate(at(3600));
    for life in 1..=10 {
        auto.end_life(at(3600 + 60 * life), true);
        auto.begin_life(at(3600 + 60 * life));
    }
    let after = auto.estimate(at(4200));
    assert!(after.every * 5 < before.every, "{before:?}, then {after:?}");
    assert_eq!(after.cause(Some(&before)), Cause::Failures);
    // A life that ends in order says nothing of failures.
    let mut stopped = auto.clone();
    stopped.end_life(at(4200), false);
    assert_eq!(stopped.estimate(at(4200)).mtbf, after.mtbf);
    // And time in which no life runs is no time without a failure, nor are attempts that never ran failures.
    stopped.end_life(at(1_000_000), true);
    assert_eq!(stopped.estimate(at(1_000_000)).mtbf, after.mtbf);
}

#[test]
fn the_cost_is_what_ranks_report_and_no_less_than_the_pause() {
    let mut auto = auto();
    assert_eq!(auto.estimate(at(1)).cost, None);
    commit(&mut auto, SECOND, &[image(0, SECOND / 100, None)]);
    assert_eq!(auto.estimate(at(1)).cost, Some(SECOND / 100 + SECOND / 4), "nothing is reported yet");
    let before = auto.estimate(at(1));
    commit(
        &mut auto,
        SECOND,
        &[image(0, SECOND / 100, Some(SECOND / 2)), image(1, SECOND / 50, Some(SECOND))],
    );
    assert_eq!(auto.estimate(at(1)).cost, Some(SECOND * 3 / 4), "ranks of a node share what delays them");
    assert_eq!(auto.estimate(at(1)).cause(Some(&before)), Cause::DearerCheckpoints);
    // The slowest node counts, and noise below zero with it.
    let two = Layout::even(4, 2, 1).unwrap();
    let mut quick = [0, 1, 2, 3].map(|rank| image(rank, SECOND / 100, Some(SECOND / 10 * (rank + 1))));
    quick[2].statistics.delay_ns = Some(-200_000_000);
    assert_eq!(delay(&quick, &two), Some(SECOND / 10 * 3 / 2));
    quick[1].statistics.delay_ns = Some(-300_000_000);
    assert_eq!(delay(&quick, &two), Some(SECOND / 10));
    assert_eq!(delay(&[image(0, SECOND, None)], &two), None);
    // One disturbed checkpoint is no rule.
    for pause in [1, 600, 1, 1] {
        commit(&mut auto, SECOND, &[image(0, SECOND / 10 * pause, Some(SECOND / 10 * pause))]);
    }
    assert_eq!(auto.estimate(at(1)).cost, Some(SECOND / 10));
}

#[test]
fn bounds_hold_and_are_named() {
    let cheap = image(0, SECOND / 1000, Some(SECOND / 100));
    let mut auto = AutoInterval::new(Some(SECOND * 60), Percentage(1_000));
    auto.begin_life(Instant::ZERO);
    commit(&mut auto, SECOND / 10, &[cheap]);
    let Estimate { every, bound, .. } = auto.estimate(at(1));
    assert_eq!((every, bound), (SECOND * 10, Some(Bound::Budget)), "0.1% of the time for 10 ms each");
    auto.tune(&Tuning { budget: Some(Percentage(500)), ..Tuning::default() });
    assert_eq!(auto.estimate(at(1)).every, SECOND * 20);
    // The budget is kept whatever it takes.
    auto.tune(&Tuning { budget: Some(Percentage(1)), ..Tuning::default() });
    commit(&mut auto, SECOND, &[image(0, SECOND, Some(SECOND)); 3]);
    commit(&mut auto, SECOND, &[image(0, SECOND, Some(SECOND)); 3]);
    assert_eq!(auto.estimate(at(1)).every, SECOND * 1_000_000);
    let mut slow = AutoInterval::new(Some(SECOND * 60), Percentage::ALL);
    commit(&mut slow, SECOND * 30, &[cheap]);
    commit(&mut slow, SECOND * 10, &[cheap]);
    let Estimate { every, bound, .. } = slow.estimate(at(1));
    assert_eq!((every, bound), (SECOND * 60, Some(Bound::Duration)));
    let mut rare = AutoInterval::new(Some(DURATION_MAX), Percentage::ALL);
    rare.begin_life(Instant::ZERO);
    commit(&mut rare, SECOND, &[image(0, SECOND * 600, Some(SECOND * 600))]);
    let Estimate { every, bound, .. } = rare.estimate(at(10_000_000));
    assert_eq!((every, bound), (AUTO_EVERY_MAX, Some(Bound::Range)));
}

#[test]
fn checkpoints_that_fail_become_rarer() {
    let mut auto = auto();
    let first = auto.estimate(Instant::ZERO).every;
    let fail = |auto: &mut AutoInterval, begun: u64| {
        auto.begun(at(begun));
        auto.failed(at(begun + 60));
        auto.estimate(at(begun + 60))
    };
    let once = fail(&mut auto, 10);
    assert!(once.every >= SECOND * 240 && once.bound == Some(Bound::Failing), "{first:?}, then {once:?}");
    let twice = fail(&mut auto, 400);
    assert!(twice.every >= once.every * 2, "{once:?}, then {twice:?}");
    for attempt in 0..20 {
        assert!(fail(&mut auto, 1000 * attempt).every <= AUTO_EVERY_MAX);
    }
    let failing = auto.estimate(at(30_000));
    commit(&mut auto, SECOND, &[image(0, SECOND / 100, Some(SECOND / 10))]);
    let after = auto.estimate(at(30_000));
    assert!(after.bound.is_none() && after.every < failing.every, "{after:?}");
    auto.failed(at(30_000));
    assert_eq!(auto.estimate(at(30_000)).cause(Some(&after)), Cause::FailedCheckpoints);
    assert_eq!(after.cause(Some(&auto.estimate(at(30_000)))), Cause::CommittedCheckpoints);
}

#[test]
fn text_is_read_back_and_errors_say_what_is_expected() {
    for text in ["auto", "off", "5m", "250ms", "1ms"] {
        assert_eq!(text.parse::<Every>().unwrap().to_string(), text);
    }
    for text in ["1%", "0.5%", "100%", "0.0001%", "12.25%"] {
        assert_eq!(text.parse::<Percentage>().unwrap().to_string(), text);
    }
    for text in ["", "%", "0%", "101%", "1", "-1%", "1.%", ".5%", "1.00001%", "99999999999%", "1e1%"] {
        assert!(text.parse::<Percentage>().is_err(), "{text}");
    }
    for text in ["sometimes", "999us", "0s", "", "5"] {
        let expected = "is not a time between checkpoints; write auto, off, or a number and a unit (ms, s, m, h, d), such as 5m or 1.5s, from 1ms to 366d";
        assert_eq!(text.parse::<Every>().unwrap_err().to_string(), format!("`{text}` {expected}"));
    }
    assert_eq!(
        "1".parse::<Percentage>().unwrap_err().to_string(),
        "`1` is not a part of the running time; write a percentage above 0% and up to 100%, with at most four digits behind the point, such as 1% or 0.5%"
    );
}
