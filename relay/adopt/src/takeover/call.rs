//! Calls to the database, and their time limits: a connection can be lost without notice, and
//! producers wait behind the lock.

use std::time::Duration;

use migrations::SqlErrorKind;
use operate::{OperateError, OperateErrorKind};
use outbox_log::in_time;
use sqlx::{Connection as _, PgConnection, Postgres, Transaction};

use super::sql::Step;

/// Limit for a call whose duration depends on the size of the table.
const LONG_CALL_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The time limits of one command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// For a call that reads or changes the catalogs.
    short: Duration,
    /// Additional time that a call may wait for a lock.
    lock: Duration,
}

impl Limit {
    pub(super) fn new(call_timeout: Duration) -> Self {
        Self { short: call_timeout, lock: Duration::ZERO }
    }

    /// Returns the limits for calls that also wait for a lock.
    pub(super) fn with_lock(self, timeout: Duration) -> Self {
        Self { lock: timeout, ..self }
    }

    /// Waits for a call that does not depend on the size of the table.
    pub(super) async fn short<T>(
        self,
        call: impl Future<Output = Result<T, OperateError>>,
    ) -> Result<T, OperateError> {
        within(self.short.saturating_add(self.lock), call).await
    }

    /// Waits for a call that reads or writes rows of the table.
    pub(super) async fn long<T>(
        self,
        call: impl Future<Output = Result<T, OperateError>>,
    ) -> Result<T, OperateError> {
        within(LONG_CALL_TIMEOUT.saturating_add(self.lock), call).await
    }
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, OperateError>>,
) -> Result<T, OperateError> {
    let late = |error| {
        OperateError::from(error).with_help(
            "nothing has changed, and the server ends the transaction of a lost connection after 10s: check the \
             network, and try again",
        )
    };
    in_time(limit, call).await.map_err(late)?
}

/// Begins a transaction in which each statement sees everything committed before it, so the lock
/// comes first.
pub(super) async fn begin(connection: &mut PgConnection) -> Result<Transaction<'_, Postgres>, OperateError> {
    let begun = connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await;
    begun.map_err(failed("begin"))
}

/// Runs a step, and returns the number of its rows.
pub(super) async fn run(
    connection: &mut PgConnection,
    step: &Step,
    limit: Limit,
) -> Result<u64, OperateError> {
    let ran = async {
        let done = sqlx::raw_sql(&step.sql).execute(connection).await;
        done.map(|done| done.rows_affected()).map_err(failed(step.what))
    };
    if step.is_long { limit.long(ran).await } else { limit.short(ran).await }
}

/// For `map_err`: names the failed action.
pub(super) fn failed(what: &'static str) -> impl FnOnce(sqlx::Error) -> OperateError {
    move |error| {
        let told = message::error_text::chain(&error);
        match SqlErrorKind::of(&error) {
            SqlErrorKind::Refused => OperateError::new(
                OperateErrorKind::Refused,
                format!("the database refused to {what}: {told}"),
            ),
            _ => OperateError::new(OperateErrorKind::Unavailable, format!("could not {what}: {told}")),
        }
    }
}
