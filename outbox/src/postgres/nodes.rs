//! Numbers of nodes. Functions with the owner's rights change them, so that no producer can turn an
//! epoch back.

use std::time::Duration;

use migrations::{Identifier, Statement, Template};
use sqlx::PgConnection;

/// The statements.
#[derive(Debug)]
pub(super) struct NodeStatements {
    take: Statement,
    renew: Statement,
    release: Statement,
}

impl NodeStatements {
    pub(super) fn new(schema: Option<&Identifier>) -> Self {
        let render = |text| Template::new(text).schema(schema).render();
        Self { take: render(TAKE), renew: render(RENEW), release: render(RELEASE) }
    }
}

const TAKE: &str =
    "SELECT number::bigint, epoch FROM {schema}outbox_take_node($1, make_interval(secs => $2))";
const RENEW: &str = "SELECT {schema}outbox_renew_node($1::integer, $2, make_interval(secs => $3))";
const RELEASE: &str = "SELECT {schema}outbox_release_node($1::integer, $2)";

pub(super) async fn take(
    connection: &mut PgConnection,
    statements: &NodeStatements,
    holder: &str,
    lease: Duration,
) -> Result<Option<(i64, i64)>, sqlx::Error> {
    sqlx::query_as(&statements.take).bind(holder).bind(lease.as_secs_f64()).fetch_optional(connection).await
}

pub(super) async fn renew(
    connection: &mut PgConnection,
    statements: &NodeStatements,
    (number, epoch): (i64, i64),
    lease: Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(&statements.renew)
        .bind(number)
        .bind(epoch)
        .bind(lease.as_secs_f64())
        .fetch_one(connection)
        .await
}

pub(super) async fn release(
    connection: &mut PgConnection,
    statements: &NodeStatements,
    (number, epoch): (i64, i64),
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(&statements.release).bind(number).bind(epoch).fetch_one(connection).await
}
