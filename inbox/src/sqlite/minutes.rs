//! Counts of consumers per minute, on SQLite.

use sqlx::{Sqlite, SqliteConnection};
use time::OffsetDateTime;

use super::statements::{ADD_COUNTS, COUNTS, PURGE_MINUTES, Statements};
use super::values::micros;
use crate::dialect::parts;
use crate::minutes::Counts;

impl parts::Minutes for Sqlite {
    async fn add_counts(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        consumer: &str,
        counts: Counts,
    ) -> Result<(), sqlx::Error> {
        let [applied, duplicates] = counts.columns();
        let query = sqlx::query(ADD_COUNTS).bind(consumer).bind(applied).bind(duplicates);
        query.execute(connection).await.map(drop)
    }

    async fn counts(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        from: OffsetDateTime,
    ) -> Result<Vec<(String, i64, i64)>, sqlx::Error> {
        sqlx::query_as(COUNTS).bind(micros(from)).fetch_all(connection).await
    }

    async fn purge_minutes(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        before: OffsetDateTime,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(PURGE_MINUTES).bind(micros(before)).execute(connection).await.map(drop)
    }
}
