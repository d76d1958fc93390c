//! Pauses that operators have set, in PostgreSQL.

use sqlx::{Connection, PgConnection, Row as _};
use time::OffsetDateTime;

use crate::admin::Operation;
use crate::log::{LogError, Pause, PauseScope, RelayName};
use crate::postgres::store::PostgresLog;

/// $1 relay.
pub(super) const PAUSES: &str = "
SELECT kind, name, actor, reason, paused_at FROM {schema}outbox_pause WHERE relay = $1 ORDER BY kind, name";

const PAUSE: &str = "
INSERT INTO {schema}outbox_pause (relay, kind, name, actor, reason) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (relay, kind, name) DO NOTHING";

/// $4 the moment at which the pause began, or null for any.
const RESUME: &str = "
DELETE FROM {schema}outbox_pause WHERE relay = $1 AND kind = $2 AND name = $3
    AND ($4::timestamptz IS NULL OR paused_at = $4)";

/// $1 actor, $2 relay, $3 action, $4 selection, $5 note.
pub(super) const NOTE: &str = "
INSERT INTO {schema}outbox_operation (actor, relay, action, selection, note) VALUES ($1, $2, $3, $4, $5)";

const OPERATIONS: &str = "
SELECT at, actor, action, selection, note FROM {schema}outbox_operation WHERE relay = $1 ORDER BY seq DESC LIMIT $2";

/// Reads the pauses of a relay with the rendered statement [`PAUSES`].
pub(super) async fn read(
    connection: &mut PgConnection,
    statement: &migrations::Statement,
    relay: &RelayName,
) -> Result<Vec<Pause>, LogError> {
    let rows: Vec<(String, String, String, String, OffsetDateTime)> = sqlx::query_as(statement)
        .bind(relay.as_str())
        .fetch_all(connection)
        .await
        .map_err(LogError::during("look for pauses"))?;
    let pause = |(kind, name, actor, reason, since): (String, String, String, String, OffsetDateTime)| {
        Ok(Pause { scope: PauseScope::stored(&kind, name)?, actor, reason, since })
    };
    rows.into_iter().map(pause).collect()
}

impl PostgresLog {
    pub(super) async fn read_pauses(&self, relay: &RelayName) -> Result<Vec<Pause>, LogError> {
        read(&mut *self.admin().await?, &self.render(PAUSES), relay).await
    }

    pub(super) async fn set_paused(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        signature: (&str, &str),
    ) -> Result<bool, LogError> {
        let (actor, reason) = signature;
        let mut connection = self.admin().await?;
        let mut tx = connection.begin().await.map_err(LogError::during("pause"))?;
        let query =
            sqlx::query(&self.render(PAUSE)).bind(relay.as_str()).bind(scope.kind()).bind(scope.name());
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
        let mut connection = self.admin().await?;
        let mut tx = connection.begin().await.map_err(LogError::during("resume"))?;
        let query =
            sqlx::query(&self.render(RESUME)).bind(relay.as_str()).bind(scope.kind()).bind(scope.name());
        let changed = query.bind(since).execute(&mut *tx).await;
        if changed.map_err(LogError::during("resume"))?.rows_affected() == 0 {
            return Ok(false);
        }
        self.note(&mut tx, relay, "resume", scope, signature).await?;
        tx.commit().await.map_err(LogError::during("resume"))?;
        Ok(true)
    }

    async fn note(
        &self,
        connection: &mut PgConnection,
        relay: &RelayName,
        action: &'static str,
        scope: &PauseScope,
        (actor, reason): (&str, &str),
    ) -> Result<(), LogError> {
        sqlx::query(&self.render(NOTE))
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
        let statement = self.render(OPERATIONS);
        let query = sqlx::query(&statement).bind(relay.as_str()).bind(i64::from(records_max));
        let rows = query.fetch_all(&mut *self.admin().await?).await.map_err(failed())?;
        let operation = |row: &sqlx::postgres::PgRow| {
            Ok(Operation {
                at: row.try_get("at")?,
                actor: row.try_get("actor")?,
                action: row.try_get("action")?,
                selection: row.try_get("selection")?,
                note: row.try_get("note")?,
            })
        };
        rows.iter().map(operation).collect::<Result<_, sqlx::Error>>().map_err(failed())
    }
}
