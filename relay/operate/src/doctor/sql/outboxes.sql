-- Other schemas that have an outbox, and whether this role may look into it.
SELECT n.nspname::text AS schema,
    has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
        AND has_table_privilege(r.oid, 'SELECT') AS may_read
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    JOIN pg_class AS r ON r.relnamespace = n.oid AND r.relname = 'outbox_relay'
WHERE c.relname = 'outbox_message' AND c.relkind = 'p' AND c.oid <> '{schema}outbox_message'::regclass
ORDER BY n.nspname
