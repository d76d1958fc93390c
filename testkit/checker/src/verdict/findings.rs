//! The findings that a check collects.

use super::{Breach, Promise, Ruling, Subject, Violation};

/// Why a check cannot decide: what was not observed.
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
    /// Nothing, of which so many are going to be kept.
    pub(crate) fn new(breaches_max: usize) -> Self {
        Self { breaches_max, checked: 0, breached: 0, breaches: Vec::new() }
    }

    /// So many things were looked at.
    pub(crate) fn checked(&mut self, count: usize) {
        self.checked += count as u64;
    }

    /// Something is wrong. The subject is made only when it is kept.
    pub(crate) fn breach(&mut self, violation: Violation, subject: impl FnOnce() -> Subject) {
        self.breached += 1;
        if self.breaches.len() < self.breaches_max {
            self.breaches.push(Breach { violation, subject: subject(), events: Vec::new() });
        }
    }

    /// The same, by one who knows the events already.
    pub(crate) fn breach_seen(&mut self, make: impl FnOnce() -> Breach) {
        self.breached += 1;
        if self.breaches.len() < self.breaches_max {
            self.breaches.push(make());
        }
    }

    /// Returns the ruling on the promise.
    pub(crate) fn ruling(self, promise: Promise, decided: Result<(), NotChecked>) -> Ruling {
        // A breach that was found counts, even if the rest could not be looked at.
        let not_checked = decided.err().filter(|_| self.breached == 0);
        let Self { checked, breached, breaches, .. } = self;
        Ruling { promise, not_checked, checked, breached, breaches }
    }
}
