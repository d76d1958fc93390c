//! An inbox as somebody reads it who compares it with what happened elsewhere: one consumer, in the
//! order of message ids, in pages.

#[cfg(feature = "postgres")]
use std::time::Duration;

use async_trait::async_trait;
use message::Fingerprint;
use time::OffsetDateTime;
use uuid::Uuid;

use migrations::MigrateError;

use crate::name::{ConsumerName, Tenant};
use crate::store_error::StoreError;

/// A message that took effect, as the inbox remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// The message id.
    pub id: Uuid,
    /// The scope in which it took effect; empty for none.
    pub scope: String,
    /// The fingerprint of event type, content type and payload, which must not change under this
    /// id.
    pub fingerprint: Fingerprint,
}

/// A message that a consumer knows and that took no effect so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// It is tried again.
    Retrying,
    /// It is among the dead letters, or an operator has decided about it there.
    DeadLetter,
}

impl Unfinished {
    /// Reads the second column: whether the message is a dead letter.
    pub(crate) fn of(dead: bool) -> Self {
        if dead { Self::DeadLetter } else { Self::Retrying }
    }
}

/// Reads the inbox of one consumer, in one scope or in all of them. Every call is one short
/// statement, on PostgreSQL in a read-only transaction. Not cancel-safe: after a call that was
/// dropped, open another one.
#[async_trait]
pub trait AppliedIds: Send {
    /// Returns the messages remembered with (message id, scope) above `after` and an id up to
    /// `until`, ascending, at most `rows_max`.
    async fn page(
        &mut self,
        after: (Uuid, &str),
        until: Uuid,
        rows_max: u32,
    ) -> Result<Vec<Remembered>, StoreError>;

    /// Returns those of these messages that are remembered.
    async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Remembered>, StoreError>;

    /// Which of these messages are known and unfinished.
    async fn unfinished(&mut self, ids: &[Uuid]) -> Result<Vec<(Uuid, Unfinished)>, StoreError>;

    /// Where memory begins: of messages generated before, nothing is remembered any more.
    async fn retained_from(&mut self) -> Result<Option<OffsetDateTime>, StoreError>;
}

/// Whose memory.
#[derive(Debug, Clone)]
pub struct Whose {
    /// The consumer.
    pub consumer: ConsumerName,
    /// One scope, or all of them.
    pub scope: Option<Tenant>,
}

/// An inbox in PostgreSQL, where no statement takes longer than `statement_timeout`; zero sets no
/// limit.
///
/// # Errors
/// The schema does not fit, or could not be looked at.
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

/// An inbox in SQLite.
///
/// # Errors
/// The schema does not fit, or could not be looked at.
#[cfg(feature = "sqlite")]
pub async fn sqlite(
    connection: sqlx::SqliteConnection,
    whose: Whose,
) -> Result<Box<dyn AppliedIds>, MigrateError> {
    Ok(Box::new(crate::sqlite::SqliteMemory::open(connection, whose).await?))
}
