//! Operators' questions and decisions, in SQLite.

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use outbox::sqlite::clock::NOW;
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, Row as _, SqliteConnection};
use time::OffsetDateTime;

use crate::admin::decision::{
    ChosenEntry, Content, DecideError, Decision, EntryNow, OperatorDecision, TAKEN_FOR_CALLS, edited,
};
use crate::admin::entry::{AuditRecord, ListedEntry, at_micros, due};
use crate::admin::status::{Backlog, Blocker, COUNTED_MAX, Holder, ParkedSummary, RelayStatus};
use crate::admin::{LogAdmin, Operation};
use crate::sqlite::reader::{id_of, text};
use crate::sqlite::statements::EDITED;
use crate::sqlite::store::SqliteLog;
use crate::{Cursor, EntryId, ExceptionState, LogError, Pause, PauseScope, RelayName, row, stored};

migrations::statements! {
    parts {
        now = NOW;
        edited = EDITED;
    }

    /// ?1 relay, or null for all.
    relays = "
        SELECT relay, epoch, holder, (lease_until - {now}) / 1e6 AS expires_in, ({now} - checkpoint_at) /
            1e6 AS age, cursor
            FROM outbox_relay WHERE shard = 0 AND (?1 IS NULL OR relay = ?1) ORDER BY relay";
    counts = "
        SELECT state, fault, is_due, count(*), min(id), max(since_due), max(longest) FROM
            (SELECT state, fault, id, coalesce(due_at <= {now}, 0) AS is_due, ({now} - due_at) / 1e6 AS
            since_due, ({now} - CASE WHEN state IN ('dead', 'discarded') THEN updated_at ELSE created_at
            END) / 1e6 AS longest
            FROM outbox_exception WHERE relay = ?1 AND shard = 0 ORDER BY id LIMIT ?2)
            GROUP BY state, fault, is_due";
    /// A large entry has no copy. An entry whose row is also gone was enqueued shortly before it
    /// was parked. `lag` counts in the same way.
    parked_age = "
        SELECT ({now} - coalesce((SELECT p.enqueued_at FROM outbox_parked AS p
            WHERE p.relay = e.relay AND p.shard = 0 AND p.id = e.id),
            (SELECT m.enqueued_at FROM outbox_message AS m WHERE m.id = e.id), e.created_at)) / 1e6 FROM outbox_exception AS e WHERE e.relay = ?1
            AND e.shard = 0 AND e.id = ?2";
    backlog = "
        SELECT (SELECT coalesce(max(id), 0) FROM outbox_message) - ?1, id, ({now} - enqueued_at) / 1e6
            FROM outbox_message WHERE id > ?1 ORDER BY id LIMIT 1";
    list = "
        SELECT e.id, e.message_id, e.topic, e.key, coalesce(p.kind, m.kind, e.topic) AS kind, e.attempts,
            (e.due_at - {now}) / 1e6 AS due_in, e.fault, e.error, e.created_at, e.updated_at,
            coalesce(octet_length(p.payload), octet_length(m.payload), 0) AS payload_bytes,
            p.edited_at IS NOT NULL AS edited
            FROM outbox_exception AS e LEFT JOIN outbox_parked AS p
                ON p.relay = e.relay AND p.shard = e.shard AND p.id = e.id
            LEFT JOIN outbox_message AS m ON p.id IS NULL AND m.id = e.id AND m.message_id = e.message_id
            WHERE e.relay = ?1 AND e.shard = 0 AND e.state = ?2 AND e.id > ?3 ORDER BY e.id LIMIT ?4";
    /// Discarded entries: those whose decision the relay has not followed yet, and those whose
    /// decision it has, as long as the log has them. ?1 relay, ?2 above this id, ?3 rows.
    list_discarded(of = "d") = "
        SELECT * FROM (
            SELECT coalesce(e.id, m.id) AS id, d.message_id, coalesce(e.topic, m.topic) AS topic,
                coalesce(e.key, m.key) AS key, coalesce(m.kind, p.kind, m.topic, e.topic) AS kind,
                coalesce(e.attempts, 0) AS attempts, NULL AS due_in, coalesce(e.fault, d.fault) AS fault,
                'discarded by ' || d.actor || ': ' || d.note || coalesce('; it was dead: ' || d.error, '') AS error, d.at AS created_at, d.at AS updated_at,
                coalesce(octet_length(p.payload), octet_length(m.payload), 0) AS payload_bytes,
                {edited} AS edited
            FROM outbox_audit AS d
            LEFT JOIN outbox_exception AS e
                ON e.relay = ?1 AND e.shard = 0 AND e.id = d.id AND e.message_id = d.message_id
            LEFT JOIN outbox_parked AS p ON p.relay = e.relay AND p.shard = e.shard AND p.id = e.id
            LEFT JOIN outbox_message AS m ON m.message_id = d.message_id
            WHERE d.relay = ?1 AND d.action = 'discard'
                AND d.seq IN (SELECT max(l.seq) FROM outbox_audit AS l
                    WHERE l.relay = ?1 AND l.action <> 'edit' GROUP BY l.message_id)
                AND (e.state = 'discarded' OR e.id IS NULL AND m.id IS NOT NULL))
        WHERE id > ?2 ORDER BY id LIMIT ?3";
    found = "
        SELECT state, message_id, due_at FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND id = ?2";
    /// Finds an entry that waits for a retry and for an operator, with its due time.
    waiting = "
        SELECT due_at FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND id = ?2
            AND state = 'retrying' AND fault = 'operator' AND due_at > {now}";
    /// ?1 relay, ?2 id, ?3 the new due time of an entry that is retrying; null means now.
    set_due = "
        UPDATE outbox_exception SET due_at = coalesce(?3, {now})
            WHERE relay = ?1 AND shard = 0 AND id = ?2 AND state = 'retrying'";
    present = "SELECT {now}";
    /// The content of an entry from its copy or its row, unless it is too large to be read (64
    /// MiB).
    content = "
        SELECT coalesce(p.payload, m.payload), coalesce(p.headers, m.headers) FROM outbox_exception AS e
            LEFT JOIN outbox_parked AS p ON p.relay = e.relay AND p.shard = e.shard AND p.id = e.id
            LEFT JOIN outbox_message AS m ON p.id IS NULL AND m.id = e.id AND m.message_id = e.message_id
            WHERE e.relay = ?1 AND e.shard = 0 AND e.id = ?2
            AND coalesce(octet_length(p.payload), octet_length(m.payload))
                + coalesce(octet_length(p.headers), octet_length(m.headers), 0) <= 67108864";
    requeue = "
        UPDATE outbox_exception SET state = 'retrying', attempts = 0, due_at = {now}, updated_at = {now}
            WHERE relay = ?1 AND shard = 0 AND id = ?2";
    discard = "
        UPDATE outbox_exception SET state = 'discarded', due_at = {now}, updated_at = {now}
            WHERE relay = ?1 AND shard = 0 AND id = ?2";
    /// ?1 relay, ?2 id, ?3 payload, ?4 headers: copies an entry that was too large to be copied,
    /// with its new content. What the edit keeps is read from the log.
    copy_edited = "
        INSERT INTO outbox_parked
            (relay, id, kind, content_type, headers, traceparent, tracestate, payload, enqueued_at)
        SELECT e.relay, e.id, m.kind, m.content_type, coalesce(?4, m.headers), m.traceparent, m.tracestate,
            coalesce(?3, m.payload), m.enqueued_at
        FROM outbox_exception AS e CROSS JOIN outbox_message AS m
        WHERE e.relay = ?1 AND e.shard = 0 AND e.id = ?2 AND m.id = e.id AND m.message_id = e.message_id
        ON CONFLICT (relay, shard, id) DO NOTHING";
    edit = "
        UPDATE outbox_parked
            SET payload = coalesce(?3, payload), headers = coalesce(?4, headers), edited_at = {now}
            WHERE relay = ?1 AND shard = 0 AND id = ?2";
    audit = "
        INSERT INTO outbox_audit (actor, relay, id, message_id, action, note, digest_before, digest_after,
            selection, fault, error)
            SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, fault, error
            FROM outbox_exception WHERE relay = ?2 AND shard = 0 AND id = ?3";
    records = "
        SELECT at, actor, id, message_id, action, note, digest_before, digest_after, selection, error
            FROM outbox_audit WHERE relay = ?1 ORDER BY seq DESC LIMIT ?2";
}

/// Without a schema.
static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));

/// Returns the digest of an entry's content, if it can be read.
async fn digest(
    connection: &mut SqliteConnection,
    relay: &RelayName,
    id: EntryId,
) -> Result<Option<String>, LogError> {
    let content: Option<(Vec<u8>, Option<Vec<u8>>)> = sqlx::query_as(&SQL.content)
        .bind(relay.as_str())
        .bind(id.0)
        .fetch_optional(connection)
        .await
        .map_err(LogError::during("look at the entry"))?;
    Ok(content.map(|(payload, headers)| Content { payload, headers }.digest()))
}

/// Sets the due time of a retrying entry; `None` means now.
async fn set_due(
    connection: &mut SqliteConnection,
    relay: &RelayName,
    id: EntryId,
    at: Option<i64>,
) -> Result<(), sqlx::Error> {
    sqlx::query(&SQL.set_due).bind(relay.as_str()).bind(id.0).bind(at).execute(connection).await?;
    Ok(())
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

/// Returns the parked entries, and the age of the oldest one that is held or retrying.
async fn parked(
    connection: &mut SqliteConnection,
    relay: &str,
) -> Result<(ParkedSummary, Option<Duration>), LogError> {
    let failed = || LogError::during("count the parked entries");
    let rows = sqlx::query_as(&SQL.counts)
        .bind(relay)
        .bind(COUNTED_MAX)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed())?;
    let summary = ParkedSummary::of(rows);
    let Some(EntryId(id)) = summary.oldest else { return Ok((summary, None)) };
    // The entry may have left in the meantime.
    let age: Option<f64> = sqlx::query_scalar(&SQL.parked_age)
        .bind(relay)
        .bind(id)
        .fetch_optional(connection)
        .await
        .map_err(failed())?;
    Ok((summary, age.and_then(row::wait)))
}

impl SqliteLog {
    /// Returns all relays, or one.
    async fn status(&self, only: Option<&RelayName>) -> Result<Vec<RelayStatus>, LogError> {
        let failed = || LogError::during("describe the relays");
        let mut connection = self.connect().await?;
        let rows = sqlx::query(&SQL.relays).bind(only.map(RelayName::as_str));
        let rows = rows.fetch_all(&mut connection).await.map_err(failed())?;
        let mut relays = Vec::new();
        for row in rows {
            let relay: String = row.try_get("relay").map_err(failed())?;
            let holder: Option<String> = row.try_get("holder").map_err(failed())?;
            let expires_in: Option<f64> = row.try_get("expires_in").map_err(failed())?;
            let cursor: String = row.try_get("cursor").map_err(failed())?;
            let (cursor, broker_trouble) = (stored::read(&cursor)?, stored::read_trouble(&cursor));
            let (summary, age) = parked(&mut connection, &relay).await?;
            let backlog = summary.add_to(backlog(&mut connection, &cursor).await?, age);
            relays.push(RelayStatus {
                relay,
                epoch: row.try_get("epoch").map_err(failed())?,
                standbys: None,
                holder: holder.map(|name| Holder { name, expires_in: expires_in.and_then(row::wait) }),
                checkpoint_age: due(row.try_get("age").map_err(failed())?).unwrap_or_default(),
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

    /// Takes the entries that wait for a retry and for an operator from the relay (see
    /// [`crate::admin::decision`]). Returns until when they are taken.
    async fn take_waiting(
        &self,
        connection: &mut SqliteConnection,
        relay: &RelayName,
        entries: &[ChosenEntry],
    ) -> Result<Option<i64>, LogError> {
        let failed = || LogError::during("take entries from the relay");
        let taken_for = self.options.call_timeout * TAKEN_FOR_CALLS;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        let now: i64 = sqlx::query_scalar(&SQL.present).fetch_one(&mut *tx).await.map_err(failed())?;
        let until = now.saturating_add(i64::try_from(taken_for.as_micros()).unwrap_or(i64::MAX));
        let mut waiting = Vec::new();
        for entry in entries {
            let due_at: Option<i64> = sqlx::query_scalar(&SQL.waiting)
                .bind(relay.as_str())
                .bind(entry.id.0)
                .fetch_optional(&mut *tx)
                .await
                .map_err(failed())?;
            let Some(due_at) = due_at else { continue };
            set_due(&mut tx, relay, entry.id, Some(until)).await.map_err(failed())?;
            waiting.push((entry.id, due_at));
        }
        if waiting.is_empty() {
            return Ok(None);
        }
        tx.commit().await.map_err(failed())?;
        let now: i64 = sqlx::query_scalar(&SQL.present).fetch_one(&mut *connection).await.map_err(failed())?;
        for (id, _) in waiting.into_iter().filter(|(_, due_at)| *due_at <= now) {
            set_due(&mut *connection, relay, id, None).await.map_err(failed())?;
        }
        Ok(Some(until))
    }

    /// Decides about one entry, in an open transaction.
    async fn decide_one(
        connection: &mut SqliteConnection,
        relay: &RelayName,
        entry: &ChosenEntry,
        decree: &OperatorDecision,
        taken_until: Option<i64>,
    ) -> Result<Result<(), DecideError>, LogError> {
        let failed = || LogError::during("carry out the decision");
        let id = entry.id;
        let found: Option<(String, String, Option<i64>)> = sqlx::query_as(&SQL.found)
            .bind(relay.as_str())
            .bind(id.0)
            .fetch_optional(&mut *connection)
            .await
            .map_err(failed())?;
        let found = found.map(|(state, message_id, due_at)| {
            let is_taken = state == ExceptionState::Retrying.as_str() && taken_until.is_some();
            let is_locked = state == ExceptionState::Dead.as_str() || is_taken && due_at == taken_until;
            EntryNow { is_locked, state, message_id }
        });
        let action = decree.decision.action();
        let verdict = entry.verdict(relay, found.as_ref(), action);
        if verdict.is_err() {
            return Ok(verdict);
        }
        let mut digests = (None, None);
        match &decree.decision {
            Decision::Requeue | Decision::Discard => {
                let is_requeue = decree.decision == Decision::Requeue;
                let update = if is_requeue { &SQL.requeue } else { &SQL.discard };
                let update = sqlx::query(update).bind(relay.as_str()).bind(id.0);
                update.execute(&mut *connection).await.map_err(failed())?;
            }
            Decision::Edit { .. } => {
                let (payload, headers) = edited(&decree.decision)?;
                digests.0 = digest(&mut *connection, relay, id).await?;
                for update in [&SQL.copy_edited, &SQL.edit] {
                    let update = sqlx::query(update).bind(relay.as_str()).bind(id.0);
                    let update = update.bind(&payload).bind(&headers);
                    update.execute(&mut *connection).await.map_err(failed())?;
                }
                digests.1 = digest(&mut *connection, relay, id).await?;
                // An entry that was taken from the relay is retried with its new content.
                set_due(&mut *connection, relay, id, None).await.map_err(failed())?;
            }
        }
        sqlx::query(&SQL.audit)
            .bind(&decree.actor)
            .bind(relay.as_str())
            .bind(id.0)
            .bind(&entry.message_id)
            .bind(action.as_str())
            .bind(&decree.note)
            .bind(digests.0)
            .bind(digests.1)
            .bind(&decree.selection)
            .execute(connection)
            .await
            .map_err(failed())?;
        Ok(Ok(()))
    }
}

#[async_trait]
impl LogAdmin for SqliteLog {
    async fn relays(&self) -> Result<Vec<RelayStatus>, LogError> {
        self.status(None).await
    }

    async fn relay(&self, relay: &RelayName) -> Result<Option<RelayStatus>, LogError> {
        Ok(self.status(Some(relay)).await?.pop())
    }

    async fn blocker(&self) -> Result<Option<Blocker>, LogError> {
        Ok(None)
    }

    async fn list(
        &self,
        relay: &RelayName,
        state: ExceptionState,
        after: EntryId,
        entries_max: u32,
    ) -> Result<Vec<ListedEntry>, LogError> {
        let list = match state {
            ExceptionState::Discarded => sqlx::query(&SQL.list_discarded).bind(relay.as_str()),
            _ => sqlx::query(&SQL.list).bind(relay.as_str()).bind(state.as_str()),
        };
        let rows = list
            .bind(after.0)
            .bind(i64::from(entries_max))
            .fetch_all(&mut self.connect().await?)
            .await
            .map_err(LogError::during("list entries"))?;
        rows.iter().map(|row| listed(row).map_err(LogError::during("read an entry"))).collect()
    }

    async fn decide(
        &self,
        relay: &RelayName,
        entries: &[ChosenEntry],
        decree: OperatorDecision,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError> {
        decree.check(entries.len())?;
        let failed = || LogError::during("carry out the decision");
        let mut connection = self.connect().await?;
        let taken_until = match decree.decision.action().takes_retrying() {
            true => self.take_waiting(&mut connection, relay, entries).await?,
            false => None,
        };
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        let mut verdicts = Vec::with_capacity(entries.len());
        for entry in entries {
            verdicts.push(Self::decide_one(&mut tx, relay, entry, &decree, taken_until).await?);
        }
        tx.commit().await.map_err(failed())?;
        Ok(verdicts)
    }

    async fn audit(&self, relay: &RelayName, records_max: u32) -> Result<Vec<AuditRecord>, LogError> {
        let rows = sqlx::query(&SQL.records)
            .bind(relay.as_str())
            .bind(i64::from(records_max))
            .fetch_all(&mut self.connect().await?)
            .await
            .map_err(LogError::during("list decisions"))?;
        rows.iter().map(|row| record(row).map_err(LogError::during("read a decision"))).collect()
    }

    async fn pauses(&self, relay: &RelayName) -> Result<Vec<Pause>, LogError> {
        self.read_pauses(relay).await
    }

    async fn pause(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError> {
        scope.check(actor, reason)?;
        self.set_paused(relay, scope, (actor, reason)).await
    }

    async fn resume(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        since: Option<OffsetDateTime>,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError> {
        scope.check(actor, reason)?;
        self.end_pause(relay, scope, since, (actor, reason)).await
    }

    async fn operations(&self, relay: &RelayName, records_max: u32) -> Result<Vec<Operation>, LogError> {
        self.read_operations(relay, records_max).await
    }
}

fn listed(row: &SqliteRow) -> Result<ListedEntry, sqlx::Error> {
    Ok(ListedEntry {
        id: EntryId(row.try_get("id")?),
        message_id: row.try_get("message_id")?,
        topic: row.try_get("topic")?,
        key: row.try_get("key")?,
        kind: text(row, "kind")?,
        attempts: u32::try_from(row.try_get::<i64, _>("attempts")?).unwrap_or_default(),
        due_in: due(row.try_get("due_in")?),
        fault: row.try_get("fault")?,
        error: row.try_get("error")?,
        created_at: at_micros(row.try_get("created_at")?),
        updated_at: at_micros(row.try_get("updated_at")?),
        payload_bytes: u64::try_from(row.try_get::<i64, _>("payload_bytes")?).unwrap_or_default(),
        edited: row.try_get("edited")?,
    })
}

fn record(row: &SqliteRow) -> Result<AuditRecord, sqlx::Error> {
    Ok(AuditRecord {
        at: at_micros(row.try_get("at")?),
        actor: row.try_get("actor")?,
        id: EntryId(row.try_get("id")?),
        message_id: row.try_get("message_id")?,
        action: row.try_get("action")?,
        note: row.try_get("note")?,
        selection: row.try_get("selection")?,
        digest_before: row.try_get("digest_before")?,
        digest_after: row.try_get("digest_after")?,
        error: row.try_get("error")?,
    })
}
