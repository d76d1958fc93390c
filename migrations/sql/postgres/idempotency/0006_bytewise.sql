-- Keys are compared by their bytes. In the database's collation their order changes with the operating system or with ICU, and
-- an index in another order finds no duplicate: stored keys are granted again. The table is not rewritten; its index is built
-- anew while requests wait: give it a quiet hour.
ALTER TABLE {schema}idempotency_key
    ALTER COLUMN scope TYPE text COLLATE "C",
    ALTER COLUMN operation TYPE text COLLATE "C",
    ALTER COLUMN key TYPE text COLLATE "C";

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
