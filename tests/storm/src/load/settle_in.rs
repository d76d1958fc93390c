//! The beginning of a transaction in a storm, which differs by database.

use std::path::Path;

use harness::workload::Workload;
use sqlx::{PgConnection, Postgres, Sqlite, SqliteConnection};

use crate::faults::database::disk::SqliteFull;

/// A database that producers use.
pub(super) trait SettleIn: Workload {
    /// Begins the work of a transaction: sets its lock timeout and isolation level, and the limit
    /// of the file while the fault `disk-full` is active in the storm's folder.
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
