//! Pauses that operators have set, in SQLite.

use sqlx::{Connection, Row as _, SqliteConnection};
use time::OffsetDateTime;

use crate::admin::Operation;
use crate::admin::entry::at_micros;
use crate::log::{LogError, Pause, PauseScope, RelayName};
use crate::sqlite::enqueue::micros;
use crate::sqlite::store::SqliteLog;

const PAUSES: &str =
    "SELECT kind, name, actor, reason, paused_at FROM outbox_pause WHERE relay = ?1 ORDER BY kind, name";

const PAUSE: &str = "INSERT INTO outbox_pause (relay, kind, name, actor, reason) VALUES (?1, ?2, ?3, ?4, ?5) \
     ON CONFLICT (relay, kind, name) DO NOTHING";

/// ?4 the moment at which the pause began, or null for any.
const RESUME: &str = "DELETE FROM outbox_pause WHERE relay = ?1 AND kind = ?2 AND name = ?3 \
     AND (?4 IS NULL OR paused_at = ?4)";

/// ?1 actor, ?2 relay, ?3 action, ?4 selection, ?5 note.
pub(super) const NOTE: &str =
    "INSERT INTO outbox_operation (actor, relay, action, selection, note) VALUES (?1, ?2, ?3, ?4, ?5)";

const OPERATIONS: &str = "SELECT at, actor, action, selection, note FROM outbox_operation WHERE relay = ?1 \
     ORDER BY seq DESC LIMIT ?2";

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
        let mut connection = self.connect().await?;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(LogError::during("pause"))?;
        let query = sqlx::query(PAUSE).bind(relay.as_str()).bind(scope.kind()).bind(scope.name());
        let changed = query.bind(actor).bind(reason).execute(&mut *tx).await;
        if changed.map_err(LogError::during("pause"))?.rows_affected() == 0 {
            return Ok(false);
        }
        self.note(&mut tx, relay, "pause", scope, signature).await?;
        tx.commit().await.map_err(LogError::during("pause"))?;
        Ok(true)
    }

    pub(super) async fn end_pause(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        since: Option<OffsetDateTime>,
        signature: (&str, &str),
    ) -> Result<bool, LogError> {
        let mut connection = self.connect().await?;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(LogError::during("resume"))?;
        let query = sqlx::query(RESUME).bind(relay.as_str()).bind(scope.kind()).bind(scope.name());
        let changed = query.bind(since.map(micros)).execute(&mut *tx).await;
        if changed.map_err(LogError::during("resume"))?.rows_affected() == 0 {
            return Ok(false);
        }
        self.note(&mut tx, relay, "resume", scope, signature).await?;
        tx.commit().await.map_err(LogError::during("resume"))?;
        Ok(true)
    }

    async fn note(
        &self,
        connection: &mut SqliteConnection,
        relay: &RelayName,
        action: &'static str,
        scope: &PauseScope,
        (actor, reason): (&str, &str),
    ) -> Result<(), LogError> {
        sqlx::query(NOTE)
            .bind(actor)
            .bind(relay.as_str())
            .bind(action)
            .bind(scope.to_string())
            .bind(reason)
            .execute(connection)
            .await
            .map_err(LogError::during(action))?;
        Ok(())
    }

    pub(super) async fn read_operations(
        &self,
        relay: &RelayName,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError> {
        let failed = || LogError::during("list operations");
        let query = sqlx::query(OPERATIONS).bind(relay.as_str()).bind(i64::from(records_max));
        let rows = query.fetch_all(&mut self.connect().await?).await.map_err(failed())?;
        let operation = |row: &sqlx::sqlite::SqliteRow| {
            Ok(Operation {
                at: at_micros(row.try_get("at")?),
                actor: row.try_get("actor")?,
                action: row.try_get("action")?,
                selection: row.try_get("selection")?,
                note: row.try_get("note")?,
            })
        };
        rows.iter().map(operation).collect::<Result<_, sqlx::Error>>().map_err(failed())
    }
}
