//! Pauses that operators have set, in SQLite.

use sqlx::{Connection, Row as _, SqliteConnection};

use crate::admin::Operation;
use crate::admin::entry::at_micros;
use crate::log::{LogError, Pause, PauseScope, RelayName};
use crate::sqlite::store::SqliteLog;

const PAUSES: &str =
    "SELECT kind, name, actor, reason, paused_at FROM outbox_pause WHERE relay = ?1 ORDER BY kind, name";

const PAUSE: &str = "INSERT INTO outbox_pause (relay, kind, name, actor, reason) VALUES (?1, ?2, ?3, ?4, ?5) \
     ON CONFLICT (relay, kind, name) DO NOTHING";

const RESUME: &str = "DELETE FROM outbox_pause WHERE relay = ?1 AND kind = ?2 AND name = ?3";

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
        is_paused: bool,
        (actor, reason): (&str, &str),
    ) -> Result<bool, LogError> {
        let failed = || LogError::during(if is_paused { "pause" } else { "resume" });
        let mut connection = self.connect().await?;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        let query = sqlx::query(if is_paused { PAUSE } else { RESUME });
        let query = query.bind(relay.as_str()).bind(scope.kind()).bind(scope.name());
        let query = if is_paused { query.bind(actor).bind(reason) } else { query };
        let changed = query.execute(&mut *tx).await.map_err(failed())?.rows_affected();
        if changed == 0 {
            return Ok(false);
        }
        sqlx::query(NOTE)
            .bind(actor)
            .bind(relay.as_str())
            .bind(if is_paused { "pause" } else { "resume" })
            .bind(scope.to_string())
            .bind(reason)
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(true)
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
