-- Source and id together identify a message: the same id from another source is refused. The days have their parent's columns.
-- The table is not rewritten; rows that are there have no source and are compared as before.
ALTER TABLE {schema}inbox_message ADD COLUMN source text;
COMMENT ON COLUMN {schema}inbox_message.source IS
    'the outbox that the message came from; null when a program without this column wrote the row';
