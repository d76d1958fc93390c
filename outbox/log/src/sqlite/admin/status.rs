//! The progress of the relays.

use sqlx::{Row as _, SqliteConnection};

use super::statements::SQL;
use crate::admin::entry::due;
use crate::admin::status::{Backlog, Holder, RelayStatus, taken_for};
use crate::sqlite::mark::id_of;
use crate::sqlite::store::SqliteLog;
use crate::{Cursor, EntryId, LogError, RelayName, row, stored};

impl SqliteLog {
    /// Returns all relays, or one.
    pub(super) async fn status(
        &self,
        connection: &mut SqliteConnection,
        only: Option<&RelayName>,
    ) -> Result<Vec<RelayStatus>, LogError> {
        let failed = || LogError::during("describe the relays");
        let rows = sqlx::query(&SQL.relays).bind(only.map(RelayName::as_str));
        let rows = rows.fetch_all(&mut *connection).await.map_err(failed())?;
        let mut relays = Vec::new();
        for row in rows {
            let relay: String = row.try_get("relay").map_err(failed())?;
            let holder: Option<String> = row.try_get("holder").map_err(failed())?;
            let expires_in: Option<f64> = row.try_get("expires_in").map_err(failed())?;
            let cursor: String = row.try_get("cursor").map_err(failed())?;
            let checkpoint_age = due(row.try_get("age").map_err(failed())?).unwrap_or_default();
            let taken_for = taken_for(&cursor, checkpoint_age);
            let (cursor, broker_trouble) = (stored::read(&cursor)?, stored::read_trouble(&cursor));
            let (summary, age) = self.tables.parked(&mut *connection, &relay).await?;
            let backlog = summary.add_to(backlog(&mut *connection, &cursor).await?, age);
            relays.push(RelayStatus {
                relay,
                epoch: row.try_get("epoch").map_err(failed())?,
                standbys: None,
                holder: holder.map(|name| Holder::of(name, expires_in)),
                checkpoint_age,
                taken_for,
                history: None,
                backlog,
                cursor,
                broker_trouble,
                exceptions: summary.exceptions,
                parked: summary.parked,
            });
        }
        Ok(relays)
    }
}

async fn backlog(connection: &mut SqliteConnection, cursor: &Cursor) -> Result<Backlog, LogError> {
    let after = cursor.progress.as_ref().map_or(0, |progress| progress.after);
    let found: Option<(i64, i64, f64)> = sqlx::query_as(&SQL.backlog)
        .bind(id_of(&cursor.base)?.max(after))
        .fetch_optional(connection)
        .await
        .map_err(LogError::during("measure the backlog"))?;
    Ok(match found {
        Some((ahead, id, age)) => Backlog {
            entries_max: u64::try_from(ahead).unwrap_or_default(),
            oldest: Some((EntryId(id), row::wait(age).unwrap_or_default())),
            parked: 0,
            oldest_parked: None,
        },
        None => Backlog { entries_max: 0, oldest: None, parked: 0, oldest_parked: None },
    })
}
