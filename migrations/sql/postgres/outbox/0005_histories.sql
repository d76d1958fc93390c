-- What tells whether a relay's cursor belongs to the history that this server tells, and what mends it when it does not.

-- Emptied by PostgreSQL itself after a crash, after the promotion of a standby and after a restore of files: just when
-- transaction ids and ids of the sequence that nobody had stored may be given out again. A row that is still there proves
-- that they were not. Must stay UNLOGGED.
CREATE UNLOGGED TABLE {schema}outbox_server_run (
    singleton  boolean     NOT NULL DEFAULT true,
    run_id     uuid        NOT NULL DEFAULT gen_random_uuid(),
    -- of the server; another one means that the row came with a dump
    started_at timestamptz NOT NULL DEFAULT pg_postmaster_start_time(),
    CONSTRAINT outbox_server_run_pkey PRIMARY KEY (singleton),
    CONSTRAINT outbox_server_run_has_one_row CHECK (singleton)
);
COMMENT ON TABLE {schema}outbox_server_run IS
    'unlogged: empty after each crash, promotion and restore, so that what a relay remembers never outlives the server';

-- The holder's own, so that others can tell a lease that a clock has put ahead from one that lasts.
ALTER TABLE {schema}outbox_relay ADD COLUMN lease_seconds double precision;
COMMENT ON COLUMN {schema}outbox_relay.lease_seconds IS
    'for how long the holder asked: a lease that ends later than this from now was written by a clock that was ahead';

CREATE TABLE {schema}outbox_rebased (
    relay      text     NOT NULL,
    shard      smallint NOT NULL DEFAULT 0,
    id         bigint   NOT NULL,
    message_id uuid     NOT NULL,
    CONSTRAINT outbox_rebased_pkey PRIMARY KEY (relay, shard, id, message_id),
    CONSTRAINT outbox_rebased_relay_fkey FOREIGN KEY (relay, shard) REFERENCES {schema}outbox_relay ON DELETE CASCADE
);
COMMENT ON TABLE {schema}outbox_rebased IS
    'entries that a rebased cursor has before it again although they stood beside the log: the relay leaves them out';
COMMENT ON INDEX {schema}outbox_rebased_pkey IS 'which entries of a page are left out';

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- Only ever forwards. The lock is there when nobody has taken an id and not ended yet, and no id is taken meanwhile.
    -- Producers queue behind one who waits for it, so nobody waits for long: a long transaction refuses it.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_advance_sequence() RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        SET lock_timeout = '25ms'
        AS $body$
        DECLARE
            needed bigint;
        BEGIN
            LOCK TABLE ONLY %home%.outbox_message IN SHARE ROW EXCLUSIVE MODE;
            SELECT greatest(
                (SELECT m.id FROM %home%.outbox_message AS m ORDER BY m.id DESC LIMIT 1),
                (SELECT e.id FROM %home%.outbox_exception AS e ORDER BY e.id DESC LIMIT 1),
                (SELECT max(greatest(split_part(r.cursor::jsonb ->> 'base', '@', 1)::bigint,
                                     split_part(r.cursor::jsonb -> 'progress' ->> 'head', '@', 1)::bigint,
                                     (r.cursor::jsonb -> 'progress' ->> 'after')::bigint))
                 FROM %home%.outbox_relay AS r), 0)
            INTO needed;
            IF needed > coalesce(pg_sequence_last_value('%home%.outbox_message_id_seq'), 0) THEN
                PERFORM setval('%home%.outbox_message_id_seq', needed);
            END IF;
            RETURN pg_sequence_last_value('%home%.outbox_message_id_seq');
        END
        $body$
    $function$, '%home%', home);
END
$migration$;

REVOKE ALL ON FUNCTION {schema}outbox_advance_sequence() FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_advance_sequence() IS
    'after a sequence went back: sets it above every id that rows, exceptions and cursors know; never backwards';
