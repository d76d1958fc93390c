//! Progress of a storm for people, on standard error.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::pair::Pair;
use crate::read::Pending;

/// A progress bar, or lines if standard error is not a terminal.
pub struct Progress {
    bar: ProgressBar,
    lines: bool,
}

impl Default for Progress {
    fn default() -> Self {
        let lines = !std::io::stderr().is_terminal();
        let bar = if lines { ProgressBar::hidden() } else { ProgressBar::new(0) };
        let style = ProgressStyle::with_template("{prefix} {bar:30} {elapsed}/{len}s {msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self { bar, lines }
    }
}

impl Progress {
    /// Begins the bar of a storm.
    pub fn storm(&self, pair: Pair, length: Duration) {
        self.bar.reset();
        self.bar.set_length(length.as_secs());
        self.bar.set_prefix(pair.to_string());
        if self.lines {
            eprintln!("{pair}: storm of {} s", length.as_secs());
        }
    }

    /// Moves the bar for as long as it is polled.
    pub async fn tick(&self) {
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        loop {
            seconds.tick().await;
            self.bar.inc(1);
        }
    }

    /// Shows an injected fault.
    pub fn fault(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// Shows the current phase.
    pub fn phase(&self, what: &'static str) {
        self.bar.set_message(what);
        if self.lines {
            eprintln!("{what}");
        }
    }

    /// Shows how much is still in flight.
    pub fn pending(&self, pending: Pending) {
        self.bar.set_message(pending.to_string());
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
