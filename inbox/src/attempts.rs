//! Counting the failures of a message, in the database and in a transaction of their own: the handler's was rolled
//! back.

use message::{MessageId, to_its_end};
use time::OffsetDateTime;

use crate::backoff::Backoff;
use crate::dialect::{Dialect, Key};
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Scope};
use crate::store_error::StoreError;

/// The failures of a message so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// How often the handler failed.
    pub attempts: u32,
    /// The last error.
    pub last_error: String,
    /// When it failed first.
    pub first_failed_at: OffsetDateTime,
    /// When it is to be tried again.
    pub next_at: OffsetDateTime,
}

/// The longest error text that is stored, in bytes.
pub(crate) const ERROR_BYTES_MAX: usize = 4_096;

/// An error and its sources in one line, cut to [`ERROR_BYTES_MAX`], without the NUL characters that PostgreSQL
/// does not store.
pub(crate) fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = chain.map(ToString::to_string).collect();
    let mut text = texts.join(": ").replace('\0', "\u{fffd}");
    let cut = (0..=ERROR_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(cut.unwrap_or(0));
    text
}

impl<DB: Dialect> Inbox<DB> {
    /// Counts a failure and notes when to try again. Returns how often it failed and how long to wait.
    ///
    /// # Errors
    /// [`StoreError`]; the failure is not counted then. Runs to its end even if this call is dropped.
    pub async fn record_failure(
        &self,
        consumer: &ConsumerName,
        scope: &Scope,
        id: MessageId,
        error: &str,
        backoff: Backoff,
    ) -> Result<(u32, std::time::Duration), StoreError> {
        let (inbox, consumer, scope) = (self.clone(), consumer.clone(), scope.clone());
        let error = error.to_owned();
        to_its_end(async move {
            let mut tx = inbox.begin_raw("begin counting a failed attempt").await?;
            let key = Key { consumer: consumer.as_str(), scope: scope.as_str(), id: id.as_uuid() };
            let failed = StoreError::during;
            let attempts = DB::count_attempt(&mut tx, inbox.statements(), key, &error)
                .await
                .map_err(failed("count a failed attempt"))?;
            let delay = backoff.delay(attempts, rand::random());
            DB::postpone(&mut tx, inbox.statements(), key, delay)
                .await
                .map_err(failed("note when to try again"))?;
            tx.commit().await.map_err(failed("commit a failed attempt"))?;
            Ok((attempts, delay))
        })
        .await
    }

    /// The failures of a message so far; nothing when it never failed or has succeeded since. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn attempt(
        &self,
        consumer: &ConsumerName,
        scope: &Scope,
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
            StoreError::new("x".repeat(4_060), crate::store_error::Trouble::Outage, "ä\0".repeat(100));
        let text = error_text(&error);
        assert!(text.len() <= ERROR_BYTES_MAX && text.len() > ERROR_BYTES_MAX - 4, "{}", text.len());
        assert!(text.contains(": ä\u{fffd}"), "{text}");
    }
}
