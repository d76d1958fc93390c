//! The SQL of queries about single entries.

use std::sync::LazyLock;

use outbox::sqlite::clock::NOW;

use crate::sqlite::fragments::{DISCARDED, EDITED};
use crate::sqlite::row::{COLUMNS, ERASED};

/// Overwrites what a statement removes from the file, in this session.
pub(super) const OVERWRITE: &str = "PRAGMA secure_delete = ON";

pub(super) const FIRST: &str =
    "SELECT id FROM outbox_message WHERE message_id >= ?1 ORDER BY message_id LIMIT 1";

migrations::statements! {
    parts {
        columns = COLUMNS;
        erased = ERASED;
        now = NOW;
        discarded = DISCARDED;
        edited = EDITED;
        // Null where they are longer than those of any message that a broker accepts.
        labels = "CASE WHEN octet_length(m.headers) > 4194304 THEN 'null' ELSE m.headers END";
    }

    extent = "
        SELECT {now} AS now, (SELECT cursor FROM outbox_relay WHERE relay = ?1 AND shard = 0) AS cursor,
            (SELECT checkpoint_at FROM outbox_relay WHERE relay = ?1 AND shard = 0) AS checkpoint_at,
            (SELECT expired_through FROM outbox_retention) AS expired_through,
            (SELECT min(id) FROM outbox_message) AS oldest_id,
            (SELECT enqueued_at FROM outbox_message ORDER BY id LIMIT 1) AS oldest_at,
            (SELECT max(id) FROM outbox_message) AS newest_id";
    /// ?1 relay, ?2 passed up to this id, ?3 id or null, ?4 message id or null. A parked entry has
    /// a copy of its content, which an operator may have edited. A message id is searched among all
    /// parked entries. Decisions are read by the message, because its entry may have had another
    /// id.
    find(of = "n") = "
        WITH named AS (
                SELECT id, message_id FROM outbox_message WHERE id = ?3
                UNION SELECT id, message_id FROM outbox_message WHERE message_id = ?4
                UNION SELECT id, message_id FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND id = ?3
                UNION SELECT id, message_id FROM outbox_exception
                WHERE relay = ?1 AND shard = 0 AND message_id = ?4),
        whole AS (
                SELECT n.id, n.message_id, coalesce(m.topic, e.topic) AS topic, coalesce(m.key, e.key) AS key,
                    coalesce(m.kind, p.kind, m.topic, e.topic) AS kind,
                    coalesce(m.content_type, p.content_type) AS content_type,
                    CASE WHEN coalesce(octet_length(p.headers), octet_length(m.headers)) > 4194304 THEN 'null'
                        ELSE coalesce(p.headers, m.headers) END AS headers,
                    CASE WHEN coalesce(octet_length(m.traceparent), octet_length(p.traceparent)) <= 64
                        THEN coalesce(m.traceparent, p.traceparent) END AS traceparent,
                    coalesce(octet_length(p.payload), octet_length(m.payload)) AS payload_bytes,
                    coalesce(m.enqueued_at, p.enqueued_at) AS enqueued_at, NULL AS [transaction], m.deliver_at, m.id IS NOT NULL AS is_in_log,
                    n.id <= ?2 AS passed, e.state, e.attempts, e.due_at, e.fault, e.error, e.created_at, e.updated_at,
                    e.earlier_errors, p.edited_at,
                    {discarded} AS was_discarded, {edited} AS was_edited,
                    (SELECT a.error FROM outbox_audit AS a WHERE a.relay = ?1 AND a.message_id = n.message_id
                        AND a.action = 'discard' ORDER BY a.seq DESC LIMIT 1) AS discarded_error,
                    coalesce((SELECT o.id FROM outbox_exception AS o
                        WHERE o.relay = ?1 AND o.shard = 0 AND o.state IN ('retrying', 'dead') AND e.state = 'held'
                        AND o.key = e.key AND o.id < e.id ORDER BY o.id LIMIT 1),
                    (SELECT o.id FROM outbox_exception AS o
                        WHERE o.relay = ?1 AND o.shard = 0 AND o.state IN ('retrying', 'dead') AND e.state = 'held'
                        AND o.state = 'retrying' AND o.topic = e.topic AND o.fault IS NOT 'message' ORDER BY o.id LIMIT 1)) AS behind_id
                FROM named AS n LEFT JOIN outbox_message AS m ON m.id = n.id AND m.message_id = n.message_id
                LEFT JOIN outbox_exception AS e
                    ON e.relay = ?1 AND e.shard = 0 AND e.id = n.id AND e.message_id = n.message_id
                LEFT JOIN outbox_parked AS p ON p.relay = e.relay AND p.shard = e.shard AND p.id = e.id)
        SELECT w.*, b.state AS behind_state, b.error AS behind_error, b.key IS NOT NULL AND b.key IS w.key AS behind_key
        FROM whole AS w
        LEFT JOIN outbox_exception AS b ON b.relay = ?1 AND b.shard = 0 AND b.id = w.behind_id ORDER BY w.id";
    /// ?1 relay, ?2 passed up to this id, ?3 above this id, ?4 up to this id, ?5 ids or null, ?6
    /// topic, ?7 key, ?8 and ?9 bounds of the time of enqueueing, ?10 rows, ?11 message ids of the
    /// ids.
    select(of = "m") = "
        SELECT m.id, m.message_id, m.topic, m.key, coalesce(m.kind, m.topic) AS kind, {labels} AS headers,
                octet_length(m.payload) AS payload_bytes, m.enqueued_at, e.state, m.id <= ?2 AS passed,
                {discarded} AS discarded, {edited} AS edited
        FROM outbox_message AS m
        LEFT JOIN outbox_exception AS e
            ON e.relay = ?1 AND e.shard = 0 AND e.id = m.id AND e.message_id = m.message_id
        WHERE m.id > ?3 AND m.id <= ?4 AND (?5 IS NULL OR m.id IN (SELECT value FROM json_each(?5))
                    AND m.message_id IN (SELECT value FROM json_each(?11)))
                AND (?6 IS NULL OR m.topic = ?6) AND (?7 IS NULL OR m.key = ?7)
                AND (?8 IS NULL OR m.enqueued_at >= ?8) AND (?9 IS NULL OR m.enqueued_at <= ?9)
        ORDER BY m.id LIMIT ?10";
    /// ?1 below this id, ?2 from this id on, ?3 rows.
    span = "
        SELECT looked.seen, m.id, m.enqueued_at FROM (
            SELECT count(*) AS seen, min(id) AS first FROM (
                SELECT id FROM outbox_message WHERE id < ?1 AND id >= ?2 ORDER BY id DESC LIMIT ?3)) AS looked
        JOIN outbox_message AS m ON m.id = looked.first";
    /// ?1 relay, ?2 passed up to this id, ?3 below this id, ?4 from this id on, ?5 topic, ?6 key,
    /// ?7 and ?8 name and value of a header, ?9 rows. Headers of more than 256 KiB are not read.
    search(of = "m") = "
        SELECT m.id, m.message_id, m.topic, m.key, coalesce(m.kind, m.topic) AS kind, {labels} AS headers,
                octet_length(m.payload) AS payload_bytes, m.enqueued_at, e.state, m.id <= ?2 AS passed,
                {discarded} AS discarded, {edited} AS edited
        FROM outbox_message AS m
        LEFT JOIN outbox_exception AS e
            ON e.relay = ?1 AND e.shard = 0 AND e.id = m.id AND e.message_id = m.message_id
        WHERE m.id < ?3 AND m.id >= ?4
                AND (?5 IS NULL OR m.topic = ?5) AND (?6 IS NULL OR m.key = ?6)
                AND (?7 IS NULL OR EXISTS (SELECT 1 FROM json_each(
                    CASE WHEN octet_length(m.headers) <= 262144 AND json_valid(m.headers) THEN m.headers END) AS h
                    WHERE h.key = ?7 AND h.type = 'text' AND h.value = ?8))
        ORDER BY m.id DESC LIMIT ?9";
    /// ?1 ids, ?2 message ids, ?3 maximum bytes of a payload and ?4 of headers to read.
    contents(payload_max = "?3", headers_max = "?4") = "
        SELECT {columns} FROM outbox_message WHERE id IN (SELECT value FROM json_each(?1))
            AND message_id IN (SELECT value FROM json_each(?2)) ORDER BY id";
    /// ?1 ids, ?2 message ids, ?3 the content type of erased rows. As on PostgreSQL.
    erase = "
        UPDATE outbox_message
        SET key = NULL, {erased}
        WHERE id IN (SELECT value FROM json_each(?1)) AND message_id IN (SELECT value FROM json_each(?2))
            AND NOT EXISTS (SELECT 1 FROM outbox_relay AS r CROSS JOIN outbox_exception AS e
                WHERE e.relay = r.relay AND e.shard = r.shard AND e.id = outbox_message.id
                    AND e.message_id = outbox_message.message_id AND e.state <> 'discarded')
        RETURNING id, message_id";
    /// ?1 ids, ?2 message ids, ?3 the content type of erased rows. As on PostgreSQL.
    erase_copies = "
        UPDATE outbox_parked
        SET {erased}
        WHERE (relay, shard, id) IN (SELECT e.relay, e.shard, e.id
            FROM outbox_relay AS r CROSS JOIN json_each(?1) AS asked CROSS JOIN outbox_exception AS e
            WHERE e.relay = r.relay AND e.shard = r.shard AND e.id = asked.value AND e.state = 'discarded'
                AND e.message_id IN (SELECT value FROM json_each(?2)))
        RETURNING id";
    /// ?1 message ids. As on PostgreSQL.
    erase_decisions = "
        WITH RECURSIVE known (relay) AS (
            SELECT min(relay) FROM outbox_audit
            UNION ALL
            SELECT (SELECT min(a.relay) FROM outbox_audit AS a WHERE a.relay > k.relay)
            FROM known AS k WHERE k.relay IS NOT NULL)
        UPDATE outbox_audit
        SET digest_before = NULL, digest_after = NULL, payload_before = NULL, headers_before = NULL,
            payload_after = NULL, headers_after = NULL, selection = NULL, error = NULL
        WHERE seq IN (SELECT a.seq FROM known AS k CROSS JOIN json_each(?1) AS asked
            CROSS JOIN outbox_audit AS a WHERE a.relay = k.relay AND a.message_id = asked.value)";
    /// ?1 id, ?2 message id, ?3 actor, ?4 reason, ?5 what was done, ?6 decision.
    note_erased = "
        INSERT INTO outbox_audit (actor, relay, id, message_id, action, note, selection, decision)
        SELECT ?3, relay, ?1, ?2, 'edit', ?4, ?5, ?6 FROM outbox_relay WHERE shard = 0";
    /// ?1 relay, ?2 passed up to this id, ?3 and ?4 maximum unread and parked entries to count.
    lag = "
        SELECT topic, NULL AS state, 0 AS is_due, count(*) AS entries,
            coalesce(max(({now} - enqueued_at) / 1e6), 0.0) AS longest
        FROM (SELECT topic, enqueued_at FROM outbox_message WHERE id > ?2 ORDER BY id LIMIT ?3) GROUP BY topic
        UNION ALL SELECT topic, state, is_due, count, ({now} - CASE WHEN is_due THEN due_at
            ELSE coalesce((SELECT enqueued_at FROM outbox_parked WHERE relay = ?1 AND shard = 0 AND id = counted.id),
                (SELECT enqueued_at FROM outbox_message WHERE id = counted.id), created_at) END) / 1e6
        FROM (SELECT topic, state, is_due, count(*) AS count, min(id) AS id, min(due_at) AS due_at,
                min(created_at) AS created_at
            FROM (SELECT topic, state, id, due_at, created_at, state = 'scheduled' AND due_at <= {now} AS is_due
                FROM outbox_exception WHERE relay = ?1 AND shard = 0 ORDER BY id LIMIT ?4)
            GROUP BY topic, state, is_due) AS counted";
}

/// Without a schema.
pub(super) static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));
