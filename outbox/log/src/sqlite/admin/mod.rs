//! Operators' queries and decisions, in SQLite.

mod decisions;
mod statements;
mod status;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sqlx::{Sqlite, SqliteConnection};

use crate::admin::decision::{Batch, DecideError};
use crate::admin::status::{Picture, RelayStatus};
use crate::operators::{Operators, Verdicts};
use crate::sqlite::store::SqliteLog;
use crate::tables::Tables;
use crate::{LogError, RelayName};

impl Operators for SqliteLog {
    type Database = Sqlite;
    type Session = Box<SqliteConnection>;

    const IDLE_MAX: Duration = Duration::MAX;

    fn tables(&self) -> &Tables<Sqlite> {
        &self.tables
    }

    fn call_max(&self) -> Option<Duration> {
        None
    }

    async fn session(&self) -> Result<Box<SqliteConnection>, LogError> {
        self.connect().await.map(Box::new)
    }

    async fn find_relays(&self, only: Option<&RelayName>) -> Result<Vec<RelayStatus>, LogError> {
        self.status(&mut self.connect().await?, only).await
    }

    async fn find_picture(&self, relay: &RelayName) -> Result<Picture, LogError> {
        let mut connection = self.connect().await?;
        let found = self.status(&mut connection, Some(relay)).await?.pop();
        let errors = match &found {
            Some(status) => self.tables.errors(&mut connection, relay, &status.exceptions).await?,
            None => Vec::new(),
        };
        let pauses = self.tables.pauses(&mut connection, relay).await?;
        Ok(Picture { relay: found, blocker: None, pauses, errors, processes: None })
    }

    async fn decide_in(
        &self,
        session: &mut Box<SqliteConnection>,
        batch: Batch<'_>,
        _is_committing: &AtomicBool,
    ) -> Result<Verdicts, DecideError> {
        self.carry_out(session, batch).await
    }
}
