//! Cursors after a restore into another cluster.
//!
//! A row's `xid` belongs to the cluster that wrote it. After a dump and restore elsewhere it means nothing: rows
//! with an xid from the future would stay invisible to every mark. So before a lease is granted, the cluster is
//! compared with the recorded one; a visible row with an xid that this cluster has not given out yet is another
//! proof. Then, in one transaction under a lock:
//!
//! - rows with an xid that this cluster would not call finished get the xid 3, which is visible in every mark taken
//!   from now on (the one documented exception to "rows are never updated");
//! - every relay's cursor becomes "behind the ids up to `floor`, having seen nothing above", where `floor` is the
//!   base's own, or lies below the first row of a transaction that was in flight at the base;
//! - every relay's epoch is raised, so that whoever holds a lease is fenced off.
//!
//! The rows are rewritten by a function of the database, which runs with the owner's rights and refuses where there
//! was no restore: a relay may not update messages.
//!
//! Nothing is lost: every row that the old cursor had not behind it has an id above the new floor. Some rows leave
//! twice, with the ids they had; the inbox drops them.

use std::time::Duration;

use migrations::{Identifier, Statement, Template};
use sqlx::{Connection, PgConnection};

use crate::log::failure::within;
use crate::log::{Cursor, LogError, stored};
use crate::postgres::mark::{PgMark, array};

#[derive(Debug, Clone)]
pub(super) struct Rebase {
    differs: Statement,
    lock: Statement,
    cursors: Statement,
    floor: Statement,
    store: Statement,
    rows: Statement,
    /// A connection does not change its cluster: comparing once is enough.
    compared: bool,
}

impl Rebase {
    pub(super) fn new(schema: Option<&Identifier>) -> Self {
        let render = |text| Template::new(text).schema(schema).render();
        Self {
            differs: render(
                "SELECT NOT EXISTS (SELECT FROM {schema}outbox_identity AS i, pg_control_system() AS c
                     WHERE i.system_identifier = c.system_identifier::text)
                 OR coalesce((SELECT xid FROM {schema}outbox_message ORDER BY xid DESC LIMIT 1)
                     >= pg_snapshot_xmax(pg_current_snapshot()), false)",
            ),
            lock: render("LOCK TABLE {schema}outbox_relay IN ACCESS EXCLUSIVE MODE"),
            cursors: render("SELECT relay, shard, cursor FROM {schema}outbox_relay"),
            floor: render(
                "SELECT least($1, (SELECT min(id) - 1 FROM {schema}outbox_message
                     WHERE xid = ANY($2::text::xid8[]) AND id <= $1))",
            ),
            store: render(
                "UPDATE {schema}outbox_relay SET cursor = $3, epoch = epoch + 1, holder = NULL, lease_until = NULL
                 WHERE relay = $1 AND shard = $2",
            ),
            rows: render("SELECT {schema}outbox_rebase_rows()"),
            compared: false,
        }
    }

    /// Compares the cluster with the recorded one and rebases all relays when it is another.
    pub(super) async fn run_if_needed(
        &mut self,
        connection: &mut PgConnection,
        call_timeout: Duration,
    ) -> Result<(), LogError> {
        if self.compared {
            return Ok(());
        }
        if within(call_timeout, self.differs(&mut *connection)).await? {
            // Rewriting the rows of a restored log may take longer than any single call.
            self.run(connection).await?;
        }
        self.compared = true;
        Ok(())
    }

    async fn differs(&self, connection: &mut PgConnection) -> Result<bool, LogError> {
        sqlx::query_scalar(&self.differs)
            .fetch_one(connection)
            .await
            .map_err(LogError::during("compare its cluster with the recorded one"))
    }

    async fn run(&self, connection: &mut PgConnection) -> Result<(), LogError> {
        let failed = || LogError::during("rebase the cursors after a restore");
        let mut tx = connection.begin().await.map_err(failed())?;
        sqlx::query("SET LOCAL statement_timeout = 0").execute(&mut *tx).await.map_err(failed())?;
        sqlx::query(&self.lock).execute(&mut *tx).await.map_err(failed())?;
        if !self.differs(&mut tx).await? {
            // Another process was faster.
            return tx.rollback().await.map_err(failed());
        }
        let relays: Vec<(String, i16, String)> =
            sqlx::query_as(&self.cursors).fetch_all(&mut *tx).await.map_err(failed())?;
        for (relay, shard, cursor) in &relays {
            let base = PgMark::read(&stored::read(cursor)?.base)?;
            let floor: i64 = sqlx::query_scalar(&self.floor)
                .bind(base.floor)
                .bind(array(&base.in_flight))
                .fetch_one(&mut *tx)
                .await
                .map_err(failed())?;
            let rebased = stored::write(&Cursor::at(PgMark::before_all(floor).write()))?;
            sqlx::query(&self.store)
                .bind(relay)
                .bind(shard)
                .bind(rebased)
                .execute(&mut *tx)
                .await
                .map_err(failed())?;
        }
        let rows: i64 = sqlx::query_scalar(&self.rows).fetch_one(&mut *tx).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        tracing::warn!(
            rows,
            relays = relays.len(),
            "the log was restored into another cluster: cursors are rebased, some messages leave twice with the same id"
        );
        Ok(())
    }
}
