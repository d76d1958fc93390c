//! Reports of progress.

use std::time::Duration;

/// Hears how far a comparison has come.
pub trait Progress: Send + Sync {
    /// Hears what is being done.
    fn say(&self, what: String);

    /// Hears of rows that were read from a place.
    fn rows(&self, from: &'static str, count: usize);

    /// Hears that messages may be on their way, and that the comparison waits `grace` for each.
    fn waiting(&self, messages: usize, grace: Duration);
}
