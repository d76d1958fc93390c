//! Median and spread of repeated figures.

use serde::Serialize;

/// Median, minimum and maximum of some figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Returns the spread of some figures. Without any, all three are NaN.
    pub(crate) fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            at(middle)
        } else {
            f64::midpoint(at(middle.wrapping_sub(1)), at(middle))
        };
        Self { median, min: at(0), max: at(sorted.len().wrapping_sub(1)) }
    }

    /// Returns the spread of the ratios, round by round: a disturbance in a round affects both
    /// series.
    pub(crate) fn of_ratios(over: &[f64], under: &[f64]) -> Self {
        let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
        Self::of(&ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_odd_and_even_counts() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        assert_eq!(
            Spread::of_ratios(&[5.0, 20.0], &[10.0, 20.0]),
            Spread { median: 0.75, min: 0.5, max: 1.0 }
        );
    }
}
