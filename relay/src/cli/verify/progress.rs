//! The progress that a person sees, on standard error.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// Rows read so far; drawn on a terminal only.
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}: {human_pos} rows read, {per_sec}") {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Shows what is going on.
    pub(super) fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Rows were read.
    pub(super) fn rows(&self, from: &'static str, count: usize) {
        self.bar.set_message(from);
        self.bar.inc(count as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
