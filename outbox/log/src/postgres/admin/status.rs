//! The progress of the relays, and what keeps entries from them.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};

use super::statements::{BACKLOG, BLOCKER, PRESENT, PROCESSES, RELAYS};
use crate::admin::entry::due;
use crate::admin::status::{
    Backlog, Blocker, CursorHistory, Holder, Picture, Process, RelayStatus, taken_for,
};
use crate::operators::Operators as _;
use crate::postgres::mark::{History, PgMark, array};
use crate::postgres::store::PostgresLog;
use crate::{Cursor, EntryId, LogError, RelayName, row, stored};

impl PostgresLog {
    /// Reads one relay, and what keeps its entries.
    pub(super) async fn read_picture(&self, relay: &RelayName) -> Result<Picture, LogError> {
        let mut connection = self.look().await?;
        let found = self.status(&mut connection, Some(relay)).await?.pop();
        let errors = match &found {
            Some(status) => self.tables.errors(&mut connection, relay, &status.exceptions).await?,
            None => Vec::new(),
        };
        let blocker = self.read_blocker(&mut connection).await?;
        let pauses = self.tables.pauses(&mut connection, relay).await?;
        let processes = Some(self.processes(&mut connection, relay).await?);
        Ok(Picture { relay: found, blocker, pauses, errors, processes })
    }

    /// Reads the processes that lead or wait for the lease.
    async fn processes(
        &self,
        connection: &mut PgConnection,
        relay: &RelayName,
    ) -> Result<Vec<Process>, LogError> {
        let failed = || LogError::during("list the processes of a relay");
        let rows = sqlx::query(&self.render(PROCESSES)).bind(relay.as_str());
        let rows = rows.fetch_all(connection).await.map_err(failed())?;
        rows.iter().map(|row| process(row).map_err(failed())).collect()
    }

    /// Reads all relays, or one.
    pub(super) async fn status(
        &self,
        connection: &mut PgConnection,
        only: Option<&RelayName>,
    ) -> Result<Vec<RelayStatus>, LogError> {
        let failed = || LogError::during("describe the relays");
        let relays = self.render(RELAYS);
        let rows = sqlx::query(&relays).bind(only.map(RelayName::as_str));
        let rows = rows.fetch_all(&mut *connection).await.map_err(failed())?;
        let present: (String, i64) =
            sqlx::query_as(&self.render(PRESENT)).fetch_one(&mut *connection).await.map_err(failed())?;
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
            let backlog = summary.add_to(self.backlog(&mut *connection, &cursor).await?, age);
            relays.push(RelayStatus {
                relay,
                epoch: row.try_get("epoch").map_err(failed())?,
                standbys: u64::try_from(row.try_get::<i64, _>("standbys").map_err(failed())?).ok(),
                holder: holder.map(|name| Holder::of(name, expires_in)),
                checkpoint_age,
                taken_for,
                history: PgMark::read(&cursor.base)?.history.map(|history| {
                    let is_present = history.is_of(&present.0, present.1);
                    let History { system_identifier, timeline, .. } = history;
                    CursorHistory { system_identifier, timeline, is_present }
                }),
                backlog,
                cursor,
                broker_trouble,
                exceptions: summary.exceptions,
                parked: summary.parked,
            });
        }
        Ok(relays)
    }

    /// Reads the transaction that has been open for longest after it wrote to the outbox.
    pub(super) async fn read_blocker(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Option<Blocker>, LogError> {
        let failed = || LogError::during("list open transactions");
        let found = sqlx::query(&self.render(BLOCKER)).fetch_optional(connection).await;
        let Some(row) = found.map_err(failed())? else { return Ok(None) };
        blocker(&row).map(Some).map_err(failed())
    }

    async fn backlog(&self, connection: &mut PgConnection, cursor: &Cursor) -> Result<Backlog, LogError> {
        let base = PgMark::read(&cursor.base)?;
        let progress = cursor.progress.as_ref();
        let head = progress.map(|progress| PgMark::read(&progress.head)).transpose()?;
        let after = progress.map_or(0, |progress| progress.after);
        let floor = base.floor.max(after);
        let mut in_flight = base.in_flight.clone();
        in_flight.extend(head.iter().flat_map(|head| &head.in_flight));
        let (ahead, id, age): (i64, Option<i64>, Option<f64>) = sqlx::query_as(&self.render(BACKLOG))
            .bind(floor)
            .bind(&base.snapshot)
            .bind(head.as_ref().map(|head| &head.snapshot))
            .bind(after)
            .bind(array(&in_flight))
            .fetch_one(connection)
            .await
            .map_err(LogError::during("measure the backlog"))?;
        let oldest = id.zip(age).map(|(id, age)| (EntryId(id), row::wait(age).unwrap_or_default()));
        // A long transaction may have left rows below the floor, anywhere from the oldest one on.
        let entries_max = oldest.map_or(0, |(id, _)| ahead.max(0) + (floor - id.0 + 1).max(0));
        let entries_max = u64::try_from(entries_max).unwrap_or_default();
        Ok(Backlog { entries_max, oldest, parked: 0, oldest_parked: None })
    }
}

fn process(row: &PgRow) -> Result<Process, sqlx::Error> {
    let role: String = row.try_get("role")?;
    Ok(Process {
        is_leader: role == "leads",
        version: row.try_get("version")?,
        address: row.try_get("address")?,
        since: row.try_get("backend_start")?,
    })
}

fn blocker(row: &PgRow) -> Result<Blocker, sqlx::Error> {
    let pid: Option<i32> = row.try_get(0)?;
    let transaction = row.try_get(1)?;
    let age: Option<f64> = row.try_get(4)?;
    let age = age.map(|age| Duration::try_from_secs_f64(age).unwrap_or_default());
    let Some(pid) = pid else {
        return Ok(Blocker::Prepared { name: row.try_get(2)?, transaction, age: age.unwrap_or_default() });
    };
    Ok(Blocker::Session { pid, transaction, application_name: row.try_get(2)?, state: row.try_get(3)?, age })
}
