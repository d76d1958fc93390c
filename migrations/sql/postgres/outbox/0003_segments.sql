-- The log in a ring of eight segments, so that history goes by TRUNCATE of a whole segment: in constant time, and
-- without a lock that a producer of another segment would notice.
--
-- A row's segment follows from its message id alone: bits 26 to 28 of the id's milliseconds, so a segment takes the
-- ids of 2^26 ms (18 h 38 min 28.864 s) and comes round again after 6 days 5 h. Hence
-- - one id has one segment: unique within it is unique, as long as the segment has not been emptied;
-- - every id has a segment that exists: no producer ever waits for one to be made, whether a relay runs or not;
-- - a row that is written late (its transaction was open while the segment was emptied) has its place all the same.
--
-- This copies the log once, under a lock that producers and relays wait for.
LOCK TABLE {schema}outbox_message IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {schema}outbox_message RENAME TO outbox_message_unsegmented;
ALTER SEQUENCE {schema}outbox_message_id_seq RENAME TO outbox_message_unsegmented_id_seq;
ALTER INDEX {schema}outbox_message_xid_id_idx RENAME TO outbox_message_unsegmented_xid_id_idx;

-- The columns in their order, with defaults, checks and comments: that the xid is evaluated before the id stays true.
-- The identity's sequence is named outbox_message_id_seq and has the same cache of 1.
CREATE TABLE {schema}outbox_message (
    LIKE {schema}outbox_message_unsegmented INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING COMMENTS INCLUDING IDENTITY
) PARTITION BY LIST (((get_byte(uuid_send(message_id), 2) >> 2) & 7));

COMMENT ON TABLE {schema}outbox_message IS
    'append-only: rows are never updated and never deleted one by one; segments are emptied whole by outbox_expire_segment';

DO $migration$
DECLARE
    home    text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
    part    text;
    allowed record;
BEGIN
    FOR number IN 0 .. 7 LOOP
        part := 'outbox_message_' || number;
        EXECUTE format('CREATE TABLE %s.%I PARTITION OF %s.outbox_message FOR VALUES IN (%s)', home, part, home, number);
    END LOOP;

    EXECUTE format('INSERT INTO %s.outbox_message OVERRIDING SYSTEM VALUE SELECT * FROM %s.outbox_message_unsegmented ORDER BY id',
        home, home);
    EXECUTE format('SELECT setval(%L, last_value, is_called) FROM %s.outbox_message_unsegmented_id_seq',
        home || '.outbox_message_id_seq', home);

    -- A key over all segments would have to contain what it is partitioned by; one in each is as good, because an id
    -- has one segment.
    FOR number IN 0 .. 7 LOOP
        part := 'outbox_message_' || number;
        EXECUTE format('ALTER TABLE %s.%I ADD PRIMARY KEY (id), ADD UNIQUE (message_id)', home, part);
        EXECUTE format('COMMENT ON INDEX %s.%I IS %L', home, part || '_pkey',
            'reads a difference in the order of ids; joins exceptions with their messages');
        EXECUTE format('COMMENT ON INDEX %s.%I IS %L', home, part || '_message_id_key',
            'detects a second enqueue of one id; finds out whether an unknown commit happened; replays by message id');
    END LOOP;

    -- Who could use the log goes on to: rights belong to the table that is replaced.
    FOR allowed IN
        SELECT c.relname, NULL::name AS attname, a.* FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
        WHERE c.oid IN ('{schema}outbox_message_unsegmented'::regclass, '{schema}outbox_message_unsegmented_id_seq'::regclass)
            AND a.grantee <> c.relowner
        UNION ALL
        SELECT c.relname, t.attname, a.* FROM pg_attribute AS t JOIN pg_class AS c ON c.oid = t.attrelid
        CROSS JOIN LATERAL aclexplode(t.attacl) AS a
        WHERE t.attrelid = '{schema}outbox_message_unsegmented'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT %s%s ON %s.%I TO %s', allowed.privilege_type,
            CASE WHEN allowed.attname IS NOT NULL THEN format(' (%I)', allowed.attname) END, home,
            replace(allowed.relname, '_unsegmented', ''),
            CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE allowed.grantee::regrole::text END);
    END LOOP;
END
$migration$;

CREATE INDEX outbox_message_xid_id_idx ON {schema}outbox_message (xid, id);
COMMENT ON INDEX {schema}outbox_message_xid_id_idx IS
    'reads the rows of transactions that were in flight when the mark before was taken';
DROP TABLE {schema}outbox_message_unsegmented;

CREATE INDEX outbox_exception_id_idx ON {schema}outbox_exception (id);
COMMENT ON INDEX {schema}outbox_exception_id_idx IS 'which entries of a segment stand beside the log and need their rows';

CREATE TABLE {schema}outbox_retention (
    singleton       boolean NOT NULL DEFAULT true,
    expired_through uuid,
    expired_at      timestamptz,
    CONSTRAINT outbox_retention_pkey PRIMARY KEY (singleton),
    CONSTRAINT outbox_retention_has_one_row CHECK (singleton)
);
COMMENT ON TABLE {schema}outbox_retention IS 'the largest message id that retention has removed: of smaller ones the log knows nothing';
INSERT INTO {schema}outbox_retention DEFAULT VALUES;

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- STABLE, so that cursors and what stands beside the log are of one snapshot: a checkpoint writes both at once, and
    -- between two snapshots a row could be passed and not yet beside.
    --
    -- A cursor's base is floor@snapshot. Behind it lies what is visible in the snapshot, and what has an id up to the
    -- floor unless its transaction was in flight.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_segment(number integer, keep interval)
        RETURNS TABLE (newest_id bigint, newest_at timestamptz, oldest_at timestamptz, bytes bigint, parked bigint,
            reason text, culprit text)
        LANGUAGE plpgsql STABLE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        SET jit = off
        SET enable_seqscan = off
        SET enable_sort = off
        AS $body$
        #variable_conflict use_column
        DECLARE
            oldest_id    bigint;
            parked_bytes bigint;
        BEGIN
            bytes := pg_total_relation_size(format('%home%.outbox_message_%s', number)::regclass);
            SELECT m.id, m.enqueued_at INTO newest_id, newest_at FROM %home%.outbox_message AS m
            WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number ORDER BY m.id DESC LIMIT 1;
            SELECT m.id, m.enqueued_at INTO oldest_id, oldest_at FROM %home%.outbox_message AS m
            WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number ORDER BY m.id LIMIT 1;
            parked := 0;
            reason := CASE WHEN newest_id IS NULL THEN 'empty' WHEN newest_at > clock_timestamp() - keep THEN 'young' END;
            IF newest_id IS NULL THEN
                RETURN NEXT;
                RETURN;
            END IF;

            SELECT count(*), coalesce(sum(kept.bytes), 0), min(kept.relay) INTO parked, parked_bytes, culprit FROM (
                SELECT DISTINCT ON (e.id) e.relay, m.bytes
                FROM %home%.outbox_exception AS e CROSS JOIN LATERAL (
                    SELECT octet_length(m.payload) AS bytes FROM %home%.outbox_message AS m
                    WHERE m.id = e.id AND ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number LIMIT 1) AS m
                WHERE e.id BETWEEN oldest_id AND newest_id ORDER BY e.id LIMIT 1001) AS kept;
            IF reason IS NOT NULL THEN
                culprit := NULL;
                RETURN NEXT;
                RETURN;
            END IF;

            -- Of another cluster, and not rebased yet: its transaction ids say nothing here.
            IF NOT EXISTS (SELECT FROM %home%.outbox_identity AS i, pg_control_system() AS c
                           WHERE i.system_identifier = c.system_identifier::text)
                OR coalesce((SELECT m.xid FROM %home%.outbox_message AS m ORDER BY m.xid DESC LIMIT 1)
                            >= pg_snapshot_xmax(pg_current_snapshot()), false)
            THEN
                reason := 'restored';
                culprit := NULL;
                RETURN NEXT;
                RETURN;
            END IF;

            -- More would have to be written anew under the lock.
            IF parked > 1000 OR parked_bytes > 16777216 THEN
                reason := 'parked';
                RETURN NEXT;
                RETURN;
            END IF;

            SELECT 'relay', r.relay INTO reason, culprit
            FROM %home%.outbox_relay AS r
            CROSS JOIN LATERAL (SELECT r.cursor::jsonb ->> 'base' AS base OFFSET 0) AS c
            CROSS JOIN LATERAL (
                SELECT split_part(c.base, '@', 1)::bigint AS floor, split_part(c.base, '@', 2)::pg_snapshot AS snapshot
                OFFSET 0) AS mark
            WHERE EXISTS (
                    SELECT FROM (
                        SELECT m.id FROM %home%.outbox_message AS m
                        WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number AND m.id > mark.floor
                            AND NOT pg_visible_in_snapshot(m.xid, mark.snapshot)
                        ORDER BY m.id LIMIT 1) AS ahead)
                OR EXISTS (
                    SELECT FROM pg_snapshot_xip(mark.snapshot) AS flight(xid) CROSS JOIN LATERAL (
                        SELECT m.id FROM %home%.outbox_message AS m
                        WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number
                            AND (m.xid, m.id) > (flight.xid, 0::bigint) AND (m.xid, m.id) <= (flight.xid, mark.floor)
                        ORDER BY m.xid, m.id LIMIT 1) AS late)
            ORDER BY mark.floor, r.relay LIMIT 1;

            -- A log that nobody has read is undecided as a whole.
            IF NOT EXISTS (SELECT FROM %home%.outbox_relay) THEN
                reason := 'unread';
            ELSIF reason IS NULL AND parked > 0 AND parked = (
                SELECT count(*) FROM (
                    SELECT m.id FROM %home%.outbox_message AS m
                    WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number ORDER BY m.id LIMIT parked + 1) AS m)
            THEN
                reason := 'only parked';
            END IF;
            RETURN NEXT;
        END
        $body$
    $function$, '%home%', home);

    -- The lock is the proof that no transaction is open which has written to the segment: each holds one on it until
    -- its rows are visible to whoever looks next, and a statement of this function looks anew. Only then is it asked
    -- whether all of the segment is settled. Rows of a transaction that has an id and no row yet come into the emptied
    -- segment, and the relays find them by their xid.
    --
    -- The timeout: a producer that brings an old id, or a relay that reads, waits for this at most so long.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_expire_segment(number integer, keep interval) RETURNS text
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        SET lock_timeout = '25ms'
        SET jit = off
        SET enable_seqscan = off
        AS $body$
        DECLARE
            held text;
            kept %home%.outbox_message[];
        BEGIN
            IF current_setting('transaction_isolation') <> 'read committed' THEN
                RAISE EXCEPTION 'a segment cannot be expired in a transaction that is %', current_setting('transaction_isolation')
                    USING ERRCODE = 'invalid_transaction_state', HINT = 'It would not see what has committed: use READ COMMITTED.';
            ELSIF number IS NULL OR keep IS NULL OR number NOT BETWEEN 0 AND 7 OR keep < interval '0' THEN
                RAISE EXCEPTION 'segment % cannot be kept for %', number, keep
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Segments are 0 to 7, and times are not negative.';
            ELSIF NOT pg_try_advisory_xact_lock(8031439170474173555) THEN
                RETURN 'busy';
            END IF;
            -- Without the lock first: nobody waits while nothing can go.
            SELECT s.reason INTO held FROM %home%.outbox_segment(number, keep) AS s;
            IF held IS NOT NULL THEN
                RETURN held;
            END IF;
            EXECUTE format('LOCK TABLE ONLY %home%.outbox_message_%s IN ACCESS EXCLUSIVE MODE', number);
            SELECT s.reason INTO held FROM %home%.outbox_segment(number, keep) AS s;
            IF held IS NOT NULL THEN
                RETURN held;
            END IF;
            EXECUTE format(
                'SELECT array_agg(m::%home%.outbox_message) FROM (
                     SELECT DISTINCT e.id FROM %home%.outbox_exception AS e
                     WHERE e.id >= (SELECT m.id FROM %home%.outbox_message_%1$s AS m ORDER BY m.id LIMIT 1)
                         AND e.id <= (SELECT m.id FROM %home%.outbox_message_%1$s AS m ORDER BY m.id DESC LIMIT 1)) AS e
                 CROSS JOIN LATERAL (SELECT * FROM %home%.outbox_message_%1$s AS m WHERE m.id = e.id LIMIT 1) AS m', number)
            INTO kept;
            EXECUTE format(
                'UPDATE %home%.outbox_retention AS r
                 SET expired_through = greatest(r.expired_through, (SELECT m.message_id FROM %home%.outbox_message_%s AS m
                     ORDER BY m.message_id DESC LIMIT 1)), expired_at = clock_timestamp()', number);
            EXECUTE format('TRUNCATE TABLE ONLY %home%.outbox_message_%s', number);
            EXECUTE format('INSERT INTO %home%.outbox_message_%s OVERRIDING SYSTEM VALUE SELECT m.* FROM unnest($1) AS m', number)
            USING kept;
            RETURN NULL;
        END
        $body$
    $function$, '%home%', home);

    -- A relay may not remove cursors, but for one whose lease nobody holds, and not with what is parked by accident.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_forget_relay(name text, discard_parked boolean)
        RETURNS TABLE (outcome text, holder text, parked bigint)
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        BEGIN
            SELECT CASE WHEN r.lease_until > clock_timestamp() THEN r.holder END INTO holder
            FROM %home%.outbox_relay AS r WHERE r.relay = name AND r.shard = 0 FOR UPDATE;
            outcome := CASE WHEN NOT FOUND THEN 'unknown' WHEN holder IS NOT NULL THEN 'leading' END;
            SELECT count(*) INTO parked FROM %home%.outbox_exception AS e WHERE e.relay = name;
            IF outcome IS NULL AND parked > 0 AND discard_parked IS NOT TRUE THEN
                outcome := 'parked';
            ELSIF outcome IS NULL THEN
                DELETE FROM %home%.outbox_exception AS e WHERE e.relay = name;
                DELETE FROM %home%.outbox_relay AS r WHERE r.relay = name;
                outcome := 'forgotten';
            END IF;
            RETURN NEXT;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;

REVOKE ALL ON FUNCTION {schema}outbox_segment(integer, interval), {schema}outbox_expire_segment(integer, interval),
    {schema}outbox_forget_relay(text, boolean) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_forget_relay(text, boolean) IS
    'removes the cursor of a relay that nobody leads, so that it holds no history back';
COMMENT ON FUNCTION {schema}outbox_segment(integer, interval) IS
    'what a segment holds, and why it cannot be emptied yet: null when it can';
COMMENT ON FUNCTION {schema}outbox_expire_segment(integer, interval) IS
    'empties a segment that every relay has passed and whose youngest row is older; rows that stand beside the log stay; returns why not, or null';
