//! The findings of checks.

use serde::Serialize;

message::words! {
    /// The result of a check, from best to worst.
    #[derive(PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum CheckState {
        /// Everything is right.
        Pass = "pass",
        /// The check could not find out.
        Unknown = "unknown",
        /// It works, but can go wrong.
        Warn = "warn",
        /// It does not work, or a promise is at risk.
        Fail = "fail",
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's name; `docs/operations/doctor.md` explains it.
    pub check: &'static str,
    /// The subject: `database`, `topic orders`, `inbox billing`.
    pub subject: String,
    /// The result.
    pub state: CheckState,
    /// The measured value.
    pub measured: String,
    /// The remedy; `None` if the check passed.
    pub remedy: Option<String>,
    /// Whether it failed because something did not answer, which may be temporary.
    pub unavailable: bool,
}

impl Finding {
    /// Creates the finding of a check that passed.
    pub fn pass(check: &'static str, subject: impl Into<String>, measured: impl Into<String>) -> Self {
        Self::new(check, subject, CheckState::Pass, measured, None)
    }

    /// Creates the finding of a check that warns.
    pub fn warn(
        check: &'static str,
        subject: impl Into<String>,
        measured: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(check, subject, CheckState::Warn, measured, Some(remedy.into()))
    }

    /// Creates the finding of a check that failed.
    pub fn fail(
        check: &'static str,
        subject: impl Into<String>,
        measured: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(check, subject, CheckState::Fail, measured, Some(remedy.into()))
    }

    /// Creates the finding of a check that could not be made.
    pub fn unknown(
        check: &'static str,
        subject: impl Into<String>,
        measured: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(check, subject, CheckState::Unknown, measured, Some(remedy.into()))
    }

    /// Passes if there is no remedy; otherwise ends in `state`.
    pub(crate) fn unless(
        check: &'static str,
        subject: &str,
        measured: impl Into<String>,
        problem: Option<(CheckState, String)>,
    ) -> Self {
        match problem {
            None => Self::pass(check, subject, measured),
            Some((state, remedy)) => Self::new(check, subject, state, measured, Some(remedy)),
        }
    }

    /// Sets whether it failed because something did not answer.
    #[must_use]
    pub(crate) fn because_unavailable(self, unavailable: bool) -> Self {
        Self { unavailable, ..self }
    }

    fn new(
        check: &'static str,
        subject: impl Into<String>,
        state: CheckState,
        measured: impl Into<String>,
        remedy: Option<String>,
    ) -> Self {
        let (subject, measured) = (subject.into(), measured.into());
        Self { check, subject, state, measured, remedy, unavailable: false }
    }
}

/// The findings of one pipeline.
#[derive(Debug, Clone, Serialize)]
pub struct PipelineReport {
    /// The pipeline's name.
    pub pipeline: String,
    /// The checks, in the order in which they ran.
    pub checks: Vec<Finding>,
}

impl PipelineReport {
    /// Returns the worst state of all checks.
    #[must_use]
    pub fn worst(&self) -> CheckState {
        self.checks.iter().map(|finding| finding.state).max().unwrap_or(CheckState::Pass)
    }

    /// Returns whether every failure is only something that did not answer.
    #[must_use]
    pub fn is_only_unavailable(&self) -> bool {
        let mut failed = self.checks.iter().filter(|finding| finding.state == CheckState::Fail).peekable();
        failed.peek().is_some() && failed.all(|finding| finding.unavailable)
    }
}
