-- A day is forgotten by emptying it: that waits for transactions that use this very day. Dropping one waits for every open
-- transaction of every consumer, so days were never forgotten beside handlers of half a second.
DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}inbox_message'::regclass);
BEGIN
    -- Moves the beginning of memory, only ever forward, and empties the days before it, each of which refuses every row from then
    -- on. Then it drops empty days if the parent's lock is free within the limit, and otherwise leaves that for the next time.
    EXECUTE replace($function$
        CREATE OR REPLACE FUNCTION %home%.inbox_expire_days(keep_from date) RETURNS SETOF date
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        SET lock_timeout = '250ms'
        AS $body$
        DECLARE
            part text;
        BEGIN
            IF keep_from > (clock_timestamp() AT TIME ZONE 'UTC')::date THEN
                RAISE EXCEPTION 'today is never forgotten: % lies ahead', keep_from
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            PERFORM pg_advisory_xact_lock(7597682998164844593);
            UPDATE %home%.inbox_retention AS r SET retained_from = keep_from::timestamp AT TIME ZONE 'UTC'
            WHERE r.retained_from < keep_from::timestamp AT TIME ZONE 'UTC';
            FOR part IN
                SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
                WHERE i.inhparent = '%home%.inbox_message'::regclass AND c.relname ~ '^inbox_message_[0-9]{8}$'
                    AND to_date(right(c.relname, 8), 'YYYYMMDD') < keep_from AND NOT EXISTS (
                        SELECT FROM pg_constraint AS k
                        WHERE k.conrelid = c.oid AND k.conname = 'inbox_message_day_is_forgotten')
                ORDER BY c.relname
            LOOP
                EXECUTE format('TRUNCATE TABLE %home%.%I', part);
                EXECUTE format('ALTER TABLE %home%.%I ADD CONSTRAINT inbox_message_day_is_forgotten CHECK (false)', part);
                RETURN NEXT to_date(right(part, 8), 'YYYYMMDD');
            END LOOP;
            BEGIN
                FOR part IN
                    SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
                    JOIN pg_constraint AS k ON k.conrelid = c.oid AND k.conname = 'inbox_message_day_is_forgotten'
                    WHERE i.inhparent = '%home%.inbox_message'::regclass
                    ORDER BY c.relname
                LOOP
                    EXECUTE format('DROP TABLE %home%.%I', part);
                END LOOP;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;
