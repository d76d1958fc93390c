//! Queries in the simple protocol. They prepare nothing, so they also work through a pooler.

use migrations::{Identifier, Template};
use sqlx::PgConnection;
use sqlx::postgres::PgRow;
use tokio::time::timeout;

use super::{TIME_LIMIT, Unreachable};

/// Returns all rows.
pub(super) async fn rows(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    text: &'static str,
) -> Result<Vec<PgRow>, Unreachable> {
    run(connection, Template::new(text).schema(schema)).await
}

/// Returns all rows of a statement whose placeholders are already filled.
pub(super) async fn run(
    connection: &mut PgConnection,
    template: Template,
) -> Result<Vec<PgRow>, Unreachable> {
    let statement = template.render();
    let asked = sqlx::raw_sql(&statement).fetch_all(connection);
    timeout(TIME_LIMIT, asked).await.map_err(|_| Unreachable::late())?.map_err(Unreachable::asking)
}
