//! The outbox as somebody reads it who compares it with what happened elsewhere: in the order of
//! message ids, in pages, each row with what the relay says of it.

#[cfg(feature = "postgres")]
use std::time::Duration;

use async_trait::async_trait;
use message::Fingerprint;
use uuid::Uuid;

use crate::entries::Labels;
use crate::log::{ExceptionState, LogError, RelayName};

/// How far the relay has come with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The stored cursor has not passed it.
    Ahead,
    /// The stored cursor has passed it, and nothing of it is parked: the broker has confirmed it.
    Passed,
    /// It is parked.
    Beside(ExceptionState),
    /// An operator gave it up, and the relay has taken that up: the stored cursor has passed it,
    /// nothing of it is parked, and the relay never publishes it.
    Discarded,
    /// It is left to other relays: nothing is expected of this one. The outbox does not know; who
    /// knows what the relay leaves out says so.
    LeftOut,
}

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The message id.
    pub id: Uuid,
    /// Where it is to be published.
    pub topic: String,
    /// Its kind and headers.
    pub labels: Labels,
    /// The fingerprint of the message, as an inbox stores it.
    pub fingerprint: Fingerprint,
    /// How far the relay has come with it.
    pub stage: Stage,
    /// Whether an operator has edited it, so that what was published may differ from the row.
    pub edited: bool,
}

/// Reads the outbox of one relay. Every call is one short read-only transaction, in which rows,
/// cursor and exceptions belong together. Not cancel-safe: after a call that was dropped, open
/// another one.
#[async_trait]
pub trait Rows: Send {
    /// Rows with message ids above `after` and up to `until`, ascending, at most `rows_max`.
    async fn page(&mut self, after: Uuid, until: Uuid, rows_max: u32) -> Result<Vec<Row>, LogError>;

    /// The rows of these messages, ascending.
    async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Row>, LogError>;

    /// The smallest message id above all that retention has removed: below it nothing can be said
    /// any more.
    async fn first(&mut self) -> Result<Option<Uuid>, LogError>;
}

/// The outbox of a relay in PostgreSQL.
///
/// # Errors
/// [`LogError::Operator`] when the schema does not fit.
#[cfg(feature = "postgres")]
pub async fn postgres(
    connection: sqlx::PgConnection,
    schema: Option<&migrations::Identifier>,
    relay: &RelayName,
) -> Result<Box<dyn Rows>, LogError> {
    postgres_within(connection, schema, relay, Duration::ZERO).await
}

/// The outbox of a relay in PostgreSQL, where no statement takes longer than this; zero sets no
/// limit.
///
/// # Errors
/// [`LogError::Operator`] when the schema does not fit.
#[cfg(feature = "postgres")]
pub async fn postgres_within(
    connection: sqlx::PgConnection,
    schema: Option<&migrations::Identifier>,
    relay: &RelayName,
    statement_timeout: Duration,
) -> Result<Box<dyn Rows>, LogError> {
    let opened = crate::postgres::PostgresRows::open(connection, schema, relay, statement_timeout);
    Ok(Box::new(opened.await?))
}

/// The outbox of a relay in SQLite.
///
/// # Errors
/// [`LogError::Operator`] when the schema does not fit.
#[cfg(feature = "sqlite")]
pub async fn sqlite(
    connection: sqlx::SqliteConnection,
    relay: &RelayName,
) -> Result<Box<dyn Rows>, LogError> {
    Ok(Box::new(crate::sqlite::SqliteRows::open(connection, relay).await?))
}

/// Returns the stage that the columns `state`, `passed` and `discarded` give together. What the
/// cursor has not passed is still owed, whatever was decided before it was set back.
pub(crate) fn stage(state: Option<&str>, passed: bool, discarded: bool) -> Result<Stage, LogError> {
    match state {
        None if passed && discarded => Ok(Stage::Discarded),
        None if passed => Ok(Stage::Passed),
        None => Ok(Stage::Ahead),
        Some(state) => {
            state.parse().map(Stage::Beside).map_err(|error: crate::log::exception::UnknownState| {
                LogError::Corrupt { what: "exception", problem: error.to_string() }
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_counts_only_where_the_relay_has_passed_the_row_and_nothing_is_parked() {
        let table = [
            (None, true, true, Stage::Discarded),
            (None, true, false, Stage::Passed),
            (None, false, true, Stage::Ahead),
            (None, false, false, Stage::Ahead),
            (Some("dead"), true, true, Stage::Beside(ExceptionState::Dead)),
            (Some("discarded"), true, true, Stage::Beside(ExceptionState::Discarded)),
        ];
        for (state, passed, discarded, expected) in table {
            assert_eq!(stage(state, passed, discarded).unwrap(), expected, "{state:?} {passed} {discarded}");
        }
    }
}
