//! Counts of consumers per minute, on PostgreSQL.

use sqlx::{PgConnection, Postgres};
use time::OffsetDateTime;

use super::statements::Statements;
use crate::dialect::parts;
use crate::minutes::Counts;

impl parts::Minutes for Postgres {
    async fn add_counts(
        connection: &mut PgConnection,
        statements: &Statements,
        consumer: &str,
        counts: Counts,
    ) -> Result<(), sqlx::Error> {
        let [applied, duplicates] = counts.columns();
        let query = sqlx::query(&statements.add_counts).bind(consumer).bind(applied).bind(duplicates);
        query.execute(connection).await.map(drop)
    }

    async fn counts(
        connection: &mut PgConnection,
        statements: &Statements,
        from: OffsetDateTime,
    ) -> Result<Vec<(String, i64, i64)>, sqlx::Error> {
        sqlx::query_as(&statements.counts).bind(from).fetch_all(connection).await
    }

    async fn purge_minutes(
        connection: &mut PgConnection,
        statements: &Statements,
        before: OffsetDateTime,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(&statements.purge_minutes).bind(before).execute(connection).await.map(drop)
    }
}
