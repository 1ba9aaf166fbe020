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
    fn a_drift_of_the_machine_cancels_in_paired_ratios() {
        let baseline = [10.0, 20.0, 30.0, 40.0];
        let ours = [30.0, 50.0, 70.0];
        assert!(paired_ratios(&ours, &baseline).iter().all(|ratio| (ratio - 2.0).abs() < 1e-9));
    }
}
