//! The SQL of reader and checkpoint store. Times are microseconds since 1970.

use std::sync::LazyLock;

/// This moment in microseconds. The clock is that of the machine: a SQLite file has no server.
pub(super) const NOW: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";

migrations::statements! {
    parts {
        now = NOW;
        // An exception with its copy. A LEFT JOIN: one without a copy must be seen.
        exceptions = "SELECT e.id, e.message_id, e.topic, e.key, p.kind, coalesce(p.content_type, '') AS content_type,
                p.headers, p.traceparent, p.tracestate, coalesce(p.payload, x'') AS payload, p.enqueued_at,
                NULL AS deliver_in, e.state, e.attempts, e.due_at
            FROM outbox_exception AS e LEFT JOIN outbox_parked AS p
                ON p.relay = e.relay AND p.shard = e.shard AND p.id = e.id
            WHERE e.relay = ?1 AND e.shard = 0";
        // The queue of a held entry, as the index on it has it.
        queue = "coalesce('k' || key, 't' || topic)";
        // The held entries of the queues behind a name.
        behind = "FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND state = 'held' AND {queue} >";
    }

    head = "SELECT coalesce(max(id), 0) FROM outbox_message";
    /// ?1 above this id, ?2 ceiling, ?3 rows.
    page = "
        SELECT id, message_id, topic, key, kind, content_type, headers, traceparent, tracestate, payload, enqueued_at,
            (deliver_at - {now}) / 1e6 AS deliver_in
        FROM outbox_message WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3";
    /// ?1 relay, ?2 and ?3 behind this time and id, ?4 rows.
    due = "
        {exceptions} AND e.state IN ('scheduled', 'retrying', 'discarded') AND e.due_at <= {now}
            AND (e.due_at, e.id) > (?2, ?3)
        ORDER BY e.due_at, e.id LIMIT ?4";
    /// ?1 relay, ?2 and ?3 behind this time and id.
    next_due = "
        SELECT (due_at - {now}) / 1e6 FROM outbox_exception WHERE relay = ?1 AND shard = 0
            AND state IN ('scheduled', 'retrying', 'discarded') AND (due_at, id) > (?2, ?3)
        ORDER BY due_at, id LIMIT 1";
    /// ?1 relay, ?2 queue, ?3 from this id, ?4 rows.
    held = "
        {exceptions} AND e.state = 'held' AND coalesce('k' || e.key, 't' || e.topic) = ?2 AND e.id >= ?3
        ORDER BY e.id LIMIT ?4";
    /// ?1 relay, ?2 behind this name, ?3 queues. From queue to queue through the index, however
    /// many entries each holds.
    held_queues = "
        WITH RECURSIVE found (name, entry, about, nth) AS (
            SELECT * FROM (SELECT {queue}, id, topic, 1 {behind} ?2 ORDER BY {queue}, id LIMIT 1)
            UNION ALL
            SELECT {queue}, id, topic, nth + 1 FROM found CROSS JOIN outbox_exception
            WHERE nth < ?3 AND relay = ?1 AND shard = 0
                AND id = (SELECT id {behind} found.name ORDER BY {queue}, id LIMIT 1))
        SELECT name, entry, about FROM found";
    /// ?1 relay, ?2 above this id, ?3 entries.
    stuck = "
        SELECT id, key, state FROM outbox_exception
        WHERE relay = ?1 AND shard = 0 AND id > ?2 AND state IN ('retrying', 'dead') ORDER BY id LIMIT ?3";

    /// ?1 relay: its cursor, and the id that was given out last.
    position = "
        SELECT cursor, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_message'), 0)
        FROM outbox_relay WHERE relay = ?1 AND shard = 0";
    /// ?1 relay, ?2 holder, ?3 ttl in microseconds, ?4 the first cursor; ?5 epoch and ?6 end of a
    /// lease that is over although it ends in the future, or null. The same holder gets a new epoch
    /// too: what it sent before is fenced off.
    acquire = "
        INSERT INTO outbox_relay AS r (relay, epoch, holder, lease_until, lease_seconds, cursor)
        VALUES (?1, 1, ?2, {now} + ?3, ?3 / 1e6, ?4)
        ON CONFLICT (relay, shard) DO UPDATE SET epoch = r.epoch + 1, holder = excluded.holder,
            taken_from = nullif(r.holder, excluded.holder), lease_until = excluded.lease_until,
            lease_seconds = excluded.lease_seconds
        WHERE r.holder IS NULL OR r.holder = excluded.holder OR r.lease_until <= {now}
            OR (r.epoch = ?5 AND r.lease_until = ?6)
        RETURNING epoch, cursor, taken_from";
    /// ?1 relay: who holds it, for how long, and for how long it was asked for.
    holder = "
        SELECT holder, (lease_until - {now}) / 1e6, epoch, lease_until, lease_seconds FROM outbox_relay
        WHERE relay = ?1 AND shard = 0 AND holder IS NOT NULL";
    /// ?1 relay, ?2 epoch, ?3 ttl in microseconds.
    renew = "
        UPDATE outbox_relay SET lease_until = {now} + ?3, lease_seconds = ?3 / 1e6
        WHERE relay = ?1 AND shard = 0 AND epoch = ?2 AND holder IS NOT NULL";
    /// ?1 id, ?2 message id: whether the entry is in the log or parked.
    is_here = "
        SELECT EXISTS (SELECT 1 FROM outbox_message WHERE id = ?1 AND message_id = ?2)
            OR EXISTS (SELECT 1 FROM outbox_exception WHERE id = ?1 AND message_id = ?2)";
    /// ?1 relay, ?2 epoch, ?3 cursor.
    checkpoint = "
        UPDATE outbox_relay SET cursor = ?3, checkpoint_at = {now}
        WHERE relay = ?1 AND shard = 0 AND epoch = ?2 AND holder IS NOT NULL";
    /// ?1 relay, ?2 id: the content is copied aside with the first change of an entry.
    copy = "
        INSERT INTO outbox_parked
            (relay, id, kind, content_type, headers, traceparent, tracestate, payload, enqueued_at)
        SELECT ?1, id, kind, content_type, headers, traceparent, tracestate, payload, enqueued_at
        FROM outbox_message WHERE id = ?2 ON CONFLICT (relay, shard, id) DO NOTHING";
    /// ?1 relay, then the columns of one exception; ?8 due in microseconds. A scheduled one is due
    /// at its message's own time.
    park = "
        INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, attempts, due_at, fault, error)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7,
            coalesce(CASE WHEN ?6 = 'scheduled' THEN (SELECT deliver_at FROM outbox_message WHERE id = ?2) END,
                {now} + ?8), ?9, ?10)
        ON CONFLICT (relay, shard, id) DO UPDATE SET
            message_id = CASE WHEN message_id = excluded.message_id THEN message_id END,
            state = excluded.state, attempts = excluded.attempts, due_at = excluded.due_at,
            fault = excluded.fault, error = excluded.error, updated_at = {now}";
    /// ?1 relay, ?2 id.
    resolve = "DELETE FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND id = ?2";
    /// ?1 relay, ?2 id: the copy of an entry that is resolved.
    remove_copy = "DELETE FROM outbox_parked WHERE relay = ?1 AND shard = 0 AND id = ?2";
    /// ?1 relay, ?2 epoch.
    release = "
        UPDATE outbox_relay SET holder = NULL, lease_until = NULL, lease_seconds = NULL
        WHERE relay = ?1 AND shard = 0 AND epoch = ?2 AND holder IS NOT NULL";
}

/// Without a schema.
pub(super) static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));
