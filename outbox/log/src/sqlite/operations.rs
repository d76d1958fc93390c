//! Operations that operators have carried out, in SQLite.

use sqlx::{Row as _, SqliteConnection};

use crate::admin::Operation;
use crate::admin::entry::at_micros;
use crate::sqlite::store::SqliteLog;
use crate::{LogError, RelayName};

/// ?1 actor, ?2 relay, ?3 action, ?4 selection, ?5 note.
const NOTE: &str =
    "INSERT INTO outbox_operation (actor, relay, action, selection, note) VALUES (?1, ?2, ?3, ?4, ?5)";

const OPERATIONS: &str = "SELECT at, actor, action, selection, note FROM outbox_operation WHERE relay = ?1 \
     ORDER BY seq DESC LIMIT ?2";

/// Records an operation, in the connection's transaction if there is one.
pub(super) async fn note(
    connection: &mut SqliteConnection,
    relay: &RelayName,
    action: &str,
    selection: &str,
    (actor, note): (&str, &str),
) -> Result<(), sqlx::Error> {
    let query = sqlx::query(NOTE).bind(actor).bind(relay.as_str()).bind(action);
    query.bind(selection).bind(note).execute(connection).await.map(drop)
}

impl SqliteLog {
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
