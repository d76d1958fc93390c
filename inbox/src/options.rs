//! Options of an inbox, and their bounds.

use std::time::Duration;

use message::{CHUNKED_BYTES_MAX, CHUNKED_BYTES_MAX_DEFAULT, OutOfBounds};
use migrations::Identifier;
use outbox::{
    AUDIT_RETENTION_DEFAULT, AUDIT_RETENTION_MAX, AUDIT_RETENTION_MIN, CALL_TIMEOUT_MAX, CALL_TIMEOUT_MIN,
};

use crate::comparison::{PayloadComparison, SourceComparison};
use crate::day::{DAYS_AHEAD_DEFAULT, DAYS_AHEAD_MAX};
use crate::error::OpenError;
use crate::within::CALL_TIMEOUT_DEFAULT;

/// Default retention of ids.
const RETENTION_DEFAULT: Duration = Duration::from_secs(14 * 86_400);
/// Minimum retention.
const RETENTION_MIN: Duration = Duration::from_secs(86_400);
/// Maximum retention. There is one partition per day, and planning an insert gets slower with their
/// number.
const RETENTION_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Default for how far ahead of the database's clock an id may be.
const SKEW_MAX_DEFAULT: Duration = Duration::from_secs(300);
/// Maximum clock skew that can be allowed.
const SKEW_MAX_MAX: Duration = Duration::from_secs(86_400);

/// Default time that the chunks of a message wait for the missing ones.
const INCOMPLETE_RETENTION_DEFAULT: Duration = Duration::from_secs(86_400);
/// Minimum time that they wait.
const INCOMPLETE_RETENTION_MIN: Duration = Duration::from_secs(60);

/// Options of an inbox. Start from [`InboxOptions::default`].
///
/// ```
/// use inbox::{InboxOptions, PayloadComparison};
/// let options = InboxOptions::default().payloads(PayloadComparison::CanonicalJson);
/// # assert_eq!(options.days_ahead, 2);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InboxOptions {
    /// How long ids are remembered: 1 to 366 days, 14 days by default.
    /// Choose two to three times the longest time after which a duplicate can arrive (Kafka replay,
    /// redrive of a dead-letter queue, SQS's 14 days), and more than the longest outage of a
    /// consumer.
    pub retention: Duration,
    /// How far ahead of the database's clock an id may be: up to one day, 5 minutes by default.
    pub skew_max: Duration,
    /// How long resolved dead letters are kept: 30 days by default. Open ones are kept forever.
    pub dead_letter_retention: Duration,
    /// How long decisions of operators are kept: 31 days to a century, three years by default. A
    /// redrive that was not carried out yet is kept forever.
    pub audit_retention: Duration,
    /// How long the chunks of a message wait for the missing ones: 1 minute to 366 days, 24 hours
    /// by default. After that, the next maintenance dead-letters the message as incomplete. Choose
    /// more than the longest outage of a relay or of the consumer, because a message may be half
    /// sent or half received when the outage begins. A consumer does this for its own messages; it
    /// leaves those of another consumer for `retention`, if that is longer.
    pub incomplete_retention: Duration,
    /// Maximum payload that is assembled from chunks, in bytes: 64 MiB by default, at most
    /// [`CHUNKED_BYTES_MAX`]. It is held in memory while its handler runs. Leave room for three
    /// times as much: a message that fails is dead-lettered after some attempts, but not one whose
    /// assembly already ends the process.
    pub chunked_bytes_max: usize,
    /// How long a consumer waits for an answer from the database: 1 s to 1 h, 120 s by default.
    /// Then it drops the connection and tries again. Choose more than the slowest handler takes,
    /// because a copy of its message waits for it.
    pub call_timeout: Duration,
    /// When two payloads with one id are the same message: [`PayloadComparison::Bytes`] by default.
    pub payloads: PayloadComparison,
    /// Whether the same id from another source is the same message: by default it is refused.
    pub sources: SourceComparison,
    /// Number of days (UTC) whose partitions are created ahead of time, on PostgreSQL: 1 to 360, 2
    /// by default. Use more when another system has to copy each new table first, as with logical
    /// replication.
    pub days_ahead: u32,
    /// The PostgreSQL schema of the tables; `None` uses the `search_path`. Set it when the pool's
    /// `after_connect` sets the `search_path`: a missing day is created over a separate connection,
    /// without that hook. SQLite has no schemas.
    pub schema: Option<Identifier>,
}

impl Default for InboxOptions {
    fn default() -> Self {
        Self {
            retention: RETENTION_DEFAULT,
            skew_max: SKEW_MAX_DEFAULT,
            dead_letter_retention: Duration::from_secs(30 * 86_400),
            audit_retention: AUDIT_RETENTION_DEFAULT,
            incomplete_retention: INCOMPLETE_RETENTION_DEFAULT,
            chunked_bytes_max: CHUNKED_BYTES_MAX_DEFAULT,
            call_timeout: CALL_TIMEOUT_DEFAULT,
            payloads: PayloadComparison::Bytes,
            sources: SourceComparison::Compared,
            days_ahead: DAYS_AHEAD_DEFAULT,
            schema: None,
        }
    }
}

impl InboxOptions {
    message::setters! {
        /// Sets how long ids are remembered.
        retention: Duration,
        /// Sets how far ahead of the database's clock an id may be.
        skew_max: Duration,
        /// Sets how long resolved dead letters are kept.
        dead_letter_retention: Duration,
        /// Sets how long decisions of operators are kept.
        audit_retention: Duration,
        /// Sets how long the chunks of a message wait for the missing ones.
        incomplete_retention: Duration,
        /// Sets the maximum payload that is assembled from chunks, in bytes.
        chunked_bytes_max: usize,
        /// Sets how long a consumer waits for an answer from the database.
        call_timeout: Duration,
        /// Sets when two payloads with one id are the same message.
        payloads: PayloadComparison,
        /// Sets whether the same id from another source is the same message.
        sources: SourceComparison,
        /// Sets the number of days whose partitions are created ahead of time.
        days_ahead: u32,
        /// Sets the PostgreSQL schema of the tables.
        schema as Option<Identifier>,
    }
}

impl InboxOptions {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let audit = AUDIT_RETENTION_MIN..=AUDIT_RETENTION_MAX;
        let incomplete = INCOMPLETE_RETENTION_MIN..=RETENTION_MAX;
        OutOfBounds::check("audit retention", self.audit_retention, audit)?;
        OutOfBounds::check("retention", self.retention, RETENTION_MIN..=RETENTION_MAX)?;
        OutOfBounds::check("call timeout", self.call_timeout, CALL_TIMEOUT_MIN..=CALL_TIMEOUT_MAX)?;
        OutOfBounds::check("allowed clock skew", self.skew_max, Duration::ZERO..=SKEW_MAX_MAX)?;
        OutOfBounds::check("retention of incomplete messages", self.incomplete_retention, incomplete)?;
        if !(1..=DAYS_AHEAD_MAX).contains(&self.days_ahead) {
            return Err(OpenError::DaysAhead { days: self.days_ahead });
        }
        if self.chunked_bytes_max > CHUNKED_BYTES_MAX {
            return Err(OpenError::ChunksTooLarge { bytes_max: self.chunked_bytes_max });
        }
        Ok(())
    }
}
