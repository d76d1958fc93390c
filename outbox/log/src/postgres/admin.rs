//! Operators' questions and decisions, in PostgreSQL.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use migrations::SqlErrorKind;
use sqlx::{Connection, Executor as _, PgConnection, Row as _};
use time::OffsetDateTime;

use crate::admin::decision::{
    ChosenEntry, DecideError, Decision, EntryNow, OperatorDecision, TAKEN_FOR_CALLS, edited,
};
use crate::admin::entry::{AuditRecord, ListedEntry, due};
use crate::admin::status::{
    Backlog, Blocker, COUNTED_MAX, CursorHistory, Holder, ParkedSummary, RelayStatus,
};
use crate::admin::{LogAdmin, Operation};
use crate::decided::has_an_edit;
use crate::failure::within;
use crate::postgres::brief::Brief;
use crate::postgres::history::History;
use crate::postgres::mark::{PgMark, array};
use crate::postgres::row::text;
use crate::postgres::statements::{GIVEN_UP, SAME_SEGMENT, UNBOUNDED};
use crate::postgres::store::{ONE_PLAN_HERE, PostgresLog};
use crate::{Cursor, EntryId, ExceptionState, LogError, Pause, PauseScope, RelayName, row, stored};

// $1 relay, or null for all. A session that waits for the lease has this application name, which
// every role can see. The server cuts it at 63 bytes.
pub(super) const RELAYS: &str = "
SELECT relay, epoch, holder, extract(epoch FROM lease_until - clock_timestamp())::float8 AS expires_in,
    extract(epoch FROM clock_timestamp() - checkpoint_at)::float8 AS age, cursor,
    (SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = left('relay standby ' || relay, 63)) AS standbys
FROM {schema}outbox_relay WHERE shard = 0 AND ($1::text IS NULL OR relay = $1) ORDER BY relay";

/// The answering server and its timeline, which is 0 where the server hides it.
pub(super) const PRESENT: &str = "
SELECT (SELECT system_identifier::text FROM pg_control_system()), {schema}outbox_timeline()";

pub(super) const COUNTS: &str = "
SELECT state, fault, is_due, count(*), min(id), max(since_due), max(longest)
FROM (SELECT state, fault, id, coalesce(due_at <= clock_timestamp(), false) AS is_due,
        extract(epoch FROM clock_timestamp() - due_at)::float8 AS since_due,
        extract(epoch FROM clock_timestamp() - CASE WHEN state IN ('dead', 'discarded') THEN updated_at
            ELSE created_at END)::float8 AS longest
    FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 ORDER BY id LIMIT $2) AS parked
GROUP BY state, fault, is_due";

// An entry without a copy was enqueued shortly before it was parked. `lag` counts in the same way.
pub(super) const PARKED_AGE: &str = "
SELECT extract(epoch FROM clock_timestamp() - coalesce(
    (SELECT p.enqueued_at FROM {schema}outbox_parked AS p
        WHERE p.relay = $1 AND p.shard = 0 AND p.id = $2 LIMIT 1),
    e.created_at))::float8
FROM {schema}outbox_exception AS e WHERE e.relay = $1 AND e.shard = 0 AND e.id = $2";

// $1: settled up to this id, except for transactions that were in flight, $5. $2 base, $3 head or
// null, $4 after. The first part has the smaller ids.
pub(super) const BACKLOG: &str = "
SELECT (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {schema}outbox_message_id_seq)
        - $1,
    oldest.id, extract(epoch FROM clock_timestamp() - oldest.enqueued_at)::float8
FROM (SELECT) AS always LEFT JOIN LATERAL (
    (SELECT late.id, late.enqueued_at
    FROM unnest($5::text::xid8[]) AS flight(xid) CROSS JOIN LATERAL (
        SELECT m.id, m.enqueued_at FROM {schema}outbox_message AS m
        WHERE (m.xid, m.id) > (flight.xid, 0::bigint) AND (m.xid, m.id) <= (flight.xid, $1)
            AND NOT pg_visible_in_snapshot(m.xid, (SELECT $2::text::pg_snapshot))
            AND NOT (m.id <= $4
                AND coalesce(pg_visible_in_snapshot(m.xid, (SELECT $3::text::pg_snapshot)), false))
        ORDER BY m.xid, m.id LIMIT 1) AS late
    ORDER BY late.id LIMIT 1)
    UNION ALL
    (SELECT m.id, m.enqueued_at FROM {schema}outbox_message AS m
    WHERE m.id > $1 AND NOT pg_visible_in_snapshot(m.xid, (SELECT $2::text::pg_snapshot))
    ORDER BY m.id LIMIT 1)
    ORDER BY id LIMIT 1) AS oldest ON true";

// A transaction that has written to the outbox and is still open holds a row-exclusive lock on it.
// The oldest is found by its transaction id, which every role can see: state and start of other
// roles' sessions are null without pg_read_all_stats. A prepared transaction has no session: its
// locks name no process, and one of them is that on its transaction id.
pub(super) const BLOCKER: &str = "
WITH locks AS MATERIALIZED (SELECT * FROM pg_locks WHERE locktype IN ('relation', 'transactionid')),
writers AS (
    SELECT pid, virtualtransaction FROM locks
    WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND relation = '{schema}outbox_message'::regclass
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
SELECT pid, xid::text, name, state, extract(epoch FROM clock_timestamp() - since)::float8
FROM (
    SELECT a.pid, a.backend_xid AS xid, coalesce(a.application_name, '') AS name, a.state, a.xact_start AS since
    FROM writers AS w JOIN pg_stat_activity AS a ON a.pid = w.pid
    WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
    UNION ALL
    SELECT 0, p.transaction, p.gid, 'prepared', p.prepared
    FROM writers AS w
    JOIN locks AS own ON own.virtualtransaction = w.virtualtransaction AND own.mode = 'ExclusiveLock'
    JOIN pg_prepared_xacts AS p ON p.transaction = own.transactionid
    WHERE w.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid') AS open
ORDER BY age(xid) DESC, pid LIMIT 1";

migrations::statements! {
    parts {
        listed = "
            SELECT e.id, e.message_id::text AS message_id, e.topic, e.key, coalesce(p.kind, e.topic) AS kind,
                e.attempts, extract(epoch FROM e.due_at - clock_timestamp())::float8 AS due_in, e.fault, e.error,
                e.created_at, e.updated_at,
                coalesce(octet_length(p.payload), octet_length(m.payload), 0)::bigint AS payload_bytes,
                p.edited_at IS NOT NULL AS edited
            FROM (SELECT * FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND state = $2 AND {is_indexed} AND id > $3
                ORDER BY id LIMIT $4::bigint) AS e
            LEFT JOIN LATERAL (SELECT kind, payload, edited_at FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS p ON true
            LEFT JOIN LATERAL (SELECT payload FROM {schema}outbox_message
                WHERE p.payload IS NULL AND id >= e.id AND id <= e.id AND message_id = e.message_id AND {same_segment}
                ORDER BY id LIMIT 1) AS m ON true
            ORDER BY e.id";
        given_up = GIVEN_UP;
        has_an_edit = has_an_edit!();
        same_segment = SAME_SEGMENT;
        unbounded = UNBOUNDED;
    }

    /// $1 relay, $2 state, $3 above this id, $4 rows. Walks all parked entries.
    list(is_indexed = "true", message_id = "e.message_id") = "{listed}";
    /// Like `list`, for the states that have an index of their own. The literals let the server use
    /// that index, whatever $2 is.
    list_stuck(is_indexed = "state IN ('retrying', 'dead')", message_id = "e.message_id") = "{listed}";
    /// Discarded entries: those whose decision the relay has not followed yet, and those whose
    /// decision it has, as long as the log has them. $1 relay, $2 above this id, $3 rows. No index
    /// covers discarded entries. So all decisions are read, each message whose last decision is a
    /// discard is looked up separately, and further columns are looked up for this page only.
    list_discarded(message_id = "d.message_id") = "
        WITH given_up AS MATERIALIZED (
            SELECT max(a.seq) FILTER (WHERE a.action = 'discard') AS discarded,
                coalesce({has_an_edit}, false) AS edited {given_up}),
        chosen AS MATERIALIZED (
            SELECT coalesce(e.id, m.id) AS id, d.message_id, coalesce(e.topic, m.topic) AS topic,
                coalesce(e.key, m.key) AS key, m.kind, coalesce(e.attempts, 0) AS attempts, coalesce(e.fault, d.fault) AS fault,
                format('discarded by %s: %s', d.actor, d.note) || coalesce('; it was dead: ' || d.error, '') AS error, d.at, m.payload_bytes, g.edited,
                e.id AS parked
            FROM given_up AS g
            CROSS JOIN LATERAL (SELECT id, message_id, actor, note, at, fault, error FROM {schema}outbox_audit
                WHERE seq = g.discarded LIMIT 1) AS d
            LEFT JOIN LATERAL (SELECT id, topic, key, state, attempts, fault FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND id = d.id AND message_id = d.message_id LIMIT 1) AS e ON true
            LEFT JOIN LATERAL (
                SELECT id, topic, key, kind, octet_length(payload)::bigint AS payload_bytes FROM {schema}outbox_message
                WHERE message_id = d.message_id AND {same_segment} LIMIT 1) AS m ON true
            WHERE (e.state = 'discarded' OR e.id IS NULL AND m.id IS NOT NULL) AND coalesce(e.id, m.id) > $2
            ORDER BY coalesce(e.id, m.id) LIMIT $3::bigint)
        SELECT c.id, c.message_id::text AS message_id, c.topic, c.key, coalesce(c.kind, p.kind, c.topic) AS kind,
            c.attempts, NULL::float8 AS due_in, c.fault, c.error, c.at AS created_at, c.at AS updated_at,
            coalesce(p.payload_bytes, c.payload_bytes, 0) AS payload_bytes, c.edited
        FROM chosen AS c
        LEFT JOIN LATERAL (
            SELECT kind, octet_length(payload)::bigint AS payload_bytes FROM {schema}outbox_parked
            WHERE relay = $1 AND shard = 0 AND id = c.parked LIMIT 1) AS p ON true
        ORDER BY c.id";
    /// $1 relay, $2 id. Computes the same as `Content::digest`, in the server, so that no content
    /// leaves it. The server cannot compute it for the largest contents.
    digest(of = "p") = "
        SELECT encode(sha256(int8send(octet_length(c.payload)::bigint) || c.payload
                || int8send(octet_length(c.headers)::bigint) || c.headers), 'hex')
        FROM (SELECT payload, convert_to(coalesce(headers::text, ''),
                    CASE WHEN getdatabaseencoding() = 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) AS headers
            FROM {schema}outbox_parked AS p WHERE relay = $1 AND shard = 0 AND id = $2
                AND octet_length(payload) <= 536870912 AND NOT {unbounded} OFFSET 0) AS c";
}

// $1 relay, $2 ids, ascending, so that two operators never deadlock. Entries that are not dead
// belong to the relay, unless they were taken from it until $3. Each is looked up separately, here
// and below.
pub(super) const LOCK_ENTRIES: &str = "
SELECT e.id, e.state, e.message_id::text FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
    SELECT id, state, message_id FROM {schema}outbox_exception
    WHERE relay = $1 AND shard = 0 AND id = chosen.id
        AND (state = 'dead' OR state = 'retrying' AND due_at = $3::text::timestamptz) LIMIT 1 FOR UPDATE) AS e";

// $1 relay, $2 ids, $3 seconds: the entries that wait for a retry and for an operator, when each is
// due, and until when it is taken.
pub(super) const LOCK_WAITING: &str = "
SELECT e.id, e.due_at::text, (clock_timestamp() + make_interval(secs => $3))::text
FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
    SELECT id, due_at FROM {schema}outbox_exception
    WHERE relay = $1 AND shard = 0 AND id = chosen.id AND state = 'retrying' AND fault = 'operator'
        AND due_at > clock_timestamp() LIMIT 1 FOR UPDATE) AS e";

// $1 relay, $2 ids, $3 the new due time of the retrying ones among them; null means now.
pub(super) const SET_DUE: &str = "
UPDATE {schema}outbox_exception SET due_at = coalesce($3::text::timestamptz, clock_timestamp())
WHERE ctid = ANY(ARRAY(
    SELECT e.place FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM {schema}outbox_exception
        WHERE relay = $1 AND shard = 0 AND id = chosen.id AND state = 'retrying' LIMIT 1 FOR UPDATE) AS e))";

// $1 ids, $2 times: the ids whose time has passed.
pub(super) const OVERDUE: &str = "
SELECT taken.id FROM unnest($1::bigint[], $2::text[]) AS taken(id, due_at)
WHERE taken.due_at::timestamptz <= clock_timestamp()";

pub(super) const LOOK_AT_ENTRIES: &str = "
SELECT e.id, e.state, e.message_id::text FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
    SELECT id, state, message_id FROM {schema}outbox_exception
    WHERE relay = $1 AND shard = 0 AND id = chosen.id LIMIT 1) AS e";

// The rows are locked, so their `ctid` does not change.
pub(super) const REQUEUE: &str = "
UPDATE {schema}outbox_exception
SET state = 'retrying', attempts = 0, due_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE ctid = ANY(ARRAY(
    SELECT e.place FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM {schema}outbox_exception
        WHERE relay = $1 AND shard = 0 AND id = chosen.id LIMIT 1) AS e))";

pub(super) const DISCARD: &str = "
UPDATE {schema}outbox_exception
SET state = 'discarded', due_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE ctid = ANY(ARRAY(
    SELECT e.place FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM {schema}outbox_exception
        WHERE relay = $1 AND shard = 0 AND id = chosen.id LIMIT 1) AS e))";

// Content that was too large to be copied is read from the log, where the edit keeps it.
pub(super) const EDIT: &str = "
UPDATE {schema}outbox_parked
SET payload = coalesce($3, c.payload), headers = coalesce($4::jsonb, c.headers), traceparent = c.traceparent,
    tracestate = c.tracestate, edited_at = clock_timestamp()
FROM (
    SELECT p.place, coalesce(p.payload, m.payload) AS payload,
        CASE WHEN p.payload IS NULL THEN m.headers ELSE p.headers END AS headers,
        CASE WHEN p.payload IS NULL THEN m.traceparent ELSE p.traceparent END AS traceparent,
        CASE WHEN p.payload IS NULL THEN m.tracestate ELSE p.tracestate END AS tracestate
    FROM (SELECT id, message_id FROM {schema}outbox_exception
        WHERE relay = $1 AND shard = 0 AND id = $2 LIMIT 1) AS e
    CROSS JOIN LATERAL (SELECT ctid AS place, payload, headers, traceparent, tracestate FROM {schema}outbox_parked
        WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS p
    LEFT JOIN LATERAL (SELECT payload, headers, traceparent, tracestate FROM {schema}outbox_message
        WHERE p.payload IS NULL AND id >= e.id AND id <= e.id AND message_id = e.message_id
            AND (get_byte(uuid_send(message_id), 2) >> 2) & 7 = (get_byte(uuid_send(e.message_id), 2) >> 2) & 7
        ORDER BY id LIMIT 1) AS m ON true) AS c
WHERE ctid = c.place";

pub(super) const AUDIT: &str = "
INSERT INTO {schema}outbox_audit (actor, relay, action, note, selection, id, message_id, digest_before,
    digest_after, fault, error)
SELECT $1, $2, $3, $4, $5, d.id, d.message_id, d.digest_before, d.digest_after, e.fault, e.error
FROM unnest($6::bigint[], $7::text[]::uuid[], $8::text[], $9::text[])
    WITH ORDINALITY AS d(id, message_id, digest_before, digest_after, place)
LEFT JOIN LATERAL (SELECT fault, error FROM {schema}outbox_exception
    WHERE relay = $2 AND shard = 0 AND id = d.id LIMIT 1) AS e ON true
ORDER BY d.place";

pub(super) const RECORDS: &str = "
SELECT at, actor, id, message_id::text AS message_id, action, note, digest_before, digest_after, selection, error
FROM {schema}outbox_audit WHERE relay = $1 ORDER BY seq DESC LIMIT $2";

impl PostgresLog {
    pub(super) async fn admin(&self) -> Result<Brief, LogError> {
        // Boxed: the future that opens a connection is large, and every question begins with it.
        Box::pin(self.connect("relay admin")).await.map(Brief::new)
    }

    /// Opens a session for questions, in a transaction that ends with it.
    pub(super) async fn look(&self) -> Result<Brief, LogError> {
        let mut connection = self.admin().await?;
        let begin = async {
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED, READ ONLY").await?;
            connection.execute(ONE_PLAN_HERE).await
        };
        begin.await.map_err(LogError::during("begin to look"))?;
        Ok(connection)
    }

    async fn backlog(&self, connection: &mut PgConnection, cursor: &Cursor) -> Result<Backlog, LogError> {
        let base = PgMark::read(&cursor.base)?;
        let progress = cursor.progress.as_ref();
        let head = progress.map(|progress| PgMark::read(&progress.head)).transpose()?;
        let after = progress.map_or(0, |progress| progress.after);
        let mut in_flight = base.in_flight.clone();
        in_flight.extend(head.iter().flat_map(|head| &head.in_flight));
        let (ahead, id, age): (i64, Option<i64>, Option<f64>) = sqlx::query_as(&self.render(BACKLOG))
            .bind(base.floor.max(after))
            .bind(&base.snapshot)
            .bind(head.as_ref().map(|head| &head.snapshot))
            .bind(after)
            .bind(array(&in_flight))
            .fetch_one(connection)
            .await
            .map_err(LogError::during("measure the backlog"))?;
        let oldest = id.zip(age).map(|(id, age)| (EntryId(id), row::wait(age).unwrap_or_default()));
        // A long transaction may have left rows below the floor.
        let at_least = u64::from(oldest.is_some());
        let entries_max = if oldest.is_none() { 0 } else { u64::try_from(ahead).unwrap_or_default() };
        Ok(Backlog { entries_max: entries_max.max(at_least), oldest, parked: 0, oldest_parked: None })
    }

    /// Returns the parked entries, and the age of the oldest one that is held or retrying.
    async fn parked(
        &self,
        connection: &mut PgConnection,
        relay: &str,
    ) -> Result<(ParkedSummary, Option<Duration>), LogError> {
        let failed = || LogError::during("count the parked entries");
        let rows = sqlx::query_as(&self.render(COUNTS))
            .bind(relay)
            .bind(i64::from(COUNTED_MAX))
            .fetch_all(&mut *connection)
            .await
            .map_err(failed())?;
        let summary = ParkedSummary::of(rows);
        let Some(EntryId(id)) = summary.oldest else { return Ok((summary, None)) };
        // The entry may have left in the meantime.
        let age: Option<f64> = sqlx::query_scalar(&self.render(PARKED_AGE))
            .bind(relay)
            .bind(id)
            .fetch_optional(connection)
            .await
            .map_err(failed())?;
        Ok((summary, age.and_then(row::wait)))
    }

    /// Returns all relays, or one.
    async fn status(&self, only: Option<&RelayName>) -> Result<Vec<RelayStatus>, LogError> {
        let failed = || LogError::during("describe the relays");
        let mut connection = self.look().await?;
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
            let (cursor, broker_trouble) = (stored::read(&cursor)?, stored::read_trouble(&cursor));
            let (summary, age) = self.parked(&mut connection, &relay).await?;
            let backlog = summary.add_to(self.backlog(&mut connection, &cursor).await?, age);
            relays.push(RelayStatus {
                relay,
                epoch: row.try_get("epoch").map_err(failed())?,
                standbys: u64::try_from(row.try_get::<i64, _>("standbys").map_err(failed())?).ok(),
                holder: holder.map(|name| Holder { name, expires_in: expires_in.and_then(row::wait) }),
                checkpoint_age: due(row.try_get("age").map_err(failed())?).unwrap_or_default(),
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

    /// Returns the digest of an entry's copy.
    async fn digest(
        &self,
        connection: &mut PgConnection,
        relay: &RelayName,
        id: EntryId,
    ) -> Result<Option<String>, LogError> {
        let digest = Statements::new(self.options.schema.as_ref()).digest;
        sqlx::query_scalar(&digest)
            .bind(relay.as_str())
            .bind(id.0)
            .fetch_optional(connection)
            .await
            .map_err(LogError::during("look at the entry"))
    }

    /// Takes the entries that wait for a retry and for an operator from the relay (see
    /// [`crate::admin::decision`]). Returns until when they are taken.
    async fn take_waiting(
        &self,
        connection: &mut PgConnection,
        relay: &RelayName,
        entries: &[ChosenEntry],
    ) -> Result<Option<String>, LogError> {
        let failed = || LogError::during("take entries from the relay");
        let mut ids: Vec<i64> = entries.iter().map(|entry| entry.id.0).collect();
        ids.sort_unstable();
        let taken_for = self.options.call_timeout * TAKEN_FOR_CALLS;
        let mut tx = connection.begin().await.map_err(failed())?;
        tx.execute(ONE_PLAN_HERE).await.map_err(failed())?;
        let waiting: Vec<(i64, String, String)> = sqlx::query_as(&self.render(LOCK_WAITING))
            .bind(relay.as_str())
            .bind(ids)
            .bind(taken_for.as_secs_f64())
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        let Some((.., until)) = waiting.first().cloned() else { return Ok(None) };
        let ids: Vec<i64> = waiting.iter().map(|(id, ..)| *id).collect();
        self.set_due(&mut tx, relay, &ids, Some(&until)).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        let overdue: Vec<i64> = sqlx::query_scalar(&self.render(OVERDUE))
            .bind(&ids)
            .bind(waiting.iter().map(|(_, due_at, _)| due_at.as_str()).collect::<Vec<_>>())
            .fetch_all(&mut *connection)
            .await
            .map_err(failed())?;
        if !overdue.is_empty() {
            self.set_due(connection, relay, &overdue, None).await.map_err(failed())?;
        }
        Ok(Some(until))
    }

    /// Sets the due time of retrying entries; `None` means now.
    async fn set_due(
        &self,
        connection: &mut PgConnection,
        relay: &RelayName,
        ids: &[i64],
        at: Option<&str>,
    ) -> Result<(), sqlx::Error> {
        let set_due = self.render(SET_DUE);
        sqlx::query(&set_due).bind(relay.as_str()).bind(ids).bind(at).execute(connection).await?;
        Ok(())
    }

    /// Returns the current state of the chosen entries. Locks those that are dead, and those that
    /// were taken from the relay until `taken_until`.
    async fn lock(
        &self,
        connection: &mut PgConnection,
        relay: &RelayName,
        entries: &[ChosenEntry],
        taken_until: Option<&str>,
    ) -> Result<HashMap<i64, EntryNow>, LogError> {
        let mut ids: Vec<i64> = entries.iter().map(|entry| entry.id.0).collect();
        ids.sort_unstable();
        let mut found = HashMap::new();
        for (statement, is_locked) in [(LOCK_ENTRIES, true), (LOOK_AT_ENTRIES, false)] {
            let missing: Vec<i64> = ids.iter().copied().filter(|id| !found.contains_key(id)).collect();
            if missing.is_empty() {
                break;
            }
            let statement = self.render(statement);
            let mut query = sqlx::query_as(&statement).bind(relay.as_str()).bind(missing);
            if is_locked {
                query = query.bind(taken_until);
            }
            let rows: Vec<(i64, String, String)> =
                query.fetch_all(&mut *connection).await.map_err(LogError::during("look at the entries"))?;
            let entry = |(id, state, message_id)| (id, EntryNow { state, message_id, is_locked });
            found.extend(rows.into_iter().map(entry));
        }
        Ok(found)
    }

    /// Carries out a decision. Sets `is_committing` before it sends the commit: until then, an end
    /// of this future also ends the transaction.
    async fn carry_out(
        &self,
        relay: &RelayName,
        entries: &[ChosenEntry],
        decree: &OperatorDecision,
        is_committing: &AtomicBool,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError> {
        let failed = || LogError::during("carry out the decision");
        let mut connection = self.admin().await?;
        let action = decree.decision.action();
        let taken_until = match action.takes_retrying() {
            true => self.take_waiting(&mut connection, relay, entries).await?,
            false => None,
        };
        let mut tx = connection.begin().await.map_err(failed())?;
        tx.execute(ONE_PLAN_HERE).await.map_err(failed())?;
        let found = self.lock(&mut tx, relay, entries, taken_until.as_deref()).await?;
        let verdicts: Vec<Result<(), DecideError>> =
            entries.iter().map(|entry| entry.verdict(relay, found.get(&entry.id.0), action)).collect();
        let accepted = entries.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_ok());
        let accepted: Vec<&ChosenEntry> = accepted.map(|(entry, _)| entry).collect();
        if accepted.is_empty() {
            return Ok(verdicts);
        }
        let ids: Vec<i64> = accepted.iter().map(|entry| entry.id.0).collect();
        let mut digests: (Vec<Option<String>>, Vec<Option<String>>) =
            (vec![None; ids.len()], vec![None; ids.len()]);
        match &decree.decision {
            Decision::Requeue | Decision::Discard => {
                let text = if decree.decision == Decision::Requeue { REQUEUE } else { DISCARD };
                let update = self.render(text);
                let query = sqlx::query(&update).bind(relay.as_str()).bind(&ids);
                query.execute(&mut *tx).await.map_err(failed())?;
            }
            Decision::Edit { .. } => {
                let (payload, headers) = edited(&decree.decision)?;
                for (place, entry) in accepted.iter().enumerate() {
                    digests.0[place] = self.digest(&mut tx, relay, entry.id).await?;
                    let edit = self.render(EDIT);
                    let edit = sqlx::query(&edit).bind(relay.as_str()).bind(entry.id.0);
                    let done = edit.bind(&payload).bind(&headers).execute(&mut *tx).await.map_err(failed())?;
                    if done.rows_affected() == 0 {
                        return Err(failed()(sqlx::Error::RowNotFound).into());
                    }
                    digests.1[place] = self.digest(&mut tx, relay, entry.id).await?;
                }
                // An entry that was taken from the relay is retried with its new content.
                self.set_due(&mut tx, relay, &ids, None).await.map_err(failed())?;
            }
        }
        sqlx::query(&self.render(AUDIT))
            .bind(&decree.actor)
            .bind(relay.as_str())
            .bind(action.as_str())
            .bind(&decree.note)
            .bind(&decree.selection)
            .bind(ids)
            .bind(accepted.iter().map(|entry| entry.message_id.as_str()).collect::<Vec<_>>())
            .bind(digests.0)
            .bind(digests.1)
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
        is_committing.store(true, Ordering::Relaxed);
        tx.commit().await.map_err(|error| match SqlErrorKind::of(&error) {
            SqlErrorKind::Refused | SqlErrorKind::Conflict => DecideError::Log(failed()(error)),
            SqlErrorKind::Lost | SqlErrorKind::Unavailable => DecideError::Unknown(failed()(error)),
        })?;
        Ok(verdicts)
    }
}

#[async_trait]
impl LogAdmin for PostgresLog {
    async fn relays(&self) -> Result<Vec<RelayStatus>, LogError> {
        within(self.options.call_timeout, self.status(None)).await
    }

    async fn relay(&self, relay: &RelayName) -> Result<Option<RelayStatus>, LogError> {
        Ok(within(self.options.call_timeout, self.status(Some(relay))).await?.pop())
    }

    async fn blocker(&self) -> Result<Option<Blocker>, LogError> {
        let ask = async {
            let failed = || LogError::during("look for open transactions");
            let found = sqlx::query(&self.render(BLOCKER)).fetch_optional(&mut *self.look().await?).await;
            let Some(row) = found.map_err(failed())? else { return Ok(None) };
            blocker(&row).map(Some).map_err(failed())
        };
        within(self.options.call_timeout, ask).await
    }

    async fn list(
        &self,
        relay: &RelayName,
        state: ExceptionState,
        after: EntryId,
        entries_max: u32,
    ) -> Result<Vec<ListedEntry>, LogError> {
        let ask = async {
            let statements = Statements::new(self.options.schema.as_ref());
            let (statement, takes_state) = match state {
                ExceptionState::Retrying | ExceptionState::Dead => (&statements.list_stuck, true),
                ExceptionState::Discarded => (&statements.list_discarded, false),
                _ => (&statements.list, true),
            };
            let mut list = sqlx::query(statement).bind(relay.as_str());
            if takes_state {
                list = list.bind(state.as_str());
            }
            let rows = list
                .bind(after.0)
                .bind(i64::from(entries_max))
                .fetch_all(&mut *self.look().await?)
                .await
                .map_err(LogError::during("list entries"))?;
            rows.iter().map(|row| listed(row).map_err(LogError::during("read an entry"))).collect()
        };
        within(self.options.call_timeout, ask).await
    }

    async fn decide(
        &self,
        relay: &RelayName,
        entries: &[ChosenEntry],
        decree: OperatorDecision,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError> {
        decree.check(entries.len())?;
        let limit = self.options.call_timeout;
        let is_committing = AtomicBool::new(false);
        let done = self.carry_out(relay, entries, &decree, &is_committing);
        match tokio::time::timeout(limit, done).await {
            Ok(done) => done,
            Err(_) if is_committing.load(Ordering::Relaxed) => {
                Err(DecideError::Unknown(LogError::Timeout { waited: limit }))
            }
            Err(_) => Err(LogError::Timeout { waited: limit }.into()),
        }
    }

    async fn audit(&self, relay: &RelayName, records_max: u32) -> Result<Vec<AuditRecord>, LogError> {
        let ask = async {
            let rows = sqlx::query(&self.render(RECORDS))
                .bind(relay.as_str())
                .bind(i64::from(records_max))
                .fetch_all(&mut *self.look().await?)
                .await
                .map_err(LogError::during("list decisions"))?;
            rows.iter().map(|row| record(row).map_err(LogError::during("read a decision"))).collect()
        };
        within(self.options.call_timeout, ask).await
    }

    async fn pauses(&self, relay: &RelayName) -> Result<Vec<Pause>, LogError> {
        within(self.options.call_timeout, self.read_pauses(relay)).await
    }

    async fn pause(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError> {
        scope.check(actor, reason)?;
        within(self.options.call_timeout, self.set_paused(relay, scope, (actor, reason))).await
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
        let resumed = self.end_pause(relay, scope, since, (actor, reason));
        within(self.options.call_timeout, resumed).await
    }

    async fn operations(&self, relay: &RelayName, records_max: u32) -> Result<Vec<Operation>, LogError> {
        within(self.options.call_timeout, self.read_operations(relay, records_max)).await
    }
}

fn blocker(row: &sqlx::postgres::PgRow) -> Result<Blocker, sqlx::Error> {
    let age: Option<f64> = row.try_get(4)?;
    Ok(Blocker {
        pid: row.try_get(0)?,
        transaction: row.try_get(1)?,
        application_name: row.try_get(2)?,
        state: row.try_get(3)?,
        age: age.map(|age| Duration::try_from_secs_f64(age).unwrap_or_default()),
    })
}

fn listed(row: &sqlx::postgres::PgRow) -> Result<ListedEntry, sqlx::Error> {
    Ok(ListedEntry {
        id: EntryId(row.try_get("id")?),
        message_id: row.try_get("message_id")?,
        topic: row.try_get("topic")?,
        key: row.try_get("key")?,
        kind: text(row, "kind")?,
        attempts: u32::try_from(row.try_get::<i32, _>("attempts")?).unwrap_or_default(),
        due_in: due(row.try_get("due_in")?),
        fault: row.try_get("fault")?,
        error: row.try_get("error")?,
        created_at: row.try_get("created_at")?,
        updated_at: row.try_get("updated_at")?,
        payload_bytes: u64::try_from(row.try_get::<i64, _>("payload_bytes")?).unwrap_or_default(),
        edited: row.try_get("edited")?,
    })
}

fn record(row: &sqlx::postgres::PgRow) -> Result<AuditRecord, sqlx::Error> {
    Ok(AuditRecord {
        at: row.try_get("at")?,
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
