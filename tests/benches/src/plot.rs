//! Plots of figures that a table shows badly.

use std::path::Path;

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use crate::Failure;

const SIZE: (u32, u32) = (960, 540);
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 90, 160), RGBColor(200, 80, 0), RGBColor(0, 130, 70), RGBColor(130, 60, 140)];

/// A plot of lines over logarithmic axes: loads, backlogs and results span orders of magnitude.
#[derive(Debug)]
pub(crate) struct Plot {
    /// The name of the file without its extension.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) lines: Vec<Line>,
}

/// A line with its name.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Plot {
    /// Writes `<folder>/<name>.png`.
    pub(crate) fn draw(&self, folder: &Path) -> Result<(), Failure> {
        // The font is built in, because servers have none.
        register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT)
            .map_err(|_| "the built-in font cannot be read")?;
        let file = folder.join(format!("{}.png", self.name));
        let area = BitMapBackend::new(&file, SIZE).into_drawing_area();
        self.draw_on(&area).map_err(|error| format!("cannot draw {}: {error}", file.display()))?;
        eprintln!("drawn: {}", file.display());
        Ok(())
    }

    fn draw_on<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let span = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| (low.min(value), high.max(value)))
        };
        let xs = span(&mut points().map(|(x, _)| *x));
        let ys = span(&mut points().map(|(_, y)| *y));
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, (FONT, 22))
            .margin(16)
            .margin_right(48)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d((xs.0..xs.1).log_scale(), (ys.0 * 0.8..ys.1 * 1.25).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .label_style((FONT, 15))
            .light_line_style(WHITE)
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let style = ShapeStyle::from(colour).stroke_width(2);
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), style).point_size(4))?
                .label(line.name.clone())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font((FONT, 15))
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        area.present()
    }
}
