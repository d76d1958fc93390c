//! The confirmation of a decision: for each database, a time and the messages that matched then.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;

use time::OffsetDateTime;

use super::message::DeadSource;

/// The confirmation of a decision, by database: the time of its clock, and the messages that
/// matched. A message that became dead later is not part of the decision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AsOf(pub(super) BTreeMap<PlaceKey, Matched>);

/// A place, by its kind and the pipeline or consumer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlaceKey {
    pub(super) source: DeadSource,
    pub(super) owner: String,
}

/// The messages of a database that matched at a given time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) at: OffsetDateTime,
    /// Their number.
    pub(super) count: u64,
    /// A sum over them, whatever their order is.
    pub(super) digest: u64,
    /// The same sum over those that an operator has edited.
    pub(super) edits: u64,
}

impl Matched {
    pub(super) fn none(at: OffsetDateTime) -> Self {
        Self { at, count: 0, digest: 0, edits: 0 }
    }

    /// Adds a message, by everything that distinguishes it from others.
    pub(super) fn add(&mut self, message: impl Hash) {
        self.count += 1;
        self.digest = self.digest.wrapping_add(hashed(message));
    }

    /// Adds a message, with the time of its last edit.
    pub(super) fn add_edited(&mut self, message: impl Hash, edited_at: Option<OffsetDateTime>) {
        let Some(edited_at) = edited_at else { return self.add(message) };
        let edit = hashed((message, edited_at));
        self.edits = self.edits.wrapping_add(edit);
        self.add(edit);
    }

    /// Returns whether these messages have no other edits than the confirmed ones, of which they
    /// are some. An edited one that is missing counts as a difference.
    pub(super) fn has_no_other_edit(&self, confirmed: &Self) -> bool {
        self.edits == 0 || self.edits == confirmed.edits
    }
}

fn hashed(message: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.hash(&mut hasher);
    hasher.finish()
}

/// The confirmation of one database. Its text is used in forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    pub(super) place: PlaceKey,
    pub(super) matched: Matched,
}

impl Moment {
    /// Returns the kind of place.
    #[must_use]
    pub fn source(&self) -> DeadSource {
        self.place.source
    }

    /// Returns the number of messages that matched.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.matched.count
    }

    /// Returns the pipeline or consumer.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.place.owner
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Matched { at, count, digest, edits } = self.matched;
        let micros = at.unix_timestamp_nanos() / 1_000;
        write!(f, "{}/{micros}/{count}/{digest:x}/{edits:x}/{}", self.place.source, self.place.owner)
    }
}

impl FromStr for Moment {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let read = || {
            let mut parts = text.splitn(6, '/');
            let source = parts.next()?.parse().ok()?;
            let micros: i64 = parts.next()?.parse().ok()?;
            let count = parts.next()?.parse().ok()?;
            let digest = u64::from_str_radix(parts.next()?, 16).ok()?;
            let edits = u64::from_str_radix(parts.next()?, 16).ok()?;
            let owner = parts.next()?.to_owned();
            let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000).ok()?;
            Some(Self { place: PlaceKey { source, owner }, matched: Matched { at, count, digest, edits } })
        };
        read().ok_or("it is not a valid point in time of a database: confirm the decision again")
    }
}

impl FromIterator<Moment> for AsOf {
    fn from_iter<T: IntoIterator<Item = Moment>>(moments: T) -> Self {
        Self(moments.into_iter().map(|moment| (moment.place, moment.matched)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_goes_through_a_form() {
        let at = OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_000).unwrap();
        let place = PlaceKey { source: DeadSource::Outbox, owner: String::from("a/b orders") };
        let moment = Moment { place, matched: Matched { at, count: 12, digest: u64::MAX, edits: 10 } };
        assert_eq!(moment.to_string(), "outbox/1700000000123456/12/ffffffffffffffff/a/a/b orders");
        assert_eq!((moment.source(), moment.owner()), (DeadSource::Outbox, "a/b orders"));
        assert_eq!(moment.to_string().parse(), Ok(moment));
        for broken in [
            "",
            "outbox",
            "outbox/x/1/0/0/orders",
            "nowhere/1/1/0/0/orders",
            "outbox/1/orders",
            "outbox/1/-1/0/0/orders",
            "outbox/1/1/x/0/orders",
            "outbox/1/1/0/x/orders",
            "outbox/9223372036854775807/1/0/0/x",
        ] {
            assert!(broken.parse::<Moment>().is_err(), "{broken}");
        }
    }

    #[test]
    fn the_same_messages_match_in_any_order() {
        let of = |ids: &[u32]| {
            let mut matched = Matched::none(OffsetDateTime::UNIX_EPOCH);
            ids.iter().for_each(|id| matched.add(id));
            matched
        };
        assert_eq!(of(&[1, 2, 3]), of(&[3, 1, 2]));
        assert_ne!(of(&[1, 2, 3]).digest, of(&[1, 2, 4]).digest);
        assert_ne!(of(&[1, 1]).digest, of(&[2, 2]).digest);
    }
}
