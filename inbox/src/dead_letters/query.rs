//! Which dead letters are read, and what is read of them: lists, choices, surveys.
//!
//! Letters are found by walking the open ones in the order of their ids. A call looks at a bounded
//! number of them, whatever the filter leaves.

use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use super::decision::SeenLetter;
use super::reason::Reason;
use crate::ids::{ConsumerName, DeadLetterId, Tenant};

/// A query for dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterQuery {
    /// Only those of this consumer; `None` for all consumers.
    pub consumer: Option<ConsumerName>,
    /// Whether to include closed ones.
    pub resolved_too: bool,
    /// Only those after this one: the last id of the previous result.
    pub after: Option<DeadLetterId>,
    /// Maximum number of results.
    pub limit: NonZeroU32,
    /// Whether to read dead letters whole. A hundred large ones take much memory. Without this,
    /// payloads and the values of headers are empty, a longer key is its first 1,024 characters
    /// and `...`, and only 100 names of headers are read, of at most 255 characters each.
    pub with_payloads: bool,
}

impl Default for DeadLetterQuery {
    fn default() -> Self {
        let limit = NonZeroU32::MIN.saturating_add(99);
        Self { consumer: None, resolved_too: false, after: None, limit, with_payloads: true }
    }
}

/// Maximum open dead letters that one call looks at, whatever the filter is.
pub const LETTERS_LOOKED_AT_MAX: u32 = 10_000;
/// Maximum dead letters that [`Inbox::survey`](crate::Inbox::survey) counts.
pub const LETTERS_SURVEYED_MAX: u32 = 1_000_000;
/// Dead letters of each consumer, from each end, whose errors
/// [`Inbox::survey`](crate::Inbox::survey) groups.
pub const LETTERS_GROUPED_MAX: u32 = 5_000;

/// Dead letters of a consumer, from each end, whose errors
/// [`Inbox::letter_errors`](crate::Inbox::letter_errors) groups.
pub const LETTER_ERRORS_LOOKED_AT: u32 = 500;

/// The longest age that a condition may name: a hundred years.
const AGE_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Conditions on open dead letters. All must hold; without any, all match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LetterFilter {
    /// The consumer.
    pub consumer: Option<ConsumerName>,
    /// The tenant.
    pub tenant: Option<Tenant>,
    /// The topic or queue.
    pub topic: Option<String>,
    /// The ordering key.
    pub key: Option<String>,
    /// The event type.
    pub kind: Option<String>,
    /// The reason.
    pub reason: Option<String>,
    /// Texts that the error contains, in this order. SQLite ignores the case of ASCII letters.
    pub error_parts: Vec<String>,
    /// Only letters that died longer ago than this, which is limited to a hundred years.
    pub older_than: Option<Duration>,
    /// Only letters that died at most this long ago, which is limited to a hundred years.
    pub newer_than: Option<Duration>,
    /// Only letters that died before this moment of the database's clock. Ages are measured at this
    /// moment as well.
    pub as_of: Option<OffsetDateTime>,
}

impl LetterFilter {
    /// Returns the pattern that errors with all parts match.
    pub(crate) fn error_pattern(&self) -> Option<String> {
        migrations::query::like_pattern(&self.error_parts)
    }

    /// Returns the conditions about ages, as every database can take them.
    pub(crate) fn ages(&self) -> [Option<Duration>; 2] {
        [self.older_than, self.newer_than].map(|age| age.map(|age| age.min(AGE_MAX)))
    }
}

/// A part of the open dead letters.
#[derive(Debug, Clone, PartialEq)]
pub struct LetterSlice<T> {
    /// The letters that match.
    pub letters: Vec<T>,
    /// The beginning of the next slice; `None` after the last letter.
    pub next: Option<DeadLetterId>,
}

/// The dead letters that an erasure concerns: those that meet every condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LettersOfKey {
    /// The ordering key.
    pub key: String,
    /// Only of this topic or queue.
    pub topic: Option<String>,
    /// Only of this tenant.
    pub tenant: Option<Tenant>,
}

/// A dead letter of a key, open or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedLetter {
    /// The dead letter.
    pub seen: SeenLetter,
    /// Its message; `None` for a delivery that is not a message.
    pub message_id: Option<Uuid>,
    /// Whether it is open: its message may still take effect.
    pub is_open: bool,
}

/// An open dead letter, as far as a decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLetter {
    /// Its id.
    pub id: DeadLetterId,
    /// Its place in the order of arrival.
    pub seq: i64,
    /// Its consumer.
    pub consumer: String,
    /// Its topic or queue.
    pub topic: String,
    /// Why it was dead-lettered.
    pub reason: Reason,
    /// Number of deliveries that ended in it.
    pub deliveries: u32,
    /// When it was dead-lettered.
    pub dead_at: OffsetDateTime,
    /// Its error, if the filter asks for a part of it.
    pub error: Option<String>,
}

/// Open dead letters with the same topic, reason and error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterGroup {
    /// Their topic or queue.
    pub topic: String,
    /// Why they were dead-lettered.
    pub reason: String,
    /// The first 300 characters of the error.
    pub error: String,
    /// Their number.
    pub count: u64,
    /// When the first of them died.
    pub first: OffsetDateTime,
    /// When the last of them died.
    pub last: OffsetDateTime,
}

/// The number of open dead letters that match a filter, and their errors.
#[derive(Debug, Clone, PartialEq)]
pub struct LetterSurvey {
    /// The database's time before it counted.
    pub at: OffsetDateTime,
    /// The number of letters that match.
    pub count: u64,
    /// Whether there may be more: only [`LETTERS_SURVEYED_MAX`] letters are looked at.
    pub is_at_least: bool,
    /// Groups of the [`LETTERS_GROUPED_MAX`] letters from each end.
    pub groups: Vec<LetterGroup>,
    /// Whether the groups may leave out letters in the middle.
    pub is_sample: bool,
}
