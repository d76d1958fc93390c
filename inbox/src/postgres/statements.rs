//! The SQL of the inbox on PostgreSQL, rendered once for a schema.

migrations::statements! {
    parts {
        // Adds one mark to the transaction for each row where `is_marked` is true. The marks are
        // counted in a setting that is local to the transaction, so a mark disappears together with
        // its row when the transaction or a savepoint is rolled back.
        mark = "CASE WHEN {is_marked}::boolean THEN set_config('inbox.marks',
            (coalesce(nullif(current_setting('inbox.marks', true), ''), '0')::bigint + 1)::text, true) END";
        // A new row returns its time, its session and its transaction.
        new_rows = "ON CONFLICT (message_id, consumer, scope) DO NOTHING";
        session = "processed_at, pg_backend_pid() AS process, pg_current_xact_id()::text::bigint AS transaction";
        admitted = "{session}, {mark}, CASE WHEN NOT {is_marked}::boolean THEN {waits_for_the_disk} END AS waits";
        // Callers commit rows without a mark, and confirm them: a crash must not undo a confirmed
        // row. The inbox itself commits rows with a mark, and waits then.
        waits_for_the_disk = migrations::waits_for_the_disk!();
        // Columns are named, without a star: otherwise PostgreSQL refuses a prepared statement once
        // a migration has added a column.
        letter = "{letter_rest}, key, headers::text AS headers";
        letter_rest = "id, consumer, scope, subject, fingerprint, message_id, topic, kind, source, time, content_type,
            traceparent, tracestate, octet_length(payload)::bigint AS payload_bytes, reason, error, attempts, deliveries,
            origin, dead_at, resolution, resolved_at, seq";
        // A dead letter of a list. A delivery may have megabytes of headers, and a malformed one a
        // key of any length.
        listed = "{letter_rest}, CASE WHEN $4 THEN key ELSE {brief_key} END AS key,
            CASE WHEN $4 THEN headers::text ELSE {header_names} END AS headers,
            CASE WHEN $4 THEN payload ELSE '' END AS payload";
        brief_key = "CASE WHEN length(key) > 1024 THEN left(key, 1024) || '...' ELSE key END";
        header_names = "(SELECT coalesce(jsonb_agg(jsonb_build_array(left(h.pair ->> 0, 255), '')), '[]')::text
            FROM (SELECT pair FROM jsonb_array_elements(headers) AS e (pair) LIMIT 100) AS h)";
        // A dead letter that is decided about: nothing reads the key and headers of a delivery that
        // is not a message.
        in_list = "{letter_rest}, {brief_key} AS key, {header_names} AS headers, ''::bytea AS payload";
        in_hand = "{letter_rest}, CASE WHEN message_id IS NULL THEN {brief_key} ELSE key END AS key,
            CASE WHEN message_id IS NULL THEN '[]' ELSE headers::text END AS headers, ''::bytea AS payload";
        // Whether a dead letter takes the newest failure of its delivery. If its tenant was
        // unknown, `held` is an improvement, because it can then be redriven.
        tells_anew = "d.resolution IS NULL AND d.reason <> 'held'
            AND EXCLUDED.reason NOT IN ('malformed', 'incomplete', 'no_scope')
            AND (EXCLUDED.reason <> 'held' OR d.reason = 'no_scope')";
        // A dead letter that holds its key, because its message may still take effect. A single
        // chunk cannot. The index of keys has this condition, up to the headers, in the same words.
        holds = "resolution IS NULL AND key IS NOT NULL AND message_id IS NOT NULL
            AND reason IN ('poison', 'rejected', 'too_old', 'from_the_future', 'held')
            AND NOT headers @? '$[*][0] ? (@ == \"ce_chunkindex\")'";
        // The rows of these attempts, locked in one order, each found by the primary key: joined
        // with the list, all failures of the consumer would be read where statistics say that there
        // are few.
        attempts_of = "ctid = ANY (ARRAY(SELECT k.ctid FROM (
            SELECT scope, id FROM UNNEST($3::text[], $2::uuid[]) AS u (scope, id) ORDER BY scope, id) AS u
            CROSS JOIN LATERAL (SELECT ctid FROM {schema}inbox_attempt AS a WHERE a.consumer = $1
                AND a.scope = u.scope AND a.message_id = u.id AND {condition} LIMIT 1 FOR UPDATE) AS k))";
        decision = "seq, at, actor, note, selection, action, dead_letter, consumer, accept_late, outcome, done_at,
            decision";
        // In the order of the index of decisions. Without it, the planner would rather read the
        // whole table where most rows belong to few decisions.
        of_decision = "decision BETWEEN $1 AND $1 AND ($2::text IS NULL OR consumer = $2)
            ORDER BY decision, dead_letter";
        // $1 a consumer, or null for all; $2 after this id; $3 dead letters. It goes from consumer
        // to consumer by the index of open dead letters.
        whose = "whose (name) AS (
            SELECT coalesce($1::text, (SELECT consumer FROM {schema}inbox_dead_letter WHERE resolution IS NULL
                ORDER BY consumer LIMIT 1)) COLLATE pg_catalog.\"C\"
            UNION ALL SELECT n.consumer FROM whose AS w CROSS JOIN LATERAL (
                SELECT consumer FROM {schema}inbox_dead_letter AS d WHERE d.resolution IS NULL AND d.consumer > w.name
                ORDER BY d.consumer LIMIT 1) AS n WHERE $1::text IS NULL)";
        of_consumer = "SELECT d.id, d.seq, d.consumer, d.scope, d.topic, d.key, d.kind, d.reason, d.error, d.dead_at,
                d.deliveries
            FROM {schema}inbox_dead_letter AS d WHERE d.consumer = w.name AND d.resolution IS NULL
                AND d.id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')";
        walk = "WITH RECURSIVE {whose}, walk AS MATERIALIZED (SELECT l.* FROM whose AS w
            CROSS JOIN LATERAL ({of_consumer} ORDER BY d.id LIMIT $3::bigint) AS l ORDER BY l.id LIMIT $3::bigint)";
        walk_end = "(SELECT count(*) AS scanned, (SELECT id FROM walk ORDER BY id DESC LIMIT 1) AS seen_to FROM walk)";
        // $4 tenant, $5 topic, $6 key, $7 reason, $8 pattern of the error, $9 kind, $10 and $11
        // ages in microseconds, $12 a moment; each may be null.
        matches = "($4::text IS NULL OR open.scope = $4) AND ($5::text IS NULL OR open.topic = $5)
            AND ($6::text IS NULL OR open.key = $6) AND ($7::text IS NULL OR open.reason = $7)
            AND ($8::text IS NULL OR open.error LIKE $8) AND ($9::text IS NULL OR open.kind = $9)
            AND ($10::bigint IS NULL OR open.dead_at < coalesce($12::timestamptz, clock_timestamp())
                - $10 * interval '1 microsecond')
            AND ($11::bigint IS NULL OR open.dead_at >= coalesce($12::timestamptz, clock_timestamp())
                - $11 * interval '1 microsecond')
            AND ($12::timestamptz IS NULL OR open.dead_at <= $12)";
        chunk_set = "message_id, consumer, scope, fingerprint, topic, key, kind, source, time, content_type, bytes,
            begun_at";
    }

    /// The guard. It waits for a racing transaction with the same key and then sees a duplicate or
    /// takes over.
    insert(is_marked = "$5") = "
        INSERT INTO {schema}inbox_message (message_id, consumer, scope, fingerprint, source, canonical_fingerprint)
        VALUES ($1, $2, $3, $4, $6, $7)
        {new_rows} RETURNING {admitted}";
    /// The guard for many, ordered so that two racing batches wait for each other and do not
    /// deadlock. `$7` may be empty: a row for which it has nothing gets NULL.
    insert_batch(is_marked = "$5") = "
        INSERT INTO {schema}inbox_message (message_id, consumer, scope, fingerprint, source, canonical_fingerprint)
        SELECT id, $1, scope, fingerprint, source, canonical
        FROM UNNEST($2::uuid[], $3::text[], $4::bytea[], $6::text[], $7::bytea[])
            AS u (id, scope, fingerprint, source, canonical)
        ORDER BY id, scope COLLATE pg_catalog.\"C\"
        {new_rows} RETURNING message_id, scope, {admitted}";
    canonical = "SELECT canonical_fingerprint FROM {schema}inbox_message \
        WHERE message_id = $1 AND consumer = $2 AND scope = $3";
    find = "SELECT fingerprint, source, result, processed_at, dead_letter FROM {schema}inbox_message \
        WHERE message_id = $1 AND consumer = $2 AND scope = $3";
    /// The rows of a consumer `$1` by ids `$2` and scopes `$3`, all of whose ids lie from `$4` to
    /// `$5`, which lets the planner skip the partitions of other days. OFFSET makes each lookup use
    /// the index: if it may join freely, the planner prefers to read whole days. With batches of
    /// 100 ids from anywhere in a day, 11,100 messages a second were admitted, and 3,300 without
    /// OFFSET.
    find_batch = "SELECT m.message_id, m.scope, m.fingerprint, m.source, m.result, m.processed_at, m.dead_letter FROM UNNEST($2::uuid[], $3::text[]) \
        AS u (id, scope) CROSS JOIN LATERAL (SELECT * FROM {schema}inbox_message k WHERE k.message_id = u.id AND \
        k.consumer = $1 AND k.scope = u.scope AND k.message_id BETWEEN $4 AND $5 OFFSET 0) AS m";
    complete = "UPDATE {schema}inbox_message SET result = $4 \
        WHERE message_id = $1 AND consumer = $2 AND scope = $3";

    known_rows = "SELECT consumer, scope, processed_at, octet_length(result)::bigint AS result_bytes, dead_letter \
        FROM {schema}inbox_message WHERE message_id = $1 ORDER BY consumer, scope";
    /// In the order of ids, which only their index has: for a table that the planner believes to be
    /// empty, every index costs nothing.
    known_attempts = "SELECT consumer, scope, attempts, last_error, first_failed_at, next_at FROM (\
        SELECT * FROM {schema}inbox_attempt WHERE message_id BETWEEN $1 AND $1 ORDER BY message_id OFFSET 0) AS a \
        WHERE last_error <> '' ORDER BY consumer, scope";

    /// Those of the messages `$1` that the consumer `$2`, or any, has applied or has among its dead
    /// letters. OFFSET: each is looked up by the index of ids, and its consumer checked afterwards.
    settled = "SELECT m.message_id FROM UNNEST($1::uuid[]) AS u (id) \
        CROSS JOIN LATERAL (SELECT k.message_id, k.consumer \
        FROM {schema}inbox_message AS k WHERE k.message_id = u.id OFFSET 0) AS m \
        WHERE $2::text IS NULL OR m.consumer = $2 \
        UNION SELECT d.subject FROM UNNEST($1::uuid[]) AS u (id) \
        CROSS JOIN LATERAL (SELECT k.subject, k.consumer \
        FROM {schema}inbox_dead_letter AS k WHERE k.subject = u.id OFFSET 0) AS d \
        WHERE $2::text IS NULL OR d.consumer = $2";

    /// The newest rows of messages made since `$1`, at most `$2` of them, by consumer.
    activity_applied = "SELECT consumer, count(*) FILTER (WHERE dead_letter IS NULL) AS counted, \
        max(processed_at) FILTER (WHERE dead_letter IS NULL) AS at FROM (\
        SELECT consumer, dead_letter, processed_at FROM {schema}inbox_message \
        WHERE message_id >= $1 ORDER BY message_id DESC LIMIT $2) AS recent \
        GROUP BY consumer ORDER BY consumer LIMIT 1000";
    /// At most `$1` rows of each consumer, so that one with many hides no other. Goes from consumer
    /// to consumer by the primary key.
    activity_attempts = "WITH RECURSIVE whose (name) AS ( \
        (SELECT consumer FROM {schema}inbox_attempt ORDER BY consumer LIMIT 1) UNION ALL \
        SELECT n.consumer FROM whose AS w CROSS JOIN LATERAL (SELECT consumer FROM {schema}inbox_attempt AS a \
            WHERE a.consumer > w.name ORDER BY a.consumer LIMIT 1) AS n) \
        SELECT w.name AS consumer, f.counted, f.at FROM (SELECT name FROM whose LIMIT 1000) AS w CROSS JOIN LATERAL ( \
            SELECT count(*) AS counted, min(first_failed_at) AS at FROM ( \
                SELECT a.first_failed_at FROM {schema}inbox_attempt AS a WHERE a.consumer = w.name \
                AND a.last_error <> '' ORDER BY a.scope, a.message_id LIMIT $1) AS failing) AS f \
        WHERE f.counted > 0 ORDER BY w.name";
    /// As `activity_attempts`, by the index of open dead letters: the oldest of each consumer. Held
    /// ones need no operator, so they are counted separately.
    activity_letters = "WITH RECURSIVE whose (name) AS ( \
        (SELECT consumer FROM {schema}inbox_dead_letter WHERE resolution IS NULL ORDER BY consumer LIMIT 1) UNION ALL \
        SELECT n.consumer FROM whose AS w CROSS JOIN LATERAL (SELECT consumer FROM {schema}inbox_dead_letter AS d \
            WHERE d.resolution IS NULL AND d.consumer > w.name ORDER BY d.consumer LIMIT 1) AS n) \
        SELECT w.name AS consumer, o.counted, o.held, o.at FROM (SELECT name FROM whose LIMIT 1000) AS w CROSS JOIN LATERAL ( \
            SELECT count(*) FILTER (WHERE reason <> 'held') AS counted, count(*) FILTER (WHERE reason = 'held') AS held, \
                min(dead_at) FILTER (WHERE reason <> 'held') AS at FROM ( \
                SELECT d.reason, d.dead_at FROM {schema}inbox_dead_letter AS d WHERE d.consumer = w.name \
                AND d.resolution IS NULL ORDER BY d.id LIMIT $1) AS open) AS o \
        ORDER BY w.name";
    add_counts = "INSERT INTO {schema}inbox_minute AS m (consumer, minute, applied, duplicates) \
        VALUES ($1, date_trunc('minute', clock_timestamp()), $2, $3) ON CONFLICT (consumer, minute) DO UPDATE SET \
        applied = m.applied + EXCLUDED.applied, duplicates = m.duplicates + EXCLUDED.duplicates";
    counts = "SELECT consumer, coalesce(sum(applied) FILTER (WHERE minute >= $1), 0)::bigint AS applied, \
        coalesce(sum(duplicates) FILTER (WHERE minute >= $1), 0)::bigint AS duplicates, \
        max(minute) FILTER (WHERE applied > 0) AS last_applied FROM {schema}inbox_minute WHERE minute >= $2 \
        GROUP BY consumer ORDER BY consumer LIMIT 1000";
    purge_minutes = "DELETE FROM {schema}inbox_minute WHERE minute < $1";

    /// Creates the set, or locks it: only the holder of the lock checks whether all its chunks have
    /// arrived. The set keeps the size that the first chunk gave for the whole message. A kept
    /// chunk is acknowledged, so the commit waits for the disk.
    hold_set = "INSERT INTO {schema}inbox_chunk_set AS s (message_id, consumer, scope, fingerprint, bytes, topic, key, \
        kind, source, time, content_type) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT \
        (message_id, consumer, scope, fingerprint) DO UPDATE SET bytes = s.bytes \
        RETURNING bytes, {waits_for_the_disk} AS waits";
    keep_chunk = "INSERT INTO {schema}inbox_chunk (message_id, consumer, scope, fingerprint, chunks, number, payload) \
        VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (message_id, consumer, scope, fingerprint, chunks, \
        number) DO NOTHING";
    count_chunks = "SELECT count(*) FILTER (WHERE chunks = $5) AS held, count(DISTINCT chunks) AS splits \
        FROM {schema}inbox_chunk WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND fingerprint = $4";
    has_chunk = "SELECT EXISTS (SELECT 1 FROM {schema}inbox_chunk WHERE message_id = $1 AND consumer = $2 AND scope = $3 \
        AND fingerprint = $4 AND chunks = $5 AND number = $6) AS is_kept";
    read_chunks = "SELECT payload FROM {schema}inbox_chunk WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND \
        fingerprint = $4 AND chunks = $5 ORDER BY number";
    chunk_numbers = "SELECT chunks, number FROM {schema}inbox_chunk WHERE message_id = $1 AND consumer = $2 AND scope = $3 \
        AND fingerprint = $4 ORDER BY chunks, number";
    remove_chunks = "DELETE FROM {schema}inbox_chunk WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND fingerprint = \
        $4";
    remove_set = "DELETE FROM {schema}inbox_chunk_set WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND \
        fingerprint = $4";
    /// All, or those that are to expire: a message that has failed was whole, and is tried again
    /// unless that is long ago. $3 is the consumer that may expire its own at $1, and those of
    /// others only at $4; without it, all expire at $1.
    incomplete = "SELECT {chunk_set} FROM {schema}inbox_chunk_set AS s WHERE $1::timestamptz IS NULL OR (begun_at < $1 \
        AND ($3::text IS NULL OR s.consumer = $3 OR begun_at < $4) AND NOT EXISTS \
        (SELECT 1 FROM {schema}inbox_attempt AS a WHERE a.consumer = s.consumer AND a.scope = s.scope AND \
        a.message_id = s.message_id AND a.next_at >= $1)) ORDER BY begun_at LIMIT $2";
    /// For its expiry. A message that a transaction is completing, or that is being retried, is
    /// left alone.
    lock_set = "SELECT {chunk_set} FROM {schema}inbox_chunk_set AS s WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND \
        fingerprint = $4 AND NOT EXISTS (SELECT 1 FROM {schema}inbox_attempt AS a WHERE a.consumer = s.consumer AND \
        a.scope = s.scope AND a.message_id = s.message_id AND a.next_at >= $5) FOR UPDATE OF s SKIP LOCKED";

    /// The wall clock, not the transaction's start.
    clock = "SELECT clock_timestamp() AS now, (SELECT retained_from FROM {schema}inbox_retention) AS retained_from";
    begin_memory = "INSERT INTO {schema}inbox_retention (retained_from) VALUES ($1) ON CONFLICT DO NOTHING";
    /// Everything that has `inbox_message` as its parent, by name.
    partitions = "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
        WHERE i.inhparent = '{schema}inbox_message'::regclass";
    /// The database's own functions, which run with the owner's rights: a consumer needs none of
    /// them.
    create_days = "SELECT {schema}inbox_create_days($1, $2)";
    expire_days = "SELECT * FROM {schema}inbox_expire_days($1)";

    /// If the row only recorded that the message is in hand, this is its first failure. A failure
    /// that is not counted leaves its time in `next_at`.
    count_attempt = "INSERT INTO {schema}inbox_attempt AS a \
        (message_id, consumer, scope, attempts, last_error, next_at, uncounted) \
        VALUES ($1, $2, $3, $5, $4, clock_timestamp(), 1 - $5) \
        ON CONFLICT (consumer, scope, message_id) DO UPDATE SET attempts = a.attempts + $5, last_error = $4, \
        first_failed_at = CASE WHEN a.last_error = '' THEN clock_timestamp() ELSE a.first_failed_at END, \
        next_at = clock_timestamp(), in_hand = NULL, ends = CASE WHEN $6 THEN 0 ELSE a.ends END, \
        uncounted = CASE WHEN $5 > 0 THEN 0 WHEN a.next_at < clock_timestamp() - interval '1 hour' THEN 1 \
            ELSE a.uncounted + 1 END \
        RETURNING attempts, uncounted, first_failed_at, \
        (extract(epoch FROM clock_timestamp() - first_failed_at) * 1000000)::bigint AS age";
    postpone = "UPDATE {schema}inbox_attempt SET next_at = clock_timestamp() + $4 * interval '1 microsecond' \
        WHERE message_id = $1 AND consumer = $2 AND scope = $3";
    attempt = "SELECT attempts, last_error, first_failed_at, next_at FROM {schema}inbox_attempt \
        WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND last_error <> ''";
    /// Rows are locked in one order, so that two processes wait for each other instead of
    /// deadlocking. A note of another process is not written again: at repeatable read that would
    /// abort the transaction in which it forgets the note.
    take_in_hand = "INSERT INTO {schema}inbox_attempt AS a \
        (message_id, consumer, scope, attempts, last_error, next_at, in_hand) \
        SELECT id, $1, scope, 0, '', clock_timestamp(), $4::uuid \
        FROM (SELECT DISTINCT id, scope FROM UNNEST($2::uuid[], $3::text[]) AS u (id, scope)) AS u \
        ORDER BY scope, id ON CONFLICT (consumer, scope, message_id) DO UPDATE SET in_hand = $4 \
        WHERE a.in_hand IS NULL \
        RETURNING message_id, scope, attempts, ends, next_at, NULL::uuid AS owner";
    taken = "SELECT a.message_id, a.scope, a.attempts, a.ends, a.next_at, nullif(a.in_hand, $4) AS owner \
        FROM (SELECT DISTINCT id, scope FROM UNNEST($2::uuid[], $3::text[]) AS u (id, scope)) AS u \
        CROSS JOIN LATERAL (SELECT * FROM {schema}inbox_attempt AS a WHERE a.consumer = $1 \
            AND a.scope = u.scope AND a.message_id = u.id AND a.in_hand IS NOT NULL LIMIT 1) AS a";
    /// Used to test whether a row can be locked immediately. It is longer than the server takes to
    /// answer.
    wait_for_a_moment = "SET LOCAL lock_timeout = '20ms'";
    take_over = "UPDATE {schema}inbox_attempt SET ends = ends + 1, in_hand = $5 \
        WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND in_hand = $4";
    put_down(condition = "a.in_hand = $4") =
        "UPDATE {schema}inbox_attempt SET in_hand = NULL WHERE {attempts_of}";
    forget_attempts(condition = "($4 OR a.attempts = 0) AND ($5 OR a.ends = 0) AND ($6 OR a.last_error = '')") =
        "DELETE FROM {schema}inbox_attempt WHERE {attempts_of}";
    put_down_counted(condition = "a.in_hand IS NOT NULL") =
        "UPDATE {schema}inbox_attempt SET in_hand = NULL WHERE {attempts_of}";
    /// The attempts of a dead letter stay: it may be held, and its failures are still counted. Only
    /// the oldest failures are examined, so that the cost does not depend on the number of failing
    /// messages.
    purge_attempts = "DELETE FROM {schema}inbox_attempt WHERE ctid = ANY (ARRAY(\
        SELECT k.ctid FROM (SELECT consumer, scope, message_id FROM (\
            SELECT * FROM {schema}inbox_attempt ORDER BY first_failed_at LIMIT 10000) AS a \
        WHERE first_failed_at < $1 OR EXISTS (\
            SELECT FROM {schema}inbox_message AS m WHERE m.message_id = a.message_id AND m.consumer = a.consumer \
            AND m.scope = a.scope AND m.dead_letter IS NULL) LIMIT $2) AS a \
        CROSS JOIN LATERAL (SELECT ctid FROM {schema}inbox_attempt AS k WHERE k.consumer = a.consumer \
            AND k.scope = a.scope AND k.message_id = a.message_id LIMIT 1 FOR UPDATE SKIP LOCKED) AS k))";

    /// Each delivery has one dead letter, unless that one was discarded: then a new one is stored.
    /// An open dead letter takes the last reason, except for a reason that would prevent a redrive,
    /// and a held one keeps its place.
    store_dead_letter = "INSERT INTO {schema}inbox_dead_letter AS d (id, consumer, scope, subject, fingerprint, message_id, topic, \
        key, kind, source, time, content_type, headers, traceparent, tracestate, payload, reason, error, attempts, \
        origin) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::jsonb, $14, $15, $16, $17, $18, $19, $20) \
        ON CONFLICT (consumer, scope, subject, fingerprint) WHERE resolution IS DISTINCT FROM 'discarded' DO UPDATE SET \
        deliveries = d.deliveries + 1, \
        reason = CASE WHEN {tells_anew} THEN EXCLUDED.reason ELSE d.reason END, \
        error = CASE WHEN {tells_anew} THEN EXCLUDED.error ELSE d.error END, \
        attempts = CASE WHEN {tells_anew} THEN EXCLUDED.attempts ELSE d.attempts END \
        RETURNING id";
    fingerprint_of_dead_letter = "SELECT fingerprint FROM {schema}inbox_dead_letter \
        WHERE consumer = $1 AND scope = $2 AND subject = $3 AND resolution IS DISTINCT FROM 'discarded' \
        ORDER BY deliveries, seq LIMIT 1";
    dead_letter = "SELECT {letter}, payload FROM {schema}inbox_dead_letter WHERE id = $1";
    lock_dead_letter = "SELECT {letter}, payload FROM {schema}inbox_dead_letter WHERE id = $1 FOR UPDATE";
    lock_others = "SELECT id, resolution IS NOT NULL AS is_closed FROM {schema}inbox_dead_letter WHERE consumer = $1 AND scope = $2 \
        AND subject = $3 AND id <> $4 AND resolution IS DISTINCT FROM 'discarded' ORDER BY seq FOR UPDATE";
    /// Includes closed dead letters. No id is nil.
    dead_letters = "SELECT {listed} FROM {schema}inbox_dead_letter \
        WHERE ($1::text IS NULL OR consumer = $1) AND id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000') \
        ORDER BY id LIMIT $3";
    /// Goes from consumer to consumer by the index of open dead letters, so that closed ones cost
    /// nothing.
    open_dead_letters = "WITH RECURSIVE whose (name) AS ( \
        SELECT coalesce($1, (SELECT consumer FROM {schema}inbox_dead_letter WHERE resolution IS NULL \
            ORDER BY consumer LIMIT 1)) COLLATE pg_catalog.\"C\" UNION ALL \
        SELECT n.consumer FROM whose AS w CROSS JOIN LATERAL (SELECT consumer FROM {schema}inbox_dead_letter AS d \
            WHERE d.resolution IS NULL AND d.consumer > w.name ORDER BY d.consumer LIMIT 1) AS n \
        WHERE $1::text IS NULL) \
        SELECT {listed} FROM whose AS w CROSS JOIN LATERAL ( \
            SELECT d.* FROM {schema}inbox_dead_letter AS d WHERE d.consumer = w.name AND d.resolution IS NULL \
            AND d.id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000') ORDER BY d.id LIMIT $3) AS l \
        ORDER BY id LIMIT $3";
    /// The next open dead letters that match, without payloads; $13 rows. The walk ends after $3
    /// dead letters, whatever the conditions exclude.
    open_letters = "{walk},
        found AS MATERIALIZED (SELECT open.id AS chosen FROM walk AS open WHERE {matches}
            ORDER BY open.id LIMIT $13::bigint)
        SELECT s.seen_to, s.scanned, l.* FROM {walk_end} AS s LEFT JOIN (
            SELECT {in_list} FROM found CROSS JOIN LATERAL (
                SELECT * FROM {schema}inbox_dead_letter AS d WHERE d.id = found.chosen LIMIT 1) AS d) AS l ON true
        ORDER BY l.id";
    /// The next open dead letters that match, with the columns that a decision needs.
    choose_letters = "{walk}
        SELECT s.seen_to, s.scanned, l.id, l.seq, l.consumer, l.topic, l.reason, l.deliveries, l.dead_at, l.error
        FROM {walk_end} AS s LEFT JOIN (
            SELECT open.id, open.seq, open.consumer, open.topic, open.reason, open.deliveries, open.dead_at,
                CASE WHEN $8::text IS NOT NULL THEN open.error END AS error
            FROM walk AS open WHERE {matches}) AS l ON true ORDER BY l.id";
    /// The time was taken before the dead letters were read: those stored meanwhile are younger.
    letter_total = "WITH RECURSIVE {whose}
        SELECT statement_timestamp() AS at, count(*) AS scanned, count(*) FILTER (WHERE {matches}) AS letters
        FROM (SELECT l.* FROM whose AS w CROSS JOIN LATERAL ({of_consumer} ORDER BY d.id LIMIT $3::bigint) AS l
            LIMIT $3::bigint) AS open WHERE true";
    letter_groups = "WITH RECURSIVE {whose}
        SELECT open.topic, open.reason, left(open.error, 300) AS error, count(*) AS letters, min(open.dead_at) AS first,
            max(open.dead_at) AS last
        FROM (SELECT l.* FROM whose AS w CROSS JOIN LATERAL (({of_consumer} ORDER BY d.id LIMIT $3::bigint)
            UNION ({of_consumer} ORDER BY d.id DESC LIMIT $3::bigint)) AS l) AS open
        WHERE {matches} GROUP BY 1, 2, 3";
    /// $1 ids, ascending.
    lock_letters = "SELECT {in_hand} FROM UNNEST($1::uuid[]) AS u (chosen) CROSS JOIN LATERAL (
        SELECT * FROM {schema}inbox_dead_letter AS d WHERE d.id = u.chosen LIMIT 1 FOR UPDATE) AS d";
    /// $1 dead letters, $2 a decision or null, $3 the outcome. Closes open requests that do not
    /// accept late messages, so that one that does can be noted; a decision that is sent again
    /// replaces none. One that a process is carrying out stays: it holds the request's lock, and
    /// waits for that of the dead letter, which is the caller's.
    replace_requests = "UPDATE {schema}inbox_audit SET outcome = $3, done_at = clock_timestamp()
        WHERE ctid = ANY (ARRAY(SELECT a.place FROM UNNEST($1::uuid[]) AS u (chosen)
            CROSS JOIN LATERAL (SELECT id, consumer FROM {schema}inbox_dead_letter AS d WHERE d.id = u.chosen LIMIT 1) AS d
            CROSS JOIN LATERAL (SELECT ctid AS place FROM {schema}inbox_audit AS o
                WHERE o.consumer = d.consumer AND o.dead_letter = d.id AND o.done_at IS NULL AND NOT o.accept_late
                LIMIT 1 FOR UPDATE SKIP LOCKED) AS a
            WHERE NOT EXISTS (SELECT FROM {schema}inbox_audit AS s WHERE s.decision = $2 AND s.dead_letter = d.id OFFSET 0)))";
    /// A request that is open stays as it is. A decision that is sent again makes no second one.
    note_requests = "INSERT INTO {schema}inbox_audit (actor, note, selection, action, dead_letter, consumer,
            accept_late, decision)
        SELECT $1, $2, $3, 'redrive', d.id, d.consumer, $4, $5 FROM UNNEST($6::uuid[]) AS u (chosen)
        CROSS JOIN LATERAL (SELECT id, consumer FROM {schema}inbox_dead_letter AS d WHERE d.id = u.chosen LIMIT 1) AS d
        WHERE NOT EXISTS (SELECT FROM {schema}inbox_audit AS a WHERE a.decision = $5 AND a.dead_letter = d.id OFFSET 0)
        ON CONFLICT (consumer, dead_letter) WHERE done_at IS NULL DO NOTHING RETURNING dead_letter";
    /// $1 decision, $2 a consumer or null, $3 dead letters to count.
    letter_decision = "
        SELECT a.actor, a.action, a.note, a.selection, count(*) AS letters, min(a.at) AS first, max(a.at) AS last
        FROM (SELECT actor, action, note, selection, at FROM {schema}inbox_audit
            WHERE {of_decision} LIMIT $3::bigint) AS a
        GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC LIMIT 1";
    /// The resolutions of closed ones, and `replaced` for $4, the outcome of a request that another
    /// one replaced; any other outcome is that of a failed redrive.
    letter_outcomes = "
        SELECT a.outcome, count(*) AS letters
        FROM (SELECT CASE WHEN outcome IN ('applied', 'applied_late', 'duplicate', 'discarded') THEN outcome
                WHEN outcome = $4 THEN 'replaced' WHEN outcome IS NOT NULL THEN 'failed' END AS outcome
            FROM {schema}inbox_audit WHERE {of_decision} LIMIT $3::bigint) AS a GROUP BY 1";
    /// Those of one delivery, the open ones first. In the order of subjects, which only the index
    /// of them has: for a table that the planner believes to be empty, every index costs nothing.
    /// `$4` is false.
    dead_letters_of = "SELECT {listed} FROM (SELECT * FROM {schema}inbox_dead_letter \
        WHERE subject BETWEEN $1 AND $1 ORDER BY subject OFFSET 0) AS d \
        WHERE ($2::text IS NULL OR consumer = $2) ORDER BY resolution IS NOT NULL, seq DESC LIMIT $3";
    insert_dead = "INSERT INTO {schema}inbox_message (message_id, consumer, scope, fingerprint, dead_letter, source, \
        canonical_fingerprint) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (message_id, consumer, scope) DO NOTHING \
        RETURNING {session}";
    clear_dead(is_marked = "true") = "
        UPDATE {schema}inbox_message
        SET dead_letter = NULL, canonical_fingerprint = coalesce($5, canonical_fingerprint)
        WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND dead_letter = $4 RETURNING {mark}";
    resolve = "UPDATE {schema}inbox_dead_letter SET resolution = $2, resolved_at = clock_timestamp() \
        WHERE id = $1 AND coalesce(resolution, '') = ''";
    note_decision = "INSERT INTO {schema}inbox_audit (actor, note, selection, action, dead_letter, consumer, \
        accept_late, outcome, decision, done_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, \
        CASE WHEN $8 IS NOT NULL THEN clock_timestamp() END) \
        ON CONFLICT (consumer, dead_letter) WHERE done_at IS NULL DO NOTHING RETURNING seq";
    finish_request = "UPDATE {schema}inbox_audit SET outcome = $2, done_at = clock_timestamp() \
        WHERE seq = $1 AND done_at IS NULL";
    /// Nothing while another process carries it out.
    is_requested = "SELECT true FROM {schema}inbox_audit WHERE seq = $1 AND done_at IS NULL FOR UPDATE SKIP LOCKED";
    /// In an order that only the index of open requests has: by `seq` alone, the planner would
    /// rather read all decisions that are done, once it believes that many are open.
    requests = "SELECT {decision} FROM {schema}inbox_audit
        WHERE consumer BETWEEN $1 AND $1 AND done_at IS NULL AND seq > $2 ORDER BY consumer, seq LIMIT $3";
    /// The latest decisions about each of these dead letters, at most $2.
    decisions_of = "SELECT a.* FROM (SELECT DISTINCT id FROM UNNEST($1::uuid[]) AS u (id)) AS named \
        CROSS JOIN LATERAL (SELECT {decision} FROM {schema}inbox_audit WHERE dead_letter = named.id \
        ORDER BY seq DESC LIMIT $2) AS a ORDER BY a.seq DESC";
    letters_of_topic = "SELECT d.id FROM (SELECT DISTINCT id FROM UNNEST($1::uuid[]) AS u (id)) AS named \
        CROSS JOIN LATERAL (SELECT l.id FROM {schema}inbox_dead_letter AS l WHERE l.id = named.id AND l.topic = $2 \
        LIMIT 1) AS d";
    /// The first dead letter that holds each key, with the key's position in the arrays.
    holders = "SELECT u.place, h.id FROM UNNEST($2::text[], $3::text[], $4::text[]) WITH ORDINALITY \
        AS u (scope, topic, key, place) CROSS JOIN LATERAL (SELECT id FROM {schema}inbox_dead_letter AS d \
        WHERE d.consumer = $1 AND d.scope = u.scope AND d.topic = u.topic AND d.key = u.key AND {holds} \
        ORDER BY d.seq LIMIT 1) AS h";
    holder_before = "SELECT h.id FROM {schema}inbox_dead_letter AS l CROSS JOIN LATERAL ( \
        SELECT id FROM {schema}inbox_dead_letter AS d WHERE d.consumer = l.consumer AND d.scope = l.scope \
        AND d.topic = l.topic AND d.key = l.key AND d.seq < l.seq AND {holds} ORDER BY d.seq LIMIT 1) AS h \
        WHERE l.id = $1";
    /// The first held message of each of the next keys after a key, and whether nothing holds it.
    /// Jumps from key to key in the index, however many messages are held behind the first ones.
    /// The order of the holders makes the planner take their index also where few keys hold most of
    /// the table.
    held_firsts = "WITH RECURSIVE first_held (place, id, seq, scope, topic, key) AS ( \
        (SELECT 1, id, seq, scope, topic, key FROM {schema}inbox_dead_letter WHERE consumer = $1 \
        AND resolution IS NULL AND reason = 'held' AND (scope, topic, key) > ($2, $3, $4) \
        ORDER BY scope, topic, key, seq LIMIT 1) UNION ALL \
        SELECT f.place + 1, n.id, n.seq, n.scope, n.topic, n.key FROM first_held AS f CROSS JOIN LATERAL ( \
        SELECT * FROM {schema}inbox_dead_letter AS d WHERE d.consumer = $1 AND d.resolution IS NULL \
        AND d.reason = 'held' AND (d.scope, d.topic, d.key) > (f.scope, f.topic, f.key) \
        ORDER BY d.scope, d.topic, d.key, d.seq LIMIT 1) AS n WHERE f.place < $5) \
        SELECT f.id, f.scope, f.topic, f.key, ( \
        SELECT d.id FROM {schema}inbox_dead_letter AS d WHERE d.consumer = $1 AND d.scope = f.scope \
        AND d.topic = f.topic AND d.key = f.key AND d.seq < f.seq AND {holds} ORDER BY d.seq LIMIT 1) IS NULL AS is_in_turn \
        FROM first_held AS f ORDER BY f.place";
    /// The keys of a consumer's closed dead letters that can have held them, the latest first. The
    /// planner assumes that half of the rows belong to the consumer, and so reads the latest by
    /// their index. Without statistics it assumes that a plain comparison matches few rows, and
    /// reads the whole table.
    closed_since = "SELECT scope, topic, key FROM {schema}inbox_dead_letter \
        WHERE resolution IS NOT NULL AND resolved_at > $1 AND message_id IS NOT NULL AND key IS NOT NULL \
        AND CASE consumer WHEN $3 THEN true END ORDER BY resolved_at DESC LIMIT $2";
    /// Nothing while another process redrives it.
    lock_held = "SELECT {letter}, payload FROM {schema}inbox_dead_letter \
        WHERE id = $1 AND coalesce(resolution, '') = '' AND reason = 'held' FOR UPDATE SKIP LOCKED";
    fail_held = "UPDATE {schema}inbox_dead_letter SET reason = $2, error = $3, attempts = $4 \
        WHERE id = $1 AND coalesce(resolution, '') = '' AND reason = 'held'";
    /// The messages that a consumer remembers, in the order of their ids; `$2` is a scope, or null.
    /// The first bound lets the planner begin inside the primary key, which returns the rows of one
    /// consumer in order.
    remembered_page = "SELECT message_id, scope, fingerprint FROM {schema}inbox_message \
        WHERE dead_letter IS NULL AND consumer = $1 AND ($2::text IS NULL OR scope = $2) AND message_id >= $3 \
        AND (message_id, scope) > ($3, $4) AND message_id <= $5 ORDER BY message_id, scope LIMIT $6";
    remembered = "SELECT message_id, scope, fingerprint FROM {schema}inbox_message \
        WHERE dead_letter IS NULL AND consumer = $1 AND ($2::text IS NULL OR scope = $2) AND message_id = ANY ($3)";
    /// Uses the index of ids, whatever the planner estimates: consumer and scope are checked
    /// afterwards.
    unfinished = "SELECT a.message_id, NULL::boolean AS is_open FROM UNNEST($3::uuid[]) AS u (id) \
        CROSS JOIN LATERAL (SELECT k.message_id, k.consumer, k.scope \
        FROM {schema}inbox_attempt AS k WHERE k.message_id = u.id OFFSET 0) AS a \
        WHERE a.consumer = $1 AND ($2::text IS NULL OR a.scope = $2) \
        UNION SELECT d.subject, d.resolution IS NULL FROM UNNEST($3::uuid[]) AS u (id) \
        CROSS JOIN LATERAL (SELECT k.subject, k.resolution, k.consumer, k.scope \
        FROM {schema}inbox_dead_letter AS k WHERE k.subject = u.id OFFSET 0) AS d \
        WHERE d.consumer = $1 AND ($2::text IS NULL OR d.scope = $2)";
    /// The next dead letters of a key: $1 after this id, $2 dead letters to look at, $3 key, $4
    /// topic and $5 tenant, or null.
    letters_of_key = "WITH walk AS MATERIALIZED (
            SELECT id, message_id, reason, deliveries, resolution IS NULL AS is_open,
                key = $3 AND ($4::text IS NULL OR topic = $4) AND ($5::text IS NULL OR scope = $5) AS is_of_key
            FROM {schema}inbox_dead_letter WHERE id > coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
            ORDER BY id LIMIT $2::bigint)
        SELECT s.seen_to, s.scanned, l.* FROM {walk_end} AS s LEFT JOIN (
            SELECT id, message_id, reason, deliveries, is_open FROM walk WHERE is_of_key) AS l ON true ORDER BY l.id";
    /// $1 message ids, $2 tenant or null. OFFSET: each is looked up by its index.
    results_of = "SELECT count(*) AS results FROM UNNEST($1::uuid[]) AS u (id)
        CROSS JOIN LATERAL (SELECT result, scope FROM {schema}inbox_message AS m
            WHERE m.message_id = u.id OFFSET 0) AS m
        WHERE m.result IS NOT NULL AND ($2::text IS NULL OR m.scope = $2)";
    erase_results = "UPDATE {schema}inbox_message SET result = NULL WHERE message_id = ANY ($1::uuid[])
        AND result IS NOT NULL AND ($2::text IS NULL OR scope = $2)";
    /// $1 dead letters, of which the open ones stay as they are; $2 the content type of erased
    /// ones.
    erase_letters = "UPDATE {schema}inbox_dead_letter
        SET key = NULL, headers = '[]', traceparent = NULL, tracestate = NULL, payload = '', content_type = $2,
            error = 'erased'
        WHERE ctid = ANY (ARRAY(SELECT l.place FROM UNNEST($1::uuid[]) AS u (id) CROSS JOIN LATERAL (
            SELECT ctid AS place FROM {schema}inbox_dead_letter AS d WHERE d.id = u.id AND d.resolution IS NOT NULL
            LIMIT 1 FOR UPDATE) AS l))";
    /// $1 dead letters. Their filters may name the key, and errors may quote the content. What is
    /// still requested stays without its filter: its outcome follows.
    erase_outcomes = "UPDATE {schema}inbox_audit
        SET selection = NULL, outcome = CASE WHEN done_at IS NULL
            OR outcome IN ('applied', 'applied_late', 'duplicate', 'discarded') THEN outcome ELSE 'erased' END
        WHERE ctid = ANY (ARRAY(SELECT a.place FROM UNNEST($1::uuid[]) AS u (id) CROSS JOIN LATERAL (
            SELECT ctid AS place FROM {schema}inbox_audit WHERE dead_letter = u.id OFFSET 0) AS a))";
    retained_from = "SELECT retained_from FROM {schema}inbox_retention";
    purge_dead_letters = "DELETE FROM {schema}inbox_dead_letter WHERE ctid = ANY (ARRAY(\
        SELECT ctid FROM {schema}inbox_dead_letter WHERE resolution IS NOT NULL AND resolution <> 'applied_late' \
        AND resolved_at < $1 ORDER BY resolved_at LIMIT $2 FOR UPDATE SKIP LOCKED))";
}

/// Returns every statement with its name.
#[cfg(feature = "testing")]
#[must_use]
pub fn listed_statements() -> Vec<(&'static str, String)> {
    let statements = Statements::new(None);
    let listed = statements.each().into_iter();
    listed.map(|(name, statement)| (name, statement.as_str().to_owned())).collect()
}
