//! Operations that operators have carried out, in PostgreSQL.

use sqlx::{PgConnection, Row as _};

use crate::admin::Operation;
use crate::postgres::store::PostgresLog;
use crate::{LogError, RelayName};

/// $1 actor, $2 relay, $3 action, $4 selection, $5 note.
pub(super) const NOTE: &str = "
INSERT INTO {schema}outbox_operation (actor, relay, action, selection, note) VALUES ($1, $2, $3, $4, $5)";

pub(super) const OPERATIONS: &str = "
SELECT at, actor, action, selection, note FROM {schema}outbox_operation WHERE relay = $1 ORDER BY seq DESC LIMIT $2";

impl PostgresLog {
    /// Records an operation, in the connection's transaction if there is one.
    pub(super) async fn note(
        &self,
        connection: &mut PgConnection,
        relay: &RelayName,
        action: &str,
        selection: &str,
        (actor, note): (&str, &str),
    ) -> Result<(), sqlx::Error> {
        let statement = self.render(NOTE);
        let query = sqlx::query(&statement).bind(actor).bind(relay.as_str()).bind(action);
        query.bind(selection).bind(note).execute(connection).await.map(drop)
    }

    pub(super) async fn read_operations(
        &self,
        relay: &RelayName,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError> {
        let failed = || LogError::during("list operations");
        let statement = self.render(OPERATIONS);
        let query = sqlx::query(&statement).bind(relay.as_str()).bind(i64::from(records_max));
        let rows = query.fetch_all(&mut *self.look().await?).await.map_err(failed())?;
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
