//! Statistics of a few times.

use serde::Serialize;

/// A time this many median absolute deviations from the median is an outlier, as for hyperfine: ten
/// standard deviations of normally distributed times.
const OUTLIER: f64 = 14.826;
/// Smaller deviations, as a share of the median, are the clock's.
const NOISE: f64 = 0.001;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Statistics {
    pub mean_seconds: f64,
    /// Standard deviation of the sample; 0 for one run.
    pub deviation_seconds: f64,
    pub median_seconds: f64,
    pub min_seconds: f64,
    pub max_seconds: f64,
    /// Indices of outliers, from 0.
    pub outliers: Vec<usize>,
}

impl Statistics {
    /// Requires at least one time.
    pub fn of(seconds: &[f64]) -> Self {
        let count = seconds.len() as f64;
        let mean = seconds.iter().sum::<f64>() / count;
        let squares: f64 = seconds.iter().map(|time| (time - mean).powi(2)).sum();
        let middle = median(seconds);
        let distances: Vec<f64> = seconds.iter().map(|time| (time - middle).abs()).collect();
        let usual = median(&distances).max(NOISE * middle);
        Statistics {
            mean_seconds: mean,
            deviation_seconds: if count > 1.0 { (squares / (count - 1.0)).sqrt() } else { 0.0 },
            median_seconds: middle,
            min_seconds: seconds.iter().copied().fold(f64::INFINITY, f64::min),
            max_seconds: seconds.iter().copied().fold(0.0, f64::max),
            outliers: (0..seconds.len()).filter(|run| distances[*run] > OUTLIER * usual).collect(),
        }
    }
}

/// The middle value, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_textbook() {
        let of = Statistics::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((of.mean_seconds, of.median_seconds), (5.0, 4.5));
        assert!((of.deviation_seconds - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!((of.min_seconds, of.max_seconds), (2.0, 9.0));
        assert!(of.outliers.is_empty());
        let one = Statistics::of(&[3.0]);
        assert_eq!((one.mean_seconds, one.deviation_seconds, one.median_seconds), (3.0, 0.0, 3.0));
    }

    #[test]
    fn a_run_far_from_the_others_is_an_outlier() {
        assert_eq!(Statistics::of(&[1.00, 1.01, 0.99, 1.02, 2.0, 1.0]).outliers, [4]);
        // Differences below the clock's resolution do not count, though all others are equal.
        assert!(Statistics::of(&[1.0, 1.0, 1.0, 1.0, 1.01]).outliers.is_empty());
        assert!(Statistics::of(&[1.0, 9.0]).outliers.is_empty());
    }
}
