//! A plot of the last hour as SVG, rendered here so that it needs no script.

use std::fmt::Write as _;

use maud::{Markup, html};

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 64.0;
/// Space above the line.
const HEADROOM: f64 = 6.0;

/// The values of a plot.
#[derive(Clone, Copy)]
pub(crate) struct Curve<'a> {
    /// Its colour.
    pub(crate) class: &'a str,
    /// Its name, which screen readers read as well.
    pub(crate) label: &'a str,
    /// One value for each minute, latest last.
    pub(crate) values: &'a [Option<f64>],
    /// The smallest value that may fill the height, so that smaller ones are not drawn as peaks.
    pub(crate) floor: f64,
}

/// Renders a plot. `shown` formats a value with its unit. `is_known` is false when the latest value
/// is from before the database went away.
pub(crate) fn plot(curve: &Curve<'_>, is_known: bool, shown: impl Fn(f64) -> String) -> Markup {
    let Curve { class, label, values, floor } = *curve;
    let known = || values.iter().flatten().copied().filter(|value| value.is_finite());
    let top = known().fold(0.0_f64, f64::max);
    let seen = values.iter().rev().flatten().next().copied();
    let latest = seen.filter(|_| is_known);
    let (line, area) = paths(values, top.max(floor));
    let told = match latest {
        Some(latest) => {
            format!("{label}: {} now, maximum {} in the last hour", shown(latest), shown(top))
        }
        None if seen.is_some() => {
            format!("{label}: currently unknown, maximum {} in the last hour", shown(top))
        }
        None => format!("{label}: no data yet"),
    };
    html! {
        figure class={ "plot " (class) } {
            figcaption {
                span class="plot-name" { (label) }
                span class="plot-now" {
                    @if let Some(latest) = latest { (shown(latest)) } @else { "–" }
                    @if seen.is_some() { span class="plot-max" { ", max " (shown(top)) } }
                }
            }
            // Its own size and colours: it is readable before its style arrives.
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) preserveAspectRatio="none" role="img" aria-label=(told) {
                title { (told) }
                line class="plot-base" x1="0" x2=(WIDTH) y1=(HEIGHT - 0.5) y2=(HEIGHT - 0.5) {}
                path class="plot-area" fill="none" d=(area) {}
                path class="plot-line" fill="none" stroke="currentColor" d=(line) vector-effect="non-scaling-stroke" {}
            }
            div class="plot-axis" aria-hidden="true" {
                span { "60 min ago" }
                span { "now" }
            }
        }
    }
}

/// Returns the line and the area under it, both with gaps where no value is known.
fn paths(values: &[Option<f64>], top: f64) -> (String, String) {
    let step = WIDTH / values.len().saturating_sub(1).max(1) as f64;
    let (mut line, mut area) = (String::new(), String::new());
    let mut begun_at: Option<f64> = None;
    let mut last = 0.0;
    for (index, value) in values.iter().enumerate() {
        let x = index as f64 * step;
        let Some(value) = value.filter(|value| value.is_finite()) else {
            close(&mut area, begun_at.take(), last);
            continue;
        };
        let y = HEIGHT - 1.0 - (value / top).clamp(0.0, 1.0) * (HEIGHT - 1.0 - HEADROOM);
        match begun_at {
            // A single point would be no line.
            None => {
                let from = (x - step / 2.0).max(0.0);
                let _ = write!(line, "M{from:.1} {y:.1}L{x:.1} {y:.1}");
                let _ = write!(area, "M{from:.1} {HEIGHT}L{from:.1} {y:.1}L{x:.1} {y:.1}");
                begun_at = Some(from);
            }
            Some(_) => {
                let _ = write!(line, "L{x:.1} {y:.1}");
                let _ = write!(area, "L{x:.1} {y:.1}");
            }
        }
        last = x;
    }
    close(&mut area, begun_at, last);
    (line, area)
}

fn close(area: &mut String, begun_at: Option<f64>, last: f64) {
    if begun_at.is_some() {
        let _ = write!(area, "L{last:.1} {HEIGHT}Z");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_no_line_and_numbers_stay_within_the_picture() {
        let (line, area) = paths(&[Some(0.0), Some(2.0), None, Some(9.0), Some(f64::NAN)], 2.0);
        assert_eq!(line.matches('M').count(), 2);
        assert_eq!(area.matches('Z').count(), 2);
        assert!(!line.contains("NaN") && !line.contains('-'), "{line}");
        assert_eq!(paths(&[], 1.0), (String::new(), String::new()));
    }

    #[test]
    fn somebody_who_does_not_see_it_is_told() {
        let shown = |is_known| {
            let curve = Curve { class: "lag", label: "Lag", values: &[Some(1.0), Some(3.0)], floor: 1.0 };
            plot(&curve, is_known, |value| format!("{value} s")).into_string()
        };
        let text = shown(true);
        assert!(text.contains("aria-label=\"Lag: 3 s now, maximum 3 s in the last hour\""), "{text}");
        let text = shown(false);
        assert!(text.contains("Lag: currently unknown, maximum 3 s") && text.contains(">–<"), "{text}");
    }

    /// Goal: noise does not look like a peak. Oracle: the height of the line at a value far below
    /// the floor, and of one above it.
    #[test]
    fn a_value_below_the_floor_does_not_fill_the_height() {
        let drawn = |value: f64| {
            let curve = Curve { class: "rate", label: "Read", values: &[Some(value); 2], floor: 1.0 };
            plot(&curve, true, |value| format!("{value}/s")).into_string()
        };
        let small = drawn(0.01);
        assert!(small.contains("L300.0 62.4\""), "at the bottom: {small}");
        let large = drawn(7.0);
        assert!(large.contains("L300.0 6.0\""), "at the top: {large}");
    }
}
