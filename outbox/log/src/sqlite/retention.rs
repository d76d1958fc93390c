//! Retention in SQLite. The database has one writer, so rows are removed in short transactions,
//! with pauses in which producers can write.

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use migrations::query::micros;
use outbox::sqlite::clock::{ID_OF_NOW, NOW};
use sqlx::{Connection as _, SqliteConnection};
use tokio::time::Instant;

use crate::decided::{ends_with_a_discard, has_an_edit};
use crate::retention::{Expired, ForgetError, HeldBack, LogRetention, Segment};
use crate::sqlite::mark::id_of;
use crate::sqlite::statements;
use crate::sqlite::store::SqliteLog;
use crate::watch::{Held, Life, Vigil};
use crate::{EntryId, LogError, RelayName, stored};

/// Rows that one transaction removes: a few milliseconds.
const RUN_ROWS: i64 = 500;
/// About as long as one transaction takes, so that producers have half of the time.
const PAUSE: Duration = Duration::from_millis(5);
/// Parked entries that one transaction discards.
const DISCARDED_AT_ONCE: i64 = 10_000;
/// Maximum decisions, and operations, that one call examines: the next ones, and the oldest.
const DECISIONS_AT_ONCE: i64 = 1_000;

migrations::statements! {
    parts {
        now = NOW;
        id_of_now = ID_OF_NOW;
        // The largest message id with the time ?1 microseconds ago.
        kept_since = "max(CAST(unixepoch('subsec') * 1000 AS INTEGER) - ?1 / 1000, 0)";
        id_of_keep = "printf('%08x-%04x-7fff-bfff-ffffffffffff', {kept_since} >> 16, {kept_since} & 65535)";
        // Rows up to the id ?1, except those of parked entries without a copy: mostly those that
        // are too large for one.
        removable = "id <= ?1 AND NOT EXISTS (
            SELECT 1 FROM outbox_relay AS r CROSS JOIN outbox_exception AS e
            WHERE e.relay = r.relay AND e.shard = r.shard AND e.id = outbox_message.id
                AND NOT EXISTS (SELECT 1 FROM outbox_parked AS p
                    WHERE p.relay = e.relay AND p.shard = e.shard AND p.id = e.id))";
    }

    relays = "SELECT relay, cursor FROM outbox_relay ORDER BY relay";
    ends = "
        SELECT o.enqueued_at, n.id, n.enqueued_at, {now} FROM (SELECT enqueued_at FROM outbox_message
            ORDER BY id LIMIT 1) AS o, (SELECT id, enqueued_at FROM outbox_message ORDER BY id DESC
            LIMIT 1) AS n";
    /// ?1 microseconds to keep: the last entry that is older. Ids ascend in time, so all entries
    /// before the first younger one are old. A time in the future is not the time of writing: then
    /// the time in the message id shows the age, and if that is also in the future, the next entry
    /// does.
    last_old = "
        SELECT id FROM outbox_message WHERE (enqueued_at <= {now} OR message_id <= {id_of_now})
            AND id < coalesce((SELECT id FROM outbox_message
                WHERE CASE WHEN enqueued_at <= {now} THEN enqueued_at > {now} - ?1
                    ELSE message_id > {id_of_keep} AND message_id <= {id_of_now} END
                ORDER BY id LIMIT 1), 9223372036854775807)
        ORDER BY id DESC LIMIT 1";
    /// ?1 up to this id.
    any = "SELECT 1 FROM outbox_message WHERE {removable} ORDER BY id LIMIT 1";
    /// ?1 up to this id, ?2 rows.
    run = "
        DELETE FROM outbox_message WHERE id IN (SELECT id FROM outbox_message WHERE {removable} ORDER BY id
            LIMIT ?2) RETURNING CAST(message_id AS BLOB)";
    /// ?1 the largest message id that was removed. Capped at the current time: otherwise one id
    /// from a clock that runs ahead would hide everything older than itself, for years.
    expired = "
        UPDATE outbox_retention
            SET expired_through = min(max(coalesce(expired_through, ''), ?1), {id_of_now}), expired_at = {now}";
    /// The decisions that a call examines: ?1 microseconds to keep, ?2 maximum rows. Returns the
    /// place where the next call begins, so that decisions that must stay do not keep later ones
    /// from being removed. A round ends with rows that are all young, or with the last row. Rows
    /// with a time ahead of the clock were not written then, so they are no reason to end.
    next_decisions = "
        SELECT CASE WHEN count(*) = ?2 AND NOT min(next.at BETWEEN {now} - ?1 AND {now}) THEN max(next.seq) ELSE 0 END
        FROM (SELECT seq, at FROM outbox_audit WHERE seq > (SELECT decisions_after FROM outbox_retention)
            ORDER BY seq LIMIT ?2) AS next";
    /// ?1 microseconds to keep, ?2 maximum rows to look at. A decision stays as long as it could
    /// still affect its message: while the log has the row, or a relay has parked it.
    forget_decisions = "
        DELETE FROM outbox_audit WHERE seq IN (SELECT old.seq FROM
            (SELECT seq, relay, id, message_id, at FROM outbox_audit
            WHERE seq > (SELECT decisions_after FROM outbox_retention) ORDER BY seq LIMIT ?2) AS old
            WHERE old.at < {now} - ?1
                AND NOT EXISTS (SELECT 1 FROM outbox_message AS m WHERE m.message_id = old.message_id)
                AND NOT EXISTS (SELECT 1 FROM outbox_exception AS e
                    WHERE e.relay = old.relay AND e.shard = 0 AND e.id = old.id))";
    decided = "UPDATE outbox_retention SET decisions_after = ?1 WHERE decisions_after <> ?1";
    forget_operations = "
        DELETE FROM outbox_operation WHERE seq IN (SELECT old.seq FROM
            (SELECT seq, at FROM outbox_operation ORDER BY seq LIMIT ?2) AS old WHERE old.at < {now} - ?1)";
    /// ?1 relay, ?2 epoch and ?3 end of a lease that is over although its end lies in the future,
    /// or null.
    leader = "
        SELECT CASE WHEN lease_until > {now} AND holder <> 'relay forget' AND NOT coalesce(epoch = ?2 AND lease_until = ?3, 0) THEN holder END
        FROM outbox_relay WHERE relay = ?1 AND shard = 0";
    /// ?1 relay. No relay begins between two parts: it would continue without the discarded
    /// entries.
    lease = "
        UPDATE outbox_relay SET epoch = epoch + 1, holder = 'relay forget', lease_until = {now} + 60000000,
            lease_seconds = 60 WHERE relay = ?1 AND shard = 0";
    parked_for = "SELECT count(*) FROM outbox_exception WHERE relay = ?1 AND shard = 0";
    /// ?1 relay, ?2 rows before it.
    parked_behind = "
        SELECT id FROM outbox_exception WHERE relay = ?1 AND shard = 0 ORDER BY id LIMIT 1 OFFSET ?2";
}

/// Without a schema.
static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));

/// Statements that discard the parked entries of relay ?1 up to the id ?2.
const DISCARD: [&str; 2] = [
    "DELETE FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND id <= ?2",
    "DELETE FROM outbox_parked WHERE relay = ?1 AND shard = 0 AND id <= ?2",
];

/// Statements that forget a relay. The next relay with this name publishes discarded entries, and
/// edited ones as they were enqueued: these decisions are withdrawn. Pauses end as well.
const FORGET: [&str; 6] = [
    "DELETE FROM outbox_exception WHERE relay = ?1 AND shard = 0",
    "DELETE FROM outbox_parked WHERE relay = ?1 AND shard = 0",
    "DELETE FROM outbox_relay WHERE relay = ?1 AND shard = 0",
    concat!(
        "INSERT INTO outbox_audit (actor, relay, id, message_id, action, note)
         SELECT 'relay forget', ?1, max(a.id), a.message_id, 'requeue', 'the relay was forgotten'
         FROM outbox_audit AS a WHERE a.relay = ?1 GROUP BY a.message_id HAVING ",
        ends_with_a_discard!(),
        " OR ",
        has_an_edit!()
    ),
    "INSERT INTO outbox_operation (actor, relay, action, selection, note)
     SELECT 'relay forget', ?1, 'resume', kind || iif(name = '', '', ' ' || name), 'the relay was forgotten'
     FROM outbox_pause WHERE relay = ?1 ORDER BY kind, name",
    "DELETE FROM outbox_pause WHERE relay = ?1",
];

/// Returns the id that every relay has passed, and the relay that is furthest behind.
async fn passed(connection: &mut SqliteConnection) -> Result<Option<(i64, String)>, LogError> {
    let relays: Vec<(String, String)> = sqlx::query_as(&SQL.relays)
        .fetch_all(connection)
        .await
        .map_err(LogError::during("read the cursors"))?;
    let mut behind: Option<(i64, String)> = None;
    for (relay, cursor) in relays {
        let base = id_of(&stored::read(&cursor)?.base)?;
        if behind.as_ref().is_none_or(|(least, _)| base < *least) {
            behind = Some((base, relay));
        }
    }
    Ok(behind)
}

/// Returns the last entry that is old enough; 0 when there is none.
async fn last_old(connection: &mut SqliteConnection, keep: Duration) -> Result<i64, LogError> {
    let last: Option<i64> = sqlx::query_scalar(&SQL.last_old)
        .bind(micros(keep))
        .fetch_optional(connection)
        .await
        .map_err(LogError::during("find old entries"))?;
    Ok(last.unwrap_or_default())
}

async fn describe(connection: &mut SqliteConnection, keep: Duration) -> Result<Segment, LogError> {
    let failed = || LogError::during("describe the history");
    let ends: Option<(i64, i64, i64, i64)> =
        sqlx::query_as(&SQL.ends).fetch_optional(&mut *connection).await.map_err(failed())?;
    let Some((oldest_at, newest, newest_at, now)) = ends else {
        return Ok(segment(None, None, None, Some(HeldBack::Empty)));
    };
    let old = last_old(connection, keep).await?;
    let held_back = match passed(connection).await? {
        None => Some(HeldBack::Unread),
        Some((passed, relay)) => {
            let up_to = old.min(passed);
            let any: Option<i64> = sqlx::query_scalar(&SQL.any)
                .bind(up_to)
                .fetch_optional(&mut *connection)
                .await
                .map_err(failed())?;
            match any {
                Some(_) => None,
                None if passed < old.min(newest) => Some(HeldBack::Relay(relay)),
                None => Some(HeldBack::Young),
            }
        }
    };
    let age = |at: i64| Duration::from_micros(u64::try_from(now - at).unwrap_or_default());
    Ok(segment(Some(newest), Some(age(newest_at)), Some(age(oldest_at)), held_back))
}

fn segment(
    newest: Option<i64>,
    newest_age: Option<Duration>,
    oldest_age: Option<Duration>,
    held_back: Option<HeldBack>,
) -> Segment {
    Segment { number: 0, newest: newest.map(EntryId), newest_age, oldest_age, bytes: None, held_back }
}

/// Runs one short transaction. Returns how many entries it removed.
async fn run(connection: &mut SqliteConnection, up_to: i64) -> Result<u64, LogError> {
    let failed = || LogError::during("delete old entries");
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
    let gone: Vec<Vec<u8>> =
        sqlx::query_scalar(&SQL.run).bind(up_to).bind(RUN_ROWS).fetch_all(&mut *tx).await.map_err(failed())?;
    // A value that is not text is not the id of a message.
    if let Some(largest) = gone.iter().filter_map(|id| str::from_utf8(id).ok()).max() {
        sqlx::query(&SQL.expired).bind(largest).execute(&mut *tx).await.map_err(failed())?;
    }
    tx.commit().await.map_err(failed())?;
    Ok(gone.len() as u64)
}

/// Refuses a relay that is unknown or leads. `over` is a lease that is over although its end lies
/// in the future.
async fn check_free(
    connection: &mut SqliteConnection,
    relay: &RelayName,
    over: Option<&Held<i64>>,
) -> Result<(), ForgetError> {
    let found: Option<Option<String>> = sqlx::query_scalar(&SQL.leader)
        .bind(relay.as_str())
        .bind(over.map(|held| held.epoch))
        .bind(over.map(|held| held.until))
        .fetch_optional(connection)
        .await
        .map_err(LogError::during("forget the relay"))?;
    let relay = relay.to_string();
    match found {
        None => Err(ForgetError::Unknown { relay }),
        Some(Some(holder)) => Err(ForgetError::Leading { relay, holder, discarded: 0 }),
        Some(None) => Ok(()),
    }
}

/// Discards the first parked entries of a relay in a separate transaction, if there are many.
/// Returns their number; 0 when few are left, and then changes nothing.
async fn discard_some(
    connection: &mut SqliteConnection,
    relay: &RelayName,
    over: Option<&Held<i64>>,
) -> Result<u64, ForgetError> {
    let failed = || LogError::during("discard the parked entries of the relay");
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
    check_free(&mut tx, relay, over).await?;
    let up_to: Option<i64> = sqlx::query_scalar(&SQL.parked_behind)
        .bind(relay.as_str())
        .bind(DISCARDED_AT_ONCE - 1)
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed())?;
    let Some(up_to) = up_to else { return Ok(0) };
    sqlx::query(&SQL.lease).bind(relay.as_str()).execute(&mut *tx).await.map_err(failed())?;
    let mut discarded = 0;
    for statement in DISCARD {
        let query = sqlx::query(statement).bind(relay.as_str()).bind(up_to);
        // An entry has at most one copy.
        discarded = query.execute(&mut *tx).await.map_err(failed())?.rows_affected().max(discarded);
    }
    tx.commit().await.map_err(failed())?;
    Ok(discarded)
}

impl ForgetError {
    /// Adds what was discarded before this error.
    fn after(self, before: u64) -> Self {
        match self {
            Self::Leading { relay, holder, discarded } => {
                Self::Leading { relay, holder, discarded: discarded + before }
            }
            error => error,
        }
    }
}

/// Waits until the lease of a relay is free, or proves to be over. Returns it in the latter case.
async fn over(
    connection: &mut SqliteConnection,
    relay: &RelayName,
) -> Result<Option<Held<i64>>, ForgetError> {
    let mut vigil = Vigil::default();
    loop {
        let found = sqlx::query_as(&statements::SQL.holder)
            .bind(relay.as_str())
            .fetch_optional(&mut *connection)
            .await
            .map_err(LogError::during("find out who holds the lease"))?;
        match vigil.decide(found, Instant::now()) {
            Life::Over(held) => return Ok(held),
            Life::Alive { holder } => {
                return Err(ForgetError::Leading { relay: relay.to_string(), holder, discarded: 0 });
            }
            Life::Unknown(left) => tokio::time::sleep(left).await,
        }
    }
}

// The clock of these statements is this machine's, so it alone decides: there is no second clock,
// as on PostgreSQL, that could be behind it.
#[async_trait]
impl LogRetention for SqliteLog {
    async fn segments(&self, keep: Duration) -> Result<Vec<Segment>, LogError> {
        Ok(vec![describe(&mut self.connect().await?, keep).await?])
    }

    async fn expire(&self, keep: Duration) -> Result<Expired, LogError> {
        let mut connection = self.connect().await?;
        let mut rows = 0;
        if let Some((passed, _)) = passed(&mut connection).await? {
            let up_to = last_old(&mut connection, keep).await?.min(passed);
            loop {
                let gone = run(&mut connection, up_to).await?;
                if gone == 0 {
                    break;
                }
                rows += gone;
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(Expired { segments: u64::from(rows > 0), rows: Some(rows), bytes: None })
    }

    async fn forget_decisions(&self, keep: Duration) -> Result<u64, LogError> {
        let failed = || LogError::during("delete old decisions");
        let keep = micros(keep);
        let mut connection = self.connect().await?;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        let next: i64 = sqlx::query_scalar(&SQL.next_decisions)
            .bind(keep)
            .bind(DECISIONS_AT_ONCE)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed())?;
        let mut gone = 0;
        for statement in [&SQL.forget_decisions, &SQL.forget_operations] {
            let query = sqlx::query(statement).bind(keep).bind(DECISIONS_AT_ONCE);
            gone += query.execute(&mut *tx).await.map_err(failed())?.rows_affected();
        }
        sqlx::query(&SQL.decided).bind(next).execute(&mut *tx).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(gone)
    }

    async fn forget(&self, relay: &RelayName, discard_parked: bool) -> Result<(), ForgetError> {
        let failed = || LogError::during("forget the relay");
        let mut connection = self.connect().await?;
        let over = match check_free(&mut connection, relay, None).await {
            Err(ForgetError::Leading { .. }) => over(&mut connection, relay).await?,
            free => free.map(|()| None)?,
        };
        let mut discarded = 0;
        if discard_parked {
            loop {
                let part = discard_some(&mut connection, relay, over.as_ref()).await;
                let part = part.map_err(|error| error.after(discarded))?;
                if part == 0 {
                    break;
                }
                discarded += part;
                tokio::time::sleep(PAUSE).await;
            }
        }
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        check_free(&mut tx, relay, over.as_ref()).await.map_err(|error| error.after(discarded))?;
        let relay = relay.to_string();
        let parked: i64 =
            sqlx::query_scalar(&SQL.parked_for).bind(&relay).fetch_one(&mut *tx).await.map_err(failed())?;
        if parked > 0 && !discard_parked {
            return Err(ForgetError::Parked { relay, entries: parked.unsigned_abs() });
        }
        for statement in FORGET {
            sqlx::query(statement).bind(&relay).execute(&mut *tx).await.map_err(failed())?;
        }
        Ok(tx.commit().await.map_err(failed())?)
    }
}
