//! Progress of commands that take longer than a second, on standard error: a line that is redrawn
//! on a terminal, and a line now and then elsewhere.

use std::io::IsTerminal as _;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tokio::time::{MissedTickBehavior, interval_at};

use super::output::age;

/// Nothing is shown before this time.
const QUIET: Duration = Duration::from_secs(1);
/// Interval of the lines where nothing can be redrawn.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval at which a line is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

tokio::task_local! {
    /// The line that is redrawn while the work of the current task runs.
    static BAR: ProgressBar;
}

/// Prints a line that stays, also from work that [`during`] waits for.
pub(crate) fn aside(line: &str) {
    match BAR.try_with(ProgressBar::clone) {
        Ok(bar) => bar.suspend(|| note!("{line}")),
        Err(_) => note!("{line}"),
    }
}

/// Waits for a future, and shows what the command is doing if that takes long.
pub(crate) async fn during<T>(what: &str, work: impl Future<Output = T>) -> T {
    // Stored in place, it would exist twice: as the argument and as the polled future.
    let mut work = Box::pin(work);
    if let Ok(done) = tokio::time::timeout(QUIET, &mut work).await {
        return done;
    }
    let bar = spinner("{spinner} {msg}: {elapsed}");
    bar.set_message(what.to_owned());
    // It counts from the beginning of the work.
    let bar = bar.with_elapsed(QUIET);
    let mut work = pin!(BAR.scope(bar.clone(), work));
    let begun_at = Instant::now();
    let mut lines = interval_at(tokio::time::Instant::now() + LINE_INTERVAL - QUIET, LINE_INTERVAL);
    lines.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let done = loop {
        tokio::select! {
            done = &mut work => break done,
            _ = lines.tick() => {
                if bar.is_hidden() {
                    note!("{what}: {} so far", age(begun_at.elapsed() + QUIET));
                }
            }
        }
    };
    bar.finish_and_clear();
    done
}

/// Writes a rate in whole parts.
fn rate(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    // A line of progress that cannot be written is skipped.
    let _ = write!(out, "{:.0}/s", state.per_sec());
}

/// A spinner on a terminal, redrawn automatically.
fn spinner(template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.with_key("rate", rate));
    }
    bar.enable_steady_tick(REDRAW_INTERVAL);
    bar
}

/// The progress of work whose parts are counted.
pub(crate) struct Counted {
    bar: ProgressBar,
    done: AtomicU64,
    total: Option<u64>,
    begun_at: Instant,
    /// Number of lines so far.
    lines: AtomicU64,
}

impl Counted {
    /// Counts up to a total.
    pub(crate) fn up_to(total: u64, verb: &str) -> Self {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new(total) } else { ProgressBar::hidden() };
        let template = format!("{{bar:40}} {{human_pos}}/{{human_len}} {verb}, {{rate}}, {{eta}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style.with_key("rate", rate));
        }
        Self::of(bar, Some(total))
    }

    /// Counts without a known end.
    pub(crate) fn endless() -> Self {
        Self::of(spinner("{spinner} {msg}: {human_pos} rows read, {rate}"), None)
    }

    fn of(bar: ProgressBar, total: Option<u64>) -> Self {
        Self { bar, done: AtomicU64::new(0), total, begun_at: Instant::now(), lines: AtomicU64::new(0) }
    }

    /// Shows the current activity.
    pub(crate) fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Prints a line that stays.
    pub(crate) fn print(&self, line: &str) {
        self.bar.suspend(|| note!("{line}"));
    }

    /// Adds to the number of parts that are done.
    pub(crate) fn add(&self, what: &str, count: u64) {
        self.set(what, self.done.load(Ordering::Relaxed) + count);
    }

    /// Sets the number of parts that are done.
    pub(crate) fn set(&self, what: &str, done: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.bar.set_position(done);
        if self.bar.is_hidden() && self.is_line_due(self.begun_at.elapsed()) {
            match self.total {
                Some(total) => note!("{what}: {done} of {total} so far"),
                None => note!("{what}: {done} so far"),
            }
        }
    }
}

impl Counted {
    /// Returns whether a line is due after this time, and counts it.
    fn is_line_due(&self, elapsed: Duration) -> bool {
        let due = elapsed.as_secs() / LINE_INTERVAL.as_secs();
        self.lines.swap(due, Ordering::Relaxed) < due
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_gets_a_line_every_ten_seconds() {
        let counted = Counted::up_to(1_200, "decided");
        let due = [0, 9, 10, 12, 19, 20, 45, 49].map(|at| counted.is_line_due(Duration::from_secs(at)));
        assert_eq!(due, [false, false, true, false, false, true, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_comes_through_however_long_it_takes() {
        assert_eq!(during("looking", async { 1 }).await, 1);
        let slow = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            2
        };
        assert_eq!(during("looking", slow).await, 2);
    }

    /// Goal: what work reports does not break the line that is redrawn. Oracle: the line is known
    /// to the work once it is shown, and not before.
    #[tokio::test(start_paused = true)]
    async fn work_knows_the_line_that_it_must_not_break() {
        let is_shown = || BAR.try_with(|_| ()).is_ok();
        let work = async {
            let early = is_shown();
            tokio::time::sleep(Duration::from_secs(5)).await;
            aside("it waits");
            (early, is_shown())
        };
        assert_eq!(during("migrating", work).await, (false, true));
        assert!(!is_shown());
    }
}
