//! The result of an erasure.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::error::OperateError;

/// The rows that an erasure has removed, or would remove.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ErasureReport {
    /// Whether this is only a dry run.
    pub dry_run: bool,
    /// Number of erased rows.
    pub erased: u64,
    /// Number of rows that are left: they have had no effect yet, or are in use.
    pub left: u64,
    /// The parts, by place and kind; those without any row are missing.
    pub parts: Vec<ErasedPart>,
    /// Whether it was stopped before its end.
    pub stopped: bool,
    /// The errors of databases that did not answer or refused.
    #[serde(serialize_with = "texts")]
    pub errors: Vec<OperateError>,
}

/// The rows of one kind in one place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ErasedPart {
    /// The pipeline, the location of an inbox, or the name of a database.
    pub place: String,
    /// `messages`, `dead letters`, `results`, `answers` or `sagas`.
    pub what: &'static str,
    /// Number of erased rows.
    pub erased: u64,
    /// Number of these that were discarded first: they had no effect, and never will.
    pub discarded: u64,
    /// Number of rows that are left, by reason.
    pub left: BTreeMap<&'static str, u64>,
}

fn texts<S: Serializer>(errors: &[OperateError], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(errors.iter().map(ToString::to_string))
}

impl ErasedPart {
    /// Creates a part without rows.
    pub(super) fn new(place: impl Into<String>, what: &'static str) -> Self {
        Self { place: place.into(), what, erased: 0, discarded: 0, left: BTreeMap::new() }
    }

    /// Counts rows that stay.
    pub(super) fn leave(&mut self, why: &'static str, count: u64) {
        if count > 0 {
            *self.left.entry(why).or_default() += count;
        }
    }
}

impl ErasureReport {
    pub(super) fn new(dry_run: bool) -> Self {
        Self { dry_run, erased: 0, left: 0, parts: Vec::new(), stopped: false, errors: Vec::new() }
    }

    /// Adds a part, unless it has no rows.
    pub(super) fn add(&mut self, part: ErasedPart) {
        if part.erased == 0 && part.left.is_empty() {
            return;
        }
        self.erased += part.erased;
        self.left += part.left.values().sum::<u64>();
        self.parts.push(part);
    }

    /// Adds the error of a place.
    pub(super) fn fail(&mut self, error: OperateError) {
        self.errors.push(error);
    }

    /// Returns whether everything is erased.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.left == 0 && self.errors.is_empty() && !self.stopped
    }

    /// Returns the counts by kind, for the audit.
    #[must_use]
    pub fn told(&self) -> String {
        let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
        for part in &self.parts {
            *kinds.entry(part.what).or_default() += part.erased;
        }
        let erased = kinds.iter().filter(|(_, count)| **count > 0);
        let erased: Vec<String> = erased.map(|(what, count)| format!("{count} {what}")).collect();
        let erased = if erased.is_empty() { String::from("nothing") } else { erased.join(", ") };
        let failed = if self.errors.is_empty() { "" } else { ", and not every database answered" };
        format!("{erased} erased, {} left{failed}", self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_or_unanswered_is_never_reported_as_erased() {
        let mut report = ErasureReport::new(false);
        report.add(ErasedPart::new("orders", "messages"));
        assert!(report.is_whole() && report.parts.is_empty());
        assert_eq!(report.told(), "nothing erased, 0 left");
        report.add(ErasedPart { erased: 3, ..ErasedPart::new("orders", "messages") });
        report.add(ErasedPart { erased: 1, ..ErasedPart::new("bills", "messages") });
        assert!(report.is_whole());
        assert_eq!(report.told(), "4 messages erased, 0 left");
        let mut part = ErasedPart::new("orders", "messages");
        part.leave("not published yet", 2);
        part.leave("dead", 0);
        report.add(part);
        assert!(!report.is_whole());
        assert_eq!((report.erased, report.left), (4, 2));
        let mut away = ErasureReport::new(false);
        away.fail(OperateError::refused("away", ""));
        assert!(!away.is_whole());
        away.add(ErasedPart { erased: 1, ..ErasedPart::new("bills", "sagas") });
        assert_eq!(away.told(), "1 sagas erased, 0 left, and not every database answered");
    }
}
