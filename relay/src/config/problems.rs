//! The problems of a configuration, collected so that all are reported at once.

use super::decode::Wrong;

/// The problems found so far, each with its path.
#[derive(Default)]
pub(super) struct Problems(Vec<Wrong>);

impl Problems {
    pub(super) fn add(&mut self, path: String, message: impl Into<String>, help: Option<&str>) {
        let help = help.map(str::to_owned);
        self.0.push(Wrong { path, message: message.into(), help, origin: None });
    }

    /// Returns the problems as an error, if there are any.
    pub(super) fn none(self) -> Result<(), Vec<Wrong>> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0) }
    }
}
