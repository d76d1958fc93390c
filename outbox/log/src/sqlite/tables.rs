//! The SQL of the tables, in SQLite.

use migrations::Identifier;
use outbox::sqlite::clock::NOW;

use crate::sqlite::fragments::EDITED;
use crate::tables::{Texts, texts_of};

migrations::statements! {
    parts {
        now = NOW;
        edited = EDITED;
        walk = "SELECT id, message_id, topic, key, attempts, due_at, fault, error, created_at, updated_at
            FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND state = ?2 AND {is_indexed} AND id > ?3
            ORDER BY id LIMIT ?4";
        // As on PostgreSQL.
        matches = "(?5 IS NULL OR w.topic = ?5) AND (?6 IS NULL OR w.key = ?6) AND (?7 IS NULL OR w.fault = ?7)
            AND (?8 IS NULL OR w.error LIKE ?8 ESCAPE '\\')
            AND (?9 IS NULL OR coalesce(
                (SELECT kind FROM outbox_parked WHERE relay = ?1 AND shard = 0 AND id = w.id),
                (SELECT kind FROM outbox_message WHERE id = w.id AND message_id = w.message_id), w.topic) = ?9)
            AND (?10 IS NULL OR w.created_at < coalesce(?12, {now}) - ?10)
            AND (?11 IS NULL OR w.created_at >= coalesce(?12, {now}) - ?11)
            AND (?12 IS NULL OR w.updated_at <= ?12 AND coalesce(
                (SELECT edited_at FROM outbox_parked WHERE relay = ?1 AND shard = 0 AND id = w.id) <= ?12, true))";
        was_requeued = "EXISTS (SELECT 1 FROM outbox_audit AS a
            WHERE a.relay = ?1 AND a.message_id = e.message_id AND a.action = 'requeue')";
        shown = "
            WITH walk AS MATERIALIZED ({entries}),
            found AS MATERIALIZED (SELECT * FROM walk AS w WHERE {matches} ORDER BY w.id LIMIT ?13)
            SELECT s.seen_to, s.scanned, e.id, e.message_id, e.topic, e.key, coalesce(p.kind, m.kind, e.topic) AS kind,
                e.attempts, (e.due_at - {now}) / 1e6 AS due_in, e.fault, e.error, e.created_at,
                max(e.updated_at, coalesce(p.edited_at, 0)) AS updated_at,
                coalesce(octet_length(p.payload), octet_length(m.payload), 0) AS payload_bytes,
                p.edited_at IS NOT NULL AS edited, p.edited_at,
                CASE WHEN ?2 = 'dead' THEN {was_requeued} ELSE 0 END AS died_again
            FROM (SELECT max(id) AS seen_to, count(*) AS scanned FROM walk) AS s LEFT JOIN found AS e ON true
            LEFT JOIN outbox_parked AS p ON p.relay = ?1 AND p.shard = 0 AND p.id = e.id
            LEFT JOIN outbox_message AS m ON p.id IS NULL AND m.id = e.id AND m.message_id = e.message_id
            ORDER BY e.id";
        listed = "
        SELECT e.id, e.message_id, e.topic, e.key, coalesce(p.kind, m.kind, e.topic) AS kind, e.attempts,
            (e.due_at - {now}) / 1e6 AS due_in, e.fault, e.error, e.created_at,
                max(e.updated_at, coalesce(p.edited_at, 0)) AS updated_at,
            coalesce(octet_length(p.payload), octet_length(m.payload), 0) AS payload_bytes,
            p.edited_at IS NOT NULL AS edited, p.edited_at,
            CASE WHEN e.state = 'dead' THEN {was_requeued} ELSE 0 END AS died_again
            FROM ({chosen}) AS e LEFT JOIN outbox_parked AS p
                ON p.relay = e.relay AND p.shard = e.shard AND p.id = e.id
            LEFT JOIN outbox_message AS m ON p.id IS NULL AND m.id = e.id AND m.message_id = e.message_id";
        by_id = "
            SELECT * FROM outbox_exception
            WHERE relay = ?1 AND shard = 0 AND state = ?2 AND id > ?3 ORDER BY id LIMIT ?4";
        // Discarded entries: see `list_discarded`.
        discarded = "
        SELECT * FROM (
            SELECT coalesce(e.id, m.id) AS id, d.message_id, coalesce(e.topic, m.topic) AS topic,
                coalesce(e.key, m.key) AS key, coalesce(m.kind, p.kind, m.topic, e.topic) AS kind,
                coalesce(e.attempts, 0) AS attempts, NULL AS due_in, coalesce(e.fault, d.fault) AS fault,
                'discarded by ' || d.actor || ': ' || d.note || coalesce('; it was dead: ' || d.error, '') AS error, d.at AS created_at, d.at AS updated_at,
                coalesce(octet_length(p.payload), octet_length(m.payload), 0) AS payload_bytes,
                {edited} AS edited, NULL AS edited_at, 0 AS died_again
            FROM outbox_audit AS d
            LEFT JOIN outbox_exception AS e
                ON e.relay = ?1 AND e.shard = 0 AND e.id = d.id AND e.message_id = d.message_id
            LEFT JOIN outbox_parked AS p ON p.relay = e.relay AND p.shard = e.shard AND p.id = e.id
            LEFT JOIN outbox_message AS m ON m.message_id = d.message_id
            WHERE d.relay = ?1 AND d.action = 'discard' {of_these}
                AND d.seq IN (SELECT max(l.seq) FROM outbox_audit AS l
                    WHERE l.relay = ?1 AND l.action <> 'edit' {decided} GROUP BY l.message_id)
                AND (e.state = 'discarded' OR e.id IS NULL AND m.id IS NOT NULL))
        {page}";
    }

    counts = "
        SELECT state, fault, is_due, count(*) AS entries, min(id) AS first, max(since_due) AS since_due,
            max(longest) AS longest FROM
            (SELECT state, fault, id, coalesce(due_at <= {now}, 0) AS is_due, ({now} - due_at) / 1e6 AS
            since_due, ({now} - CASE WHEN state = 'discarded' THEN updated_at ELSE created_at
            END) / 1e6 AS longest
            FROM outbox_exception WHERE relay = ?1 AND shard = 0 ORDER BY id LIMIT ?2)
            GROUP BY state, fault, is_due";
    /// A large entry has no copy. An entry whose row is also gone was enqueued shortly before it
    /// was parked. `lag` counts in the same way.
    parked_age = "
        SELECT ({now} - coalesce((SELECT p.enqueued_at FROM outbox_parked AS p
            WHERE p.relay = e.relay AND p.shard = 0 AND p.id = e.id),
            (SELECT m.enqueued_at FROM outbox_message AS m WHERE m.id = e.id), e.created_at)) / 1e6 AS age
            FROM outbox_exception AS e WHERE e.relay = ?1
            AND e.shard = 0 AND e.id = ?2";
    errors = "
        SELECT substr(error, 1, 300) AS error, count(*) AS entries
            FROM (SELECT * FROM (SELECT id, error FROM outbox_exception
                WHERE relay = ?1 AND shard = 0 AND state = ?2 ORDER BY id LIMIT ?3)
            UNION SELECT * FROM (SELECT id, error FROM outbox_exception
                WHERE relay = ?1 AND shard = 0 AND state = ?2 ORDER BY id DESC LIMIT ?3))
            WHERE error IS NOT NULL GROUP BY 1";
    list(chosen = "{by_id}") = "{listed} ORDER BY e.id";
    list_stuck(chosen = "{by_id}") = "{listed} ORDER BY e.id";
    /// Held entries, queue after queue, in the order of their index. ?1 relay, ?2 rows.
    list_held(
        chosen = "
            SELECT * FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND state = 'held'
            ORDER BY coalesce('k' || key, 't' || topic), id LIMIT ?2",
    ) = "{listed}";
    /// ?1 relay, ?2 maximum rows to count.
    held_len = "
        SELECT count(*) AS entries
            FROM (SELECT 1 FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND state = 'held'
            ORDER BY coalesce('k' || key, 't' || topic), id LIMIT ?2)";
    /// Held entries in the order of ids. ?1 relay, ?2 above this id, ?3 rows, ?4 held entries to
    /// read, which are all.
    list_few_held(
        chosen = "
            SELECT * FROM (SELECT * FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND state = 'held'
                ORDER BY coalesce('k' || key, 't' || topic), id LIMIT ?4)
            WHERE id > ?2 ORDER BY id LIMIT ?3",
    ) = "{listed} ORDER BY e.id";
    /// Discarded entries, as long as the log has them, whether or not the relay has carried out the
    /// decision yet. ?1 relay, ?2 above this id, ?3 rows.
    list_discarded(of = "d", of_these = "", decided = "", page = "WHERE id > ?2 ORDER BY id LIMIT ?3") = "{discarded}";
    /// Like `list_discarded`, of these messages: ?1 relay, ?2 their ids.
    discarded_of(
        of = "d",
        of_these = "AND d.message_id IN (SELECT value FROM json_each(?2))",
        decided = "AND l.message_id IN (SELECT value FROM json_each(?2))",
        page = "ORDER BY id",
    ) = "{discarded}";
    /// ?1 relay, ?2 id, ?3 message id, ?4 maximum bytes of a payload to read. A copy that an
    /// operator has edited comes before the row, and the row before any other copy.
    payload = "
        SELECT content_type, octet_length(payload) AS bytes,
            CASE WHEN octet_length(payload) <= ?4 THEN payload END AS payload FROM (
            SELECT 1 AS nth, content_type, payload FROM outbox_message WHERE id = ?2 AND message_id = ?3
            UNION ALL
            SELECT CASE WHEN p.edited_at IS NULL THEN 2 ELSE 0 END, p.content_type, p.payload
            FROM outbox_exception AS e JOIN outbox_parked AS p USING (relay, shard, id)
            WHERE e.relay = ?1 AND e.shard = 0 AND e.id = ?2 AND e.message_id = ?3)
        ORDER BY nth LIMIT 1";
    pauses = "
        SELECT kind, name, actor, reason, paused_at, ({now} - paused_at) / 1e6 AS age
        FROM outbox_pause WHERE relay = ?1 ORDER BY kind, name";
    paused_scopes = "SELECT kind, name FROM outbox_pause WHERE relay = ?1";
    /// ?1 relay, ?2 maximum rows to count.
    pauses_len = "
        SELECT count(*) AS entries
        FROM (SELECT 1 FROM outbox_pause WHERE relay = ?1 AND kind <> 'pipeline' LIMIT ?2) AS counted";
    pause = "
        INSERT INTO outbox_pause (relay, kind, name, actor, reason) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (relay, kind, name) DO NOTHING";
    /// ?4 the time at which the pause began, or null for any.
    resume = "
        DELETE FROM outbox_pause WHERE relay = ?1 AND kind = ?2 AND name = ?3
            AND (?4 IS NULL OR paused_at = ?4)";
    note = "
        INSERT INTO outbox_operation (actor, note, selection, action, relay)
        VALUES (?1, ?2, ?3, ?4, ?5)";
    /// ?3 before this sequence number.
    operations = "
        SELECT seq, at, actor, note, selection, action FROM outbox_operation
        WHERE relay = ?1 AND seq < ?3 ORDER BY seq DESC LIMIT ?2";
    /// ?3 before this sequence number, ?4 action.
    operations_of = "
        SELECT seq, at, actor, note, selection, action FROM outbox_operation
        WHERE relay = ?1 AND action = ?4 AND seq < ?3 ORDER BY seq DESC LIMIT ?2";
    /// ?3 before this sequence number.
    decisions = "
        SELECT seq, at, actor, note, selection, action, id, message_id, digest_before, digest_after, error
        FROM outbox_audit WHERE relay = ?1 AND seq < ?3 ORDER BY seq DESC LIMIT ?2";
    /// The decisions below ?3, latest first, each by its last row and with the number of its rows:
    /// ?1 relay, ?2 rows to look through, ?4 actor, ?5 action, ?6 decisions. A decision that has
    /// rows from ?3 on was found before.
    audited = "
        WITH walk AS MATERIALIZED (SELECT seq, decision, actor, action FROM outbox_audit
            WHERE relay = ?1 AND seq < ?3 ORDER BY seq DESC LIMIT ?2)
        SELECT s.scanned, s.seen_to, (SELECT at FROM outbox_audit WHERE seq = s.seen_to) AS seen_back_to, a.seq, a.at, a.actor, a.id, a.message_id, a.action, a.note,
            a.digest_before, a.digest_after, a.selection, a.error, h.decision,
            CASE WHEN h.decision IS NULL THEN 1 ELSE (SELECT count(*) FROM outbox_audit AS c
                WHERE c.relay = ?1 AND c.decision = h.decision) END AS entries
        FROM (SELECT count(*) AS scanned, min(seq) AS seen_to FROM walk) AS s
        LEFT JOIN (SELECT g.seq, g.decision
            FROM (SELECT max(w.seq) AS seq, w.decision FROM walk AS w
                WHERE (?4 IS NULL OR w.actor = ?4) AND (?5 IS NULL OR w.action = ?5)
                GROUP BY w.decision, CASE WHEN w.decision IS NULL THEN w.seq END) AS g
            ORDER BY g.seq DESC LIMIT ?6) AS h ON true
        LEFT JOIN outbox_audit AS a ON a.seq = h.seq
        ORDER BY h.seq DESC";
    /// The decisions about a message: ?1 relay, ?2 message id, ?3 rows.
    decisions_of = "
        SELECT seq, at, actor, note, selection, action, id, message_id, digest_before, digest_after, error
        FROM outbox_audit WHERE relay = ?1 AND message_id = ?2 ORDER BY seq DESC LIMIT ?3";
    /// The content of a parked entry, up to 64 KiB of each part: ?1 relay, ?2 id, ?3 message
    /// id. What was too large to be copied is read from the log.
    content = "
        SELECT coalesce(octet_length(p.payload), octet_length(m.payload)) AS payload_bytes,
            CASE WHEN coalesce(octet_length(p.payload), octet_length(m.payload)) <= 65536
                THEN coalesce(p.payload, m.payload) END AS payload,
            CASE WHEN coalesce(octet_length(p.headers), octet_length(m.headers)) <= 65536
                THEN coalesce(p.headers, m.headers) END AS headers,
            coalesce(octet_length(p.headers), octet_length(m.headers)) IS NOT NULL AS has_headers
        FROM outbox_exception AS e
        LEFT JOIN outbox_parked AS p ON p.relay = e.relay AND p.shard = e.shard AND p.id = e.id
        LEFT JOIN outbox_message AS m ON p.id IS NULL AND m.id = e.id AND m.message_id = e.message_id
        WHERE e.relay = ?1 AND e.shard = 0 AND e.id = ?2 AND e.message_id = ?3
            AND (p.id IS NOT NULL OR m.id IS NOT NULL)";
    /// The content before and after an edit: ?1 relay, ?2 its number.
    edit = "
        SELECT message_id, payload_before, headers_before, payload_after, headers_after FROM outbox_audit
        WHERE seq = ?2 AND relay = ?1 AND action = 'edit'";
    now = "SELECT {now} AS at";
    parked(entries = "{walk}", is_indexed = "true") = "{shown}";
    /// Like `parked`, for a small number of held entries; ?4 held entries to read, which are all.
    /// The state, ?2, is known.
    parked_few_held(
        entries = "
            SELECT id, message_id, topic, key, attempts, due_at, fault, error, created_at, updated_at
            FROM (SELECT * FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND state = 'held'
                ORDER BY coalesce('k' || key, 't' || topic), id LIMIT ?4)
            WHERE id > ?3 ORDER BY id",
    ) = "{shown}";
    parked_stuck(entries = "{walk}", is_indexed = "state IN ('retrying', 'dead')") = "{shown}";
    choose(is_indexed = "state IN ('retrying', 'dead')") = "
        WITH walk AS MATERIALIZED ({walk})
        SELECT s.seen_to, s.scanned, e.id, e.message_id, e.topic, e.created_at,
            CASE WHEN ?8 IS NOT NULL THEN e.error END AS error,
            (SELECT edited_at FROM outbox_parked WHERE relay = ?1 AND shard = 0 AND id = e.id) AS edited_at
        FROM (SELECT max(id) AS seen_to, count(*) AS scanned FROM walk) AS s
        LEFT JOIN (SELECT * FROM walk AS w WHERE {matches}) AS e ON true ORDER BY e.id";
    total(is_indexed = "state IN ('retrying', 'dead')") = "
        SELECT {now} AS at, count(*) AS scanned, count(*) FILTER (WHERE {matches}) AS entries FROM ({walk}) AS w";
    groups(is_indexed = "state IN ('retrying', 'dead')") = "
        SELECT w.topic, w.fault, substr(w.error, 1, 300) AS error, count(*) AS entries, min(w.created_at) AS first,
            max(w.created_at) AS last
        FROM (SELECT * FROM ({walk}) UNION SELECT * FROM
            (SELECT id, message_id, topic, key, attempts, due_at, fault, error, created_at, updated_at
            FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND state = ?2 AND {is_indexed} AND id > ?3
            ORDER BY id DESC LIMIT ?4)) AS w
        WHERE {matches} GROUP BY 1, 2, 3";
    decision_head = "
        SELECT a.actor, a.action, a.note, a.selection, count(*) AS entries, min(a.at) AS first, max(a.at) AS last
        FROM (SELECT actor, action, note, selection, at FROM outbox_audit
            WHERE relay = ?1 AND decision = ?2 ORDER BY seq LIMIT ?3) AS a
        GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC LIMIT 1";
    decision_now = "
        SELECT e.state, count(*) AS entries
        FROM (SELECT id, message_id FROM outbox_audit WHERE relay = ?1 AND decision = ?2 ORDER BY seq LIMIT ?3) AS a
        LEFT JOIN outbox_exception AS e
            ON e.relay = ?1 AND e.shard = 0 AND e.id = a.id AND e.message_id = a.message_id
        GROUP BY 1";
}

pub(super) fn texts(schema: Option<&Identifier>) -> Texts {
    texts_of!(Statements::new(schema))
}
