//! The findings of a benchmark: tables, targets, plots; for people and for machines.

mod cell;
mod spread;

use std::path::Path;
use std::time::Duration;

use comfy_table::{Cell as Field, CellAlignment, Table, presets::UTF8_FULL};
use serde::Serialize;

use crate::Failure;
use crate::environment::Environment;
use crate::plot::Plot;

pub(crate) use cell::Cell;
pub(crate) use spread::Spread;

/// The result of one benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    bench: &'static str,
    sections: Vec<Section>,
    targets: Vec<Target>,
    #[serde(skip)]
    plots: Vec<Plot>,
    /// Whether the run was too small to be judged.
    quick: bool,
}

/// One table.
#[derive(Debug, Serialize)]
struct Section {
    title: String,
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// A target, and the measured result.
#[derive(Debug, Serialize)]
struct Target {
    what: String,
    wanted: String,
    seen: String,
    met: bool,
}

impl Report {
    pub(crate) fn new(bench: &'static str) -> Self {
        Self { bench, sections: Vec::new(), targets: Vec::new(), plots: Vec::new(), quick: false }
    }

    pub(crate) fn quick(mut self, quick: bool) -> Self {
        self.quick = quick;
        self
    }

    pub(crate) fn table<const N: usize>(
        &mut self,
        title: impl Into<String>,
        header: [&'static str; N],
        rows: impl IntoIterator<Item = [Cell; N]>,
    ) {
        let rows = rows.into_iter().map(Vec::from).collect();
        self.sections.push(Section { title: title.into(), header: header.to_vec(), rows });
    }

    /// Adds the target that `figure` is at least `bound`.
    pub(crate) fn at_least(&mut self, what: impl Into<String>, bound: f64, figure: f64) {
        self.target(what, format!("≥ {bound}"), figure, figure >= bound);
    }

    /// Adds the target that `figure` is at most `bound`.
    pub(crate) fn at_most(&mut self, what: impl Into<String>, bound: f64, figure: f64) {
        self.target(what, format!("≤ {bound}"), figure, figure <= bound);
    }

    fn target(&mut self, what: impl Into<String>, wanted: String, figure: f64, met: bool) {
        self.targets.push(Target { what: what.into(), wanted, seen: cell::short(figure), met });
    }

    pub(crate) fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    pub(crate) fn draw(&self, folder: &Path) -> Result<(), Failure> {
        std::fs::create_dir_all(folder)?;
        for plot in &self.plots {
            plot.draw(folder)?;
        }
        Ok(())
    }

    /// Returns the targets that were missed; none for a quick run.
    pub(crate) fn missed(&self) -> Vec<String> {
        let missed = self.targets.iter().filter(|target| !self.quick && !target.met);
        missed
            .map(|Target { what, wanted, seen, .. }| {
                format!("{}: {what}: {seen}, wanted {wanted}", self.bench)
            })
            .collect()
    }

    pub(crate) fn print(&self, environment: &Environment, took: Duration) {
        println!("\n{}: {:.0} s\n{environment}", self.bench, took.as_secs_f64());
        for Section { title, header, rows } in &self.sections {
            println!("\n{title}\n{}", table(header, rows.iter().map(|row| row.iter().map(Cell::to_string))));
        }
        if !self.targets.is_empty() {
            let verdict = |target: &Target| match (self.quick, target.met) {
                (true, _) => "not judged",
                (false, true) => "met",
                (false, false) => "MISSED",
            };
            let rows = self.targets.iter().map(|target| {
                [target.what.clone(), target.wanted.clone(), target.seen.clone(), verdict(target).to_owned()]
            });
            println!("\n{}", table(&["target", "wanted", "seen", "verdict"], rows));
        }
    }

    pub(crate) fn json(&self, environment: &Environment, took: Duration) -> serde_json::Value {
        serde_json::json!({ "report": self, "environment": environment, "seconds": took.as_secs_f64() })
    }
}

fn table<R>(header: &[&str], rows: impl Iterator<Item = R>) -> Table
where
    R: IntoIterator<Item = String>,
{
    let mut table = Table::new();
    table.load_style(UTF8_FULL).set_header(header);
    for row in rows {
        let fields = row.into_iter().enumerate().map(|(column, text)| {
            let alignment = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
            Field::new(text).set_alignment(alignment)
        });
        table.add_row(fields);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_missed_only_when_it_was_judged() {
        let mut report = Report::new("one");
        report.at_least("ratio", 0.85, 0.84);
        report.at_most("memory", 96.0, 95.0);
        assert_eq!(report.missed(), ["one: ratio: 0.84, wanted ≥ 0.85"]);
        assert!(report.quick(true).missed().is_empty());
    }

    #[test]
    fn what_is_no_number_meets_no_target() {
        let mut report = Report::new("one");
        report.at_least("ratio", 0.85, f64::NAN);
        report.at_most("memory", 96.0, f64::NAN);
        assert_eq!(report.missed().len(), 2);
    }
}
