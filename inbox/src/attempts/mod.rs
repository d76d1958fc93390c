//! Counts the failures of a message in the database. It uses a transaction of its own, because the
//! handler's was rolled back.

mod record;

use std::time::Duration;

use message::{Backoff, MessageId, shield};

use crate::dialect::Dialect;
use crate::error_text::storable;
use crate::ids::{ConsumerName, Key, Tenant, key};
use crate::inbox::Inbox;
use crate::store_error::StoreError;
pub use record::{Attempt, Failed, Failures, Forget, Pause};
pub(crate) use record::{InHand, NotedFailure};

impl<DB: Dialect> Inbox<DB> {
    /// Notes a failure. With a backoff, counts it and notes when to try again. Without one, keeps
    /// only the error and the time of the first failure. Stores the first 4,096 bytes of the error.
    ///
    /// # Errors
    /// [`StoreError`]; the failure is not noted then. Runs to its end even if this call is dropped.
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

    /// Returns whether an open transaction handles the message at this moment. Runs to its end even
    /// if this call is dropped.
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

    /// Returns the failures of a message so far; `None` when it never failed or has succeeded
    /// since. Cancel-safe.
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
