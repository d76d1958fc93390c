//! Retention of message ids on SQLite.

use migrations::query::Query;
use sqlx::{Sqlite, SqliteConnection, SqlitePool};

use crate::day::{Day, DayRange, floor};
use crate::dialect::parts;
use crate::store_error::StoreError;
use crate::tables::Tables;

/// Maximum rows per statement when forgetting.
const EXPIRE_ROWS_MAX: i64 = 5_000;

impl parts::Retention for Sqlite {
    const DAYS_ARE_IMPLICIT: bool = true;

    async fn begin_memory(
        connection: &mut SqliteConnection,
        tables: &Tables<Self>,
        from: Day,
    ) -> Result<(), sqlx::Error> {
        let start = from.start();
        let begin = Query::<Self>::new(&tables.own.begin_memory).bind(start).bind(floor(start));
        begin.run(connection).await.map(drop)
    }

    async fn days(
        _connection: &mut SqliteConnection,
        _tables: &Tables<Self>,
        DayRange { first, last }: DayRange,
    ) -> Result<Vec<Day>, sqlx::Error> {
        Ok(first.through(last).collect())
    }

    async fn create_days(
        _connection: &mut SqliteConnection,
        _tables: &Tables<Self>,
        _range: DayRange,
    ) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Stores the refusal first, then deletes a limited number of rows per transaction. If a run is
    /// interrupted, the next one finishes it.
    async fn expire(pool: &SqlitePool, tables: &Tables<Self>, keep_from: Day) -> Result<u64, StoreError> {
        let start = keep_from.start();
        let failed = StoreError::during;
        let refuse = Query::<Self>::new(&tables.own.retain_from).bind(start).bind(floor(start));
        let refused = async { refuse.run(&mut *pool.acquire().await?).await };
        refused.await.map_err(failed("store the time from which the inbox remembers ids"))?;
        let mut expired = 0;
        loop {
            let delete = Query::<Self>::new(&tables.own.expire).bind(floor(start)).bind(EXPIRE_ROWS_MAX);
            let deleted = async { delete.run(&mut *pool.acquire().await?).await };
            let rows = deleted.await.map_err(failed("delete expired rows"))?;
            expired += rows;
            if rows == 0 {
                return Ok(expired);
            }
            tokio::task::yield_now().await;
        }
    }
}
