//! The outcome of a check.

use serde::{Deserialize, Serialize};
use std::{fmt, fs, path::Path};

/// Names the file to which a check in a process of its own writes its outcome.
pub(super) const FILE_VARIABLE: &str = "OUTBOX_CHECK_OUTCOME";

/// The counts of a check. A check that runs no tests counts as one test.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
    /// The report of each failure, as it was printed.
    pub(super) failures: Vec<String>,
    /// Parts that could not run, with the reason. They count as skipped.
    pub(super) ignored: Vec<String>,
}

impl Outcome {
    /// Returns the outcome of a check without tests that passed.
    pub(super) fn passed() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    /// Returns the outcome of a check that passed but for a part that could not run. That part
    /// counts as skipped, so that the last line of a run shows it.
    pub(super) fn passed_but_for(part: String) -> Self {
        Self { skipped: 1, ignored: vec![part], ..Self::passed() }
    }

    /// Returns the outcome of a check without tests that failed.
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self { failed: 1, failures: vec![why.into()], ..Self::default() }
    }

    pub(super) fn is_success(&self) -> bool {
        self.failed == 0
    }

    /// Adds the counts and reports of another outcome.
    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.ignored.extend(other.ignored);
    }

    pub(super) fn write(&self, file: &Path) -> Result<(), String> {
        let failed = |error: &dyn fmt::Display| format!("cannot write {}: {error}", file.display());
        let text = serde_json::to_string(self).map_err(|error| failed(&error))?;
        fs::write(file, text).map_err(|error| failed(&error))
    }

    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let failed = |error: &dyn fmt::Display| format!("cannot read {}: {error}", file.display());
        let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
        serde_json::from_str(&text).map_err(|error| failed(&error))
    }
}

/// The line that CI looks for.
impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, .. } = self;
        write!(out, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl Outcome {
    /// Returns an error when no test ran: a filter or a suite that selects none proves nothing.
    pub(super) fn of_tests(self) -> Result<Self, String> {
        match self {
            Self { passed: 0, failed: 0, skipped: 0, .. } => {
                Err("no test ran: is it called otherwise, or left out by a feature?".to_owned())
            }
            Self { passed: 0, failed: 0, skipped, .. } => {
                Err(format!("no test ran: what they need is missing for all {skipped}"))
            }
            _ => Ok(self),
        }
    }
}

/// Counts a check without tests as one test.
impl From<Result<(), String>> for Outcome {
    fn from(result: Result<(), String>) -> Self {
        match result {
            Ok(()) => Self::passed(),
            Err(why) => Self::failed(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_one_plain_line() {
        let outcome = Outcome { passed: 7, failed: 2, skipped: 1, ..Outcome::default() };
        assert_eq!(outcome.to_string(), "7 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn a_suite_that_runs_no_test_has_failed() {
        assert!(Outcome::default().of_tests().unwrap_err().contains("is it called otherwise"));
        let skipped = Outcome { skipped: 3, ..Outcome::default() };
        assert!(skipped.of_tests().unwrap_err().contains("missing for all 3"));
        assert!(Outcome::passed().of_tests().is_ok());
        assert!(Outcome::failed("left: 1").of_tests().is_ok());
    }

    #[test]
    fn an_outcome_crosses_processes() {
        let file = std::env::temp_dir().join(format!("xtask-outcome-{}", std::process::id()));
        let mut outcome = Outcome::passed();
        outcome.add(Outcome::failed("left: 1"));
        outcome.write(&file).unwrap();
        let read = Outcome::read(&file);
        fs::remove_file(&file).unwrap();
        assert_eq!(read, Ok(outcome));
        assert!(Outcome::read(&file).unwrap_err().contains("xtask-outcome"), "a crash leaves no file");
    }
}
