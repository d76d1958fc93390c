//! The SQL of the reader and the checkpoint store, rendered once per log.

use crate::postgres::fragments::{
    COPY, GIVEN_OUT, HOLDER, PRESENT_RUN, SAME_SEGMENT, WHOLE, with_last_error,
};
use crate::postgres::row::{
    BOUNDED, COLUMNS, CONTENT, CONTENT_IF_IT_FITS, COPIED_BYTES, HEADERS, HEADERS_BYTES, TRACE, UNBOUNDED,
};

migrations::statements! {
    parts {
        columns = COLUMNS;
        same_segment = SAME_SEGMENT;
        present_run = PRESENT_RUN;
        // The server has neither crashed nor been replaced since this run began. Null skips the
        // check.
        same_run = "({run}::text IS NULL OR EXISTS (SELECT FROM {schema}outbox_server_run
            WHERE run_id = {run}::text::uuid AND started_at = pg_postmaster_start_time()))";
        whole = WHOLE;
        waits_for_the_disk = migrations::waits_for_the_disk!();
        headers = HEADERS;
        unbounded = UNBOUNDED;
        trace = TRACE;
        bounded = BOUNDED;
        is_short = "octet_length(run.payload)::bigint + {headers_bytes} <= $2::bigint";
        headers_bytes = HEADERS_BYTES;
        given_out = GIVEN_OUT;
        with_last_error = with_last_error!("e.error = EXCLUDED.error");
        // The places of due exceptions in certain `states`, each of which has its own index.
        due_places = "SELECT id, due_at AS place FROM {schema}outbox_exception WHERE relay = $3 AND shard = 0
            AND {states} AND due_at <= statement_timestamp() AND (due_at, id) > ($4::timestamptz, $5::bigint)
            AND {same_run} ORDER BY due_at, id LIMIT $1::bigint + 1";
        // $1 relay, $2 and $3 after this time and id: seconds until the next one is due.
        next_place = "SELECT extract(epoch FROM due_at - statement_timestamp())::float8 FROM {schema}outbox_exception
            WHERE relay = $1 AND shard = 0 AND {states}
                AND (due_at, id) > ($2::timestamptz, $3::bigint) ORDER BY due_at, id LIMIT 1";
        // The exceptions in a `chosen` list of ids and positions, with their copies. LIMIT 1 keeps
        // the planner from turning the lookups into a join that reads whole tables (measured
        // without statistics, 2 of 100,000 exceptions due: 1,836 buffers against about 20). It is a
        // LEFT JOIN because an exception without a copy must be seen, not skipped.
        exceptions = "WITH chosen AS MATERIALIZED ({chosen}),
            run AS (SELECT e.id, e.message_id, e.topic, e.key, p.kind, coalesce(p.content_type, '') AS content_type,
                {headers} AS headers, {unbounded} AS unbounded, {trace}, coalesce(p.payload, '') AS payload,
                p.enqueued_at, NULL::float8 AS deliver_in, e.state, e.attempts, chosen.place
                FROM chosen CROSS JOIN LATERAL (SELECT * FROM {schema}outbox_exception
                    WHERE relay = $3 AND shard = 0 AND id = chosen.id LIMIT 1) AS e
                LEFT JOIN LATERAL ({copy}) AS p ON true OFFSET 0)
            SELECT {bounded}, run.state, run.attempts, run.place FROM run ORDER BY place, id";
        copy = COPY;
        content = CONTENT;
        content_if_it_fits = CONTENT_IF_IT_FITS;
        copied_bytes = COPIED_BYTES;
        // Maximum bytes of one copied content, and of all in one checkpoint: 16 MiB and 64 MiB.
        copy_max = "16777216";
        copies_max = "67108864";
        // The queue of a held entry, in the form of its index.
        queue = "(coalesce('k' || key, 't' || topic) COLLATE \"C\")";
        // The first held entry of the first queue after a name.
        behind = "SELECT {queue} AS queue, id, topic FROM {schema}outbox_exception
            WHERE relay = $1 AND shard = 0 AND state = 'held' AND {queue} >";
    }

    /// First half of a mark: the floor is read before the transaction id is taken (see the module's
    /// proof).
    mark_floor = "WITH position AS MATERIALIZED (SELECT {given_out} AS floor)
        SELECT floor, pg_current_xact_id()::text FROM position";
    /// $1 xmax of the base, unless it sees nothing, $2 its floor, $3 maximum young rows. Second
    /// half of a mark: the snapshot is taken before the ceiling is read. Also returns a row, if
    /// any, that shows that the sequence was set back.
    ///
    /// Like a position, the ceiling may be too high but never too low, so a SELECT from the
    /// sequence is good enough. A visible row above it got its id before the sequence was set back.
    /// A row below the base's floor that is younger than the base got its id after that. Young rows
    /// are checked here only where fewer ids than $3 were given out. This bounds the walk, visible
    /// rows or not, and a relay that keeps up has no more to read. Otherwise
    /// `facts::Statements::young` checks all of them.
    mark_snapshot = "
        WITH sequence AS MATERIALIZED (
            SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS ceiling
            FROM {schema}outbox_message_id_seq)
        SELECT pg_current_snapshot()::text, (SELECT ceiling FROM sequence), coalesce(
            (SELECT id FROM {schema}outbox_message WHERE id > (SELECT ceiling FROM sequence) ORDER BY id LIMIT 1),
            CASE WHEN (SELECT ceiling FROM sequence) - $2 < $3 THEN (SELECT min(id) FROM (
                SELECT id FROM {schema}outbox_message WHERE (xid, id) > ($1::text::xid8, 0::bigint)
                ORDER BY xid, id LIMIT $3) AS young
            WHERE id <= $2) END)";
    /// $1 floor, $2 snapshot, $3 in flight, $4 run of the server, $5 number of ids above the floor
    /// to check, visible or not. Returns the position, whether there is anything new, whether any
    /// transaction in flight has ended, and whether the run lasts. A scalar subquery parses the
    /// snapshot once instead of once per row. While the sequence stands at the floor, there is no
    /// id above it: an idle poll reads no segment.
    poll(run = "$4") = "
        WITH sequence AS MATERIALIZED (
            SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS position
            FROM {schema}outbox_message_id_seq)
        SELECT (SELECT position FROM sequence),
            (SELECT position > $1 FROM sequence) AND EXISTS (
                SELECT FROM (
                    SELECT id FROM {schema}outbox_message
                    WHERE id > $1 AND id <= $1 + $5::bigint
                        AND NOT pg_visible_in_snapshot(xid, (SELECT $2::text::pg_snapshot))
                    ORDER BY id LIMIT 1) AS above)
            OR EXISTS (
                SELECT FROM unnest($3::text::xid8[]) AS flight(xid) CROSS JOIN LATERAL (
                    SELECT FROM {schema}outbox_message AS m
                    WHERE (m.xid, m.id) > (flight.xid, 0::bigint) AND (m.xid, m.id) <= (flight.xid, $1)
                    ORDER BY m.xid, m.id LIMIT 1) AS late
                WHERE pg_visible_in_snapshot(flight.xid, pg_current_snapshot())),
            EXISTS (
                SELECT FROM unnest($3::text::xid8[]) AS flight(xid)
                WHERE pg_visible_in_snapshot(flight.xid, pg_current_snapshot())),
            {same_run}";
    /// The server's current run.
    run = "{present_run}";
    /// $1 rows, $2 maximum bytes of content that is read with its row, $3 above this id, $4
    /// ceiling, $5 base, $6 head, $7 run of the server. Walks the primary key. Of larger content
    /// only the lengths are read. This bounds a page without a window function, which copies every
    /// row twice: 3.3 µs of the server's time per row of 256 bytes instead of 7.2 (the bare
    /// columns: 2.8).
    page(of = "m", run = "$7") = "
        SELECT {bounded} FROM (
            SELECT {columns} FROM {schema}outbox_message AS m
            WHERE m.id > $3 AND m.id <= $4
                AND NOT pg_visible_in_snapshot(m.xid, (SELECT $5::text::pg_snapshot))
                AND pg_visible_in_snapshot(m.xid, (SELECT $6::text::pg_snapshot)) AND {same_run} AND {whole}
            ORDER BY m.id LIMIT $1::bigint + 1) AS run
        ORDER BY run.id";
    /// $1 above this id, $2 ceiling: the id of the next row.
    next_id = "SELECT id FROM {schema}outbox_message WHERE id > $1 AND id <= $2 AND {whole} ORDER BY id LIMIT 1";
    /// $1 ids, $2 their message ids, which determine the segment: the contents that were not read
    /// with their rows.
    contents(of = "m", message_id = "wanted.message_id") = "
        SELECT m.message_id, m.payload, {headers} AS headers
        FROM unnest($1::bigint[], $2::uuid[]) AS wanted(id, message_id)
        CROSS JOIN LATERAL (SELECT message_id, payload, headers FROM {schema}outbox_message
            WHERE id >= wanted.id AND id <= wanted.id AND message_id = wanted.message_id AND {same_segment}
            ORDER BY id LIMIT 1) AS m";
    /// Like `contents`, for copies of the relay $3.
    copies(of = "p", message_id = "wanted.message_id", copied = "wanted.id") = "
        SELECT wanted.message_id, p.payload, {headers} AS headers
        FROM unnest($1::bigint[], $2::uuid[]) AS wanted(id, message_id)
        CROSS JOIN LATERAL ({copy}) AS p";
    /// $1 rows, $2 maximum bytes of content that is read with its row, $3 above this id, $4 floor,
    /// $5 transactions, $6 run of the server. Even a huge transaction costs only one page. Compares
    /// pairs instead of `xid = …`, so that only the index on both columns can give the order: with
    /// statistics of few large transactions the planner walked the primary key (1,609 buffers for
    /// one row of 100,000 against 4).
    stragglers(of = "m", run = "$6") = "
        WITH run AS (SELECT m.* FROM unnest($5::text::xid8[]) AS flight(xid) CROSS JOIN LATERAL (
                SELECT {columns} FROM {schema}outbox_message AS m
                WHERE (m.xid, m.id) > (flight.xid, $3::bigint) AND (m.xid, m.id) <= (flight.xid, $4::bigint)
                    AND {same_run} AND {whole}
                ORDER BY m.xid, m.id LIMIT $1::bigint + 1) AS m
            ORDER BY m.id LIMIT $1::bigint + 1)
        SELECT {bounded} FROM run ORDER BY run.id";
    /// Scheduled and discarded exceptions. $1 rows, $2 maximum bytes of content that is read with
    /// its row, $3 relay, $4 and $5 after this time and id, $6 run of the server.
    /// `statement_timestamp()` is constant, so the index on due_at can be used.
    due(
        of = "p",
        message_id = "e.message_id",
        copied = "chosen.id",
        chosen = "{due_places}",
        states = "state IN ('scheduled', 'discarded')",
        run = "$6",
    ) = "{exceptions}";
    /// Retrying exceptions, with the parameters of `due`.
    retried(
        of = "p",
        message_id = "e.message_id",
        copied = "chosen.id",
        chosen = "{due_places}",
        states = "state = 'retrying'",
        run = "$6",
    ) = "{exceptions}";
    /// Exceptions that are due: $4 ids of probes, and those of the last 500 decisions of
    /// operators; $5 run of the server, and the other parameters of `due`. Probes come first: what
    /// was requeued stays due while it is in the relay's memory. LIMIT 1 keeps the planner from the
    /// index of what is due, in which each id would be searched for, and pairs from sorting all
    /// decisions of the relay.
    first(
        of = "p",
        message_id = "e.message_id",
        copied = "chosen.id",
        chosen = "SELECT e.id, e.due_at - CASE WHEN asked.is_probe THEN interval '1000 years' ELSE interval '0' END
                AS place FROM (
                SELECT id, bool_or(is_probe) AS is_probe FROM (
                SELECT id, true AS is_probe FROM unnest($4::bigint[]) AS probe(id)
                UNION ALL SELECT id, false FROM (SELECT id FROM {schema}outbox_audit
                    WHERE (relay COLLATE \"POSIX\", seq) >= ($3, 0)
                        AND (relay COLLATE \"POSIX\", seq) <= ($3, 9223372036854775807)
                    ORDER BY relay COLLATE \"POSIX\" DESC, seq DESC LIMIT 500) AS decision)
                AS named GROUP BY id) AS asked
            CROSS JOIN LATERAL (SELECT id, due_at, state FROM {schema}outbox_exception
                WHERE relay = $3 AND shard = 0 AND id = asked.id LIMIT 1) AS e
            WHERE e.state IN ('retrying', 'discarded') AND e.due_at <= statement_timestamp() AND {same_run}
            ORDER BY place, e.id LIMIT $1::bigint + 1",
        run = "$5",
    ) = "{exceptions}";
    next_due(states = "state IN ('scheduled', 'discarded')") = "{next_place}";
    next_retried(states = "state = 'retrying'") = "{next_place}";
    /// $1 rows of each, $2 maximum bytes of content that is read with its row, $3 relay, $4 names
    /// of queues, $5 the first id of each, $6 run of the server. Compares pairs instead of the name
    /// alone, so that only the index on both columns can give the order: for a name alone the
    /// planner also walked the primary key (53,000 rows for 1,000).
    held(
        of = "p",
        message_id = "e.message_id",
        copied = "chosen.id",
        chosen = "SELECT held.id, asked.place FROM unnest($4::text[], $5::bigint[])
                WITH ORDINALITY AS asked(queue, first, place)
            CROSS JOIN LATERAL (SELECT id FROM {schema}outbox_exception
                WHERE relay = $3 AND shard = 0 AND state = 'held' AND ({queue}, id) >= (asked.queue, asked.first)
                    AND ({queue}, id) <= (asked.queue, 9223372036854775807) AND {same_run}
                ORDER BY {queue}, id LIMIT $1::bigint) AS held",
        run = "$6",
    ) = "{exceptions}";
    /// $1 relay, $2 after this name, $3 queues, $4 run of the server. Steps from queue to queue
    /// through the index, however many entries each of them holds.
    held_queues(run = "$4") = "
        WITH RECURSIVE found AS (
            SELECT first.*, 1 AS nth FROM ({behind} $2::text ORDER BY {queue}, id LIMIT 1) AS first
            WHERE {same_run}
            UNION ALL
            SELECT next.*, found.nth + 1 FROM found
            CROSS JOIN LATERAL ({behind} found.queue ORDER BY {queue}, id LIMIT 1) AS next
            WHERE found.nth < $3::bigint)
        SELECT queue, id, topic FROM found";
    /// $1 relay, $2 above this id, $3 rows to look at, $4 run of the server, $5 whether dead
    /// entries block their keys. Returns those that do, and the last row that it may look at, from
    /// which the next step continues: a step over a million dead entries without keys must not
    /// outlast a lease.
    stuck(run = "$4") = "
        SELECT id, key, state, blocks, nth = $3::bigint FROM (
            SELECT id, key, state, key IS NOT NULL AND (state = 'retrying' OR $5::boolean) AS blocks,
                row_number() OVER (ORDER BY id) AS nth
            FROM (SELECT id, key, state FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND id > $2 AND state IN ('retrying', 'dead') AND {same_run}
                ORDER BY id LIMIT $3::bigint) AS walked) AS seen
        WHERE blocks OR nth = $3::bigint ORDER BY id";

    /// $1 relay, $2 holder, $3 ttl in seconds, $4 the first cursor; $5 epoch and $6 end of a lease
    /// that is over although its end lies in the future, or null; $7 the application name of the
    /// session that holds it. Uses the database's clock only. Even the same holder gets a new
    /// epoch, which fences off its earlier writes. Stores beside the cursor how old the last
    /// checkpoint was when the lease was first taken after it; the next checkpoint removes this.
    acquire = "
        INSERT INTO {schema}outbox_relay AS r (relay, epoch, holder, lease_until, lease_seconds, cursor)
        VALUES ($1, 1, $2, clock_timestamp() + make_interval(secs => $3), $3, $4)
        ON CONFLICT (relay, shard) DO UPDATE SET
            epoch = r.epoch + 1,
            holder = EXCLUDED.holder,
            taken_from = nullif(r.holder, EXCLUDED.holder),
            lease_until = clock_timestamp() + make_interval(secs => $3),
            lease_seconds = $3,
            cursor = (jsonb_build_object('taken_after',
                extract(epoch FROM clock_timestamp() - r.checkpoint_at)::float8) || r.cursor::jsonb)::text
        WHERE r.holder IS NULL OR r.holder = EXCLUDED.holder OR r.lease_until <= clock_timestamp()
            OR (r.epoch = $5 AND r.lease_until = $6::text::timestamptz)
        RETURNING epoch, cursor, taken_from, set_config('application_name', $7, false)";
    /// $1 relay: the holder, the time left, the epoch, the end, and the requested length.
    holder = HOLDER;
    /// $1 relay: other ones that no process runs.
    left_relays = "
        SELECT relay FROM {schema}outbox_relay
        WHERE shard = 0 AND relay <> $1 AND (holder IS NULL OR lease_until <= clock_timestamp())
        ORDER BY relay LIMIT 10";
    /// $1 relay, $2 epoch, $3 ttl in seconds, $4 run of the server, $5 holder. The commit waits for
    /// the disk.
    renew(run = "$4") = "
        UPDATE {schema}outbox_relay
        SET lease_until = clock_timestamp() + make_interval(secs => $3), lease_seconds = $3
        WHERE relay = $1 AND shard = 0 AND epoch = $2 AND holder = $5 AND {same_run}
            AND {waits_for_the_disk}";
    /// $1 message id: whether the entry is in the log or parked, even under a new id.
    is_here = "
        SELECT EXISTS (SELECT FROM {schema}outbox_message WHERE message_id = $1)
            OR EXISTS (SELECT FROM {schema}outbox_exception WHERE message_id = $1)";
    /// $1 relay, $2 epoch, $3 cursor, $4 run of the server, $5 holder. Marks from before a crash
    /// mean nothing, and a pooler keeps the client connected through a crash. With a broker
    /// transaction the commit waits for the disk: the next mark must not be two ahead of the stored
    /// one.
    checkpoint(run = "$4") = "
        UPDATE {schema}outbox_relay SET cursor = $3, checkpoint_at = clock_timestamp()
        WHERE relay = $1 AND shard = 0 AND epoch = $2 AND holder = $5 AND {same_run}
            AND (position('\"transaction\":' in $3) = 0 OR {waits_for_the_disk})";
    /// $1 relay, $2 epoch, $3 the JSON to store beside the cursor, $4 holder. Writes nothing when
    /// it is already there.
    note = "
        UPDATE {schema}outbox_relay SET cursor = ((cursor::jsonb - 'broker') || $3::text::jsonb)::text
        WHERE relay = $1 AND shard = 0 AND epoch = $2 AND holder = $4
            AND cursor::jsonb -> 'broker' IS DISTINCT FROM $3::text::jsonb -> 'broker'";
    /// Like `checkpoint`, with the changes as arrays. One statement is one transaction.
    ///
    /// The first change of an entry copies its content; afterwards its segment need not wait for
    /// it. Content that is too large to be copied quickly, alone or together with the rest, gets a
    /// row without a payload: it stays in the log, and so its segment stays. So a checkpoint takes
    /// no longer than a lease. A scheduled entry is due at its message's own time, so that it is
    /// not delayed by the time that the cursor had to wait.
    ///
    /// A change is stored only while the log is whole: without its segment, its content would not
    /// be found. The condition is on the changes, not on the log. A condition on the log would be
    /// one on each segment, and would not be evaluated where no segment is left to search.
    ///
    /// The table refuses null, which replaces the message id of a different message with the same
    /// id. Otherwise the parked message would be lost under an id that was given out twice. A
    /// rebase gives the other row a new id.
    ///
    /// A discarded entry stays discarded: the relay may still change it from memory, and reads the
    /// decision afterwards. A different message under its id is still refused.
    ///
    /// An operator may change an entry that is resolved, which moves its row. The delete waits for
    /// the operator's transaction and then skips the row: its place is no longer the one in the
    /// statement's snapshot. The entry would be published again, so the statement then divides by
    /// zero and stores nothing. The next run sees the row at its new place.
    ///
    /// Each change is looked up separately: no plan can turn this into a scan of all parked
    /// entries, whatever the statistics say (ADR 35). OFFSET 0 keeps NOT EXISTS from becoming a
    /// join, which LIMIT 1 does not. Rows are deleted by `ctid`, because `id = ANY` may become a
    /// filter over all rows of the relay instead of a condition of the index. A row of the log is
    /// searched in the order of ids, which only the primary key has: for an equal id the index on
    /// transactions would also do, and would be walked as a whole.
    checkpoint_with_changes(
        message_id = "changed.message_id",
        run = "$14",
        done = "fenced CROSS JOIN unnest($13::bigint[]) AS done(id)",
    ) = "
        WITH fenced AS (
            UPDATE {schema}outbox_relay SET cursor = $3, checkpoint_at = clock_timestamp()
            WHERE relay = $1 AND shard = 0 AND epoch = $2 AND holder = $15 AND {same_run}
                AND (position('\"transaction\":' in $3) = 0 OR {waits_for_the_disk})
            RETURNING relay),
        changed AS MATERIALIZED (
            SELECT fenced.relay, c.*
            FROM fenced CROSS JOIN unnest($4::bigint[], $5::text[]::uuid[], $6::text[], $7::text[], $8::text[],
                $9::integer[], $10::float8[], $11::text[], $12::text[])
                AS c(id, message_id, topic, key, state, attempts, due_in, fault, error)
            WHERE CASE WHEN c.id > 0 THEN {whole} END),
        copied AS (
            INSERT INTO {schema}outbox_parked
                (relay, id, {content})
            SELECT relay, id, {content_if_it_fits}
            FROM (
                SELECT measured.*, bytes <= {copy_max} AND sum(bytes) FILTER (WHERE bytes <= {copy_max})
                    OVER (ROWS UNBOUNDED PRECEDING) <= {copies_max} AS fits
                FROM (
                    SELECT changed.relay, changed.id, {content}, {copied_bytes} AS bytes
                    FROM changed CROSS JOIN LATERAL (
                        SELECT * FROM {schema}outbox_message
                        WHERE id >= changed.id AND id <= changed.id AND message_id = changed.message_id
                            AND {same_segment}
                        ORDER BY id LIMIT 1) AS m
                    WHERE NOT EXISTS (
                        SELECT FROM {schema}outbox_parked AS p
                        WHERE p.relay = $1 AND p.shard = 0 AND p.id = changed.id OFFSET 0)) AS measured) AS content
            ON CONFLICT (relay, shard, id) DO NOTHING),
        parked AS (
            INSERT INTO {schema}outbox_exception AS e
                (relay, id, message_id, topic, key, state, attempts, due_at, fault, error)
            SELECT changed.relay, changed.id, changed.message_id, changed.topic, changed.key, changed.state,
                changed.attempts,
                coalesce(
                    CASE WHEN changed.state = 'scheduled' THEN (
                        SELECT deliver_at FROM {schema}outbox_message
                        WHERE id >= changed.id AND id <= changed.id AND message_id = changed.message_id
                            AND {same_segment}
                        ORDER BY id LIMIT 1) END,
                    clock_timestamp() + make_interval(secs => changed.due_in)),
                changed.fault, changed.error
            FROM changed
            ON CONFLICT (relay, shard, id) DO UPDATE SET
                message_id = CASE WHEN e.message_id = EXCLUDED.message_id THEN e.message_id END,
                state = EXCLUDED.state, attempts = EXCLUDED.attempts, due_at = EXCLUDED.due_at,
                fault = EXCLUDED.fault, error = EXCLUDED.error, updated_at = clock_timestamp(),
                earlier_errors = {with_last_error}
            WHERE e.state <> 'discarded' OR e.message_id <> EXCLUDED.message_id),
        seen AS MATERIALIZED (
            SELECT e.place FROM {done} CROSS JOIN LATERAL (
                SELECT ctid AS place FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND id = done.id LIMIT 1) AS e),
        resolved AS (
            DELETE FROM {schema}outbox_exception WHERE ctid = ANY(ARRAY(SELECT place FROM seen))
            RETURNING id),
        removed AS (
            DELETE FROM {schema}outbox_parked WHERE ctid = ANY(ARRAY(
                SELECT p.place FROM {done} CROSS JOIN LATERAL (
                    SELECT ctid AS place FROM {schema}outbox_parked
                    WHERE relay = $1 AND shard = 0 AND id = done.id LIMIT 1) AS p)))
        SELECT count(*) / CASE WHEN (SELECT count(*) FROM resolved) = (SELECT count(*) FROM seen) THEN 1 ELSE 0 END
        FROM fenced";
    /// $1 relay, $2 epoch, $3 holder.
    release = "
        UPDATE {schema}outbox_relay SET holder = NULL, lease_until = NULL, lease_seconds = NULL
        WHERE relay = $1 AND shard = 0 AND epoch = $2 AND holder = $3";
    /// $1 relay, $2 message ids: those that a rebased cursor leaves out. Their entry ids may have
    /// changed since. One step into the index on message ids for each: only this index has the
    /// order. For equal values the primary key would also do, with a walk over everything that is
    /// left out.
    left_out = "
        SELECT found.message_id::text FROM unnest($2::text[]::uuid[]) AS asked(message_id) CROSS JOIN LATERAL (
            SELECT message_id FROM {schema}outbox_rebased
            WHERE relay = $1 AND shard = 0 AND message_id >= asked.message_id AND message_id <= asked.message_id
            ORDER BY message_id LIMIT 1) AS found";
    /// $1 relay, $2 epoch, $3 holder. Removes the list when the cursor has passed its entries.
    /// Locks the relay's row: a rebase blocks it from before it writes the list until it has raised
    /// the epoch. So this statement ends before the rebase, or finds another epoch.
    forget_left_out = "
        WITH held AS MATERIALIZED (
            SELECT relay FROM {schema}outbox_relay
            WHERE relay = $1 AND shard = 0 AND epoch = $2 AND holder = $3 FOR UPDATE)
        DELETE FROM {schema}outbox_rebased
        WHERE relay = (SELECT relay FROM held) AND shard = 0";
}
