//! Percentiles of durations, exact: all samples are kept.

use std::time::Duration;

/// The samples in order.
#[derive(Debug)]
pub(crate) struct Percentiles(Vec<Duration>);

impl Percentiles {
    pub(crate) fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self(samples)
    }

    /// Returns the milliseconds that `share` of the samples do not exceed (nearest rank), or NaN
    /// without samples.
    pub(crate) fn ms(&self, share: f64) -> f64 {
        let rank = (share * self.0.len() as f64).ceil().max(1.0) as usize;
        self.0.get(rank - 1).map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_rank_is_taken() {
        let all = Percentiles::of((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!([0.5, 0.99, 1.0, 0.001].map(|share| all.ms(share)), [50.0, 99.0, 100.0, 1.0]);
        assert!(Percentiles::of(Vec::new()).ms(0.5).is_nan());
    }
}
