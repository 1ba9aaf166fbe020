//! Medians, percentiles, spread.

use serde::{Deserialize, Serialize};

/// The value below which `part` (0 to 1) of `sorted` lies; 0 for no values.
pub(crate) fn percentile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a place in a table of samples"
    )]
    let place = (last as f64 * part).round() as usize;
    sorted[place.min(last)]
}

/// Sorts samples for [`percentile`].
pub(crate) fn sorted(mut samples: Vec<f64>) -> Vec<f64> {
    samples.sort_by(f64::total_cmp);
    samples
}

/// Where the values of many runs lie.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Default, Debug)]
pub struct Summary {
    /// Half of the runs lie below.
    pub median: f64,
    /// A tenth of the runs lies below.
    pub p10: f64,
    /// Nine tenths lie below.
    pub p90: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// Number of runs.
    pub runs: usize,
}

impl Summary {
    /// Summarises one value per run.
    #[must_use]
    pub fn of(values: &[f64]) -> Summary {
        let values = sorted(values.to_vec());
        Summary {
            median: percentile(&values, 0.5),
            p10: percentile(&values, 0.1),
            p90: percentile(&values, 0.9),
            min: percentile(&values, 0.0),
            max: percentile(&values, 1.0),
            runs: values.len(),
        }
    }
}

/// Where a figure lies with 95 % confidence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Samples that a bootstrap draws.
const RESAMPLES: usize = 10_000;

impl Interval {
    /// Of the median of the distribution of `values`, by bootstrap: the middle 95 % of the medians of as many values
    /// drawn from them again. The same values give the same interval.
    pub(crate) fn of_median(values: &[f64]) -> Interval {
        Interval::of(values, &|sample| percentile(&sorted(sample), 0.5))
    }

    /// The same of their mean, in which rare ones count.
    pub(crate) fn of_mean(values: &[f64]) -> Interval {
        #[expect(clippy::cast_precision_loss, reason = "few values")]
        Interval::of(values, &|sample| sample.iter().sum::<f64>() / sample.len().max(1) as f64)
    }

    fn of(values: &[f64], figure: &dyn Fn(Vec<f64>) -> f64) -> Interval {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let place = random % values.len().max(1) as u64;
            values.get(usize::try_from(place).unwrap_or(0)).copied().unwrap_or(0.0)
        };
        let figures = (0..RESAMPLES).map(|_| figure((0..values.len()).map(|_| draw()).collect()));
        let figures = sorted(figures.collect());
        Interval { low: percentile(&figures, 0.025), high: percentile(&figures, 0.975) }
    }
}

/// Ratio of each run of ours to the mean of the baseline runs next to it, so that slow drifts of the machine cancel.
pub(crate) fn paired_ratios(ours: &[f64], baseline: &[f64]) -> Vec<f64> {
    ours.iter()
        .enumerate()
        .filter_map(|(i, value)| {
            let before = baseline.get(i)?;
            let after = baseline.get(i + 1).unwrap_or(before);
            Some(value / ((before + after) / 2.0))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples = sorted(vec![5.0, 1.0, 3.0]);
        assert_eq!(percentile(&samples, 0.0), 1.0);
        assert_eq!(percentile(&samples, 0.5), 3.0);
        assert_eq!(percentile(&samples, 0.99), 5.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn an_interval_encloses_the_median_and_shrinks_with_the_spread() {
        let spread =
            |width: f64| (0..51).map(|i| 1.0 + width * (f64::from(i) - 25.0) / 25.0).collect::<Vec<_>>();
        let (wide, narrow) = (Interval::of_median(&spread(0.1)), Interval::of_median(&spread(0.01)));
        assert!(wide.low < 1.0 && 1.0 < wide.high && wide.low > 0.95 && wide.high < 1.05, "{wide:?}");
        assert!(narrow.high - narrow.low < (wide.high - wide.low) / 5.0);
        assert_eq!(Interval::of_median(&[2.0; 9]), Interval { low: 2.0, high: 2.0 });
        // One of twenty is far away: the median does not know of it.
        let mut rare = [1.0; 20];
        rare[3] = 3.0;
        let mean = Interval::of_mean(&rare);
        assert!(mean.low >= 1.0 && mean.high > 1.1 && mean.high < 1.5, "{mean:?}");
        assert_eq!(Interval::of_median(&rare), Interval { low: 1.0, high: 1.0 });
    }

    #[test]
    fn a_drift_of_the_machine_cancels_in_paired_ratios() {
        let baseline = [10.0, 20.0, 30.0, 40.0];
        let ours = [30.0, 50.0, 70.0];
        assert!(paired_ratios(&ours, &baseline).iter().all(|ratio| (ratio - 2.0).abs() < 1e-9));
    }
}
