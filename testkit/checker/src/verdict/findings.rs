//! The findings that a check collects.

use super::{Breach, Promise, Ruling, Subject, Violation};

/// The reason why a check cannot decide: a part that was not observed.
pub(crate) type NotChecked = &'static str;

/// The findings of a check so far.
#[derive(Debug)]
pub(crate) struct Findings {
    breaches_max: usize,
    checked: u64,
    breached: u64,
    breaches: Vec<Breach>,
}

impl Findings {
    /// Creates empty findings that keep this number of breaches.
    pub(crate) fn new(breaches_max: usize) -> Self {
        Self { breaches_max, checked: 0, breached: 0, breaches: Vec::new() }
    }

    /// Counts this number of items as checked.
    pub(crate) fn checked(&mut self, count: usize) {
        self.checked += count as u64;
    }

    /// Counts a breach. The subject is built only if the breach is kept.
    pub(crate) fn breach(&mut self, violation: Violation, subject: impl FnOnce() -> Subject) {
        self.breached += 1;
        if self.breaches.len() < self.breaches_max {
            self.breaches.push(Breach { violation, subject: subject(), events: Vec::new() });
        }
    }

    /// Counts a breach whose events are already known.
    pub(crate) fn breach_seen(&mut self, make: impl FnOnce() -> Breach) {
        self.breached += 1;
        if self.breaches.len() < self.breaches_max {
            self.breaches.push(make());
        }
    }

    /// Returns the ruling on the promise.
    pub(crate) fn ruling(self, promise: Promise, decided: Result<(), NotChecked>) -> Ruling {
        // A breach counts even if the rest could not be checked.
        let not_checked = decided.err().filter(|_| self.breached == 0);
        let Self { checked, breached, breaches, .. } = self;
        Ruling { promise, not_checked, checked, breached, breaches }
    }
}
