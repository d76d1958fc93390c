//! The event repository of cqrs-es over a transaction of the outbox.
//!
//! `postgres-es` has a pool and commits by itself, so an event that it stores and the message about
//! it could not commit together. This repository writes both through the caller's transaction,
//! which the caller commits.
//!
//! It stores events alone, for `PersistedEventStore::new_event_store`. Snapshots are refused: when
//! cqrs-es 0.5.0 makes one, it applies the events of a command to the aggregate a second time.

use cqrs_es::Aggregate;
use cqrs_es::persist::{
    PersistedEventRepository, PersistenceError, ReplayStream, SerializedEvent, SerializedSnapshot,
};
use outbox::{NewMessage, OutboxTransaction};
use serde_json::Value;
use sqlx::error::ErrorKind;
use sqlx::postgres::PgRow;
use sqlx::{Postgres, Row as _};
use tokio::sync::Mutex;

/// The table of the events. Its key is what makes one of two commands at the same time fail.
pub const TABLE: &str = "CREATE TABLE IF NOT EXISTS event (
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    sequence bigint NOT NULL CHECK (sequence > 0),
    kind text NOT NULL,
    version text NOT NULL,
    payload jsonb NOT NULL,
    metadata jsonb NOT NULL,
    PRIMARY KEY (aggregate_type, aggregate_id, sequence))";

const OF_ONE: &str = "SELECT * FROM event WHERE aggregate_type = $1 AND aggregate_id = $2 AND sequence > $3
    ORDER BY sequence";

const OF_ALL: &str = "SELECT * FROM event WHERE aggregate_type = $1 ORDER BY aggregate_id, sequence";

const INSERT: &str =
    "INSERT INTO event (aggregate_type, aggregate_id, sequence, kind, version, payload, metadata)
    VALUES ($1, $2, $3, $4, $5, $6, $7)";

/// Events in a transaction.
#[derive(Debug)]
pub struct Events<'t> {
    tx: Mutex<&'t mut OutboxTransaction<Postgres>>,
    message: fn(&SerializedEvent) -> NewMessage,
}

impl<'t> Events<'t> {
    /// Makes the repository from a transaction, and from the function that makes the message of an
    /// event.
    pub fn new(tx: &'t mut OutboxTransaction<Postgres>, message: fn(&SerializedEvent) -> NewMessage) -> Self {
        Self { tx: Mutex::new(tx), message }
    }

    async fn after<A: Aggregate>(
        &self,
        aggregate_id: &str,
        sequence: usize,
    ) -> Result<Vec<SerializedEvent>, PersistenceError> {
        let mut tx = self.tx.lock().await;
        let query = sqlx::query(OF_ONE).bind(A::TYPE).bind(aggregate_id).bind(number(sequence)?);
        let rows = query.fetch_all(&mut ***tx).await.map_err(failure)?;
        rows.iter().map(event).collect()
    }
}

impl PersistedEventRepository for Events<'_> {
    async fn get_events<A: Aggregate>(
        &self,
        aggregate_id: &str,
    ) -> Result<Vec<SerializedEvent>, PersistenceError> {
        self.after::<A>(aggregate_id, 0).await
    }

    async fn get_last_events<A: Aggregate>(
        &self,
        aggregate_id: &str,
        last_sequence: usize,
    ) -> Result<Vec<SerializedEvent>, PersistenceError> {
        self.after::<A>(aggregate_id, last_sequence).await
    }

    async fn get_snapshot<A: Aggregate>(
        &self,
        _aggregate_id: &str,
    ) -> Result<Option<SerializedSnapshot>, PersistenceError> {
        Err(no_snapshots())
    }

    /// Stores events, and enqueues their messages. The caller commits both.
    async fn persist<A: Aggregate>(
        &self,
        events: &[SerializedEvent],
        snapshot_update: Option<(String, Value, usize)>,
    ) -> Result<(), PersistenceError> {
        if snapshot_update.is_some() {
            return Err(no_snapshots());
        }
        let mut tx = self.tx.lock().await;
        for event in events {
            sqlx::query(INSERT)
                .bind(&event.aggregate_type)
                .bind(&event.aggregate_id)
                .bind(number(event.sequence)?)
                .bind(&event.event_type)
                .bind(&event.event_version)
                .bind(&event.payload)
                .bind(&event.metadata)
                .execute(&mut ***tx)
                .await
                .map_err(failure)?;
        }
        let messages = events.iter().map(self.message);
        tx.enqueue_batch(messages).await.map_err(|error| PersistenceError::UnknownError(error.into()))?;
        Ok(())
    }

    async fn stream_events<A: Aggregate>(
        &self,
        aggregate_id: &str,
    ) -> Result<ReplayStream, PersistenceError> {
        stream(self.after::<A>(aggregate_id, 0).await?).await
    }

    /// Streams all events, which it reads into memory first: the transaction cannot be read while
    /// the caller uses it.
    async fn stream_all_events<A: Aggregate>(&self) -> Result<ReplayStream, PersistenceError> {
        let mut tx = self.tx.lock().await;
        let rows = sqlx::query(OF_ALL).bind(A::TYPE).fetch_all(&mut ***tx).await.map_err(failure)?;
        stream(rows.iter().map(event).collect::<Result<_, _>>()?).await
    }
}

async fn stream(events: Vec<SerializedEvent>) -> Result<ReplayStream, PersistenceError> {
    let (mut feed, stream) = ReplayStream::new(events.len().max(1));
    for event in events {
        feed.push(Ok(event)).await?;
    }
    Ok(stream)
}

fn event(row: &PgRow) -> Result<SerializedEvent, PersistenceError> {
    let sequence: i64 = row.try_get("sequence").map_err(failure)?;
    Ok(SerializedEvent {
        aggregate_id: row.try_get("aggregate_id").map_err(failure)?,
        sequence: usize::try_from(sequence).map_err(|error| PersistenceError::UnknownError(error.into()))?,
        aggregate_type: row.try_get("aggregate_type").map_err(failure)?,
        event_type: row.try_get("kind").map_err(failure)?,
        event_version: row.try_get("version").map_err(failure)?,
        payload: row.try_get("payload").map_err(failure)?,
        metadata: row.try_get("metadata").map_err(failure)?,
    })
}

fn number(sequence: usize) -> Result<i64, PersistenceError> {
    i64::try_from(sequence).map_err(|error| PersistenceError::UnknownError(error.into()))
}

fn no_snapshots() -> PersistenceError {
    PersistenceError::UnknownError("this repository stores no snapshots: use new_event_store".into())
}

/// A sequence that is taken: another command was faster.
fn failure(error: sqlx::Error) -> PersistenceError {
    match &error {
        sqlx::Error::Database(known) if known.kind() == ErrorKind::UniqueViolation => {
            PersistenceError::OptimisticLockError
        }
        sqlx::Error::Database(_) => PersistenceError::UnknownError(error.into()),
        _ => PersistenceError::ConnectionError(error.into()),
    }
}
