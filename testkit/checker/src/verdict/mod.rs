//! The verdict on every promise.
//!
//! | file | what it holds |
//! |---|---|
//! | `promise.rs` | the promises |
//! | `violation.rs` | the ways in which they break |
//! | `breach.rs` | one thing that must not be |
//! | `event.rs` | what was seen, one thing at a time |
//! | `findings.rs` | what a check collects |
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

/// How much of what is wrong is kept. Everything is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Breaches that are kept per promise.
    pub breaches_max: usize,
    /// Events that are kept per breach.
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
    /// Which promise.
    pub promise: Promise,
    /// Why it could not be checked; `None` when it was. A promise that was not checked was not kept
    /// either.
    pub not_checked: Option<&'static str>,
    /// How many things were held against it.
    pub checked: u64,
    /// How many of them broke it.
    pub breached: u64,
    /// The first of those; see [`Limits::breaches_max`].
    pub breaches: Vec<Breach>,
}

impl Ruling {
    /// Whether it was checked and holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.not_checked.is_none() && self.breached == 0
    }
}

/// The verdict on every promise. Displayed, it is one line per promise, with the breaches below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// One for each of [`Promise::ALL`], in that order.
    pub rulings: Vec<Ruling>,
}

impl Verdict {
    /// Decides, with the default limits.
    #[must_use]
    pub fn of(history: &History) -> Self {
        Self::with_limits(history, Limits::default())
    }

    /// Decides. Takes time and memory in proportion to the history.
    #[must_use]
    pub fn with_limits(history: &History, limits: Limits) -> Self {
        let mut rulings = checks::all(history, limits.breaches_max);
        let breaches = rulings.iter_mut().flat_map(|ruling| &mut ruling.breaches);
        slice::fill(history, breaches.collect(), limits.events_max);
        Self { rulings }
    }

    /// Whether no promise was broken. Promises that were not checked are in [`Verdict::unchecked`].
    #[must_use]
    pub fn holds(&self) -> bool {
        self.rulings.iter().all(|ruling| ruling.breached == 0)
    }

    /// Promises that the history cannot decide.
    pub fn unchecked(&self) -> impl Iterator<Item = &Ruling> {
        self.rulings.iter().filter(|ruling| ruling.not_checked.is_some())
    }

    /// Everything that is wrong, as far as it was kept.
    pub fn breaches(&self) -> impl Iterator<Item = &Breach> {
        self.rulings.iter().flat_map(|ruling| &ruling.breaches)
    }

    /// Everything that is wrong, as far as it was kept, to own.
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
