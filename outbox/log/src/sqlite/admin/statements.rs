//! The SQL of operators' queries and decisions.

use std::sync::LazyLock;

use outbox::sqlite::clock::NOW;

use crate::sqlite::fragments::with_last_error;
use crate::sqlite::row::{CONTENT, EDITED_CONTENT};

migrations::statements! {
    parts {
        now = NOW;
        with_last_error = with_last_error!("false");
        content = CONTENT;
        edited_content = EDITED_CONTENT;
    }

    /// ?1 relay, or null for all.
    relays = "
        SELECT relay, epoch, holder, (lease_until - {now}) / 1e6 AS expires_in, ({now} - checkpoint_at) /
            1e6 AS age, cursor
            FROM outbox_relay WHERE shard = 0 AND (?1 IS NULL OR relay = ?1) ORDER BY relay";
    backlog = "
        SELECT (SELECT coalesce(max(id), 0) FROM outbox_message) - ?1, id, ({now} - enqueued_at) / 1e6
            FROM outbox_message WHERE id > ?1 ORDER BY id LIMIT 1";
    /// Reads an entry; its due time only if it has not come.
    found = "
        SELECT state, message_id, CASE WHEN due_at > {now} THEN due_at END AS due_at, updated_at,
            (SELECT edited_at FROM outbox_parked WHERE relay = ?1 AND shard = 0 AND id = ?2) AS edited_at
        FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND id = ?2";
    /// Finds an entry that waits for a retry, with its due time. Unless ?5, it must also wait for
    /// an operator. A confirmation for the time ?3, if given, does not cover one that has changed
    /// since, nor content other than that of the edit ?4.
    waiting = "
        SELECT due_at FROM outbox_exception WHERE relay = ?1 AND shard = 0 AND id = ?2
            AND state = 'retrying' AND (fault = 'operator' OR ?5) AND due_at > {now}
            AND (?3 IS NULL OR updated_at <= ?3
                AND (SELECT edited_at FROM outbox_parked WHERE relay = ?1 AND shard = 0 AND id = ?2) IS ?4)";
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
    /// The attempts are counted anew, so the error is added to the earlier ones with its count.
    requeue = "
        UPDATE outbox_exception SET state = 'retrying', attempts = 0, due_at = {now}, updated_at = {now},
            earlier_errors = {with_last_error}
            WHERE relay = ?1 AND shard = 0 AND id = ?2";
    discard = "
        UPDATE outbox_exception SET state = 'discarded', due_at = {now}, updated_at = {now}
            WHERE relay = ?1 AND shard = 0 AND id = ?2";
    /// ?1 relay, ?2 id, ?3 payload, ?4 headers: copies an entry that was too large to be copied,
    /// with its new content. The unchanged parts are read from the log.
    copy_edited = "
        INSERT INTO outbox_parked (relay, id, {content})
        SELECT e.relay, e.id, {edited_content}
        FROM outbox_exception AS e CROSS JOIN outbox_message AS m
        WHERE e.relay = ?1 AND e.shard = 0 AND e.id = ?2 AND m.id = e.id AND m.message_id = e.message_id
        ON CONFLICT (relay, shard, id) DO NOTHING";
    edit = "
        UPDATE outbox_parked
            SET payload = coalesce(?3, payload), headers = coalesce(?4, headers), edited_at = {now}
            WHERE relay = ?1 AND shard = 0 AND id = ?2";
    audit = "
        INSERT INTO outbox_audit (actor, relay, id, message_id, action, note, digest_before, digest_after,
            selection, decision, payload_before, headers_before, payload_after, headers_after, fault, error)
            SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, fault, error
            FROM outbox_exception WHERE relay = ?2 AND shard = 0 AND id = ?3";
}

/// Without a schema.
pub(super) static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));
