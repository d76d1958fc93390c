-- A consumer can hold a key behind its dead letter (AfterDeadLetter::HoldKey): later messages of the key become dead letters of
-- the reason `held`, and are redriven in the order of their arrival.

ALTER TABLE {schema}inbox_dead_letter
    DROP CONSTRAINT inbox_dead_letter_reason_is_known,
    ADD CONSTRAINT inbox_dead_letter_reason_is_known CHECK (reason IN
        ('poison', 'rejected', 'key_reused', 'too_old', 'from_the_future', 'malformed', 'incomplete', 'no_scope', 'held')),
    ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY;
COMMENT ON COLUMN {schema}inbox_dead_letter.seq IS
    'the order of arrival within a key; the ids come from the clocks of several processes';

-- Serves the look for what holds a key. A delivery without a message is left out: its key can be too long for an index.
CREATE INDEX inbox_dead_letter_key_idx ON {schema}inbox_dead_letter (consumer, scope, topic, key, seq)
    WHERE resolution IS NULL AND key IS NOT NULL AND message_id IS NOT NULL;
-- Serves the look for held messages whose turn it is.
CREATE INDEX inbox_dead_letter_held_idx ON {schema}inbox_dead_letter (consumer, scope, topic, key, seq)
    WHERE resolution IS NULL AND reason = 'held';
