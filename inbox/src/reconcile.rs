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
///
/// The most pressing one is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfinished {
    /// An operator gave its dead letter up, or closed it in another way.
    Closed,
    /// It is tried again.
    Retrying,
    /// It is an open dead letter: an operator has to decide.
    DeadLetter,
}

impl Unfinished {
    /// Reads the second column: null of an attempt, else whether the dead letter is open.
    pub(crate) fn of(is_open: Option<bool>) -> Self {
        match is_open {
            None => Self::Retrying,
            Some(false) => Self::Closed,
            Some(true) => Self::DeadLetter,
        }
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

    /// Which of these messages are known and unfinished; one of them may come several times.
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
