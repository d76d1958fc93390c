//! The SQL of the inbox on SQLite. There are no schemas. Times are microseconds since 1970.

migrations::statements! {
    parts {
        // The clock is that of the machine: a SQLite file has no server.
        now = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
        // Columns are named: a star would also read columns that a later migration adds.
        letter = "{letter_rest}, key, headers, payload";
        letter_rest = "id, consumer, scope, subject, fingerprint, message_id, topic, kind, source, time, \
            content_type, traceparent, tracestate, octet_length(payload) AS payload_bytes, reason, error, \
            attempts, deliveries, origin, dead_at, resolution, resolved_at, seq";
        // As on PostgreSQL.
        brief_key = "CASE WHEN length(key) > 1024 THEN substr(key, 1, 1024) || '...' ELSE key END";
        header_names = "(SELECT coalesce(json_group_array(json_array(substr(h.value ->> 0, 1, 255), '')), '[]') \
            FROM (SELECT value FROM json_each(headers) LIMIT 100) AS h)";
        // A dead letter of a list, and one that is decided about: a delivery that is not a message
        // may have a key and headers of any length, and nothing reads them then.
        in_list = "{letter_rest}, {brief_key} AS key, {header_names} AS headers, x'' AS payload";
        in_hand = "{letter_rest}, CASE WHEN message_id IS NULL THEN {brief_key} ELSE key END AS key, \
            CASE WHEN message_id IS NULL THEN '[]' ELSE headers END AS headers, x'' AS payload";
        // Filters of the list; a missing consumer or id is null.
        brief = "SELECT {letter_rest}, CASE WHEN $4 THEN key ELSE {brief_key} END AS key, \
            CASE WHEN $4 THEN headers ELSE {header_names} END AS headers, \
            CASE WHEN $4 THEN payload ELSE x'' END AS payload FROM inbox_dead_letter";
        listed = "{brief} WHERE ($1 IS NULL OR consumer = $1) AND ({with_closed} \
            OR resolution IS NULL) AND ($2 IS NULL OR id > $2) ORDER BY id LIMIT $3";
        // Whether a dead letter takes over the newest failure of its delivery, as on PostgreSQL.
        tells_anew = "d.resolution IS NULL AND d.reason <> 'held' \
            AND EXCLUDED.reason NOT IN ('malformed', 'incomplete', 'no_scope') \
            AND (EXCLUDED.reason <> 'held' OR d.reason = 'no_scope')";
        // The condition for a dead letter that holds its key, as on PostgreSQL. The index of keys
        // has it too, up to the headers, in the same words.
        holds = "d.resolution IS NULL AND d.key IS NOT NULL AND d.message_id IS NOT NULL \
            AND d.reason IN ('poison', 'rejected', 'too_old', 'from_the_future', 'held') AND NOT EXISTS \
            (SELECT 1 FROM json_each(d.headers) AS h WHERE h.value ->> 0 = 'ce_chunkindex')";
        decision = "seq, at, actor, note, selection, action, dead_letter, consumer, accept_late, outcome, \
            done_at, decision";
        // As on PostgreSQL.
        walked = "SELECT id, seq, consumer, scope, topic, key, kind, reason, error, dead_at, deliveries \
            FROM inbox_dead_letter WHERE ($1 IS NULL OR consumer = $1) AND resolution IS NULL \
            AND ($2 IS NULL OR id > $2)";
        walk = "WITH walk AS MATERIALIZED ({walked} ORDER BY id LIMIT $3)";
        walk_end = "(SELECT count(*) AS scanned, max(id) AS seen_to FROM walk)";
        matches = "($4 IS NULL OR open.scope = $4) AND ($5 IS NULL OR open.topic = $5) \
            AND ($6 IS NULL OR open.key = $6) AND ($7 IS NULL OR open.reason = $7) \
            AND ($8 IS NULL OR open.error LIKE $8 ESCAPE '\\') AND ($9 IS NULL OR open.kind = $9) \
            AND ($10 IS NULL OR open.dead_at < coalesce($12, {now}) - $10) \
            AND ($11 IS NULL OR open.dead_at >= coalesce($12, {now}) - $11) \
            AND ($12 IS NULL OR open.dead_at <= $12)";
        chunk_set = "message_id, consumer, scope, fingerprint, topic, key, kind, source, time, \
            content_type, bytes, begun_at";
    }

    /// The guard. The comparison makes the refusal of forgotten ids part of the insert: SQLite's
    /// single writer sees the newest floor.
    insert = "INSERT INTO inbox_message (message_id, consumer, scope, fingerprint, source, \
        canonical_fingerprint) SELECT $1, $2, $3, $4, $6, $7 WHERE $1 >= (SELECT id_floor \
        FROM inbox_retention) ON CONFLICT (message_id, consumer, scope) DO NOTHING RETURNING processed_at";
    find = "SELECT fingerprint, source, result, processed_at, dead_letter FROM inbox_message \
        WHERE message_id = $1 AND consumer = $2 AND scope = $3";
    is_there = "SELECT count(*) AS found FROM inbox_message WHERE message_id = $1 AND consumer = $2 \
        AND scope = $3 AND dead_letter IS NULL";
    complete = "UPDATE inbox_message SET result = $4 WHERE message_id = $1 AND consumer = $2 AND scope = $3";

    known_rows = "SELECT consumer, scope, processed_at, octet_length(result) AS result_bytes, dead_letter \
        FROM inbox_message WHERE message_id = $1 ORDER BY consumer, scope";
    known_attempts = "SELECT consumer, scope, attempts, last_error, first_failed_at, next_at \
        FROM inbox_attempt WHERE message_id = $1 AND last_error <> '' ORDER BY consumer, scope";

    settled = "SELECT message_id FROM inbox_message WHERE message_id IN (SELECT value FROM json_each($1)) \
        AND ($2 IS NULL OR consumer = $2) UNION \
        SELECT subject FROM inbox_dead_letter WHERE subject IN (SELECT value FROM json_each($1)) \
        AND ($2 IS NULL OR consumer = $2)";

    /// The newest rows of messages made since `$1`, at most `$2` of them, by consumer.
    activity_applied = "SELECT consumer, count(*) FILTER (WHERE dead_letter IS NULL) AS counted, \
        max(processed_at) FILTER (WHERE dead_letter IS NULL) AS at FROM \
        (SELECT consumer, dead_letter, processed_at FROM inbox_message \
        WHERE message_id >= $1 ORDER BY message_id DESC LIMIT $2) GROUP BY consumer ORDER BY consumer LIMIT 1000";
    /// At most `$1` rows of each consumer, as on PostgreSQL.
    activity_attempts = "WITH RECURSIVE whose (name) AS ( \
        SELECT (SELECT consumer FROM inbox_attempt ORDER BY consumer LIMIT 1) UNION ALL \
        SELECT (SELECT consumer FROM inbox_attempt WHERE consumer > w.name ORDER BY consumer LIMIT 1) \
        FROM whose AS w WHERE w.name IS NOT NULL LIMIT 1000) \
        SELECT name AS consumer, (SELECT count(*) FROM (SELECT 1 FROM inbox_attempt WHERE consumer = name \
            AND last_error <> '' LIMIT $1)) AS counted, \
        (SELECT min(first_failed_at) FROM (SELECT first_failed_at FROM inbox_attempt WHERE consumer = name \
            AND last_error <> '' ORDER BY scope, message_id LIMIT $1)) AS at \
        FROM whose WHERE name IS NOT NULL AND at IS NOT NULL ORDER BY name";
    activity_letters = "WITH RECURSIVE whose (name) AS ( \
        SELECT (SELECT consumer FROM inbox_dead_letter WHERE resolution IS NULL ORDER BY consumer LIMIT 1) UNION ALL \
        SELECT (SELECT consumer FROM inbox_dead_letter WHERE resolution IS NULL AND consumer > w.name ORDER BY consumer LIMIT 1) \
        FROM whose AS w WHERE w.name IS NOT NULL LIMIT 1000) \
        SELECT name AS consumer, (SELECT count(*) FILTER (WHERE reason <> 'held') FROM (SELECT reason FROM \
            inbox_dead_letter WHERE consumer = name AND resolution IS NULL ORDER BY id LIMIT $1)) AS counted, \
        (SELECT count(*) FILTER (WHERE reason = 'held') FROM (SELECT reason FROM \
            inbox_dead_letter WHERE consumer = name AND resolution IS NULL ORDER BY id LIMIT $1)) AS held, \
        (SELECT min(dead_at) FILTER (WHERE reason <> 'held') FROM (SELECT reason, dead_at FROM inbox_dead_letter \
            WHERE consumer = name AND resolution IS NULL ORDER BY id LIMIT $1)) AS at \
        FROM whose WHERE name IS NOT NULL ORDER BY name";
    add_counts = "INSERT INTO inbox_minute AS m (consumer, minute, applied, duplicates) \
        VALUES ($1, unixepoch() / 60 * 60000000, $2, $3) ON CONFLICT (consumer, minute) \
        DO UPDATE SET applied = m.applied + excluded.applied, \
        duplicates = m.duplicates + excluded.duplicates";
    counts = "SELECT consumer, coalesce(sum(applied) FILTER (WHERE minute >= $1), 0) AS applied, \
        coalesce(sum(duplicates) FILTER (WHERE minute >= $1), 0) AS duplicates, \
        max(minute) FILTER (WHERE applied > 0) AS last_applied FROM inbox_minute \
        WHERE minute >= $2 GROUP BY consumer ORDER BY consumer LIMIT 1000";
    purge_minutes = "DELETE FROM inbox_minute WHERE minute < $1";

    /// Inserts the set, or locks it: only the holder checks whether all chunks have arrived. The
    /// values of the first chunk for the whole message stay.
    hold_set = "INSERT INTO inbox_chunk_set AS s (message_id, consumer, scope, fingerprint, bytes, topic, \
        key, kind, source, time, content_type) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
        ON CONFLICT (message_id, consumer, scope, fingerprint) DO UPDATE SET bytes = s.bytes RETURNING bytes";
    keep_chunk = "INSERT INTO inbox_chunk (message_id, consumer, scope, fingerprint, chunks, number, \
        payload) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (message_id, consumer, scope, fingerprint, \
        chunks, number) DO NOTHING";
    count_chunks = "SELECT count(*) FILTER (WHERE chunks = $5) AS held, count(DISTINCT chunks) AS splits \
        FROM inbox_chunk WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND fingerprint = $4";
    has_chunk = "SELECT EXISTS (SELECT 1 FROM inbox_chunk WHERE message_id = $1 AND consumer = $2 \
        AND scope = $3 AND fingerprint = $4 AND chunks = $5 AND number = $6) AS is_kept";
    read_chunks = "SELECT payload FROM inbox_chunk WHERE message_id = $1 AND consumer = $2 AND scope = $3 \
        AND fingerprint = $4 AND chunks = $5 ORDER BY number";
    chunk_numbers = "SELECT chunks, number FROM inbox_chunk WHERE message_id = $1 AND consumer = $2 \
        AND scope = $3 AND fingerprint = $4 ORDER BY chunks, number";
    remove_chunks = "DELETE FROM inbox_chunk WHERE message_id = $1 AND consumer = $2 AND scope = $3 \
        AND fingerprint = $4";
    remove_set = "DELETE FROM inbox_chunk_set WHERE message_id = $1 AND consumer = $2 AND scope = $3 \
        AND fingerprint = $4";
    /// Selects all sets, or those that must expire, as on PostgreSQL.
    incomplete = "SELECT {chunk_set} FROM inbox_chunk_set AS s WHERE $1 IS NULL OR (begun_at < $1 \
        AND ($3 IS NULL OR s.consumer = $3 OR begun_at < $4) AND NOT EXISTS (SELECT 1 \
        FROM inbox_attempt AS a WHERE a.consumer = s.consumer AND a.scope = s.scope \
        AND a.message_id = s.message_id AND a.next_at >= $1)) ORDER BY begun_at LIMIT $2";
    /// Selects a set for its expiry, unless it is being retried. A writing transaction excludes all
    /// others.
    lock_set = "SELECT {chunk_set} FROM inbox_chunk_set AS s WHERE message_id = $1 AND consumer = $2 \
        AND scope = $3 AND fingerprint = $4 AND NOT EXISTS (SELECT 1 FROM inbox_attempt AS a \
        WHERE a.consumer = s.consumer AND a.scope = s.scope AND a.message_id = s.message_id \
        AND a.next_at >= $5)";

    clock = "SELECT {now} AS now, (SELECT retained_from FROM inbox_retention) AS retained_from";
    begin_memory = "INSERT INTO inbox_retention (only_row, retained_from, id_floor) VALUES (1, $1, $2) \
        ON CONFLICT DO NOTHING";
    /// Moves only forward.
    retain_from = "UPDATE inbox_retention SET retained_from = $1, id_floor = $2 WHERE retained_from < $1";
    /// Deletes a limited number of rows, so that the write lock is held for milliseconds. Ids that
    /// are already refused cannot come back.
    expire = "DELETE FROM inbox_message WHERE (message_id, consumer, scope) IN \
        (SELECT message_id, consumer, scope FROM inbox_message WHERE message_id < $1 ORDER BY message_id \
        LIMIT $2)";

    count_attempt = "INSERT INTO inbox_attempt (message_id, consumer, scope, attempts, last_error, next_at, \
        uncounted) VALUES ($1, $2, $3, $5, $4, {now}, 1 - $5) ON CONFLICT (consumer, scope, message_id) \
        DO UPDATE SET attempts = attempts + $5, last_error = $4, first_failed_at = CASE \
        WHEN last_error = '' THEN excluded.next_at ELSE first_failed_at END, next_at = excluded.next_at, \
        in_hand = NULL, ends = CASE WHEN $6 THEN 0 ELSE ends END, uncounted = CASE WHEN $5 > 0 THEN 0 \
        WHEN next_at < excluded.next_at - 3600000000 THEN 1 ELSE uncounted + 1 END \
        RETURNING attempts, uncounted, first_failed_at, {now} - first_failed_at AS age";
    postpone = "UPDATE inbox_attempt SET next_at = {now} + $4 WHERE message_id = $1 AND consumer = $2 \
        AND scope = $3";
    attempt = "SELECT attempts, last_error, first_failed_at, next_at FROM inbox_attempt \
        WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND last_error <> ''";
    take_in_hand = "INSERT INTO inbox_attempt (message_id, consumer, scope, attempts, last_error, next_at, \
        in_hand) VALUES ($1, $2, $3, 0, '', {now}, $4) ON CONFLICT (consumer, scope, message_id) \
        DO UPDATE SET in_hand = coalesce(in_hand, $4) \
        RETURNING attempts, ends, next_at, nullif(in_hand, $4) AS owner";
    take_over = "UPDATE inbox_attempt SET ends = ends + 1, in_hand = $5 WHERE message_id = $1 \
        AND consumer = $2 AND scope = $3 AND in_hand = $4";
    /// Removes the note of one process, or of any process.
    put_down = "UPDATE inbox_attempt SET in_hand = NULL WHERE message_id = $1 AND consumer = $2 \
        AND scope = $3 AND ($4 IS NULL OR in_hand = $4)";
    canonical = "SELECT canonical_fingerprint FROM inbox_message WHERE message_id = $1 AND consumer = $2 \
        AND scope = $3";
    forget_attempts = "DELETE FROM inbox_attempt WHERE message_id = $1 AND consumer = $2 AND scope = $3 \
        AND ($4 OR attempts = 0) AND ($5 OR ends = 0) AND ($6 OR last_error = '')";
    /// As on PostgreSQL.
    purge_attempts = "DELETE FROM inbox_attempt WHERE (consumer, scope, message_id) IN \
        (SELECT consumer, scope, message_id FROM inbox_attempt AS a WHERE first_failed_at < $1 OR EXISTS \
        (SELECT 1 FROM inbox_message AS m WHERE m.message_id = a.message_id AND m.consumer = a.consumer \
        AND m.scope = a.scope AND m.dead_letter IS NULL) LIMIT $2)";

    /// As on PostgreSQL.
    store_dead_letter = "INSERT INTO inbox_dead_letter AS d (id, consumer, scope, subject, fingerprint, \
        message_id, topic, key, kind, source, time, content_type, headers, traceparent, tracestate, \
        payload, reason, error, attempts, origin) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
        $12, $13, $14, $15, $16, $17, $18, $19, $20) ON CONFLICT (consumer, scope, subject, fingerprint) \
        WHERE resolution IS NOT 'discarded' DO UPDATE SET deliveries = d.deliveries + 1, reason = CASE \
        WHEN {tells_anew} THEN EXCLUDED.reason ELSE d.reason END, error = CASE WHEN {tells_anew} \
        THEN EXCLUDED.error ELSE d.error END, attempts = CASE WHEN {tells_anew} THEN EXCLUDED.attempts \
        ELSE d.attempts END RETURNING id";
    /// As on PostgreSQL.
    fingerprint_of_dead_letter = "SELECT fingerprint FROM inbox_dead_letter WHERE consumer = $1 \
        AND scope = $2 AND subject = $3 AND resolution IS NOT 'discarded' ORDER BY deliveries, seq LIMIT 1";
    /// Lists columns by name: a star would also read columns that a later migration adds.
    dead_letter = "SELECT {letter} FROM inbox_dead_letter WHERE id = $1";
    /// A writing transaction excludes all others.
    lock_dead_letter = "SELECT {letter} FROM inbox_dead_letter WHERE id = $1";
    lock_others = "SELECT id, resolution IS NOT NULL AS is_closed FROM inbox_dead_letter WHERE consumer = $1 AND scope = $2 \
        AND subject = $3 AND id <> $4 AND resolution IS NOT 'discarded' ORDER BY seq";
    dead_letters(with_closed = "true") = "{listed}";
    dead_letters_of = "{brief} WHERE subject = $1 AND ($2 IS NULL OR consumer = $2) \
        ORDER BY resolution IS NOT NULL, seq DESC LIMIT $3";
    open_dead_letters(with_closed = "false") = "{listed}";
    open_letters = "{walk} SELECT s.seen_to, s.scanned, l.* FROM {walk_end} AS s LEFT JOIN \
        (SELECT {in_list} FROM inbox_dead_letter WHERE id IN \
        (SELECT open.id FROM walk AS open WHERE {matches} ORDER BY open.id LIMIT $13)) AS l ON true ORDER BY l.id";
    choose_letters = "{walk} SELECT s.seen_to, s.scanned, l.id, l.seq, l.consumer, l.topic, l.reason, \
        l.deliveries, l.dead_at, l.error FROM {walk_end} AS s LEFT JOIN (SELECT open.id, open.seq, open.consumer, open.topic, \
        open.reason, open.deliveries, open.dead_at, CASE WHEN $8 IS NOT NULL THEN open.error END AS error FROM walk AS open \
        WHERE {matches}) AS l ON true ORDER BY l.id";
    letter_total = "SELECT {now} AS at, count(*) AS scanned, count(*) FILTER (WHERE {matches}) AS letters \
        FROM ({walked} ORDER BY id LIMIT $3) AS open";
    letter_groups = "SELECT open.topic, open.reason, substr(open.error, 1, 300) AS error, count(*) AS letters, \
        min(open.dead_at) AS first, max(open.dead_at) AS last \
        FROM (SELECT * FROM ({walked} ORDER BY id LIMIT $3) \
        UNION SELECT * FROM ({walked} ORDER BY id DESC LIMIT $3)) AS open WHERE {matches} GROUP BY 1, 2, 3";
    lock_letters = "SELECT {in_hand} FROM inbox_dead_letter \
        WHERE id IN (SELECT value FROM json_each($1))";
    replace_requests = "UPDATE inbox_audit SET outcome = $3, done_at = {now} WHERE done_at IS NULL AND NOT accept_late \
        AND seq IN (SELECT o.seq FROM json_each($1) AS u CROSS JOIN inbox_dead_letter AS d ON d.id = u.value \
        CROSS JOIN inbox_audit AS o ON o.consumer = d.consumer AND o.dead_letter = d.id AND o.done_at IS NULL \
        WHERE NOT EXISTS (SELECT 1 FROM inbox_audit AS s WHERE s.decision = $2 AND s.dead_letter = d.id))";
    /// In the given order, in which consumers carry them out.
    note_requests = "INSERT INTO inbox_audit (actor, note, selection, action, dead_letter, consumer, \
        accept_late, decision) SELECT $1, $2, $3, 'redrive', d.id, d.consumer, $4, $5 FROM json_each($6) AS u \
        CROSS JOIN inbox_dead_letter AS d ON d.id = u.value WHERE NOT EXISTS (SELECT 1 FROM inbox_audit AS a \
        WHERE a.decision = $5 AND a.dead_letter = d.id) ORDER BY u.key ON CONFLICT (consumer, dead_letter) \
        WHERE done_at IS NULL DO NOTHING RETURNING dead_letter";
    letter_decision = "SELECT a.actor, a.action, a.note, a.selection, count(*) AS letters, min(a.at) AS first, \
        max(a.at) AS last FROM (SELECT actor, action, note, selection, at FROM inbox_audit WHERE decision = $1 \
        AND ($2 IS NULL OR consumer = $2) LIMIT $3) AS a GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC LIMIT 1";
    letter_outcomes = "SELECT a.outcome, count(*) AS letters FROM (SELECT CASE WHEN outcome IN ('applied', \
        'applied_late', 'duplicate', 'discarded') THEN outcome WHEN outcome = $4 THEN 'replaced' \
        WHEN outcome IS NOT NULL THEN 'failed' END AS outcome \
        FROM inbox_audit WHERE decision = $1 AND ($2 IS NULL OR consumer = $2) LIMIT $3) AS a GROUP BY 1";
    insert_dead = "INSERT INTO inbox_message (message_id, consumer, scope, fingerprint, dead_letter, \
        source, canonical_fingerprint) SELECT $1, $2, $3, $4, $5, $6, $7 WHERE $1 >= (SELECT id_floor \
        FROM inbox_retention) ON CONFLICT (message_id, consumer, scope) DO NOTHING RETURNING processed_at";
    clear_dead = "UPDATE inbox_message SET dead_letter = NULL, canonical_fingerprint = coalesce($5, \
        canonical_fingerprint) WHERE message_id = $1 AND consumer = $2 AND scope = $3 AND dead_letter = $4";
    resolve = "UPDATE inbox_dead_letter SET resolution = $2, resolved_at = {now} WHERE id = $1 \
        AND resolution IS NULL";
    note_decision = "INSERT INTO inbox_audit (actor, note, selection, action, dead_letter, consumer, \
        accept_late, outcome, decision, done_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, CASE WHEN $8 IS NOT NULL \
        THEN {now} END) ON CONFLICT (consumer, dead_letter) WHERE done_at IS NULL DO NOTHING RETURNING seq";
    finish_request = "UPDATE inbox_audit SET outcome = $2, done_at = {now} WHERE seq = $1 \
        AND done_at IS NULL";
    is_requested = "SELECT true FROM inbox_audit WHERE seq = $1 AND done_at IS NULL";
    requests = "SELECT {decision} FROM inbox_audit WHERE consumer = $1 AND done_at IS NULL AND seq > $2 \
        ORDER BY seq LIMIT $3";
    decisions_of = "SELECT {decision} FROM (SELECT *, row_number() OVER (PARTITION BY dead_letter ORDER BY seq DESC) \
        AS nth FROM inbox_audit WHERE dead_letter IN (SELECT value FROM json_each($1))) WHERE nth <= $2 \
        ORDER BY seq DESC";
    letters_of_topic = "SELECT id FROM inbox_dead_letter WHERE id IN (SELECT value FROM json_each($1)) AND topic = $2";
    holder = "SELECT d.id FROM inbox_dead_letter AS d WHERE d.consumer = $1 AND d.scope = $2 \
        AND d.topic = $3 AND d.key = $4 AND {holds} ORDER BY d.seq LIMIT 1";
    holder_before = "SELECT d.id FROM inbox_dead_letter AS l \
        JOIN inbox_dead_letter AS d ON d.consumer = l.consumer AND d.scope = l.scope AND d.topic = l.topic \
        AND d.key = l.key AND d.seq < l.seq WHERE l.id = $1 AND {holds} ORDER BY d.seq LIMIT 1";
    /// The first held message of each of the next keys after a key, and whether no earlier dead
    /// letter holds that key. It goes from key to key by the index, however many messages are held
    /// behind the first ones. It needs three lookups, because SQLite uses only the first column of
    /// the index for a comparison of rows.
    held_firsts = "WITH RECURSIVE first_held (place, seq) AS ( SELECT 1, (SELECT n.seq \
        FROM inbox_dead_letter AS n WHERE n.consumer = $1 AND n.resolution IS NULL AND n.reason = 'held' \
        AND (n.scope, n.topic, n.key) > ($2, $3, $4) ORDER BY n.scope, n.topic, n.key, n.seq LIMIT 1) \
        UNION ALL SELECT first_held.place + 1, coalesce( (SELECT n.seq FROM inbox_dead_letter AS n \
        WHERE n.consumer = $1 AND n.resolution IS NULL AND n.reason = 'held' AND n.scope = f.scope \
        AND n.topic = f.topic AND n.key > f.key ORDER BY n.key, n.seq LIMIT 1), (SELECT n.seq \
        FROM inbox_dead_letter AS n WHERE n.consumer = $1 AND n.resolution IS NULL AND n.reason = 'held' \
        AND n.scope = f.scope AND n.topic > f.topic ORDER BY n.topic, n.key, n.seq LIMIT 1), (SELECT n.seq \
        FROM inbox_dead_letter AS n WHERE n.consumer = $1 AND n.resolution IS NULL AND n.reason = 'held' \
        AND n.scope > f.scope ORDER BY n.scope, n.topic, n.key, n.seq LIMIT 1)) FROM first_held \
        JOIN inbox_dead_letter AS f ON f.seq = first_held.seq WHERE first_held.place < $5) \
        SELECT f.id, f.scope, f.topic, f.key, NOT EXISTS (SELECT 1 FROM inbox_dead_letter AS d \
        WHERE d.consumer = $1 AND d.scope = f.scope AND d.topic = f.topic AND d.key = f.key \
        AND d.seq < f.seq AND {holds}) AS is_in_turn FROM first_held \
        JOIN inbox_dead_letter AS f ON f.seq = first_held.seq ORDER BY first_held.place";
    closed_since = "SELECT scope, topic, key FROM inbox_dead_letter WHERE resolution IS NOT NULL \
        AND resolved_at > $1 AND message_id IS NOT NULL AND key IS NOT NULL AND consumer = $3 \
        ORDER BY resolved_at DESC LIMIT $2";
    lock_held = "SELECT {letter} FROM inbox_dead_letter WHERE id = $1 AND resolution IS NULL \
        AND reason = 'held'";
    fail_held = "UPDATE inbox_dead_letter SET reason = $2, error = $3, attempts = $4 WHERE id = $1 \
        AND resolution IS NULL AND reason = 'held'";
    purge_dead_letters = "DELETE FROM inbox_dead_letter WHERE id IN (SELECT id FROM inbox_dead_letter \
        WHERE resolution IS NOT NULL AND resolution <> 'applied_late' AND resolved_at < $1 LIMIT $2)";

    /// The messages that a consumer remembers, in the order of their ids; `$2` is a scope, or null.
    remembered_page = "SELECT message_id, scope, fingerprint FROM inbox_message WHERE dead_letter IS NULL \
        AND consumer = $1 AND ($2 IS NULL OR scope = $2) AND message_id >= $3 \
        AND (message_id, scope) > ($3, $4) AND message_id <= $5 ORDER BY message_id, scope LIMIT $6";
    remembered = "SELECT message_id, scope, fingerprint FROM inbox_message WHERE dead_letter IS NULL \
        AND consumer = $1 AND ($2 IS NULL OR scope = $2) AND message_id IN (SELECT value FROM json_each($3))";
    unfinished = "SELECT message_id, NULL AS is_open FROM inbox_attempt WHERE consumer = $1 AND ($2 IS NULL \
        OR scope = $2) AND message_id IN (SELECT value FROM json_each($3)) UNION \
        SELECT subject, resolution IS NULL FROM inbox_dead_letter WHERE consumer = $1 AND ($2 IS NULL \
        OR scope = $2) AND subject IN (SELECT value FROM json_each($3))";
    /// As on PostgreSQL.
    letters_of_key = "WITH walk AS MATERIALIZED (SELECT id, message_id, reason, deliveries, \
            resolution IS NULL AS is_open, key = $3 AND ($4 IS NULL OR topic = $4) \
                AND ($5 IS NULL OR scope = $5) AS is_of_key \
            FROM inbox_dead_letter WHERE id > coalesce($1, '') ORDER BY id LIMIT $2) \
        SELECT s.seen_to, s.scanned, l.* FROM {walk_end} AS s LEFT JOIN \
        (SELECT id, message_id, reason, deliveries, is_open FROM walk WHERE is_of_key) AS l ON true ORDER BY l.id";
    results_of = "SELECT count(*) AS results FROM json_each($1) AS u \
        CROSS JOIN inbox_message AS m ON m.message_id = u.value \
        WHERE m.result IS NOT NULL AND ($2 IS NULL OR m.scope = $2)";
    erase_results = "UPDATE inbox_message SET result = NULL WHERE result IS NOT NULL \
        AND message_id IN (SELECT value FROM json_each($1)) AND ($2 IS NULL OR scope = $2)";
    erase_letters = "UPDATE inbox_dead_letter SET key = NULL, headers = '[]', traceparent = NULL, \
        tracestate = NULL, payload = x'', content_type = $2, error = 'erased' \
        WHERE resolution IS NOT NULL AND id IN (SELECT value FROM json_each($1))";
    erase_outcomes = "UPDATE inbox_audit SET selection = NULL, outcome = CASE WHEN done_at IS NULL OR outcome \
        IN ('applied', 'applied_late', 'duplicate', 'discarded') THEN outcome ELSE 'erased' END \
        WHERE dead_letter IN (SELECT value FROM json_each($1))";
    retained_from = "SELECT retained_from FROM inbox_retention";
}
