//! The SQL of operators' questions and decisions.

use std::sync::LazyLock;

use outbox::sqlite::clock::NOW;

use crate::sqlite::fragments::EDITED;

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
pub(super) static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));
