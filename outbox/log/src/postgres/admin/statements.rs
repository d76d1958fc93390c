//! The SQL of operators' questions and decisions.

use crate::decided::has_an_edit;
use crate::postgres::fragments::{GIVEN_UP, SAME_SEGMENT, UNBOUNDED};

// $1 relay, or null for all. A session that waits for the lease has this application name, which
// every role can see. The server cuts it at 63 bytes.
pub(in crate::postgres) const RELAYS: &str = "
SELECT relay, epoch, holder, extract(epoch FROM lease_until - clock_timestamp())::float8 AS expires_in,
    extract(epoch FROM clock_timestamp() - checkpoint_at)::float8 AS age, cursor,
    (SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = left('relay standby ' || relay, 63)) AS standbys
FROM {schema}outbox_relay WHERE shard = 0 AND ($1::text IS NULL OR relay = $1) ORDER BY relay";

/// The answering server and its timeline, which is 0 where the server hides it.
pub(in crate::postgres) const PRESENT: &str = "
SELECT (SELECT system_identifier::text FROM pg_control_system()), {schema}outbox_timeline()";

pub(in crate::postgres) const COUNTS: &str = "
SELECT state, fault, is_due, count(*), min(id), max(since_due), max(longest)
FROM (SELECT state, fault, id, coalesce(due_at <= clock_timestamp(), false) AS is_due,
        extract(epoch FROM clock_timestamp() - due_at)::float8 AS since_due,
        extract(epoch FROM clock_timestamp() - CASE WHEN state IN ('dead', 'discarded') THEN updated_at
            ELSE created_at END)::float8 AS longest
    FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 ORDER BY id LIMIT $2) AS parked
GROUP BY state, fault, is_due";

// An entry without a copy was enqueued shortly before it was parked. `lag` counts in the same way.
pub(in crate::postgres) const PARKED_AGE: &str = "
SELECT extract(epoch FROM clock_timestamp() - coalesce(
    (SELECT p.enqueued_at FROM {schema}outbox_parked AS p
        WHERE p.relay = $1 AND p.shard = 0 AND p.id = $2 LIMIT 1),
    e.created_at))::float8
FROM {schema}outbox_exception AS e WHERE e.relay = $1 AND e.shard = 0 AND e.id = $2";

// $1: settled up to this id, except for transactions that were in flight, $5. $2 base, $3 head or
// null, $4 after. The first part has the smaller ids.
pub(in crate::postgres) const BACKLOG: &str = "
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
pub(in crate::postgres) const BLOCKER: &str = "
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
pub(in crate::postgres) const LOCK_ENTRIES: &str = "
SELECT e.id, e.state, e.message_id::text FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
    SELECT id, state, message_id FROM {schema}outbox_exception
    WHERE relay = $1 AND shard = 0 AND id = chosen.id
        AND (state = 'dead' OR state = 'retrying' AND due_at = $3::text::timestamptz) LIMIT 1 FOR UPDATE) AS e";

// $1 relay, $2 ids, $3 seconds: the entries that wait for a retry and for an operator, when each is
// due, and until when it is taken.
pub(in crate::postgres) const LOCK_WAITING: &str = "
SELECT e.id, e.due_at::text, (clock_timestamp() + make_interval(secs => $3))::text
FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
    SELECT id, due_at FROM {schema}outbox_exception
    WHERE relay = $1 AND shard = 0 AND id = chosen.id AND state = 'retrying' AND fault = 'operator'
        AND due_at > clock_timestamp() LIMIT 1 FOR UPDATE) AS e";

// $1 relay, $2 ids, $3 the new due time of the retrying ones among them; null means now.
pub(in crate::postgres) const SET_DUE: &str = "
UPDATE {schema}outbox_exception SET due_at = coalesce($3::text::timestamptz, clock_timestamp())
WHERE ctid = ANY(ARRAY(
    SELECT e.place FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM {schema}outbox_exception
        WHERE relay = $1 AND shard = 0 AND id = chosen.id AND state = 'retrying' LIMIT 1 FOR UPDATE) AS e))";

// $1 ids, $2 times: the ids whose time has passed.
pub(in crate::postgres) const OVERDUE: &str = "
SELECT taken.id FROM unnest($1::bigint[], $2::text[]) AS taken(id, due_at)
WHERE taken.due_at::timestamptz <= clock_timestamp()";

pub(in crate::postgres) const LOOK_AT_ENTRIES: &str = "
SELECT e.id, e.state, e.message_id::text FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
    SELECT id, state, message_id FROM {schema}outbox_exception
    WHERE relay = $1 AND shard = 0 AND id = chosen.id LIMIT 1) AS e";

// The rows are locked, so their `ctid` does not change.
pub(in crate::postgres) const REQUEUE: &str = "
UPDATE {schema}outbox_exception
SET state = 'retrying', attempts = 0, due_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE ctid = ANY(ARRAY(
    SELECT e.place FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM {schema}outbox_exception
        WHERE relay = $1 AND shard = 0 AND id = chosen.id LIMIT 1) AS e))";

pub(in crate::postgres) const DISCARD: &str = "
UPDATE {schema}outbox_exception
SET state = 'discarded', due_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE ctid = ANY(ARRAY(
    SELECT e.place FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM {schema}outbox_exception
        WHERE relay = $1 AND shard = 0 AND id = chosen.id LIMIT 1) AS e))";

// Content that was too large to be copied is read from the log, where the edit keeps it.
pub(in crate::postgres) const EDIT: &str = "
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

pub(in crate::postgres) const AUDIT: &str = "
INSERT INTO {schema}outbox_audit (actor, relay, action, note, selection, id, message_id, digest_before,
    digest_after, fault, error)
SELECT $1, $2, $3, $4, $5, d.id, d.message_id, d.digest_before, d.digest_after, e.fault, e.error
FROM unnest($6::bigint[], $7::text[]::uuid[], $8::text[], $9::text[])
    WITH ORDINALITY AS d(id, message_id, digest_before, digest_after, place)
LEFT JOIN LATERAL (SELECT fault, error FROM {schema}outbox_exception
    WHERE relay = $2 AND shard = 0 AND id = d.id LIMIT 1) AS e ON true
ORDER BY d.place";

pub(in crate::postgres) const RECORDS: &str = "
SELECT at, actor, id, message_id::text AS message_id, action, note, digest_before, digest_after, selection, error
FROM {schema}outbox_audit WHERE relay = $1 ORDER BY seq DESC LIMIT $2";
