//! Counters of the server, which are the same on a busy machine as on a quiet one.

use sqlx::{Connection, PgConnection};

use super::Database;
use crate::Failure;

/// The position of the cluster's WAL at one moment. Sessions report their syncs at the latest when
/// they end, so close pools first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wal {
    bytes: i64,
    syncs: i64,
}

/// The growth of the WAL between two points in time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WalUse {
    pub(crate) bytes: f64,
    pub(crate) syncs: f64,
}

impl Wal {
    pub(crate) async fn now(database: &Database) -> Result<Self, Failure> {
        let mut connection = PgConnection::connect(&database.url).await?;
        let (bytes, syncs) = sqlx::query_as(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, wal_sync FROM pg_stat_wal",
        )
        .fetch_one(&mut connection)
        .await?;
        connection.close().await?;
        Ok(Self { bytes, syncs })
    }

    /// Returns the growth of the WAL since then.
    pub(crate) async fn since(self, database: &Database) -> Result<WalUse, Failure> {
        let now = Self::now(database).await?;
        // Both values are far below 2^53.
        Ok(WalUse { bytes: (now.bytes - self.bytes) as f64, syncs: (now.syncs - self.syncs) as f64 })
    }
}
