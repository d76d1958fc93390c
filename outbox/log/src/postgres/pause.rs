//! Pauses that operators have set, in PostgreSQL.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Connection, PgConnection, Postgres};
use time::OffsetDateTime;

use crate::postgres::store::PostgresLog;
use crate::{LogError, Pause, PauseScope, RelayName};

/// $1 relay.
pub(super) const PAUSES: &str = "
SELECT kind, name, actor, reason, paused_at FROM {schema}outbox_pause WHERE relay = $1 ORDER BY kind, name";

pub(super) const PAUSE: &str = "
INSERT INTO {schema}outbox_pause (relay, kind, name, actor, reason) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (relay, kind, name) DO NOTHING";

/// $4 the moment at which the pause began, or null for any.
pub(super) const RESUME: &str = "
DELETE FROM {schema}outbox_pause WHERE relay = $1 AND kind = $2 AND name = $3
    AND ($4::timestamptz IS NULL OR paused_at = $4)";

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
        read(&mut *self.look().await?, &self.render(PAUSES), relay).await
    }

    pub(super) async fn set_paused(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        signature: (&str, &str),
    ) -> Result<bool, LogError> {
        let (actor, reason) = signature;
        let statement = self.render(PAUSE);
        let query = sqlx::query(&statement).bind(relay.as_str()).bind(scope.kind()).bind(scope.name());
        self.decide("pause", query.bind(actor).bind(reason), relay, scope, signature).await
    }

    pub(super) async fn end_pause(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        since: Option<OffsetDateTime>,
        signature: (&str, &str),
    ) -> Result<bool, LogError> {
        let statement = self.render(RESUME);
        let query = sqlx::query(&statement).bind(relay.as_str()).bind(scope.kind()).bind(scope.name());
        self.decide("resume", query.bind(since), relay, scope, signature).await
    }

    /// Changes a pause and records who did it, or does neither. Returns whether it did.
    async fn decide(
        &self,
        action: &'static str,
        change: Query<'_, Postgres, PgArguments>,
        relay: &RelayName,
        scope: &PauseScope,
        signature: (&str, &str),
    ) -> Result<bool, LogError> {
        let failed = || LogError::during(action);
        let mut connection = self.admin().await?;
        let mut tx = connection.begin().await.map_err(failed())?;
        if change.execute(&mut *tx).await.map_err(failed())?.rows_affected() == 0 {
            return Ok(false);
        }
        self.note(&mut tx, relay, action, &scope.to_string(), signature).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(true)
    }
}
