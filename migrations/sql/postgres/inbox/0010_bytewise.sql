-- Texts of indexes are compared by their bytes. In the database's collation their order changes with the operating system or
-- with ICU, and an index in another order finds no duplicate. Tables are not rewritten; their indexes are built anew, those of
-- each day too, while consumers wait: give it a quiet hour.
--
-- A partition has its parent's collation, so the days are changed with the table, and those that are made later are like it.
LOCK TABLE {schema}inbox_message, {schema}inbox_attempt, {schema}inbox_dead_letter, {schema}inbox_chunk_set, {schema}inbox_chunk,
    {schema}inbox_audit, {schema}inbox_minute IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {schema}inbox_message
    ALTER COLUMN consumer TYPE text COLLATE "C",
    ALTER COLUMN scope TYPE text COLLATE "C";
ALTER TABLE {schema}inbox_attempt
    ALTER COLUMN consumer TYPE text COLLATE "C",
    ALTER COLUMN scope TYPE text COLLATE "C";
-- Topic and key as well: what holds a key is found by them.
ALTER TABLE {schema}inbox_dead_letter
    ALTER COLUMN consumer TYPE text COLLATE "C",
    ALTER COLUMN scope TYPE text COLLATE "C",
    ALTER COLUMN topic TYPE text COLLATE "C",
    ALTER COLUMN key TYPE text COLLATE "C";
ALTER TABLE {schema}inbox_chunk_set
    ALTER COLUMN consumer TYPE text COLLATE "C",
    ALTER COLUMN scope TYPE text COLLATE "C";
ALTER TABLE {schema}inbox_chunk
    ALTER COLUMN consumer TYPE text COLLATE "C",
    ALTER COLUMN scope TYPE text COLLATE "C";
ALTER TABLE {schema}inbox_audit ALTER COLUMN consumer TYPE text COLLATE "C";
ALTER TABLE {schema}inbox_minute ALTER COLUMN consumer TYPE text COLLATE "C";

-- The bookkeeping is of all lines: whichever comes first does it, if it may.
DO $migration$
BEGIN
    IF EXISTS (
        SELECT FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
        WHERE c.oid = '{schema}outbox_toolkit_migration'::regclass AND a.attname = 'line'
            AND a.attcollation <> 'pg_catalog."C"'::regcollation AND pg_has_role(c.relowner, 'USAGE'))
    THEN
        ALTER TABLE {schema}outbox_toolkit_migration ALTER COLUMN line TYPE text COLLATE "C";
    END IF;
END
$migration$;
