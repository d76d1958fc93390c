//! Progress for a person, on standard error.

use std::time::Duration;

use operate::verify::Progress;

use super::super::output::{age, counted};
use super::super::progress::Counted;

/// Rows read so far.
pub(super) struct Rows(Counted);

impl Rows {
    pub(super) fn new() -> Self {
        Self(Counted::endless())
    }
}

impl Progress for Rows {
    fn say(&self, what: String) {
        self.0.say(what);
    }

    fn rows(&self, from: &'static str, count: usize) {
        self.0.say(from.to_owned());
        self.0.add(from, count as u64);
    }

    fn waiting(&self, messages: usize, grace: Duration) {
        let (messages, grace) = (counted(messages as u64, "message"), age(grace));
        self.0.print(&format!(
            "{messages} may still be in flight: waiting {grace} for each to arrive (--grace)"
        ));
    }
}
