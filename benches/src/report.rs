//! Figures: medians, spread, ratios.

use comfy_table::{Cell, CellAlignment, Table, presets::UTF8_FULL};
use serde::Serialize;

use crate::backlog::Shape;

/// The rounds of one broker.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) broker: &'static str,
    pub(crate) shape: Shape,
    /// Messages per second of the bare parts, one figure a round.
    pub(crate) bare: Vec<f64>,
    /// Messages per second through the relay, one figure a round.
    pub(crate) relay: Vec<f64>,
}

/// Median, smallest and largest of some figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
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
}

impl Series {
    /// Relay over bare, round by round.
    pub(crate) fn ratio(&self) -> Spread {
        let ratios: Vec<f64> = self.bare.iter().zip(&self.relay).map(|(bare, relay)| relay / bare).collect();
        Spread::of(&ratios)
    }
}

/// The table for people.
pub(crate) fn table(series: &[Series]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL).set_header([
        "broker",
        "messages",
        "payload",
        "keys",
        "bare msg/s",
        "relay msg/s",
        "ratio",
        "ratio min–max",
    ]);
    for one in series {
        let (bare, relay, ratio) = (Spread::of(&one.bare), Spread::of(&one.relay), one.ratio());
        table.add_row(
            [
                one.broker.to_owned(),
                one.shape.messages.to_string(),
                format!("{} B", one.shape.payload_bytes),
                one.shape.keys.to_string(),
                format!("{:.0}", bare.median),
                format!("{:.0}", relay.median),
                format!("{:.2}", ratio.median),
                format!("{:.2}–{:.2}", ratio.min, ratio.max),
            ]
            .map(Cell::new)
            .map(|cell| cell.set_alignment(CellAlignment::Right)),
        );
    }
    table
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
        let shape = Shape { messages: 1, payload_bytes: 1, keys: 1 };
        let series = Series { broker: "b", shape, bare: vec![10.0, 20.0], relay: vec![5.0, 20.0] };
        assert_eq!(series.ratio(), Spread { median: 0.75, min: 0.5, max: 1.0 });
    }
}
