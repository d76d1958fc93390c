//! Open dead letters that match a filter, and the result of a decision about many.
//!
//! They are found by walking the open ones in the order of their ids. A call examines a bounded
//! number of them, whatever the filter matches.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use crate::dead_letter::{DeadLetter, DeadLetterId};
use crate::decision::{Action, Signature};
use crate::dialect::Dialect;
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Tenant};
use crate::reason::{Reason, Resolution};
use crate::store_error::StoreError;

/// Maximum open dead letters that one call examines, whatever the filter is.
pub const LETTERS_LOOKED_AT_MAX: u32 = 10_000;
/// Maximum dead letters that [`Inbox::survey`] counts.
pub const LETTERS_SURVEYED_MAX: u32 = 1_000_000;
/// Dead letters of each consumer, from each end, whose errors [`Inbox::survey`] groups.
pub const LETTERS_GROUPED_MAX: u32 = 5_000;

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
    /// Only dead letters stored longer ago than this, up to a hundred years.
    pub older_than: Option<Duration>,
    /// Only dead letters stored at most this long ago, up to a hundred years.
    pub newer_than: Option<Duration>,
    /// Only dead letters stored before this time of the database's clock. Ages are measured at this
    /// time as well.
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
    /// The dead letters that match.
    pub letters: Vec<T>,
    /// The beginning of the next slice; `None` after the last one.
    pub next: Option<DeadLetterId>,
}

/// An open dead letter, as far as a decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLetter {
    /// Its id.
    pub id: DeadLetterId,
    /// Its position in the order of arrival.
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
    /// The number of dead letters that match.
    pub count: u64,
    /// Whether there may be more: only [`LETTERS_SURVEYED_MAX`] dead letters are examined.
    pub is_at_least: bool,
    /// Groups of the [`LETTERS_GROUPED_MAX`] dead letters from each end.
    pub groups: Vec<LetterGroup>,
    /// Whether the groups may omit dead letters in the middle.
    pub is_sample: bool,
}

/// The result of one decision about many dead letters, according to the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterDecision {
    /// Who decided, and why.
    pub signature: Signature,
    /// The choice.
    pub action: Action,
    /// Number of dead letters decided about.
    pub count: u64,
    /// When the first of them was decided about.
    pub first: OffsetDateTime,
    /// When the last of them was decided about.
    pub last: OffsetDateTime,
    /// Number of dead letters for which the consumer has not carried out the request yet.
    pub waiting: u64,
    /// Number of dead letters that are still open after their request was carried out.
    pub failed: u64,
    /// Number of closed dead letters, by resolution.
    pub closed: Vec<ClosedCount>,
}

/// The number of dead letters that were closed with one resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedCount {
    /// The way.
    pub resolution: Resolution,
    /// The number.
    pub count: u64,
}

impl<DB: Dialect> Inbox<DB> {
    /// Returns the next open dead letters that match, oldest first, without their payloads: at most
    /// `limit`. Examines [`LETTERS_LOOKED_AT_MAX`] of them, so a slice can be empty and still have
    /// a next one. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open_letters(
        &self,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
        limit: u32,
    ) -> Result<LetterSlice<DeadLetter>, StoreError> {
        let what = "list the dead letters";
        let listing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().open_letters(&mut connection, filter, after, limit).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }

    /// Returns the next open dead letters that match, for a decision. Examines
    /// [`LETTERS_LOOKED_AT_MAX`] of them, and returns all that match. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn choose_letters(
        &self,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
    ) -> Result<LetterSlice<FoundLetter>, StoreError> {
        let what = "choose dead letters";
        let choosing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().choose_letters(&mut connection, filter, after).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, choosing).await
    }

    /// Returns the database's time: what dies later is younger. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn now(&self) -> Result<OffsetDateTime, StoreError> {
        let what = "read the clock";
        let reading = async {
            let mut connection = self.acquire(what).await?;
            self.tables().read_clock(&mut connection).await.map_err(StoreError::during(what))
        };
        Ok(self.in_time(what, reading).await?.now)
    }

    /// Counts the open dead letters that match, and groups their errors. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn survey(&self, filter: &LetterFilter) -> Result<LetterSurvey, StoreError> {
        let what = "count the dead letters";
        let counting = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().survey_letters(&mut connection, filter).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, counting).await
    }

    /// Returns the result of a decision about dead letters, of one consumer or of all; `None` when
    /// it changed nothing. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn decision(
        &self,
        id: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Option<LetterDecision>, StoreError> {
        let what = "read a decision about dead letters";
        let reading = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().letter_decision(&mut connection, id, consumer).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, reading).await
    }
}
