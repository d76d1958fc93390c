-- A message whose handler ends its process leaves no failure behind. A consumer notes which process has a message in hand where
-- another one may have ended with it; the next process that takes it counts that.
ALTER TABLE {schema}inbox_attempt
    ADD COLUMN in_hand uuid,
    ADD COLUMN ends integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT inbox_attempt_ends_are_not_negative CHECK (ends >= 0);
COMMENT ON COLUMN {schema}inbox_attempt.in_hand IS
    'the process that has the message in hand; a row without an error says nothing else';
COMMENT ON COLUMN {schema}inbox_attempt.ends IS
    'how many processes had the message in hand and ended without a word';
