//! The table lock of both directions.

use std::time::Duration;

use operate::{OperateError, OperateErrorKind};
use sqlx::types::Json;
use sqlx::{PgConnection, Postgres, Transaction};

use super::facts::Facts;
use super::failed;
use super::sql::Sql;

/// Default timeout for the lock. New writers wait behind it meanwhile.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

const LOCK_NOT_AVAILABLE: &str = "55P03";

/// The transactions that have written to a table and are still open, longest first. $1 is the
/// table.
const WRITERS: &str = "
SELECT to_jsonb(f) FROM (
    SELECT a.pid::bigint AS pid, coalesce(a.usename::text, '') AS user, coalesce(a.application_name, '') AS application,
        coalesce(a.state, 'unknown') AS state, extract(epoch FROM clock_timestamp() - a.xact_start)::bigint AS seconds
    FROM pg_stat_activity AS a
    WHERE a.pid <> pg_backend_pid() AND EXISTS (SELECT FROM pg_locks AS l
        WHERE l.pid = a.pid AND l.relation = $1::bigint::oid AND l.granted AND l.mode <> 'AccessShareLock')
    ORDER BY a.xact_start LIMIT 3) AS f";

#[derive(serde::Deserialize)]
struct Writer {
    pid: i64,
    user: String,
    application: String,
    state: String,
    seconds: Option<i64>,
}

/// Takes the lock, or returns an error that names its holders.
pub(super) async fn take(
    tx: &mut Transaction<'_, Postgres>,
    sql: Sql<'_>,
    facts: &Facts,
    timeout: Duration,
) -> Result<(), OperateError> {
    for step in sql.lock(timeout) {
        let Err(error) = sqlx::raw_sql(&step.sql).execute(&mut **tx).await else { continue };
        let code = error.as_database_error().and_then(|error| error.code());
        if code.as_deref() != Some(LOCK_NOT_AVAILABLE) {
            return Err(failed(step.what)(error));
        }
        let text = format!(
            "could not lock {} within {}; nothing has changed",
            sql.adoption.table_name(),
            operate::units::Time(timeout)
        );
        sqlx::raw_sql("ROLLBACK").execute(&mut **tx).await.map_err(failed("roll back"))?;
        let oid = facts.table.as_ref().map_or(0, |table| table.oid);
        let writers = writers(tx, oid).await;
        let error = OperateError::new(OperateErrorKind::Unavailable, text);
        return Err(error.with_help(format_args!(
            "open transactions have written to it{writers}: try again, or raise --lock-timeout"
        )));
    }
    Ok(())
}

/// Describes the visible holders of locks on the table.
async fn writers(connection: &mut PgConnection, oid: i64) -> String {
    let found: Result<Vec<Json<Writer>>, _> =
        sqlx::query_scalar(WRITERS).bind(oid).fetch_all(connection).await;
    let told = found.unwrap_or_default().into_iter().map(|Json(writer)| {
        let Writer { pid, user, application, state, seconds } = writer;
        let seconds = seconds.map(|seconds| format!(" for {seconds}s")).unwrap_or_default();
        format!("pid {pid} of {user} {application:?}, {state}{seconds}")
    });
    let told = told.collect::<Vec<_>>().join("; ");
    if told.is_empty() { told } else { format!(" ({told})") }
}
