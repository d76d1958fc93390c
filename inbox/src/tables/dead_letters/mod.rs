//! Dead letters.

mod decisions;
mod filtered;
mod held_keys;

pub(super) use filtered::slice;
use message::{Fingerprint, MessageId};
use migrations::query::{Query, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Tables, stored};
use crate::dead_letters::{DeadLetter, DeadLetterQuery, Resolution};
use crate::dialect::Dialect;
use crate::ids::{ConsumerName, DeadLetterId, Key};
use crate::rows;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Maximum dead letters of one delivery that are read.
const LETTERS_OF_DELIVERY_MAX: u32 = 1_000;

impl<DB: Dialect> Tables<DB> {
    /// Stores a dead letter, or counts one more delivery of it. Returns its id.
    pub(crate) async fn store_dead_letter(
        &self,
        connection: &mut DB::Connection,
        letter: &DeadLetter,
    ) -> Result<DeadLetterId> {
        let headers =
            serde_json::to_string(&letter.headers).map_err(|error| sqlx::Error::Encode(error.into()))?;
        let trace = letter.trace.as_ref();
        let row = Query::<DB>::new(&self.shared.store_dead_letter)
            .bind(letter.id.0)
            .bind(&letter.consumer)
            .bind(&letter.tenant)
            .bind(letter.subject)
            .bind(&letter.fingerprint.as_bytes()[..])
            .bind(letter.message_id.map(MessageId::as_uuid))
            .bind(&letter.topic)
            .bind(letter.key.as_deref())
            .bind(letter.kind.as_deref())
            .bind(letter.source.as_deref())
            .bind(letter.time)
            .bind(letter.content_type.as_deref())
            .bind(&headers)
            .bind(trace.map(|(traceparent, _)| traceparent.as_str()))
            .bind(trace.and_then(|(_, tracestate)| tracestate.as_deref()))
            .bind(&letter.payload[..])
            .bind(letter.reason.as_str())
            .bind(&letter.error)
            .bind(stored(letter.attempts))
            .bind(&letter.origin)
            .one(connection)
            .await?;
        rows::letter_id(&row)
    }

    /// Returns the fingerprint of a dead letter with this key that was not discarded. Of several,
    /// takes the one with the fewest deliveries.
    pub(crate) async fn fingerprint_of_dead_letter(
        &self,
        connection: &mut DB::Connection,
        key: Key<'_>,
    ) -> Result<Option<Fingerprint>> {
        let query = Query::<DB>::new(&self.shared.fingerprint_of_dead_letter);
        let found = query.bind(key.consumer).bind(key.tenant).bind(key.id).first(connection).await?;
        found.as_ref().map(rows::fingerprint).transpose()
    }

    /// Reads one; `lock` prevents others from resolving it until the transaction ends.
    pub(crate) async fn dead_letter(
        &self,
        connection: &mut DB::Connection,
        id: DeadLetterId,
        lock: bool,
    ) -> Result<Option<DeadLetter>> {
        let statement = if lock { &self.shared.lock_dead_letter } else { &self.shared.dead_letter };
        let found = Query::<DB>::new(statement).bind(id.0).first(connection).await?;
        found.as_ref().map(rows::letter).transpose()
    }

    /// Locks dead letters, and reads them without their payloads.
    pub(crate) async fn lock_letters(
        &self,
        connection: &mut DB::Connection,
        ids: &[Uuid],
    ) -> Result<Vec<DeadLetter>> {
        let found = Query::<DB>::new(&self.shared.lock_letters).bind(ids).rows(connection).await?;
        found.iter().map(rows::letter).collect()
    }

    /// Locks the dead letters of a message other than `id` that were not discarded: prevents others
    /// from resolving them until the transaction ends. Returns the closed ones, in the order of
    /// their arrival.
    pub(crate) async fn lock_others(
        &self,
        connection: &mut DB::Connection,
        key: Key<'_>,
        id: DeadLetterId,
    ) -> Result<Vec<DeadLetterId>> {
        let query = Query::<DB>::new(&self.shared.lock_others).bind(key.consumer).bind(key.tenant);
        let others = query.bind(key.id).bind(id.0).rows(connection).await?;
        let mut closed = Vec::new();
        for other in &others {
            if other.get("is_closed")? {
                closed.push(rows::letter_id(other)?);
            }
        }
        Ok(closed)
    }

    /// Reads the dead letters that match a query, oldest first.
    pub(crate) async fn dead_letters(
        &self,
        connection: &mut DB::Connection,
        query: &DeadLetterQuery,
    ) -> Result<Vec<DeadLetter>> {
        let sql = &self.shared;
        let statement = if query.resolved_too { &sql.dead_letters } else { &sql.open_dead_letters };
        let found = Query::<DB>::new(statement)
            .bind(query.consumer.as_ref().map(|consumer| consumer.as_str()))
            .bind(query.after.map(|id| id.0))
            .bind(query.limit.get())
            .bind(query.with_payloads)
            .rows(connection)
            .await?;
        letters(&found)
    }

    /// Reads the dead letters of a delivery, the open ones first, the newest first of each kind,
    /// with the columns of a list without payloads.
    pub(crate) async fn dead_letters_of(
        &self,
        connection: &mut DB::Connection,
        subject: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Vec<DeadLetter>> {
        let found = Query::<DB>::new(&self.shared.dead_letters_of)
            .bind(subject)
            .bind(consumer.map(ConsumerName::as_str))
            .bind(LETTERS_OF_DELIVERY_MAX)
            .bind(false)
            .rows(connection)
            .await?;
        letters(&found)
    }

    /// Resolves an open dead letter. Returns the number of rows changed.
    pub(crate) async fn resolve(
        &self,
        connection: &mut DB::Connection,
        id: DeadLetterId,
        resolution: Resolution,
    ) -> Result<u64> {
        let resolve = Query::<DB>::new(&self.shared.resolve).bind(id.0).bind(resolution.as_str());
        resolve.run(connection).await
    }

    /// Deletes dead letters that were resolved before a given time, except late applications: their
    /// row is the only record that the effect happened. Removes at most `limit`; returns the
    /// number.
    pub(crate) async fn purge_dead_letters(
        &self,
        connection: &mut DB::Connection,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64> {
        Query::<DB>::new(&self.shared.purge_dead_letters).bind(before).bind(limit).run(connection).await
    }
}

fn letters<DB: Dialect>(found: &[Row<DB>]) -> Result<Vec<DeadLetter>> {
    found.iter().map(rows::letter).collect()
}
