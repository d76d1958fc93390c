//! Reads an inbox to compare it with other records: one consumer, in the order of message ids, in
//! batches.

#[cfg(feature = "postgres")]
use std::time::Duration;

use async_trait::async_trait;
use message::Fingerprint;
use time::OffsetDateTime;
use uuid::Uuid;

use migrations::MigrateError;

use crate::name::{ConsumerName, Tenant};
use crate::store_error::StoreError;

/// A message that took effect and is remembered by the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// The message id.
    pub id: Uuid,
    /// The tenant for which it took effect; empty for none.
    pub scope: String,
    /// The fingerprint of event type, content type and payload, which must not change for this id.
    pub fingerprint: Fingerprint,
}

/// A message that a consumer knows and that has not taken effect.
///
/// The most urgent variant is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfinished {
    /// An operator discarded its dead letter, or it was closed in another way.
    Closed,
    /// It will be retried.
    Retrying,
    /// It is an open dead letter: an operator has to decide.
    DeadLetter,
}

impl Unfinished {
    /// Interprets the second column: null for an attempt, otherwise whether the dead letter is
    /// open.
    pub(crate) fn of(is_open: Option<bool>) -> Self {
        match is_open {
            None => Self::Retrying,
            Some(false) => Self::Closed,
            Some(true) => Self::DeadLetter,
        }
    }
}

/// A reader of the inbox of one consumer, for one tenant or all of them. Every call is one short
/// statement, on PostgreSQL in a read-only transaction. Not cancel-safe: after a dropped call, open
/// a new reader.
#[async_trait]
pub trait AppliedIds: Send {
    /// Returns the remembered messages whose (message id, tenant) is above `after` and whose id is
    /// at most `until`, ascending, at most `rows_max`.
    async fn page(
        &mut self,
        after: (Uuid, &str),
        until: Uuid,
        rows_max: u32,
    ) -> Result<Vec<Remembered>, StoreError>;

    /// Returns those of the given messages that are remembered.
    async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Remembered>, StoreError>;

    /// Returns those of the given messages that are known and unfinished. One id may appear several
    /// times.
    async fn unfinished(&mut self, ids: &[Uuid]) -> Result<Vec<(Uuid, Unfinished)>, StoreError>;

    /// Returns where memory begins. Messages generated before are not remembered.
    async fn retained_from(&mut self) -> Result<Option<OffsetDateTime>, StoreError>;
}

/// The consumer and tenant whose messages are read.
#[derive(Debug, Clone)]
pub struct Whose {
    /// The consumer.
    pub consumer: ConsumerName,
    /// One tenant, or all of them.
    pub scope: Option<Tenant>,
}

/// Opens an inbox in PostgreSQL. No statement takes longer than `statement_timeout`; zero sets no
/// limit.
///
/// # Errors
/// The schema does not match this build, or could not be read.
#[cfg(feature = "postgres")]
pub async fn postgres(
    connection: sqlx::PgConnection,
    schema: Option<&migrations::Identifier>,
    whose: Whose,
    statement_timeout: Duration,
) -> Result<Box<dyn AppliedIds>, MigrateError> {
    let opened = crate::postgres::PostgresMemory::open(connection, schema, whose, statement_timeout);
    Ok(Box::new(opened.await?))
}

/// Opens an inbox in SQLite.
///
/// # Errors
/// The schema does not match this build, or could not be read.
#[cfg(feature = "sqlite")]
pub async fn sqlite(
    connection: sqlx::SqliteConnection,
    whose: Whose,
) -> Result<Box<dyn AppliedIds>, MigrateError> {
    Ok(Box::new(crate::sqlite::SqliteMemory::open(connection, whose).await?))
}
