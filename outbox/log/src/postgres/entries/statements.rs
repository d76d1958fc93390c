//! The SQL of queries about single entries.

use crate::postgres::fragments::{DISCARDED, EDITED, LABELS, MISSING_SEGMENTS, PASSED, SAME_SEGMENT};
use crate::postgres::row::{BOUNDED, COLUMNS, ERASED, HEADERS, HEADERS_BYTES, TRACE, UNBOUNDED};

// One index lookup for each of the ids $1.
pub(in crate::postgres) const FIRSTS: &str = "
SELECT (SELECT m.id FROM {schema}outbox_message AS m WHERE m.message_id >= moment.floor
    ORDER BY m.message_id LIMIT 1)
FROM unnest($1::uuid[]) WITH ORDINALITY AS moment(floor, number) ORDER BY moment.number";

// Server, database and table.
pub(in crate::postgres) const IDENTITY: &str = "
SELECT format('postgres %s/%s/%s', (SELECT system_identifier FROM pg_control_system()),
    (SELECT oid FROM pg_database WHERE datname = current_database()), '{schema}outbox_message'::regclass::oid)";

migrations::statements! {
    parts {
        // The columns of an entry that are shown, and its position.
        shown = "m.id, m.message_id, m.topic, m.key, m.kind, m.headers, octet_length(m.payload)::bigint AS payload_bytes,
            m.enqueued_at, m.xid";
        // The `chosen` entries with their exceptions and decisions. $1 is the relay, $2 to $5 the
        // cursor. Entries are chosen first, and each is then looked up separately: as a join, 100
        // entries and 50,000 exceptions took 5,000,000 comparisons.
        selected = "
            SELECT m.id, m.message_id::text AS message_id, m.topic, m.key, coalesce(m.kind, m.topic) AS kind, {labels} AS headers,
                m.payload_bytes, m.enqueued_at, e.state, {passed} AS passed,
                {discarded} AS discarded, {edited} AS edited
            FROM ({chosen}) AS m
            LEFT JOIN LATERAL (SELECT state FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND id = m.id AND message_id = m.message_id LIMIT 1) AS e ON true
            ORDER BY m.id";
        // Ends a call early where the headers are too large, but after the first entry, and never
        // between two rows of one id: both windows count rows of one id as one place.
        cut = "SELECT * FROM (
                SELECT run.*, count(*) OVER () AS found, rank() OVER place AS nth,
                    sum(coalesce(octet_length(run.headers), 0)) OVER place AS bytes
                FROM ({selected}) AS run WINDOW place AS (ORDER BY run.id)) AS cut
            WHERE nth = 1 OR bytes <= 8388608 ORDER BY id";
        // The same from the newest entry on.
        cut_back = "SELECT * FROM (
                SELECT run.*, count(*) OVER () AS found, rank() OVER place AS nth,
                    sum(coalesce(octet_length(run.headers), 0)) OVER place AS bytes
                FROM ({selected}) AS run WINDOW place AS (ORDER BY run.id DESC)) AS cut
            WHERE nth = 1 OR bytes <= 8388608 ORDER BY id DESC";
        passed = PASSED;
        discarded = DISCARDED;
        edited = EDITED;
        erased = ERASED;
        labels = LABELS;
        columns = COLUMNS;
        headers = HEADERS;
        unbounded = UNBOUNDED;
        trace = TRACE;
        bounded = BOUNDED;
        headers_bytes = HEADERS_BYTES;
        same_segment = SAME_SEGMENT;
        missing_segments = MISSING_SEGMENTS;
    }

    extent = "
        SELECT clock_timestamp() AS now, r.cursor, r.checkpoint_at, t.expired_through, oldest.id AS oldest_id,
            oldest.enqueued_at AS oldest_at, newest.id AS newest_id, ({missing_segments}) AS missing_segments
        FROM (SELECT) AS always
        LEFT JOIN {schema}outbox_relay AS r ON r.relay = $1 AND r.shard = 0
        LEFT JOIN {schema}outbox_retention AS t ON true
        LEFT JOIN LATERAL (SELECT id, enqueued_at FROM {schema}outbox_message ORDER BY id LIMIT 1) AS oldest ON true
        LEFT JOIN LATERAL (SELECT id FROM {schema}outbox_message ORDER BY id DESC LIMIT 1) AS newest ON true";
    /// $1 relay, $2 to $5 the cursor, $6 id or null, $7 message id or null. A parked entry has a
    /// copy of its content, which an operator may have edited. A message id is searched among all
    /// parked entries; each row that is found is then looked up separately. An id can exist once in
    /// each of the eight segments. Decisions are read by the message, because its entry may have
    /// had another id, and in the order of their index: PostgreSQL 18 reads the whole audit for an
    /// EXISTS when it believes it to be empty. A held entry waits for an earlier one of its key, or
    /// for the probe of its topic; a retry after the message's own fault stops only its key, and
    /// any other one may stop its key or its topic.
    find(of = "c", message_id = "n.message_id") = "
        WITH named AS MATERIALIZED (
            (SELECT id, message_id FROM {schema}outbox_message WHERE id >= $6 AND id <= $6 ORDER BY id LIMIT 8)
            UNION
            (SELECT id, message_id FROM {schema}outbox_message WHERE message_id >= $7 AND message_id <= $7
                ORDER BY message_id OFFSET 0)
            UNION
            SELECT id, message_id FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 AND id = $6
            UNION
            SELECT id, message_id FROM {schema}outbox_exception
            WHERE relay = $1 AND shard = 0 AND $7::uuid IS NOT NULL AND message_id = $7)
        SELECT n.id, n.message_id::text AS message_id, coalesce(m.topic, e.topic) AS topic, coalesce(m.key, e.key) AS key,
            coalesce(m.kind, p.kind, m.topic, e.topic) AS kind, coalesce(m.content_type, p.content_type) AS content_type,
            {labels} AS headers, left(coalesce(m.traceparent, p.traceparent), 64) AS traceparent,
            octet_length(coalesce(p.payload, m.payload))::bigint AS payload_bytes,
            coalesce(m.enqueued_at, p.enqueued_at) AS enqueued_at, m.xid::text AS transaction, m.deliver_at,
            m.id IS NOT NULL AS is_in_log, coalesce({passed}, false) AS passed,
            e.state, e.attempts, e.due_at, e.fault, e.error, e.created_at, e.updated_at,
            e.earlier_errors::text AS earlier_errors, p.edited_at,
            {discarded} AS was_discarded, {edited} AS was_edited,
            (SELECT a.error FROM {schema}outbox_audit AS a
                WHERE a.relay = $1 AND a.message_id >= n.message_id AND a.message_id <= n.message_id
                    AND a.action = 'discard'
                ORDER BY a.message_id DESC, a.seq DESC LIMIT 1) AS discarded_error,
            b.id AS behind_id, b.state AS behind_state, b.error AS behind_error,
            b.nth = 1 AS behind_key
        FROM named AS n
        LEFT JOIN LATERAL (SELECT * FROM {schema}outbox_message
            WHERE id >= n.id AND id <= n.id AND message_id = n.message_id AND {same_segment}
            ORDER BY id LIMIT 1) AS m ON true
        LEFT JOIN LATERAL (SELECT * FROM {schema}outbox_exception
            WHERE relay = $1 AND shard = 0 AND id = n.id AND message_id = n.message_id LIMIT 1) AS e ON true
        LEFT JOIN LATERAL (SELECT * FROM {schema}outbox_parked
            WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS p ON true
        CROSS JOIN LATERAL (SELECT n.message_id, coalesce(p.headers, m.headers) AS headers) AS c
        LEFT JOIN LATERAL (
            (SELECT 1 AS nth, o.id, o.state, o.error FROM {schema}outbox_exception AS o
            WHERE o.relay = $1 AND o.shard = 0 AND o.state IN ('retrying', 'dead') AND e.state = 'held'
                AND (o.key = e.key AND o.id < e.id) IS TRUE
            ORDER BY o.id LIMIT 1)
            UNION ALL
            (SELECT 2, o.id, o.state, o.error FROM {schema}outbox_exception AS o
            WHERE o.relay = $1 AND o.shard = 0 AND o.state IN ('retrying', 'dead') AND e.state = 'held'
                AND o.topic = e.topic AND o.state = 'retrying' AND o.fault IS DISTINCT FROM 'message'
            ORDER BY o.id LIMIT 1)
            ORDER BY nth LIMIT 1) AS b ON true
        ORDER BY n.id";
    /// $6 above this id, $7 up to this id, $8 ids or null, $9 topic, $10 key, $11 and $12 bounds of
    /// the time of enqueueing, $13 rows, $14 message ids of the ids.
    select(
        of = "m",
        message_id = "asked.message_id",
        wanted = "m.id > $6 AND m.id <= $7
            AND ($9::text IS NULL OR m.topic = $9) AND ($10::text IS NULL OR m.key = $10)
            AND ($11::timestamptz IS NULL OR m.enqueued_at >= $11)
            AND ($12::timestamptz IS NULL OR m.enqueued_at <= $12)",
        chosen = "
            (SELECT {shown} FROM {schema}outbox_message AS m WHERE $8::bigint[] IS NULL AND {wanted}
            ORDER BY m.id LIMIT $13::bigint)
            UNION ALL
            SELECT named.* FROM (
                SELECT DISTINCT id, message_id FROM unnest($8::bigint[], $14::uuid[]) AS names(id, message_id)) AS asked
            CROSS JOIN LATERAL (SELECT {shown} FROM {schema}outbox_message AS m
                WHERE m.id >= asked.id AND m.id <= asked.id AND m.message_id = asked.message_id AND {same_segment}
                    AND {wanted}
                ORDER BY m.id LIMIT 1) AS named
            ORDER BY id LIMIT $13::bigint",
    ) = "{cut}";
    /// $1 below this id, $2 from this id on, $3 rows.
    span = "
        SELECT looked.seen, oldest.id, oldest.enqueued_at FROM (
            SELECT count(*) AS seen, min(id) AS first FROM (
                SELECT id FROM {schema}outbox_message WHERE id < $1 AND id >= $2 ORDER BY id DESC LIMIT $3::bigint
            ) AS newest) AS looked
        CROSS JOIN LATERAL (SELECT id, enqueued_at FROM {schema}outbox_message
            WHERE id >= looked.first AND id <= looked.first ORDER BY id LIMIT 1) AS oldest";
    /// $6 below this id, $7 from this id on, $8 topic, $9 key, $10 and $11 name and value of a
    /// header, $12 rows. Headers that are stored in more than 256 KiB are not read.
    search(
        of = "m",
        has_header = "CASE WHEN pg_column_size(m.headers) <= 262144
            THEN coalesce(m.headers -> $10::text = to_jsonb($11::text), false) ELSE false END",
        chosen = "
            SELECT {shown} FROM {schema}outbox_message AS m
            WHERE m.id < $6 AND m.id >= $7
                AND ($8::text IS NULL OR m.topic = $8) AND ($9::text IS NULL OR m.key = $9)
                AND ($10::text IS NULL OR {has_header})
            ORDER BY m.id DESC LIMIT $12::bigint",
    ) = "{cut_back}";
    /// $6 to $10 an earlier cursor, with the transactions in flight at its marks as $8, $11 above
    /// this id, $12 rows, $13 the id up to which the earlier cursor had settled everything. Entries
    /// that it had not passed lie above that, or belong to a transaction that was in flight. No
    /// entry above the id $14 was passed since.
    passed_between(
        of = "m",
        since = "m.id <= $14::bigint AND {passed}
            AND NOT (coalesce(pg_visible_in_snapshot(m.xid, (SELECT $6::text::pg_snapshot)), false)
                OR (m.id <= $7 AND (SELECT pg_snapshot_xmax($6::text::pg_snapshot) <= '1'))
                OR (m.id <= $10 AND coalesce(pg_visible_in_snapshot(m.xid, (SELECT $9::text::pg_snapshot)), false)))",
        chosen = "
            (SELECT {shown} FROM {schema}outbox_message AS m WHERE m.id > greatest($13::bigint, $11::bigint) AND {since}
            ORDER BY m.id LIMIT $12::bigint)
            UNION ALL
            SELECT late.* FROM unnest($8::text::xid8[]) AS flight(xid) CROSS JOIN LATERAL (
                SELECT {shown} FROM {schema}outbox_message AS m
                WHERE (m.xid, m.id) > (flight.xid, $11::bigint) AND (m.xid, m.id) <= (flight.xid, $13) AND {since}
                ORDER BY m.xid, m.id LIMIT $12::bigint) AS late
            ORDER BY id LIMIT $12::bigint",
    ) = "{cut}";
    /// $1 ids, $2 their message ids, $3 maximum bytes of a payload and $4 of headers to read.
    contents(
        of = "m",
        message_id = "wanted.message_id",
        is_short = "(octet_length(run.payload) <= $3::bigint AND {headers_bytes} <= $4::bigint)",
    ) = "
        SELECT {bounded} FROM (
            SELECT {columns} FROM unnest($1::bigint[], $2::uuid[]) AS wanted(id, message_id)
            CROSS JOIN LATERAL (SELECT * FROM {schema}outbox_message
                WHERE id >= wanted.id AND id <= wanted.id AND message_id = wanted.message_id AND {same_segment}
                ORDER BY id LIMIT 1) AS m
            OFFSET 0) AS run
        ORDER BY run.id";
    /// $1 ids, $2 their message ids, which all lie in the segment $4, so that only that one is
    /// searched; $3 the content type of erased rows. A row that a relay has parked stays, unless it
    /// is discarded there. The ids are compared in a way that no index supports, because the index
    /// on (xid, id) would be read as a whole.
    erase = "
        UPDATE {schema}outbox_message AS m
        SET key = NULL, {erased}
        WHERE m.message_id = ANY($2::uuid[]) AND array_position($1::bigint[], m.id) IS NOT NULL
            AND ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = $4::integer
            AND NOT EXISTS (SELECT FROM {schema}outbox_relay AS r CROSS JOIN LATERAL (
                SELECT state, message_id FROM {schema}outbox_exception
                WHERE relay = r.relay AND shard = r.shard AND id = m.id LIMIT 1) AS e
                WHERE e.message_id = m.message_id AND e.state <> 'discarded' OFFSET 0)
        RETURNING m.id, m.message_id";
    /// $1 ids, $2 their message ids, $3 the content type of erased rows: the copies of discarded
    /// entries, which their relays remove. Entries are read from their copies, so these are
    /// recognised as well. Returns the ids.
    erase_copies = "
        UPDATE {schema}outbox_parked
        SET {erased}
        WHERE ctid = ANY(ARRAY(SELECT p.place FROM {schema}outbox_relay AS r
            CROSS JOIN unnest($1::bigint[], $2::uuid[]) AS asked(id, message_id)
            CROSS JOIN LATERAL (SELECT id, message_id, state FROM {schema}outbox_exception
                WHERE relay = r.relay AND shard = r.shard AND id = asked.id LIMIT 1) AS e
            CROSS JOIN LATERAL (SELECT ctid AS place FROM {schema}outbox_parked
                WHERE relay = r.relay AND shard = r.shard AND id = e.id LIMIT 1) AS p
            WHERE e.message_id = asked.message_id AND e.state = 'discarded'))
        RETURNING id";
    /// $1 message ids. A filter in `selection` may name the key, an error may quote the content,
    /// and a digest of a short content can be guessed. The relays are those of the audit, because
    /// it outlives a relay that is forgotten: one step through the index for each. In the order of
    /// the index of messages, as above.
    erase_decisions = "
        WITH RECURSIVE known (relay) AS (
            (SELECT relay FROM {schema}outbox_audit ORDER BY relay, message_id, seq LIMIT 1)
            UNION ALL
            SELECT (SELECT a.relay FROM {schema}outbox_audit AS a WHERE a.relay > k.relay
                ORDER BY a.relay, a.message_id, a.seq LIMIT 1)
            FROM known AS k WHERE k.relay IS NOT NULL)
        UPDATE {schema}outbox_audit
        SET digest_before = NULL, digest_after = NULL, payload_before = NULL, headers_before = NULL,
            payload_after = NULL, headers_after = NULL, selection = NULL, error = NULL
        WHERE ctid = ANY(ARRAY(SELECT a.place FROM known AS k
            CROSS JOIN unnest($1::uuid[]) AS asked(message_id)
            CROSS JOIN LATERAL (SELECT ctid AS place FROM {schema}outbox_audit
                WHERE relay = k.relay AND message_id >= asked.message_id AND message_id <= asked.message_id
                ORDER BY message_id, seq OFFSET 0) AS a))";
    /// $1 ids, $2 their message ids, $3 actor, $4 reason, $5 what was done, $6 decision.
    note_erased = "
        INSERT INTO {schema}outbox_audit (actor, relay, id, message_id, action, note, selection, decision)
        SELECT $3, r.relay, asked.id, asked.message_id, 'edit', $4, $5, $6::uuid
        FROM {schema}outbox_relay AS r
        CROSS JOIN unnest($1::bigint[], $2::uuid[]) AS asked(id, message_id) WHERE r.shard = 0";
    /// $1 relay, $2 to $5 the cursor, $6 transactions in flight at its marks, $7 and $8 maximum
    /// unread and parked entries to count, $9 the id up to which everything is settled. Entries
    /// that are not passed lie above it, or belong to a transaction that was in flight.
    lag = "
        SELECT topic, NULL::text AS state, false AS is_due, count(*) AS entries,
            coalesce(max(extract(epoch FROM clock_timestamp() - enqueued_at)), 0)::float8 AS longest
        FROM (
            (SELECT late.topic, late.enqueued_at FROM unnest($6::text::xid8[]) AS flight(xid) CROSS JOIN LATERAL (
                SELECT m.topic, m.enqueued_at FROM {schema}outbox_message AS m
                WHERE (m.xid, m.id) > (flight.xid, 0::bigint) AND (m.xid, m.id) <= (flight.xid, $9) AND NOT {passed}
                ORDER BY m.xid, m.id LIMIT $7::bigint) AS late)
            UNION ALL
            (SELECT m.topic, m.enqueued_at FROM {schema}outbox_message AS m WHERE m.id > $9::bigint AND NOT {passed}
            ORDER BY m.id LIMIT $7::bigint)
            LIMIT $7::bigint) AS unread
        GROUP BY topic
        UNION ALL
        SELECT topic, state, is_due, count, extract(epoch FROM clock_timestamp() - CASE WHEN is_due THEN due_at
            ELSE coalesce((SELECT enqueued_at FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = counted.id LIMIT 1), created_at) END)::float8
        FROM (
            SELECT topic, state, is_due, count(*) AS count, min(id) AS id, min(due_at) AS due_at,
                min(created_at) AS created_at
            FROM (SELECT topic, state, id, due_at, created_at, state = 'scheduled' AND due_at <= clock_timestamp() AS is_due
                FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 ORDER BY id LIMIT $8) AS parked
            GROUP BY topic, state, is_due) AS counted";
}
