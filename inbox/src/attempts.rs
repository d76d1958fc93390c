//! Counting the failures of a message, in the database and in a transaction of their own: the
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
    /// How many failures were counted; 0 when nothing shows that one was the message's own.
    pub attempts: u32,
    /// The last error.
    pub last_error: String,
    /// When it failed first.
    pub first_failed_at: OffsetDateTime,
    /// When it is to be tried again.
    pub next_at: OffsetDateTime,
}

/// A message that a process takes in hand, as the database remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InHand {
    /// Failures that were counted.
    pub failures: u32,
    /// Other processes that had it in hand and ended without a word.
    pub ends: u32,
    /// Another process that has it in hand, or had it when it ended; nothing when it is in the
    /// hand of the process that asked.
    pub owner: Option<Uuid>,
    /// When it is to be tried again.
    pub next_at: OffsetDateTime,
}

/// Processes that may end with a message in hand before it is given up.
const ENDS_MAX: u32 = 5;

impl InHand {
    /// Why the message is given up, once as many processes have ended with it in hand as may.
    pub(crate) fn given_up(&self) -> Option<String> {
        let ends = self.ends;
        (ends >= ENDS_MAX).then(|| {
            format!(
                "{ends} processes ended while they had it in hand, the last ones with nothing else: its handler ends \
                 them (an abort, a stack overflow, no memory left)"
            )
        })
    }
}

/// The failures of a message so far, as [`Inbox::record_failure`] counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failures {
    /// How many were counted so far.
    pub attempts: u32,
    /// The time since the first was noted, counted or not.
    pub age: Duration,
    /// How long to wait; nothing for a failure that is not counted.
    pub delay: Duration,
}

/// How long a message waits after a failure that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// By the number of failures, with jitter.
    Backoff(Backoff),
    /// As long as its handler said.
    Exactly(Duration),
}

impl Pause {
    /// Returns how long it is after so many failures; `uniform` is the jitter, as for
    /// [`Backoff::delay`].
    #[must_use]
    pub fn delay(self, failures: u32, uniform: f64) -> Duration {
        match self {
            Self::Backoff(backoff) => backoff.delay(failures, uniform),
            Self::Exactly(delay) => delay,
        }
    }
}

/// The longest error text that is stored, in bytes.
pub(crate) const ERROR_BYTES_MAX: usize = 4_096;

/// An error and its sources in one line, as [`storable`] leaves it.
pub(crate) fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    storable(&message::error_text::chain(error))
}

/// Stands for an error that says nothing: an attempt without a text is one that has not failed.
const NO_TEXT: &str = "an error without a text";

/// A text cut to [`ERROR_BYTES_MAX`], without what PostgreSQL does not store, and never empty.
pub(crate) fn storable(text: &str) -> String {
    let text = if text.is_empty() { NO_TEXT } else { text };
    message::error_text::storable(text, ERROR_BYTES_MAX)
}

impl<DB: Dialect> Inbox<DB> {
    /// Notes a failure. With a backoff it is counted, and when to try again is noted as well;
    /// without, only the error and the time of the first failure are kept. Of the error its first
    /// 4,096 bytes are.
    ///
    /// # Errors
    /// [`StoreError`]; the failure is not noted then. Runs to its end even if this call is dropped.
    pub async fn record_failure(
        &self,
        consumer: &ConsumerName,
        scope: &Tenant,
        id: MessageId,
        error: &str,
        backoff: Option<Backoff>,
    ) -> Result<Failures, StoreError> {
        self.note_failure(consumer, scope, id, &storable(error), backoff.map(Pause::Backoff)).await
    }

    /// As [`record_failure`](Self::record_failure): counted when there is a pause.
    pub(crate) async fn note_failure(
        &self,
        consumer: &ConsumerName,
        scope: &Tenant,
        id: MessageId,
        error: &str,
        pause: Option<Pause>,
    ) -> Result<Failures, StoreError> {
        let (inbox, consumer, scope) = (self.clone(), consumer.clone(), scope.clone());
        let error = error.to_owned();
        shield(async move {
            let mut tx = inbox.begin_raw("begin counting a failed attempt").await?;
            let key = Key { consumer: consumer.as_str(), scope: scope.as_str(), id: id.as_uuid() };
            let failed = StoreError::during;
            let (attempts, age) =
                DB::count_attempt(&mut tx, inbox.statements(), key, &error, pause.is_some())
                    .await
                    .map_err(failed("count a failed attempt"))?;
            let delay = pause.map_or(Duration::ZERO, |pause| pause.delay(attempts, rand::random()));
            if pause.is_some() {
                DB::postpone(&mut tx, inbox.statements(), key, delay)
                    .await
                    .map_err(failed("note when to try again"))?;
            }
            tx.commit().await.map_err(failed("commit a failed attempt"))?;
            Ok(Failures { attempts, age, delay })
        })
        .await
    }

    /// Whether a transaction that is open at this moment handles a message. Runs to its end even if
    /// this call is dropped.
    pub(crate) async fn is_being_handled(
        &self,
        consumer: &ConsumerName,
        scope: &Tenant,
        id: MessageId,
    ) -> Result<bool, StoreError> {
        let (inbox, consumer, scope) = (self.clone(), consumer.clone(), scope.clone());
        shield(async move {
            let what = "look whether a message is being handled";
            let tx = inbox.begin_raw(what).await?;
            DB::is_being_handled(tx, inbox.statements(), key(&consumer, &scope, id))
                .await
                .map_err(StoreError::during(what))
        })
        .await
    }

    /// The failures of a message so far; nothing when it never failed or has succeeded since.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn attempt(
        &self,
        consumer: &ConsumerName,
        scope: &Tenant,
        id: MessageId,
    ) -> Result<Option<Attempt>, StoreError> {
        let mut connection = self.acquire("look up the attempts").await?;
        let key = Key { consumer: consumer.as_str(), scope: scope.as_str(), id: id.as_uuid() };
        DB::attempt(&mut connection, self.statements(), key)
            .await
            .map_err(StoreError::during("look up the attempts"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_stored_with_its_sources_cut_at_a_character() {
        let error =
            StoreError::new("x".repeat(4_060), migrations::SqlErrorKind::Unavailable, "ä\0".repeat(100));
        let text = error_text(&error);
        assert!(text.len() <= ERROR_BYTES_MAX && text.len() > ERROR_BYTES_MAX - 4, "{}", text.len());
        assert!(text.contains(": ä\u{fffd}"), "{text}");
    }
}
