//! Progress on stderr: spinners on a terminal, one plain line per phase elsewhere.

use super::Name;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

pub(crate) struct Progress {
    bars: Option<MultiProgress>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { bars: std::io::stderr().is_terminal().then(MultiProgress::new) }
    }

    pub(crate) fn task(&self, name: Name) -> Task {
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix:10} {wide_msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_prefix(name.as_str());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Task { name, bar, begun: Instant::now() }
    }
}

/// The progress of one service.
pub(crate) struct Task {
    name: Name,
    bar: Option<ProgressBar>,
    begun: Instant,
}

impl Task {
    pub(crate) fn phase(&self, message: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(message.to_owned()),
            None => eprintln!("{:10} {message}", self.name),
        }
    }

    /// Prints a line above the progress bar, where it stays.
    pub(crate) fn note(&self, message: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{:10} {message}", self.name)),
            None => eprintln!("{:10} {message}", self.name),
        }
    }

    /// Prints the last message about this service.
    pub(crate) fn finish(&self, message: &str) {
        let message = format!("{message} ({:.1} s)", self.begun.elapsed().as_secs_f64());
        match &self.bar {
            Some(bar) => bar.finish_with_message(message),
            None => eprintln!("{:10} {message}", self.name),
        }
    }
}
