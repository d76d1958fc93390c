//! The SQL of the reader and the checkpoint store. Times are microseconds since 1970.

use std::sync::LazyLock;

use outbox::sqlite::clock::NOW;

use crate::sqlite::fragments::with_last_error;
use crate::sqlite::row::{COLUMNS, CONTENT, IS_LARGE, PARKED_COLUMNS};

migrations::statements! {
    parts {
        now = NOW;
        // The id that was given out last, also when no row has it any longer. SQLite gives out none
        // below the ids of rows, whatever its sequence says.
        last_id = "max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_message'), 0),
            coalesce((SELECT max(id) FROM outbox_message), 0))";
        // Due exceptions in certain `states`, each of which has its own index.
        due_exceptions = "{exceptions} AND e.{states} AND e.due_at <= {now} AND (e.due_at, e.id) > (?2, ?3)
            ORDER BY e.due_at, e.id LIMIT ?4";
        // ?1 relay, ?2 and ?3 after this time and id: seconds until the next one is due.
        next_place = "SELECT (due_at - {now}) / 1e6 FROM outbox_exception WHERE relay = ?1 AND shard = 0
            AND {states} AND (due_at, id) > (?2, ?3) ORDER BY due_at, id LIMIT 1";
        // An exception with its copy, or with its row of the log if that was too large to be
        // copied. These are LEFT JOINs because an exception without either must be seen.
        exceptions = "SELECT {parked_columns}, e.state, e.attempts, e.due_at
            FROM outbox_exception AS e LEFT JOIN outbox_parked AS p
                ON p.relay = e.relay AND p.shard = e.shard AND p.id = e.id
            LEFT JOIN outbox_message AS m ON p.id IS NULL AND m.id = e.id AND m.message_id = e.message_id
            WHERE e.relay = ?1 AND e.shard = 0";
        columns = COLUMNS;
        parked_columns = PARKED_COLUMNS;
        content = CONTENT;
        is_large = IS_LARGE;
        with_last_error = with_last_error!("error = excluded.error");
        // The queue of a held entry, in the form of its index.
        queue = "coalesce('k' || key, 't' || topic)";
        // The held entries of the queues after a name.
        behind = "FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND state = 'held' AND {queue} >";
    }

    head = "SELECT coalesce((SELECT max(id) FROM outbox_message), 0), {last_id}";
    /// ?1 above this id, ?2 ceiling, ?3 rows, ?4 maximum bytes of a payload and ?5 of headers to
    /// read.
    page(payload_max = "?4", headers_max = "?5") = "
        SELECT {columns} FROM outbox_message WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3";
    /// Scheduled and discarded exceptions. ?1 relay, ?2 and ?3 after this time and id, ?4 rows, ?5
    /// maximum bytes of a payload and ?6 of headers to read.
    due(
        states = "state IN ('scheduled', 'discarded')",
        payload_max = "?5",
        headers_max = "?6",
    ) = "{due_exceptions}";
    /// Retrying exceptions, with the parameters of `due`.
    retried(
        states = "state = 'retrying'",
        payload_max = "?5",
        headers_max = "?6",
    ) = "{due_exceptions}";
    /// Exceptions that are due: ?2 ids of probes as a JSON array, and those of the last 500
    /// decisions of operators. Probes come first: what was requeued stays due while it is in the
    /// relay's memory. ?1 relay, ?3 rows, ?4 maximum bytes of a payload and ?5 of
    /// headers to read. The plus sign keeps SQLite from the index of what is due.
    first(payload_max = "?4", headers_max = "?5") = "
        {exceptions} AND e.id IN (SELECT value FROM json_each(?2)
            UNION SELECT id FROM (SELECT id FROM outbox_audit
                WHERE relay = ?1 ORDER BY seq DESC LIMIT 500))
            AND +e.state IN ('retrying', 'discarded') AND e.due_at <= {now}
        ORDER BY e.id NOT IN (SELECT value FROM json_each(?2)), e.due_at, e.id LIMIT ?3";
    next_due(states = "state IN ('scheduled', 'discarded')") = "{next_place}";
    next_retried(states = "state = 'retrying'") = "{next_place}";
    /// ?1 relay, ?2 queue, ?3 from this id, ?4 rows, ?5 maximum bytes of a payload and ?6 of
    /// headers to read.
    held(payload_max = "?5", headers_max = "?6") = "
        {exceptions} AND e.state = 'held' AND coalesce('k' || e.key, 't' || e.topic) = ?2 AND e.id >= ?3
        ORDER BY e.id LIMIT ?4";
    /// ?1 relay, ?2 after this name, ?3 queues. Steps from queue to queue through the index,
    /// however many entries each of them holds.
    held_queues = "
        WITH RECURSIVE found (name, entry, about, nth) AS (
            SELECT * FROM (SELECT {queue}, id, topic, 1 {behind} ?2 ORDER BY {queue}, id LIMIT 1)
            UNION ALL
            SELECT {queue}, id, topic, nth + 1 FROM found CROSS JOIN outbox_exception
            WHERE nth < ?3 AND relay = ?1 AND shard = 0
                AND id = (SELECT id {behind} found.name ORDER BY {queue}, id LIMIT 1))
        SELECT name, entry, about FROM found";
    /// ?1 relay, ?2 above this id, ?3 rows to look at, ?4 whether dead entries block their keys.
    /// Returns those that do, and the last row that it may look at, from which the next step
    /// continues: a step over a million dead entries without keys must not outlast a lease.
    stuck = "
        SELECT id, key, state, blocks, nth = ?3 FROM (
            SELECT id, key, state, key IS NOT NULL AND (state = 'retrying' OR ?4) AS blocks,
                row_number() OVER (ORDER BY id) AS nth
            FROM (SELECT id, key, state FROM outbox_exception
                WHERE relay = ?1 AND shard = 0 AND id > ?2 AND state IN ('retrying', 'dead')
                ORDER BY id LIMIT ?3))
        WHERE blocks OR nth = ?3 ORDER BY id";

    /// ?1 relay: its cursor, and the id that was given out last.
    position = "
        SELECT cursor, {last_id} FROM outbox_relay WHERE relay = ?1 AND shard = 0";
    /// ?1 relay, ?2 holder, ?3 ttl in microseconds, ?4 the first cursor; ?5 epoch and ?6 end of a
    /// lease that is over although its end lies in the future, or null. Even the same holder gets a
    /// new epoch, which fences off its earlier writes. Stores beside the cursor how old the last
    /// checkpoint was when the lease was first taken after it; the next checkpoint removes this.
    acquire = "
        INSERT INTO outbox_relay AS r (relay, epoch, holder, lease_until, lease_seconds, cursor)
        VALUES (?1, 1, ?2, {now} + ?3, ?3 / 1e6, ?4)
        ON CONFLICT (relay, shard) DO UPDATE SET epoch = r.epoch + 1, holder = excluded.holder,
            taken_from = nullif(r.holder, excluded.holder), lease_until = excluded.lease_until,
            lease_seconds = excluded.lease_seconds,
            cursor = json_insert(r.cursor, '$.taken_after', ({now} - r.checkpoint_at) / 1e6)
        WHERE r.holder IS NULL OR r.holder = excluded.holder OR r.lease_until <= {now}
            OR (r.epoch = ?5 AND r.lease_until = ?6)
        RETURNING epoch, cursor, taken_from";
    /// ?1 relay: the holder, the time left, the epoch, the end, and the requested length.
    holder = "
        SELECT holder, (lease_until - {now}) / 1e6, epoch, lease_until, lease_seconds FROM outbox_relay
        WHERE relay = ?1 AND shard = 0 AND holder IS NOT NULL";
    /// ?1 relay: other ones that no process runs.
    left_relays = "
        SELECT relay FROM outbox_relay
        WHERE shard = 0 AND relay <> ?1 AND (holder IS NULL OR lease_until <= {now}) ORDER BY relay LIMIT 10";
    /// ?1 relay, ?2 epoch, ?3 ttl in microseconds, ?4 holder.
    renew = "
        UPDATE outbox_relay SET lease_until = {now} + ?3, lease_seconds = ?3 / 1e6
        WHERE relay = ?1 AND shard = 0 AND epoch = ?2 AND holder = ?4";
    /// ?1 id, ?2 message id: whether the entry is in the log or parked.
    is_here = "
        SELECT EXISTS (SELECT 1 FROM outbox_message WHERE id = ?1 AND message_id = ?2)
            OR EXISTS (SELECT 1 FROM outbox_exception WHERE id = ?1 AND message_id = ?2)";
    /// ?1 relay, ?2 epoch, ?3 cursor, ?4 holder.
    checkpoint = "
        UPDATE outbox_relay SET cursor = ?3, checkpoint_at = {now}
        WHERE relay = ?1 AND shard = 0 AND epoch = ?2 AND holder = ?4";
    /// ?1 relay, ?2 epoch, ?3 the JSON to store beside the cursor, ?4 holder. Writes nothing when
    /// it is already there.
    note = "
        UPDATE outbox_relay SET cursor = json_patch(json_remove(cursor, '$.broker'), ?3)
        WHERE relay = ?1 AND shard = 0 AND epoch = ?2 AND holder = ?4
            AND json_extract(cursor, '$.broker') IS NOT json_extract(?3, '$.broker')";
    /// ?1 relay, ?2 id. The first change of an entry copies its content, unless it is large: SQLite
    /// copies in the memory of this process. The row of a large entry stays in the log, and
    /// retention keeps it.
    copy = "
        INSERT INTO outbox_parked (relay, id, {content})
        SELECT ?1, id, {content} FROM outbox_message WHERE id = ?2 AND NOT {is_large}
        ON CONFLICT (relay, shard, id) DO NOTHING";
    /// ?1 relay, then the columns of one exception; ?8 due in microseconds. A scheduled entry is
    /// due at its message's own time. A discarded entry stays discarded: the relay may still change
    /// it from memory, and reads the decision afterwards. A different message under its id is still
    /// refused.
    park = "
        INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, attempts, due_at, fault, error)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7,
            coalesce(CASE WHEN ?6 = 'scheduled' THEN (SELECT deliver_at FROM outbox_message WHERE id = ?2) END,
                {now} + ?8), ?9, ?10)
        ON CONFLICT (relay, shard, id) DO UPDATE SET
            message_id = CASE WHEN message_id = excluded.message_id THEN message_id END,
            state = excluded.state, attempts = excluded.attempts, due_at = excluded.due_at,
            fault = excluded.fault, error = excluded.error, updated_at = {now},
            earlier_errors = {with_last_error}
        WHERE state <> 'discarded' OR message_id <> excluded.message_id";
    /// ?1 relay, ?2 id.
    resolve = "DELETE FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND id = ?2";
    /// ?1 relay, ?2 id: the copy of a resolved entry.
    remove_copy = "DELETE FROM outbox_parked WHERE relay = ?1 AND shard = 0 AND id = ?2";
    /// ?1 relay, ?2 epoch, ?3 holder.
    release = "
        UPDATE outbox_relay SET holder = NULL, lease_until = NULL, lease_seconds = NULL
        WHERE relay = ?1 AND shard = 0 AND epoch = ?2 AND holder = ?3";
}

/// Without a schema.
pub(super) static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));
