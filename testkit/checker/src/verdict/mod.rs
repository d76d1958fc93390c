//! The verdict on every promise.
//!
//! | file | contents |
//! |---|---|
//! | `promise.rs` | the promises |
//! | `violation.rs` | the ways in which they break |
//! | `breach.rs` | one breach of a promise |
//! | `event.rs` | single observations |
//! | `findings.rs` | the findings that a check collects |
//! | `slice.rs` | all events of the messages, rows and operations of a breach |

mod breach;
mod event;
mod findings;
mod promise;
mod slice;
mod violation;

use std::fmt;

use serde::Serialize;

use crate::checks;
use crate::history::History;

pub use breach::{Breach, Subject};
pub use event::Event;
pub(crate) use findings::{Findings, NotChecked};
pub use promise::Promise;
pub use violation::Violation;

/// Limits on the breaches and events that are kept. All breaches are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of breaches that are kept for each promise.
    pub breaches_max: usize,
    /// Maximum number of events that are kept for each breach.
    pub events_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { breaches_max: 100, events_max: 50 }
    }
}

/// The ruling on one promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ruling {
    /// The promise.
    pub promise: Promise,
    /// The reason why the promise could not be checked, or `None` if it was. A promise that was not
    /// checked does not count as kept.
    pub not_checked: Option<&'static str>,
    /// Number of items that were checked.
    pub checked: u64,
    /// Number of breaches.
    pub breached: u64,
    /// The first breaches; see [`Limits::breaches_max`].
    pub breaches: Vec<Breach>,
}

impl Ruling {
    /// Returns whether the promise was checked and holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.not_checked.is_none() && self.breached == 0
    }
}

/// The verdict on all promises. Its text has one line for each promise, with the breaches below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The rulings, in the order of [`Promise::ALL`].
    pub rulings: Vec<Ruling>,
}

impl Verdict {
    /// Decides all promises with the default limits.
    #[must_use]
    pub fn of(history: &History) -> Self {
        Self::with_limits(history, Limits::default())
    }

    /// Decides all promises. Takes time and memory in proportion to the history.
    #[must_use]
    pub fn with_limits(history: &History, limits: Limits) -> Self {
        let mut rulings = checks::all(history, limits.breaches_max);
        let breaches = rulings.iter_mut().flat_map(|ruling| &mut ruling.breaches);
        slice::fill(history, breaches.collect(), limits.events_max);
        Self { rulings }
    }

    /// Returns whether no promise was broken. Promises that were not checked are in
    /// [`Verdict::unchecked`].
    #[must_use]
    pub fn holds(&self) -> bool {
        self.rulings.iter().all(|ruling| ruling.breached == 0)
    }

    /// Returns the rulings on promises that the history cannot decide.
    pub fn unchecked(&self) -> impl Iterator<Item = &Ruling> {
        self.rulings.iter().filter(|ruling| ruling.not_checked.is_some())
    }

    /// Returns the recorded breaches.
    pub fn breaches(&self) -> impl Iterator<Item = &Breach> {
        self.rulings.iter().flat_map(|ruling| &ruling.breaches)
    }

    /// Consumes the verdict and returns the recorded breaches.
    pub fn into_breaches(self) -> impl Iterator<Item = Breach> {
        self.rulings.into_iter().flat_map(|ruling| ruling.breaches)
    }

    /// Returns the ruling on one promise.
    #[must_use]
    pub fn ruling(&self, promise: Promise) -> &Ruling {
        &self.rulings[promise as usize]
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Ruling { promise, not_checked, checked, breached, .. } in &self.rulings {
            match (not_checked, breached) {
                (Some(why), _) => writeln!(f, "– {promise:<48} not checked: {why}")?,
                (None, 0) => writeln!(f, "✓ {promise:<48} {checked} checked")?,
                (None, _) => writeln!(f, "✗ {promise:<48} {breached} broken, {checked} checked")?,
            }
        }
        for breach in self.breaches() {
            writeln!(f, "✗ {breach}")?;
            breach.events.iter().try_for_each(|event| writeln!(f, "    {event}"))?;
        }
        Ok(())
    }
}
