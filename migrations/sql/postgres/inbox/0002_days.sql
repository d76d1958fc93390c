-- Days are made and forgotten by functions that run with the owner's rights, so that a consumer needs none of them.
--
-- Each names its tables with their schema and has a search_path of its own: nobody can put other tables in between.
-- The schema is looked up here, because it may come from the search_path of whoever migrates.
--
-- The lock: one creator or dropper of partitions at a time; released at the end of the transaction, so it is safe
-- behind PgBouncer. Any number that nobody else uses: the first eight bytes of "inbox_days".
DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}inbox_message'::regclass);
BEGIN
    -- Makes a table like its parent, with the parent's key, and attaches it. CREATE TABLE ... PARTITION OF would take
    -- an ACCESS EXCLUSIVE lock on the parent and so wait for, and block, every consumer (PostgreSQL 15: lock timeout
    -- beside one open insert). Attaching takes SHARE UPDATE EXCLUSIVE, which inserts do not notice; there is no
    -- DEFAULT partition that would have to be scanned.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.inbox_create_days(first_day date, last_day date) RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            today    date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
            retained date;
            day      date;
            part     text;
            floors   uuid[];
            created  bigint := 0;
        BEGIN
            IF last_day > today + 366 OR last_day - first_day > 3660 THEN
                RAISE EXCEPTION 'days from % to % are not needed now', first_day, last_day
                    USING ERRCODE = 'invalid_parameter_value',
                        HINT = 'At most 3660 days at once, and none more than a year ahead.';
            END IF;
            PERFORM pg_advisory_xact_lock(7597682998164844593);
            -- Under the lock, so that no day is made again that is being dropped at this moment.
            SELECT (r.retained_from AT TIME ZONE 'UTC')::date INTO retained FROM %home%.inbox_retention AS r;
            FOR ahead IN 0 .. last_day - first_day LOOP
                day := first_day + ahead;
                part := 'inbox_message_' || to_char(day, 'YYYYMMDD');
                CONTINUE WHEN day < retained OR EXISTS (
                    SELECT FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
                    WHERE i.inhparent = '%home%.inbox_message'::regclass AND c.relname = part);
                -- The smallest ids of the day and of the next one: 48 bits of milliseconds, then zeros.
                SELECT array_agg(
                    rpad(lpad(to_hex((extract(epoch FROM bound AT TIME ZONE 'UTC') * 1000)::bigint), 12, '0'), 32, '0')::uuid
                    ORDER BY bound)
                INTO floors FROM unnest(ARRAY[day::timestamp, (day + 1)::timestamp]) AS bound;
                EXECUTE format('CREATE TABLE %home%.%I (LIKE %home%.inbox_message INCLUDING ALL)', part);
                EXECUTE format('ALTER TABLE %home%.inbox_message ATTACH PARTITION %home%.%I FOR VALUES FROM (%L) TO (%L)',
                    part, floors[1], floors[2]);
                created := created + 1;
            END LOOP;
            RETURN created;
        END
        $body$
    $function$, '%home%', home);

    -- Moves the beginning of memory, only ever forward, and drops the days before it. A drop waits for open inserts
    -- of any day: the limit makes it give way to those queued behind it.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.inbox_expire_days(keep_from date) RETURNS SETOF date
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
                    AND to_date(right(c.relname, 8), 'YYYYMMDD') < keep_from
                ORDER BY c.relname
            LOOP
                EXECUTE format('DROP TABLE %home%.%I', part);
                RETURN NEXT to_date(right(part, 8), 'YYYYMMDD');
            END LOOP;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;

REVOKE ALL ON FUNCTION {schema}inbox_create_days(date, date), {schema}inbox_expire_days(date) FROM PUBLIC;
COMMENT ON FUNCTION {schema}inbox_create_days(date, date) IS
    'makes the missing partitions of these days (UTC), both included, except those that are forgotten; returns how many';
COMMENT ON FUNCTION {schema}inbox_expire_days(date) IS
    'forgets the days before this one, for ever; returns them';
