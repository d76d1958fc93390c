//! Counts the failures of a message in the database. It uses a separate transaction, because the
//! handler's was rolled back.

use std::time::Duration;

use message::{Backoff, MessageId, shield};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::dialect::{Dialect, Key};
use crate::guard::key;
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Tenant};
use crate::store_error::StoreError;

/// The failures of a message so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Number of counted failures; 0 when no failure was shown to be the message's own.
    pub attempts: u32,
    /// The last error.
    pub last_error: String,
    /// When it first failed.
    pub first_failed_at: OffsetDateTime,
    /// When the next attempt is due.
    pub next_at: OffsetDateTime,
}

/// A failure of a message.
#[derive(Debug, Clone, Copy)]
pub struct Failed<'a> {
    /// The error, not empty and of a length that is stored.
    pub error: &'a str,
    /// The wait after it; it is counted if there is one.
    pub pause: Option<Pause>,
    /// Whether the handler returned it, so the message did not end this process.
    pub is_returned: bool,
}

/// A failure that was recorded, as the database remembers it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotedFailure {
    /// Number of counted failures.
    pub(crate) attempts: u32,
    /// Number of consecutive failures that were not counted.
    pub(crate) uncounted: u32,
    /// When the first failure was recorded, counted or not.
    pub(crate) first_failed_at: OffsetDateTime,
    /// Time since then, by the database's clock.
    pub(crate) age: Duration,
}

impl NotedFailure {
    /// Returns the time since the first failure, by the database's clock or another one: the
    /// shorter time. Giving up cannot be taken back, so no clock decides alone.
    fn age_by_both(&self, now: OffsetDateTime) -> Duration {
        self.age.min(Duration::try_from(now - self.first_failed_at).unwrap_or_default())
    }
}

/// A message that a process is working on ("in hand"), as the database remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InHand {
    /// Number of counted failures.
    pub failures: u32,
    /// Number of other processes that ended while they had it in hand.
    pub ends: u32,
    /// Another process that has it in hand, or had it when it ended; `None` when the asking process
    /// has it in hand.
    pub owner: Option<Uuid>,
    /// When the next attempt is due.
    pub next_at: OffsetDateTime,
}

/// The messages whose attempts are forgotten. The others are only released: they are no longer in
/// hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forget {
    /// All messages.
    All,
    /// Messages without a recorded failure.
    Unnoted,
    /// Messages without a counted failure, whose handler ended no process.
    Unsuspected,
    /// Messages without a recorded failure, whose handler ended no process.
    Untouched,
}

impl Forget {
    /// Returns whether counted failures are forgotten.
    pub(crate) fn also_counted(self) -> bool {
        self == Self::All
    }

    /// Returns whether failures are forgotten that were recorded and not counted.
    pub(crate) fn also_noted(self) -> bool {
        !matches!(self, Self::Unnoted | Self::Untouched)
    }

    /// Returns whether the ends of processes are forgotten.
    pub(crate) fn also_ends(self) -> bool {
        !matches!(self, Self::Unsuspected | Self::Untouched)
    }
}

/// Number of processes that may end with a message in hand before it is dead-lettered.
const ENDS_MAX: u32 = 5;

impl InHand {
    /// Returns why the message is dead-lettered, once [`ENDS_MAX`] processes ended with it in hand.
    pub(crate) fn given_up(&self) -> Option<String> {
        let ends = self.ends;
        (ends >= ENDS_MAX).then(|| {
            format!(
                "{ends} processes ended while they handled this message, the last ones while they handled \
                 nothing else: its handler probably kills the process (an abort, a stack overflow, out of \
                 memory)"
            )
        })
    }
}

/// The failures of a message so far, as [`Inbox::record_failure`] counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failures {
    /// Number of counted failures.
    pub attempts: u32,
    /// Number of consecutive failures that were not counted. It restarts after an hour without one.
    pub uncounted: u32,
    /// Time since the first failure was recorded, counted or not, by the clocks of database and
    /// process: the shorter time.
    pub age: Duration,
    /// Wait until the next attempt; zero for a failure that is not counted.
    pub delay: Duration,
}

/// Wait after a counted failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Grows with the number of failures, with jitter.
    Backoff(Backoff),
    /// The time that the handler asked for.
    Exactly(Duration),
}

impl Pause {
    /// Returns the wait after this number of failures; `uniform` is the jitter, as for
    /// [`Backoff::delay`].
    #[must_use]
    pub fn delay(self, failures: u32, uniform: f64) -> Duration {
        match self {
            Self::Backoff(backoff) => backoff.delay(failures, uniform),
            Self::Exactly(delay) => delay,
        }
    }
}

/// Maximum length of a stored error text, in bytes.
pub(crate) const ERROR_BYTES_MAX: usize = 4_096;

/// Returns an error and its sources in one line, made [`storable`].
pub(crate) fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    storable(&message::error_text::chain(error))
}

/// Replaces an empty error text: an attempt without a text counts as one that has not failed.
const NO_TEXT: &str = "an error without a text";

/// Cuts a text to [`ERROR_BYTES_MAX`] and removes what PostgreSQL cannot store. Never returns an
/// empty text.
pub(crate) fn storable(text: &str) -> String {
    let text = if text.is_empty() { NO_TEXT } else { text };
    message::error_text::storable(text, ERROR_BYTES_MAX)
}

impl<DB: Dialect> Inbox<DB> {
    /// Records a failure. With a backoff, counts it and stores when to try again. Without one,
    /// keeps only the error and the time of the first failure. Stores the first 4,096 bytes of the
    /// error.
    ///
    /// # Errors
    /// [`StoreError`]; the failure is not recorded then. Runs to its end even if this call is
    /// dropped.
    pub async fn record_failure(
        &self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        id: MessageId,
        error: &str,
        backoff: Option<Backoff>,
    ) -> Result<Failures, StoreError> {
        let error = storable(error);
        let failed = Failed { error: &error, pause: backoff.map(Pause::Backoff), is_returned: true };
        self.note_failure(consumer, tenant, id, failed).await
    }

    /// Does the same as [`record_failure`](Self::record_failure).
    pub(crate) async fn note_failure(
        &self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        id: MessageId,
        failed: Failed<'_>,
    ) -> Result<Failures, StoreError> {
        let inbox = self.clone();
        let consumer = consumer.clone();
        let tenant = tenant.clone();
        let error = failed.error.to_owned();
        let pause = failed.pause;
        let is_returned = failed.is_returned;
        shield(async move {
            let mut tx = inbox.begin_raw("begin counting a failed attempt").await?;
            let key = Key { consumer: consumer.as_str(), tenant: tenant.as_str(), id: id.as_uuid() };
            let failed = StoreError::during;
            let failure = Failed { error: &error, pause, is_returned };
            let noted = inbox
                .tables()
                .count_attempt(&mut tx, key, failure)
                .await
                .map_err(failed("count a failed attempt"))?;
            let attempts = noted.attempts;
            let age = noted.age_by_both(inbox.settled_window().now);
            let delay = pause.map_or(Duration::ZERO, |pause| pause.delay(attempts, rand::random()));
            if pause.is_some() {
                inbox
                    .tables()
                    .postpone(&mut tx, key, delay)
                    .await
                    .map_err(failed("store the time of the next attempt"))?;
            }
            tx.commit().await.map_err(failed("commit a failed attempt"))?;
            Ok(Failures { attempts, uncounted: noted.uncounted, age, delay })
        })
        .await
    }

    /// Returns whether an open transaction handles the message now. Runs to its end even if this
    /// call is dropped.
    pub(crate) async fn is_being_handled(
        &self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        id: MessageId,
    ) -> Result<bool, StoreError> {
        let inbox = self.clone();
        let consumer = consumer.clone();
        let tenant = tenant.clone();
        shield(async move {
            let what = "check whether a message is being handled";
            let tx = inbox.begin_raw(what).await?;
            DB::is_being_handled(tx, inbox.tables(), key(&consumer, &tenant, id))
                .await
                .map_err(StoreError::during(what))
        })
        .await
    }

    /// Returns the failures of a message so far; `None` if it never failed or has succeeded since.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn attempt(
        &self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        id: MessageId,
    ) -> Result<Option<Attempt>, StoreError> {
        let mut connection = self.acquire("read the attempts").await?;
        let key = Key { consumer: consumer.as_str(), tenant: tenant.as_str(), id: id.as_uuid() };
        self.tables().attempt(&mut connection, key).await.map_err(StoreError::during("read the attempts"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clock_alone_makes_a_failure_old() {
        let first_failed_at = OffsetDateTime::UNIX_EPOCH;
        let (hour, day) = (Duration::from_secs(3_600), Duration::from_secs(86_400));
        for (database, process, age) in
            [(hour, hour, hour), (3 * day, hour, hour), (hour, 3 * day, hour), (3 * day, 2 * day, 2 * day)]
        {
            let noted = NotedFailure { attempts: 0, uncounted: 1, first_failed_at, age: database };
            assert_eq!(noted.age_by_both(first_failed_at + process), age, "{database:?} {process:?}");
        }
        let behind = NotedFailure { attempts: 0, uncounted: 1, first_failed_at, age: day };
        assert_eq!(behind.age_by_both(first_failed_at - hour), Duration::ZERO);
    }

    #[test]
    fn an_error_is_stored_with_its_sources_cut_at_a_character() {
        let error =
            StoreError::new("x".repeat(4_060), migrations::SqlErrorKind::Unavailable, "ä\0".repeat(100));
        let text = error_text(&error);
        assert!(text.len() <= ERROR_BYTES_MAX && text.len() > ERROR_BYTES_MAX - 4, "{}", text.len());
        assert!(text.contains(": ä\u{fffd}"), "{text}");
    }
}
