-- Two rows can have one id after the sequence was set back: the key of a segment knows nothing of the ids in the other
-- seven. A relay that has not read either cannot tell them apart, so the later ones get new ids.
DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- Does nothing where no two rows that are not visible in the mark have one id. Otherwise all of them that were
    -- written from the first such row on move behind every other row, in the order that their ids had. They stay rows of
    -- their transactions: a relay that has read them does not read them again. What is parked of them moves along.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_renumber_rows(snapshot pg_snapshot, floor bigint) RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            second     xid8;
            moved      record;
            fresh      bigint;
            renumbered bigint := 0;
        BEGIN
            LOCK TABLE %home%.outbox_relay IN ACCESS EXCLUSIVE MODE;
            -- Until this transaction ends nobody adds a row.
            PERFORM %home%.outbox_advance_sequence();
            -- A snapshot that sees nothing says nothing about the rows up to its floor.
            SELECT later.xid INTO second
            FROM (
                SELECT m.xid, row_number() OVER (PARTITION BY m.id ORDER BY m.xid, m.message_id) AS nth
                FROM %home%.outbox_message AS m
                WHERE m.xid >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(m.xid, $1)
                    AND (m.id > $2 OR pg_snapshot_xmax($1) > '1')) AS later
            WHERE later.nth > 1 ORDER BY later.xid LIMIT 1;
            IF second IS NULL THEN
                RETURN 0;
            END IF;
            FOR moved IN
                SELECT m.tableoid AS segment, m.ctid AS place, m.id, m.message_id, e.id IS NOT NULL AS is_parked
                FROM %home%.outbox_message AS m
                LEFT JOIN (SELECT DISTINCT x.id, x.message_id FROM %home%.outbox_exception AS x) AS e
                    ON e.id = m.id AND e.message_id = m.message_id
                WHERE m.xid >= second AND NOT pg_visible_in_snapshot(m.xid, $1)
                    AND (m.id > $2 OR pg_snapshot_xmax($1) > '1')
                ORDER BY m.id, m.xid, m.message_id
            LOOP
                UPDATE %home%.outbox_message AS m SET id = DEFAULT
                WHERE m.tableoid = moved.segment AND m.ctid = moved.place RETURNING m.id INTO STRICT fresh;
                IF moved.is_parked THEN
                    UPDATE %home%.outbox_parked AS p SET id = fresh
                    FROM %home%.outbox_relay AS r, %home%.outbox_exception AS e
                    WHERE e.relay = r.relay AND e.shard = r.shard AND e.id = moved.id AND e.message_id = moved.message_id
                        AND p.relay = e.relay AND p.shard = e.shard AND p.id = e.id;
                    UPDATE %home%.outbox_exception AS e SET id = fresh FROM %home%.outbox_relay AS r
                    WHERE e.relay = r.relay AND e.shard = r.shard AND e.id = moved.id AND e.message_id = moved.message_id;
                    UPDATE %home%.outbox_rebased AS l SET id = fresh FROM %home%.outbox_relay AS r
                    WHERE l.relay = r.relay AND l.shard = r.shard AND l.id = moved.id AND l.message_id = moved.message_id;
                END IF;
                renumbered := renumbered + 1;
            END LOOP;
            RETURN renumbered;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;

REVOKE ALL ON FUNCTION {schema}outbox_renumber_rows(pg_snapshot, bigint) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_renumber_rows(pg_snapshot, bigint) IS
    'after a sequence went back: of rows that are not read yet and share an id, the later ones get new ids; else nothing';
