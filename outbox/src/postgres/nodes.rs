//! Numbers of nodes. Functions with the owner's rights change them, so that no producer can set an
//! epoch back.

use std::time::Duration;

use sqlx::PgConnection;

use crate::nodes::HeldNumber;
use crate::postgres::enqueue::Statements;

pub(super) async fn take(
    connection: &mut PgConnection,
    statements: &Statements,
    holder: &str,
    lease: Duration,
) -> Result<Option<HeldNumber>, sqlx::Error> {
    let taken: Option<(i64, i64)> = sqlx::query_as(&statements.take_node)
        .bind(holder)
        .bind(lease.as_secs_f64())
        .fetch_optional(connection)
        .await?;
    Ok(taken.map(|(number, epoch)| HeldNumber { number, epoch, holder: holder.to_owned() }))
}

pub(super) async fn renew(
    connection: &mut PgConnection,
    statements: &Statements,
    held: &HeldNumber,
    lease: Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(&statements.renew_node)
        .bind(held.number)
        .bind(held.epoch)
        .bind(&held.holder)
        .bind(lease.as_secs_f64())
        .fetch_one(connection)
        .await
}

pub(super) async fn release(
    connection: &mut PgConnection,
    statements: &Statements,
    held: &HeldNumber,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(&statements.release_node)
        .bind(held.number)
        .bind(held.epoch)
        .bind(&held.holder)
        .fetch_one(connection)
        .await
}
