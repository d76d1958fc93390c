//! Reports of progress.

use std::time::Duration;

/// Receives the progress of a comparison.
pub trait Progress: Send + Sync {
    /// Called with the current activity.
    fn say(&self, what: String);

    /// Called when rows were read from a place.
    fn rows(&self, from: &'static str, count: usize);

    /// Called when messages may be on their way, and the comparison waits `grace` for each.
    fn waiting(&self, messages: usize, grace: Duration);
}
