-- The row of a dead message stops it where the guard looks; decisions about dead letters are kept; a failure that nobody
-- counts has an age.

-- Which dead letter a message ended as, instead of taking effect. Its row stops every further copy of it, as the row of a
-- message that took effect does; a redrive clears it in the transaction of the effect.
ALTER TABLE {schema}inbox_message ADD COLUMN dead_letter uuid;
COMMENT ON COLUMN {schema}inbox_message.dead_letter IS
    'the dead letter that the message ended as; null when it took effect';

-- The dead letters that are there already, as far as memory reaches: what is open and was handled, and what was given up.
INSERT INTO {schema}inbox_message (message_id, consumer, scope, fingerprint, processed_at, dead_letter)
SELECT d.message_id, d.consumer, d.scope, d.fingerprint, d.dead_at, d.id
FROM {schema}inbox_dead_letter AS d
WHERE ((d.reason IN ('poison', 'rejected') AND d.resolution IS NULL)
        OR (d.resolution = 'discarded' AND d.reason NOT IN ('malformed', 'incomplete')))
    AND d.message_id IS NOT NULL AND d.headers::text NOT LIKE '%"ce_chunk%'
    AND EXISTS (
        SELECT FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = '{schema}inbox_message'::regclass
            AND c.relname = 'inbox_message_' || to_char(to_timestamp(
                ('x' || left(replace(d.message_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) AT TIME ZONE 'UTC',
                'YYYYMMDD'))
ORDER BY d.resolution NULLS FIRST
ON CONFLICT (message_id, consumer, scope) DO NOTHING;

-- 0: it failed, and nothing shows that it is the message's own failure.
ALTER TABLE {schema}inbox_attempt
    DROP CONSTRAINT inbox_attempt_attempts_are_positive,
    ADD CONSTRAINT inbox_attempt_attempts_are_not_negative CHECK (attempts >= 0);

ALTER TABLE {schema}inbox_dead_letter
    DROP CONSTRAINT inbox_dead_letter_reason_is_known,
    ADD CONSTRAINT inbox_dead_letter_reason_is_known CHECK (reason IN
        ('poison', 'rejected', 'key_reused', 'too_old', 'from_the_future', 'malformed', 'incomplete', 'no_scope'));

-- A delivery that dies again is counted and not stored twice. One that was given up gets another letter: nobody would look
-- at the closed one.
ALTER TABLE {schema}inbox_dead_letter DROP CONSTRAINT inbox_dead_letter_delivery_key;
CREATE UNIQUE INDEX inbox_dead_letter_delivery_idx ON {schema}inbox_dead_letter (consumer, scope, subject, fingerprint)
    WHERE resolution IS DISTINCT FROM 'discarded';

-- How a dead letter was closed stays as it is, and only what is closed can be removed. A late application is never
-- removed: its dead letter is the only record of the effect.
CREATE FUNCTION {schema}inbox_keep_resolution() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.resolution IS NULL OR OLD.resolution = 'applied_late' THEN
            RAISE EXCEPTION 'dead letter % is % and is not removed', OLD.id, coalesce(OLD.resolution, 'open')
                USING ERRCODE = 'insufficient_privilege', HINT = 'Redrive or discard what is open.';
        END IF;
        RETURN OLD;
    END IF;
    IF OLD.resolution IS NOT NULL AND (NEW.resolution, NEW.resolved_at) IS DISTINCT FROM (OLD.resolution, OLD.resolved_at) THEN
        RAISE EXCEPTION 'dead letter % was closed as % at %', OLD.id, OLD.resolution, OLD.resolved_at
            USING ERRCODE = 'insufficient_privilege', HINT = 'A closed dead letter stays as it is.';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER inbox_dead_letter_keep_resolution
    BEFORE DELETE OR UPDATE OF resolution, resolved_at ON {schema}inbox_dead_letter
    FOR EACH ROW EXECUTE FUNCTION {schema}inbox_keep_resolution();

-- Who decided what about a dead letter, and why. A redrive is carried out by its consumer, which has the handler: until then
-- the row is its request.
CREATE TABLE {schema}inbox_audit (
    seq         bigint      GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor       text        NOT NULL,
    note        text        NOT NULL,
    dead_letter uuid        NOT NULL,
    consumer    text        NOT NULL,
    action      text        NOT NULL,
    accept_late boolean     NOT NULL DEFAULT false,
    -- what came of it: how the dead letter was closed, or the error
    outcome     text,
    done_at     timestamptz,
    CONSTRAINT inbox_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT inbox_audit_action_is_known CHECK (action IN ('redrive', 'discard')),
    CONSTRAINT inbox_audit_has_an_outcome_at_a_time CHECK ((outcome IS NULL) = (done_at IS NULL))
);

-- Serves the consumers' look for what is to be redriven; one request of a dead letter at a time.
CREATE UNIQUE INDEX inbox_audit_requested_idx ON {schema}inbox_audit (consumer, dead_letter) WHERE done_at IS NULL;
