//! The SQL of operators' queries and decisions.

use crate::postgres::fragments::{SAME_SEGMENT, with_last_error};
use crate::postgres::row::{CONTENT, UNBOUNDED, UNEDITED, UNEDITED_OF};

// $1 relay, or null for all. A session that waits for the lease has an application name like
// `relay/0.1.0 standby orders`, which every role can see. The server cuts it at 63 bytes.
pub(in crate::postgres) const RELAYS: &str = "
SELECT relay, epoch, holder, extract(epoch FROM lease_until - clock_timestamp())::float8 AS expires_in,
    extract(epoch FROM clock_timestamp() - checkpoint_at)::float8 AS age, cursor,
    (SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'relay/%'
            AND application_name = left(split_part(application_name, ' ', 1) || ' standby ' || relay, 63)) AS standbys
FROM {schema}outbox_relay WHERE shard = 0 AND ($1::text IS NULL OR relay = $1) ORDER BY relay";

// $1 relay. The address and the start of other roles' sessions are null without pg_read_all_stats.
pub(in crate::postgres) const PROCESSES: &str = "
SELECT split_part(application_name, ' ', 2) AS role, substr(split_part(application_name, ' ', 1), 7) AS version,
    host(client_addr) AS address, backend_start
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'relay/%'
    AND split_part(application_name, ' ', 2) IN ('leads', 'standby')
    AND application_name = left(split_part(application_name, ' ', 1) || ' '
        || split_part(application_name, ' ', 2) || ' ' || $1::text, 63)
ORDER BY role, backend_start, pid LIMIT 200";

/// The answering server and its timeline, which is 0 where the server hides it.
pub(in crate::postgres) const PRESENT: &str = "
SELECT (SELECT system_identifier::text FROM pg_control_system()), {schema}outbox_timeline()";

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
// locks name no process, and one of them is that on its transaction id. Its pid is null.
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
    SELECT NULL, p.transaction, p.gid, NULL, p.prepared
    FROM writers AS w
    JOIN locks AS own ON own.virtualtransaction = w.virtualtransaction AND own.mode = 'ExclusiveLock'
    JOIN pg_prepared_xacts AS p ON p.transaction = own.transactionid
    WHERE w.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid') AS open
ORDER BY age(xid) DESC, pid LIMIT 1";

migrations::statements! {
    parts {
        unbounded = UNBOUNDED;
        content = CONTENT;
        unedited = UNEDITED;
        unedited_of = UNEDITED_OF;
        same_segment = SAME_SEGMENT;
    }

    /// $1 relay, $2 id. Computes the same as `Content::digest`, in the server, so that no content
    /// leaves it. The server cannot compute it for the largest contents.
    digest(of = "p") = "
        SELECT encode(sha256(int8send(octet_length(c.payload)::bigint) || c.payload
                || int8send(octet_length(c.headers)::bigint) || c.headers), 'hex')
        FROM (SELECT payload, convert_to(coalesce(headers::text, ''),
                    CASE WHEN getdatabaseencoding() = 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) AS headers
            FROM {schema}outbox_parked AS p WHERE relay = $1 AND shard = 0 AND id = $2
                AND octet_length(payload) <= 536870912 AND NOT {unbounded} OFFSET 0) AS c";
    /// $1 relay, $2 id, $3 payload, $4 headers. Content that was too large to be copied is read
    /// from the log, where the edit keeps it. Without its row nothing is stored: what the edit does
    /// not replace would be lost.
    edit(message_id = "e.message_id") = "
        UPDATE {schema}outbox_parked
        SET payload = coalesce($3, c.payload), headers = coalesce($4::jsonb, c.headers), {unedited},
            edited_at = clock_timestamp()
        FROM (
            SELECT p.place, p.payload IS NOT NULL OR m.id IS NOT NULL AS is_there, coalesce(p.payload, m.payload) AS payload,
                CASE WHEN p.payload IS NULL THEN m.headers ELSE p.headers END AS headers, {unedited_of}
            FROM (SELECT id, message_id FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND id = $2 LIMIT 1) AS e
            CROSS JOIN LATERAL (SELECT ctid AS place, {content} FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS p
            LEFT JOIN LATERAL (SELECT id, {content} FROM {schema}outbox_message
                WHERE p.payload IS NULL AND id >= e.id AND id <= e.id AND message_id = e.message_id AND {same_segment}
                ORDER BY id LIMIT 1) AS m ON true) AS c
        WHERE ctid = c.place AND c.is_there";
}

// $1 relay, $2 ids, ascending, so that two operators never deadlock. Entries that are not dead
// belong to the relay, unless this operator has taken them until $3, which must be in the future: a
// process may have slept meanwhile. A confirmation for the time $4, if given, does not cover later
// changes of their state; `EDITED_SINCE` finds edits. Each is looked up separately, here and below.
pub(in crate::postgres) const LOCK_ENTRIES: &str = "
SELECT e.id, e.state, e.message_id::text FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
    SELECT id, state, message_id FROM {schema}outbox_exception
    WHERE relay = $1 AND shard = 0 AND id = chosen.id
        AND (state = 'dead'
            OR state = 'retrying' AND due_at = $3::text::timestamptz AND due_at > clock_timestamp())
        AND ($4::timestamptz IS NULL OR updated_at <= $4) LIMIT 1 FOR UPDATE) AS e";

// $1 relay, $2 ids, $3 for each the time of the edit that was shown, or null: the entries that have
// other content. Times are compared for equality alone: an edit whose commit took long is older
// than a confirmation that has not seen it. A separate statement, once the entries are locked: the
// statement that waited for the lock would read the copies as they were before.
pub(in crate::postgres) const EDITED_SINCE: &str = "
SELECT p.id FROM unnest($2::bigint[], $3::timestamptz[]) AS chosen(id, edited_at) CROSS JOIN LATERAL (
    SELECT id, edited_at FROM {schema}outbox_parked
    WHERE relay = $1 AND shard = 0 AND id = chosen.id LIMIT 1) AS p
WHERE p.edited_at IS DISTINCT FROM chosen.edited_at";

// $1 relay, $2 ids, $3 seconds: the entries that wait for a retry, when each is due, and until when
// it is taken. Unless $6, they must also wait for an operator. A confirmation for the time $4, if
// given, does not cover one that has been retried since, or was dead and is requeued, nor content
// other than that of the edits $5 (see above).
pub(in crate::postgres) const LOCK_WAITING: &str = "
SELECT e.id, e.due_at::text, (clock_timestamp() + make_interval(secs => $3))::text
FROM unnest($2::bigint[], $5::timestamptz[]) AS chosen(id, edited_at) CROSS JOIN LATERAL (
    SELECT id, due_at FROM {schema}outbox_exception
    WHERE relay = $1 AND shard = 0 AND id = chosen.id AND state = 'retrying'
        AND (fault = 'operator' OR $6::boolean)
        AND due_at > clock_timestamp() AND ($4::timestamptz IS NULL OR updated_at <= $4
            AND (SELECT edited_at FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = chosen.id LIMIT 1) IS NOT DISTINCT FROM chosen.edited_at)
    LIMIT 1 FOR UPDATE) AS e";

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

// The rows are locked, so their `ctid` does not change. They are updated in the order of their
// places: with one time, what is due is read in the order of ids. The attempts are counted anew, so
// the error is added to the earlier ones with its count.
pub(in crate::postgres) const REQUEUE: &str = concat!(
    "
UPDATE {schema}outbox_exception AS e
SET state = 'retrying', attempts = 0, due_at = statement_timestamp(), updated_at = clock_timestamp(), earlier_errors = ",
    with_last_error!("false"),
    "
WHERE ctid = ANY(ARRAY(
    SELECT found.place FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM {schema}outbox_exception
        WHERE relay = $1 AND shard = 0 AND id = chosen.id LIMIT 1) AS found))"
);

pub(in crate::postgres) const DISCARD: &str = "
UPDATE {schema}outbox_exception
SET state = 'discarded', due_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE ctid = ANY(ARRAY(
    SELECT e.place FROM unnest($2::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM {schema}outbox_exception
        WHERE relay = $1 AND shard = 0 AND id = chosen.id LIMIT 1) AS e))";

// $11 payloads and $12 headers that an edit has replaced. What it left is read from the copy.
pub(in crate::postgres) const AUDIT: &str = "
INSERT INTO {schema}outbox_audit (actor, relay, action, note, selection, id, message_id, digest_before,
    digest_after, fault, error, decision, payload_before, headers_before, payload_after, headers_after)
SELECT $1, $2, $3::text, $4, $5, d.id, d.message_id, d.digest_before, d.digest_after, e.fault, e.error, $10::uuid,
    d.payload, d.headers::jsonb, p.payload, p.headers
FROM unnest($6::bigint[], $7::text[]::uuid[], $8::text[], $9::text[], $11::bytea[], $12::text[])
    WITH ORDINALITY AS d(id, message_id, digest_before, digest_after, payload, headers, place)
LEFT JOIN LATERAL (SELECT fault, error FROM {schema}outbox_exception
    WHERE relay = $2 AND shard = 0 AND id = d.id LIMIT 1) AS e ON true
LEFT JOIN LATERAL (
    SELECT CASE WHEN octet_length(payload) <= 65536 THEN payload END AS payload,
        CASE WHEN pg_column_size(coalesce(headers, '{}')) <= 65536 THEN coalesce(headers, '{}') END AS headers
    FROM {schema}outbox_parked
    WHERE $3::text = 'edit' AND relay = $2 AND shard = 0 AND id = d.id LIMIT 1) AS p ON true
ORDER BY d.place";
