//! Progress for a person, on standard error.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use operate::verify::Progress;

use super::super::output::age;

/// Interval of the lines where no bar can be drawn.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Rows read so far: a bar on a terminal, a line now and then elsewhere.
pub(super) struct Bar {
    bar: ProgressBar,
    rows: AtomicU64,
    begun_at: Instant,
    /// Number of lines so far.
    lines: AtomicU64,
}

impl Bar {
    pub(super) fn new() -> Self {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}: {human_pos} rows read, {per_sec}") {
            bar.set_style(style);
        }
        Self { bar, rows: AtomicU64::new(0), begun_at: Instant::now(), lines: AtomicU64::new(0) }
    }
}

impl Progress for Bar {
    fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    fn rows(&self, from: &'static str, count: usize) {
        self.bar.set_message(from);
        self.bar.inc(count as u64);
        let rows = self.rows.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        let due = self.begun_at.elapsed().as_secs() / LINE_INTERVAL.as_secs();
        if self.bar.is_hidden() && self.lines.swap(due, Ordering::Relaxed) < due {
            eprintln!("{from}: {rows} rows read so far");
        }
    }

    fn waiting(&self, messages: usize, grace: Duration) {
        let grace = age(grace);
        eprintln!("{messages} messages may still be in flight: waiting {grace} for each to arrive (--grace)");
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
