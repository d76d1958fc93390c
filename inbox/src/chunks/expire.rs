//! Messages whose chunks have been missing for too long. They are dead-lettered, logged and
//! counted, never dropped silently. Chunks of a message that has meanwhile arrived whole are simply
//! removed.

use bytes::Bytes;
use message::{Fingerprint, back};
use time::OffsetDateTime;
use uuid::Uuid;

use super::record::Incomplete;
use crate::dead_letters::{DeadLetter, Reason};
use crate::dialect::{ChunkSet, Dialect, Overdue};
use crate::ids::{ConsumerName, DeadLetterId, Key};
use crate::inbox::Inbox;
use crate::store_error::StoreError;
use crate::telemetry;

/// Maximum number of messages that are listed at once.
const EXPIRED_MAX: u32 = 1_000;

/// The outcome for an overdue message.
enum Expired {
    /// It is no longer overdue, or another process expires it.
    Changed,
    /// It had come as a whole, so only its chunks were removed.
    Whole,
    /// It is a dead letter.
    DeadLettered,
}

impl Incomplete {
    fn set(&self) -> ChunkSet<'_> {
        let key = Key { consumer: &self.consumer, tenant: &self.tenant, id: self.id.as_uuid() };
        ChunkSet { key, fingerprint: self.fingerprint }
    }

    /// Makes a dead letter from the chunks that arrived: as evidence, not to be applied. Its
    /// fingerprint is that of the fragment, so that the whole message, published again, does not
    /// match the dead letter.
    fn into_letter(self, fragment: Bytes) -> DeadLetter {
        let error = format!(
            "{} of {} bytes have arrived since {}: {}; publish the message again from its outbox",
            fragment.len(),
            self.bytes,
            self.begun_at,
            self.state()
        );
        DeadLetter {
            id: DeadLetterId(Uuid::now_v7()),
            subject: self.id.as_uuid(),
            fingerprint: Fingerprint::of_parts(&self.kind, &self.content_type, &fragment),
            message_id: Some(self.id),
            consumer: self.consumer,
            tenant: self.tenant,
            topic: self.topic,
            key: self.key,
            kind: Some(self.kind),
            source: Some(self.source),
            time: Some(self.time),
            content_type: Some(self.content_type),
            headers: Vec::new(),
            trace: None,
            payload_bytes: fragment.len() as u64,
            payload: fragment,
            reason: Reason::Incomplete,
            error,
            attempts: 0,
            deliveries: 1,
            origin: String::from("the chunks kept in the inbox"),
            dead_at: OffsetDateTime::UNIX_EPOCH,
            resolved: None,
            seq: 0,
        }
    }
}

impl<DB: Dialect> Inbox<DB> {
    /// Dead-letters the messages whose first chunk arrived too long ago. Returns how many. A
    /// consumer expires its own. It leaves those of another one, which may have stopped for a
    /// while, until the inbox would no longer admit them.
    pub(crate) async fn expire_incomplete(&self, consumer: Option<&ConsumerName>) -> Result<u64, StoreError> {
        let (now, options) = (self.settled_window().now, self.options());
        let before = back(now, options.incomplete_retention);
        let which = Overdue {
            before,
            consumer: consumer.map(ConsumerName::as_str),
            others_before: back(now, options.incomplete_retention.max(options.retention)),
        };
        let mut expired = 0;
        loop {
            let overdue = self.overdue(which).await?;
            let (len, mut gone) = (overdue.len(), 0);
            let mut failed = None;
            for incomplete in overdue {
                match self.expire_one(incomplete.set(), before).await {
                    Ok(Expired::Changed) => {}
                    Ok(Expired::Whole) => gone += 1,
                    Ok(Expired::DeadLettered) => (gone, expired) = (gone + 1, expired + 1),
                    // The other messages must not wait for it.
                    Err(error) => failed = Some(error),
                }
            }
            match failed {
                Some(error) => return Err(error),
                None if gone == 0 || len < EXPIRED_MAX as usize => return Ok(expired),
                None => {}
            }
        }
    }

    async fn overdue(&self, which: Overdue<'_>) -> Result<Vec<Incomplete>, StoreError> {
        let what = "list incomplete messages";
        // Returned before the next call, which would wait for it in a pool of one connection.
        let mut connection = self.acquire(what).await?;
        let overdue = self.tables().overdue(&mut connection, which, EXPIRED_MAX).await;
        overdue.map_err(StoreError::during(what))
    }

    async fn expire_one(&self, set: ChunkSet<'_>, before: OffsetDateTime) -> Result<Expired, StoreError> {
        let failed = StoreError::during;
        let mut tx = self.begin_durable("begin expiring an incomplete message").await?;
        // Read again under its lock: its last chunk may be arriving right now.
        let locked =
            self.tables().lock_set(&mut tx, set, before).await.map_err(failed("lock a set of chunks"))?;
        let Some(incomplete) = locked else { return Ok(Expired::Changed) };
        let found = self.tables().find(&mut tx, set.key).await.map_err(failed("look up a message"))?;
        if found.is_some_and(|stored| stored.fingerprint == set.fingerprint) {
            // It arrived as a whole afterwards, for example after a limit was raised.
            self.tables().remove_set(&mut tx, set).await.map_err(failed("remove chunks"))?;
            tx.commit().await.map_err(failed("commit the removal of chunks"))?;
            return Ok(Expired::Whole);
        }
        let count = incomplete.nearest().map_or(0, |split| split.count);
        let fragment = self.tables().read_chunks(&mut tx, set, count).await.map_err(failed("read chunks"))?;
        let letter = incomplete.into_letter(fragment);
        self.tables().store_dead_letter(&mut tx, &letter).await.map_err(failed("store a dead letter"))?;
        self.tables().remove_set(&mut tx, set).await.map_err(failed("remove chunks"))?;
        tx.commit().await.map_err(failed("commit the expiry of an incomplete message"))?;
        telemetry::incomplete(&letter.consumer);
        tracing::error!(consumer = letter.consumer, scope = letter.tenant, message_id = %letter.subject,
            error = letter.error, "an incomplete message was dead-lettered");
        Ok(Expired::DeadLettered)
    }
}
