//! How a transaction of a storm begins, which differs by database.

use std::path::Path;

use harness::workload::Workload;
use sqlx::{PgConnection, Postgres, Sqlite, SqliteConnection};

use crate::faults::database::disk::SqliteFull;

/// A database that producers work on.
pub(super) trait SettleIn: Workload {
    /// Begins the work of a transaction: how long it waits for locks, how isolated it is, how large
    /// a file may be (what the storm's folder says).
    fn settle_in(
        connection: &mut Self::Connection,
        serializable: bool,
        folder: &Path,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

impl SettleIn for Postgres {
    async fn settle_in(connection: &mut PgConnection, serializable: bool, _: &Path) -> sqlx::Result<()> {
        let statements = if serializable {
            "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SET LOCAL lock_timeout = '3s'"
        } else {
            "SET LOCAL lock_timeout = '3s'"
        };
        sqlx::raw_sql(statements).execute(connection).await.map(drop)
    }
}

impl SettleIn for Sqlite {
    async fn settle_in(connection: &mut SqliteConnection, _: bool, folder: &Path) -> sqlx::Result<()> {
        SqliteFull::obey(connection, folder).await
    }
}
