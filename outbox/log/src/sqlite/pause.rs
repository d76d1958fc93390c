//! Pauses that operators have set, in SQLite.

use outbox::sqlite::clock::micros;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Connection, Sqlite, SqliteConnection};
use time::OffsetDateTime;

use crate::admin::entry::at_micros;
use crate::sqlite::operations;
use crate::sqlite::store::SqliteLog;
use crate::{LogError, Pause, PauseScope, RelayName};

const PAUSES: &str =
    "SELECT kind, name, actor, reason, paused_at FROM outbox_pause WHERE relay = ?1 ORDER BY kind, name";

const PAUSE: &str = "INSERT INTO outbox_pause (relay, kind, name, actor, reason) VALUES (?1, ?2, ?3, ?4, ?5) \
     ON CONFLICT (relay, kind, name) DO NOTHING";

/// ?4 the moment at which the pause began, or null for any.
const RESUME: &str = "DELETE FROM outbox_pause WHERE relay = ?1 AND kind = ?2 AND name = ?3 \
     AND (?4 IS NULL OR paused_at = ?4)";

/// Reads the pauses of a relay.
pub(super) async fn read(
    connection: &mut SqliteConnection,
    relay: &RelayName,
) -> Result<Vec<Pause>, LogError> {
    let rows: Vec<(String, String, String, String, i64)> = sqlx::query_as(PAUSES)
        .bind(relay.as_str())
        .fetch_all(connection)
        .await
        .map_err(LogError::during("look for pauses"))?;
    let pause = |(kind, name, actor, reason, since): (String, String, String, String, i64)| {
        Ok(Pause { scope: PauseScope::stored(&kind, name)?, actor, reason, since: at_micros(since) })
    };
    rows.into_iter().map(pause).collect()
}

impl SqliteLog {
    pub(super) async fn read_pauses(&self, relay: &RelayName) -> Result<Vec<Pause>, LogError> {
        read(&mut self.connect().await?, relay).await
    }

    pub(super) async fn set_paused(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        signature: (&str, &str),
    ) -> Result<bool, LogError> {
        let (actor, reason) = signature;
        let query = sqlx::query(PAUSE).bind(relay.as_str()).bind(scope.kind()).bind(scope.name());
        self.decide("pause", query.bind(actor).bind(reason), relay, scope, signature).await
    }

    pub(super) async fn end_pause(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        since: Option<OffsetDateTime>,
        signature: (&str, &str),
    ) -> Result<bool, LogError> {
        let query = sqlx::query(RESUME).bind(relay.as_str()).bind(scope.kind()).bind(scope.name());
        self.decide("resume", query.bind(since.map(micros)), relay, scope, signature).await
    }

    /// Changes a pause and records who did it, or does neither. Returns whether it did.
    async fn decide(
        &self,
        action: &'static str,
        change: Query<'_, Sqlite, SqliteArguments>,
        relay: &RelayName,
        scope: &PauseScope,
        signature: (&str, &str),
    ) -> Result<bool, LogError> {
        let failed = || LogError::during(action);
        let mut connection = self.connect().await?;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        if change.execute(&mut *tx).await.map_err(failed())?.rows_affected() == 0 {
            return Ok(false);
        }
        operations::note(&mut tx, relay, action, &scope.to_string(), signature).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(true)
    }
}
