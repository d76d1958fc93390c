//! New bases for cursors.

use sqlx::{Postgres, Transaction};

use super::{Rebase, failed};
use crate::postgres::history::{Cause, CursorFacts, ServerFacts};
use crate::postgres::mark::{PgMark, array};
use crate::{BrokerTransaction, Cursor, LogError, stored};

/// Maximum number of entries that are counted as leaving again.
pub(super) const COUNTED_MAX: i64 = 1_000_000;

/// Returns a cursor at its new base. It records that the broker's transactions may be ahead of it.
pub(super) fn moved_back(cursor: &Cursor, base: &PgMark) -> Cursor {
    parted(Cursor { transaction: cursor.transaction.clone(), ..Cursor::at(base.write()) })
}

/// Returns the cursor, marked so that the broker's transactions no longer apply to it.
pub(super) fn parted(cursor: Cursor) -> Cursor {
    let transaction = cursor.transaction;
    let transaction = transaction.map(|transaction| BrokerTransaction { is_rebased: true, ..transaction });
    Cursor { transaction, ..cursor }
}

/// Refuses a floor below the first id that the sequence gives out. It is below a row that no page
/// would reach.
fn check_floor(floor: i64) -> Result<(), LogError> {
    if floor >= 0 {
        return Ok(());
    }
    Err(LogError::operator(format!(
        "a row of outbox_message has the id {}, and relays read ids from 1 on: run `UPDATE outbox_message SET id = DEFAULT \
         WHERE id < 1` as the owner of the tables",
        floor.saturating_add(1)
    )))
}

impl Rebase {
    pub(super) async fn base(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        server: &ServerFacts,
        facts: &CursorFacts,
        cause: &Cause,
    ) -> Result<PgMark, LogError> {
        let base = &facts.base;
        if cause.keeps_transaction_ids() {
            let floor = sqlx::query_scalar(&self.sql.unseen)
                .bind(base.floor)
                .bind(base.xmax.to_string())
                .fetch_one(&mut **tx)
                .await
                .map_err(failed())?;
            check_floor(floor)?;
            return Ok(PgMark { floor, is_rebased: true, ..base.clone() });
        }
        let mut floor: i64 = sqlx::query_scalar(&self.sql.in_flight)
            .bind(base.floor)
            .bind(array(&base.in_flight))
            .fetch_one(&mut **tx)
            .await
            .map_err(failed())?;
        let is_own = match cause {
            Cause::CursorOfOtherServer { .. } | Cause::CursorAhead { .. } => true,
            Cause::RowAhead { .. } => facts.other_server(&server.history).is_some(),
            // It is unknown when rows were first written here.
            _ => false,
        };
        if is_own {
            floor =
                sqlx::query_scalar(&self.sql.own).bind(floor).fetch_one(&mut **tx).await.map_err(failed())?;
        }
        if server.position < base.floor && matches!(cause, Cause::OtherServer { .. } | Cause::RowAhead { .. })
        {
            floor = 0;
        }
        check_floor(floor)?;
        Ok(PgMark { is_rebased: true, ..PgMark::before_all(floor) })
    }

    pub(super) async fn leaves_again(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        facts: &CursorFacts,
        base: &PgMark,
        cause: &Cause,
    ) -> Result<(i64, Option<i64>), LogError> {
        let query = match (&facts.head, cause.keeps_transaction_ids()) {
            (None, true) => return Ok((0, None)),
            (Some(head), true) => sqlx::query_as(&self.sql.settled)
                .bind(facts.after)
                .bind(&facts.base.snapshot)
                .bind(&head.snapshot)
                .bind(COUNTED_MAX),
            (_, false) => sqlx::query_as(&self.sql.above).bind(base.floor).bind(COUNTED_MAX),
        };
        query.fetch_one(&mut **tx).await.map_err(failed())
    }

    /// Stores a cursor and ends its relay's lease.
    pub(super) async fn store(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        relay: &str,
        shard: i16,
        cursor: &Cursor,
    ) -> Result<(), LogError> {
        let query = sqlx::query(&self.sql.store).bind(relay).bind(shard).bind(stored::write(cursor)?);
        query.execute(&mut **tx).await.map(drop).map_err(failed())
    }

    /// Stores a cursor with a new base. `in_flight` are the transactions in flight at its old base.
    pub(super) async fn replace(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        relay: &str,
        shard: i16,
        in_flight: &[u64],
        base: &PgMark,
        cursor: &Cursor,
    ) -> Result<(), LogError> {
        sqlx::query(&self.sql.beside)
            .bind(relay)
            .bind(shard)
            .bind(base.floor)
            .bind(array(in_flight))
            .execute(&mut **tx)
            .await
            .map_err(failed())?;
        self.store(tx, relay, shard, cursor).await
    }
}
