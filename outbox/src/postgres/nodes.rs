//! Numbers of nodes. Functions with the owner's rights change them, so that no producer can set an
//! epoch back.

use std::time::Duration;

use sqlx::PgConnection;

use crate::postgres::enqueue::Statements;

pub(super) async fn take(
    connection: &mut PgConnection,
    statements: &Statements,
    holder: &str,
    lease: Duration,
) -> Result<Option<(i64, i64)>, sqlx::Error> {
    sqlx::query_as(&statements.take_node)
        .bind(holder)
        .bind(lease.as_secs_f64())
        .fetch_optional(connection)
        .await
}

pub(super) async fn renew(
    connection: &mut PgConnection,
    statements: &Statements,
    (number, epoch): (i64, i64),
    lease: Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(&statements.renew_node)
        .bind(number)
        .bind(epoch)
        .bind(lease.as_secs_f64())
        .fetch_one(connection)
        .await
}

pub(super) async fn release(
    connection: &mut PgConnection,
    statements: &Statements,
    (number, epoch): (i64, i64),
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(&statements.release_node).bind(number).bind(epoch).fetch_one(connection).await
}
