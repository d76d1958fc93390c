//! The SQL of the tables, in PostgreSQL.

use migrations::Identifier;

use crate::decided::{ends_with_a_discard, has_an_edit};
use crate::postgres::fragments::{GIVEN_UP, SAME_SEGMENT};
use crate::tables::{Texts, texts_of};

migrations::statements! {
    parts {
        // One step into the index of messages, whose order it names: for an equal id another index
        // would do, and would be walked.
        was_requeued = "coalesce((SELECT true FROM {schema}outbox_audit AS a
            WHERE a.relay = $1 AND a.message_id >= e.message_id AND a.message_id <= e.message_id
                AND a.action = 'requeue'
            ORDER BY a.message_id DESC, a.seq DESC LIMIT 1), false)";
        listed = "
            SELECT e.id, e.message_id::text AS message_id, e.topic, e.key, coalesce(p.kind, e.topic) AS kind,
                e.attempts, extract(epoch FROM e.due_at - clock_timestamp())::float8 AS due_in, e.fault, e.error,
                e.created_at, greatest(e.updated_at, p.edited_at) AS updated_at,
                coalesce(octet_length(p.payload), octet_length(m.payload), 0)::bigint AS payload_bytes,
                p.edited_at IS NOT NULL AS edited, p.edited_at,
                CASE WHEN e.state = 'dead' THEN {was_requeued} ELSE false END AS died_again
            FROM ({chosen}) AS e
            LEFT JOIN LATERAL (SELECT kind, payload, edited_at FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS p ON true
            LEFT JOIN LATERAL (SELECT payload FROM {schema}outbox_message
                WHERE p.payload IS NULL AND id >= e.id AND id <= e.id AND message_id = e.message_id AND {same_segment}
                ORDER BY id LIMIT 1) AS m ON true";
        by_id = "
            SELECT * FROM {schema}outbox_exception
            WHERE relay = $1 AND shard = 0 AND state = $2 AND {is_indexed} AND id > $3
            ORDER BY id LIMIT $4::bigint";
        // Discarded entries; `decided` chooses the decisions.
        discarded = "
        WITH given_up AS MATERIALIZED (
{decided}),
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
            WHERE (e.state = 'discarded' OR e.id IS NULL AND m.id IS NOT NULL) {above}
            ORDER BY coalesce(e.id, m.id) {limit})
        SELECT c.id, c.message_id::text AS message_id, c.topic, c.key, coalesce(c.kind, p.kind, c.topic) AS kind,
            c.attempts, NULL::float8 AS due_in, c.fault, c.error, c.at AS created_at, c.at AS updated_at,
            coalesce(p.payload_bytes, c.payload_bytes, 0) AS payload_bytes, c.edited, NULL::timestamptz AS edited_at,
            false AS died_again
        FROM chosen AS c
        LEFT JOIN LATERAL (
            SELECT kind, octet_length(payload)::bigint AS payload_bytes FROM {schema}outbox_parked
            WHERE relay = $1 AND shard = 0 AND id = c.parked LIMIT 1) AS p ON true
        ORDER BY c.id";
        last_discard = "max(a.seq) FILTER (WHERE a.action = 'discard') AS discarded, coalesce({has_an_edit}, false) AS edited";
        // The queue of a held entry, in the form of its index.
        queue = "(coalesce('k' || key, 't' || topic) COLLATE \"C\")";
        walk = "(SELECT id, message_id, topic, key, attempts, due_at, fault, error, created_at, updated_at
            FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 AND state = $2 AND {is_indexed} AND id > $3
            ORDER BY id LIMIT $4::bigint)";
        // $5 topic, $6 key, $7 party at fault, $8 pattern of the error, $9 kind, $10 and $11 ages
        // in microseconds, $12 a time; each may be null.
        matches = "($5::text IS NULL OR w.topic = $5) AND ($6::text IS NULL OR w.key = $6)
            AND ($7::text IS NULL OR w.fault = $7) AND ($8::text IS NULL OR w.error LIKE $8)
            AND ($9::text IS NULL OR coalesce((SELECT kind FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = w.id LIMIT 1), w.topic) = $9)
            AND ($10::bigint IS NULL OR w.created_at < coalesce($12::timestamptz, clock_timestamp())
                - $10 * interval '1 microsecond')
            AND ($11::bigint IS NULL OR w.created_at >= coalesce($12::timestamptz, clock_timestamp())
                - $11 * interval '1 microsecond')
            AND ($12::timestamptz IS NULL OR w.updated_at <= $12
                AND coalesce((SELECT edited_at FROM {schema}outbox_parked
                    WHERE relay = $1 AND shard = 0 AND id = w.id LIMIT 1) <= $12, true))";
        // The walk ends after $4 entries of the state, however many of them match the conditions.
        shown = "
            WITH walk AS MATERIALIZED {entries},
            found AS MATERIALIZED (SELECT * FROM walk AS w WHERE {matches} ORDER BY w.id LIMIT $13::bigint)
            SELECT s.seen_to, s.scanned, e.id, e.message_id::text AS message_id, e.topic, e.key,
                coalesce(p.kind, e.topic) AS kind, e.attempts,
                extract(epoch FROM e.due_at - clock_timestamp())::float8 AS due_in, e.fault, e.error,
                e.created_at, greatest(e.updated_at, p.edited_at) AS updated_at,
                coalesce(octet_length(p.payload), octet_length(m.payload), 0)::bigint AS payload_bytes,
                p.edited_at IS NOT NULL AS edited, p.edited_at,
                CASE WHEN $2::text = 'dead' THEN {was_requeued} ELSE false END AS died_again
            FROM (SELECT max(id) AS seen_to, count(*) AS scanned FROM walk) AS s LEFT JOIN found AS e ON true
            LEFT JOIN LATERAL (SELECT kind, payload, edited_at FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS p ON true
            LEFT JOIN LATERAL (SELECT payload FROM {schema}outbox_message
                WHERE p.payload IS NULL AND id >= e.id AND id <= e.id AND message_id = e.message_id AND {same_segment}
                ORDER BY id LIMIT 1) AS m ON true
            ORDER BY e.id";
        given_up = GIVEN_UP;
        has_an_edit = has_an_edit!();
        ends_with_a_discard = ends_with_a_discard!();
        same_segment = SAME_SEGMENT;
    }

    /// An entry that is requeued and dies again has been parked since it was parked first: an age
    /// that begins anew with each attempt would say that nothing was wrong before.
    counts = "
        SELECT state, fault, is_due, count(*) AS entries, min(id) AS first, max(since_due) AS since_due,
            max(longest) AS longest
        FROM (SELECT state, fault, id, coalesce(due_at <= clock_timestamp(), false) AS is_due,
                extract(epoch FROM clock_timestamp() - due_at)::float8 AS since_due,
                extract(epoch FROM clock_timestamp() - CASE WHEN state = 'discarded' THEN updated_at
                    ELSE created_at END)::float8 AS longest
            FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 ORDER BY id LIMIT $2) AS parked
        GROUP BY state, fault, is_due";
    /// An entry without a copy was enqueued shortly before it was parked. `lag` counts in the same
    /// way.
    parked_age = "
        SELECT extract(epoch FROM clock_timestamp() - coalesce(
            (SELECT p.enqueued_at FROM {schema}outbox_parked AS p
                WHERE p.relay = $1 AND p.shard = 0 AND p.id = $2 LIMIT 1),
            e.created_at))::float8 AS age
        FROM {schema}outbox_exception AS e WHERE e.relay = $1 AND e.shard = 0 AND e.id = $2";
    /// $1 relay, $2 retrying or dead, $3 entries from each end; one that is near both ends counts
    /// once. The literals let the server use the index of these states, whatever $2 is.
    errors = "
        SELECT left(error, 300) AS error, count(*) AS entries
        FROM ((SELECT id, error FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND state = $2 AND state IN ('retrying', 'dead')
                ORDER BY id LIMIT $3::bigint)
            UNION
            (SELECT id, error FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND state = $2 AND state IN ('retrying', 'dead')
                ORDER BY id DESC LIMIT $3::bigint)) AS ends
        WHERE error IS NOT NULL GROUP BY 1";
    /// $1 relay, $2 state, $3 above this id, $4 rows. Walks all parked entries:
    /// for scheduled ones, and for held ones where many are held.
    list(chosen = "{by_id}", is_indexed = "true", message_id = "e.message_id") = "{listed} ORDER BY e.id";
    /// Like `list`, for the states that have their own index. The literals let the server use that
    /// index, whatever $2 is.
    list_stuck(
        chosen = "{by_id}",
        is_indexed = "state IN ('retrying', 'dead')",
        message_id = "e.message_id",
    ) = "{listed} ORDER BY e.id";
    /// Held entries, queue after queue, in the order of their index. $1 relay, $2 rows.
    list_held(
        chosen = "
            SELECT * FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 AND state = 'held'
            ORDER BY {queue}, id LIMIT $2::bigint",
        message_id = "e.message_id",
    ) = "{listed}";
    /// $1 relay, $2 maximum rows to count.
    held_len = "
        SELECT count(*) AS entries
        FROM (SELECT 1 FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 AND state = 'held'
            ORDER BY {queue}, id LIMIT $2::bigint) AS counted";
    /// Held entries in the order of ids. $1 relay, $2 above this id, $3 rows, $4 held entries to
    /// read, which are all.
    list_few_held(
        chosen = "
            SELECT * FROM (SELECT * FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND state = 'held' ORDER BY {queue}, id LIMIT $4::bigint) AS held
            WHERE id > $2 ORDER BY id LIMIT $3::bigint",
        message_id = "e.message_id",
    ) = "{listed} ORDER BY e.id";
    /// Discarded entries, as long as the log has them, whether or not the relay has carried out the
    /// decision yet. $1 relay, $2 above this id, $3 rows. No index covers discarded entries. So all
    /// decisions are read, each message whose last decision is a discard is looked up separately,
    /// and further columns are looked up for this page only.
    list_discarded(
        message_id = "d.message_id",
        decided = "SELECT {last_discard} {given_up}",
        above = "AND coalesce(e.id, m.id) > $2",
        limit = "LIMIT $3::bigint",
    ) = "{discarded}";
    /// Like `list_discarded`, of these messages: $1 relay, $2 their ids. Decisions are read
    /// by the message.
    discarded_of(
        message_id = "d.message_id",
        decided = "SELECT l.* FROM (SELECT DISTINCT id FROM unnest($2::uuid[]) AS ids(id)) AS named
            CROSS JOIN LATERAL (SELECT {last_discard} FROM {schema}outbox_audit AS a
                WHERE a.relay = $1 AND a.message_id = named.id HAVING {ends_with_a_discard}) AS l",
        above = "",
        limit = "",
    ) = "{discarded}";
    /// $1 relay, $2 id, $3 message id, $4 maximum bytes of a payload to read. A copy that an
    /// operator has edited comes before the row, and the row before any other copy.
    payload(message_id = "$3::text::uuid") = "
        SELECT content_type, octet_length(payload)::bigint AS bytes,
            CASE WHEN octet_length(payload) <= $4 THEN payload END AS payload
        FROM (
            (SELECT 1 AS nth, content_type, payload FROM {schema}outbox_message
            WHERE id >= $2 AND id <= $2 AND message_id = $3::text::uuid AND {same_segment} ORDER BY id LIMIT 1)
            UNION ALL
            SELECT CASE WHEN p.edited_at IS NULL THEN 2 ELSE 0 END, p.content_type, p.payload
            FROM (SELECT id FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND id = $2 AND message_id = $3::text::uuid LIMIT 1) AS e
            CROSS JOIN LATERAL (SELECT content_type, payload, edited_at FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS p) AS stored
        ORDER BY nth LIMIT 1";
    pauses = "
        SELECT kind, name, actor, reason, paused_at,
            extract(epoch FROM clock_timestamp() - paused_at)::float8 AS age
        FROM {schema}outbox_pause WHERE relay = $1 ORDER BY kind, name";
    paused_scopes = "SELECT kind, name FROM {schema}outbox_pause WHERE relay = $1";
    /// $1 relay, $2 maximum rows to count.
    pauses_len = "
        SELECT count(*) AS entries
        FROM (SELECT 1 FROM {schema}outbox_pause WHERE relay = $1 AND kind <> 'pipeline' LIMIT $2::bigint) AS counted";
    pause = "
        INSERT INTO {schema}outbox_pause (relay, kind, name, actor, reason) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (relay, kind, name) DO NOTHING";
    /// $4 the time at which the pause began, or null for any.
    resume = "
        DELETE FROM {schema}outbox_pause WHERE relay = $1 AND kind = $2 AND name = $3
            AND ($4::timestamptz IS NULL OR paused_at = $4)";
    note = "
        INSERT INTO {schema}outbox_operation (actor, note, selection, action, relay)
        VALUES ($1, $2, $3, $4, $5)";
    /// $3 before this sequence number.
    operations = "
        SELECT seq, at, actor, note, selection, action FROM {schema}outbox_operation
        WHERE relay = $1 AND seq < $3::bigint ORDER BY seq DESC LIMIT $2";
    /// $3 before this sequence number, $4 action.
    /// In the order of the index of actions, which no other index has: with `=`, a plan for few
    /// rows walks backwards through the operations of all actions.
    operations_of = "
        SELECT seq, at, actor, note, selection, action FROM {schema}outbox_operation
        WHERE relay = $1 AND (action, seq) < ($4, $3::bigint) AND action >= $4
        ORDER BY action DESC, seq DESC LIMIT $2";
    /// $3 before this sequence number. The collation is that of the index.
    decisions = "
        SELECT seq, at, actor, note, selection, action, id, message_id::text AS message_id, digest_before,
            digest_after, error
        FROM {schema}outbox_audit WHERE relay COLLATE \"POSIX\" = $1 AND seq < $3::bigint ORDER BY seq DESC LIMIT $2";
    /// The decisions below $3, latest first, each by its last row and with the number of its rows:
    /// $1 relay, $2 rows to look through, $4 actor, $5 action, $6 decisions. A decision with rows
    /// from $3 on comes again: they may have been committed since the slice before this one.
    audited = "
        WITH walk AS MATERIALIZED (SELECT seq, decision, actor, action FROM {schema}outbox_audit
            WHERE relay COLLATE \"POSIX\" = $1 AND seq < $3::bigint ORDER BY seq DESC LIMIT $2)
        SELECT s.scanned, s.seen_to, (SELECT at FROM {schema}outbox_audit WHERE seq = s.seen_to LIMIT 1) AS seen_back_to,
            a.seq, a.at, a.actor, a.id, a.message_id::text AS message_id, a.action,
            a.note, a.digest_before, a.digest_after, a.selection, a.error, h.decision::text AS decision,
            CASE WHEN h.decision IS NULL THEN 1 ELSE (SELECT count(*) FROM {schema}outbox_audit AS c
                WHERE c.relay = $1 AND c.decision = h.decision) END AS entries
        FROM (SELECT count(*) AS scanned, min(seq) AS seen_to FROM walk) AS s
        LEFT JOIN (SELECT g.seq, g.decision
            FROM (SELECT max(w.seq) AS seq, w.decision FROM walk AS w
                WHERE ($4::text IS NULL OR w.actor = $4) AND ($5::text IS NULL OR w.action = $5)
                GROUP BY w.decision, CASE WHEN w.decision IS NULL THEN w.seq END) AS g
            ORDER BY g.seq DESC LIMIT $6::bigint) AS h ON true
        LEFT JOIN LATERAL (SELECT seq, at, actor, id, message_id, action, note, digest_before, digest_after,
                selection, error FROM {schema}outbox_audit WHERE seq = h.seq LIMIT 1) AS a ON true
        ORDER BY h.seq DESC";
    /// The decisions about a message: $1 relay, $2 message id, $3 rows.
    decisions_of = "
        SELECT seq, at, actor, note, selection, action, id, message_id::text AS message_id, digest_before,
            digest_after, error
        FROM {schema}outbox_audit WHERE relay = $1 AND message_id = $2::uuid ORDER BY seq DESC LIMIT $3::bigint";
    /// The content of a parked entry, up to 64 KiB of each part: $1 relay, $2 id, $3 message
    /// id. What was too large to be copied is read from the log. Headers
    /// that are stored in more are not turned into text.
    content(message_id = "e.message_id") = "
        SELECT octet_length(c.payload)::bigint AS payload_bytes,
            CASE WHEN octet_length(c.payload) <= 65536 THEN c.payload END AS payload,
            CASE WHEN pg_column_size(c.headers) <= 65536 THEN c.headers::text END AS headers,
            c.headers IS NOT NULL AS has_headers
        FROM (
            SELECT coalesce(p.payload, m.payload) AS payload,
                CASE WHEN p.payload IS NULL THEN m.headers ELSE p.headers END AS headers
            FROM (SELECT id, message_id FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND id = $2 AND message_id = $3::text::uuid LIMIT 1) AS e
            CROSS JOIN LATERAL (SELECT payload, headers FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS p
            LEFT JOIN LATERAL (SELECT payload, headers FROM {schema}outbox_message
                WHERE p.payload IS NULL AND id >= e.id AND id <= e.id AND message_id = e.message_id AND {same_segment}
                ORDER BY id LIMIT 1) AS m ON true OFFSET 0) AS c
        WHERE c.payload IS NOT NULL";
    /// The content before and after an edit: $1 relay, $2 its number.
    edit = "
        SELECT a.message_id::text AS message_id, a.payload_before, a.headers_before::text AS headers_before, a.payload_after,
            a.headers_after::text AS headers_after
        FROM (SELECT relay, action, message_id, payload_before, headers_before, payload_after, headers_after
            FROM {schema}outbox_audit WHERE seq = $2::bigint LIMIT 1) AS a
        WHERE a.relay = $1 AND a.action = 'edit'";
    now = "SELECT statement_timestamp() AS at";
    /// The next entries that match: see `walk` and `matches`; $13 rows.
    parked(entries = "{walk}", is_indexed = "true", message_id = "e.message_id") = "{shown}";
    /// Like `parked`, for a small number of held entries; $4 held entries to read, which are all.
    parked_few_held(
        entries = "
            (SELECT id, message_id, topic, key, attempts, due_at, fault, error, created_at, updated_at
            FROM (SELECT * FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND state = 'held' ORDER BY {queue}, id LIMIT $4::bigint) AS held
            WHERE id > $3 AND $2::text = 'held' ORDER BY id)",
        message_id = "e.message_id",
    ) = "{shown}";
    /// Like `parked`, for the states that have their own index.
    parked_stuck(
        entries = "{walk}",
        is_indexed = "state IN ('retrying', 'dead')",
        message_id = "e.message_id",
    ) = "{shown}";
    /// The next dead or retrying entries that match, with the columns that a decision needs.
    choose(is_indexed = "state IN ('retrying', 'dead')") = "
        WITH walk AS MATERIALIZED {walk}
        SELECT s.seen_to, s.scanned, e.id, e.message_id::text AS message_id, e.topic, e.created_at,
            CASE WHEN $8::text IS NOT NULL THEN e.error END AS error,
            (SELECT edited_at FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS edited_at
        FROM (SELECT max(id) AS seen_to, count(*) AS scanned FROM walk) AS s
        LEFT JOIN (SELECT * FROM walk AS w WHERE {matches} ORDER BY w.id) AS e ON true ORDER BY e.id";
    /// The time is that before the entries were read: entries that become dead meanwhile are
    /// younger.
    total(is_indexed = "state IN ('retrying', 'dead')") = "
        SELECT statement_timestamp() AS at, count(*) AS scanned, count(*) FILTER (WHERE {matches}) AS entries
        FROM {walk} AS w";
    groups(is_indexed = "state IN ('retrying', 'dead')") = "
        SELECT w.topic, w.fault, left(w.error, 300) AS error, count(*) AS entries, min(w.created_at) AS first,
            max(w.created_at) AS last
        FROM ({walk} UNION
            (SELECT id, message_id, topic, key, attempts, due_at, fault, error, created_at, updated_at
            FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 AND state = $2 AND {is_indexed} AND id > $3
            ORDER BY id DESC LIMIT $4::bigint)) AS w
        WHERE {matches} GROUP BY 1, 2, 3";
    /// $1 relay, $2 decision, $3 entries to count. A decision has one actor and one reason.
    decision_head = "
        SELECT a.actor, a.action, a.note, a.selection, count(*) AS entries, min(a.at) AS first, max(a.at) AS last
        FROM (SELECT actor, action, note, selection, at FROM {schema}outbox_audit
            WHERE relay = $1 AND decision = $2 ORDER BY seq LIMIT $3::bigint) AS a
        GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC LIMIT 1";
    /// $1 relay, $2 decision, $3 entries to look up: where they are now.
    decision_now = "
        SELECT e.state, count(*) AS entries
        FROM (SELECT id, message_id FROM {schema}outbox_audit
            WHERE relay = $1 AND decision = $2 ORDER BY seq LIMIT $3::bigint) AS a
        LEFT JOIN LATERAL (SELECT state FROM {schema}outbox_exception
            WHERE relay = $1 AND shard = 0 AND id = a.id AND message_id = a.message_id LIMIT 1) AS e ON true
        GROUP BY 1";
}

pub(super) fn texts(schema: Option<&Identifier>) -> Texts {
    texts_of!(Statements::new(schema))
}
