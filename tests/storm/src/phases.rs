//! The parts of a storm, with their times.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::clock;

/// A part of a storm.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Phase {
    /// The phase.
    pub name: &'static str,
    /// The time at which the phase began; see [`crate::clock`].
    pub began_at: u64,
    /// The same time on the wall clock, as in logs.
    pub began_at_utc: String,
}

/// The parts of a storm so far.
#[derive(Debug, Default)]
pub(crate) struct Phases(Vec<Phase>);

impl Phases {
    /// Begins the next phase.
    pub(crate) fn begin(&mut self, name: &'static str) {
        let began_at_utc = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        self.0.push(Phase { name, began_at: clock::now(), began_at_utc });
    }

    /// Ends the last phase and returns them all.
    pub(crate) fn end(mut self) -> Vec<Phase> {
        self.begin("over");
        self.0
    }
}
