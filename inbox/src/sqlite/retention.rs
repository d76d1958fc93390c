//! Retention of message ids on SQLite.

use sqlx::{Sqlite, SqliteConnection, SqlitePool};

use super::statements::{BEGIN_MEMORY, CLOCK, EXPIRE, RETAIN_FROM, Statements};
use super::values;
use crate::day::{Day, DayRange, floor};
use crate::dialect::{Reading, parts};
use crate::store_error::StoreError;

/// Maximum rows per statement when forgetting.
const EXPIRE_ROWS_MAX: i64 = 5_000;

impl parts::Retention for Sqlite {
    const DAYS_ARE_IMPLICIT: bool = true;

    async fn read_clock(
        connection: &mut SqliteConnection,
        _statements: &Statements,
    ) -> Result<Reading, sqlx::Error> {
        let (now, from): (i64, Option<i64>) = sqlx::query_as(CLOCK).fetch_one(connection).await?;
        Ok(Reading { now: values::time(now)?, retained_from: from.map(values::time).transpose()? })
    }

    async fn begin_memory(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        from: Day,
    ) -> Result<(), sqlx::Error> {
        let start = from.start();
        sqlx::query(BEGIN_MEMORY)
            .bind(values::micros(start))
            .bind(values::text(floor(start)))
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn days(
        _connection: &mut SqliteConnection,
        _statements: &Statements,
        DayRange { first, last }: DayRange,
    ) -> Result<Vec<Day>, sqlx::Error> {
        Ok(first.through(last).collect())
    }

    async fn create_days(
        _connection: &mut SqliteConnection,
        _statements: &Statements,
        _range: DayRange,
    ) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Stores the refusal first, then deletes a limited number of rows per transaction. If a run is
    /// interrupted, the next one finishes it.
    async fn expire(pool: &SqlitePool, _statements: &Statements, keep_from: Day) -> Result<u64, StoreError> {
        let start = keep_from.start();
        let failed = StoreError::during;
        sqlx::query(RETAIN_FROM)
            .bind(values::micros(start))
            .bind(values::text(floor(start)))
            .execute(pool)
            .await
            .map_err(failed("store from when the inbox remembers ids"))?;
        let mut expired = 0;
        loop {
            let chunk = sqlx::query(EXPIRE)
                .bind(values::text(floor(start)))
                .bind(EXPIRE_ROWS_MAX)
                .execute(pool)
                .await
                .map_err(failed("delete expired rows"))?
                .rows_affected();
            expired += chunk;
            if chunk == 0 {
                return Ok(expired);
            }
            tokio::task::yield_now().await;
        }
    }
}
