//! A transaction that stays open, and so keeps the server from cleaning up.

use sqlx::{Connection, PgConnection};

use super::{Database, variable};
use crate::Failure;

/// The database in which it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pin {
    Nowhere,
    SameDatabase,
    OtherDatabase,
}

impl Pin {
    pub(crate) const ALL: [Self; 3] = [Self::Nowhere, Self::SameDatabase, Self::OtherDatabase];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nowhere => "none",
            Self::SameDatabase => "same database",
            Self::OtherDatabase => "another database",
        }
    }

    /// Opens the transaction, with a transaction id and a snapshot. It ends when the connection is
    /// dropped.
    pub(crate) async fn open(self, database: &Database) -> Result<Option<PgConnection>, Failure> {
        let url = match self {
            Self::Nowhere => return Ok(None),
            Self::SameDatabase => database.url.clone(),
            Self::OtherDatabase => variable("OUTBOX_POSTGRES_URL")?,
        };
        let mut connection = PgConnection::connect(&url).await?;
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()")
            .execute(&mut connection)
            .await?;
        Ok(Some(connection))
    }
}
