//! Questions in the simple protocol: nothing is prepared, so that a pooler in between does not
//! mind.

use migrations::{Identifier, Template};
use sqlx::PgConnection;
use sqlx::postgres::PgRow;
use tokio::time::timeout;

use super::{TIME_LIMIT, Unreachable};

/// All rows.
pub(super) async fn rows(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    text: &'static str,
) -> Result<Vec<PgRow>, Unreachable> {
    run(connection, Template::new(text).schema(schema)).await
}

/// All rows of a statement in which the schema and everything else stands in its place.
pub(super) async fn run(
    connection: &mut PgConnection,
    template: Template,
) -> Result<Vec<PgRow>, Unreachable> {
    let statement = template.render();
    let asked = sqlx::raw_sql(&statement).fetch_all(connection);
    timeout(TIME_LIMIT, asked).await.map_err(|_| Unreachable::late())?.map_err(Unreachable::asking)
}
