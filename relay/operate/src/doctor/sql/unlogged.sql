-- Tables and partitions of the toolkit that a crash of the server would empty, in the outbox's
-- schema. The one that is unlogged on purpose recognises a crash by it.
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relnamespace = (SELECT m.relnamespace FROM pg_class AS m WHERE m.oid = '{schema}outbox_message'::regclass)
    AND c.relkind IN ('r', 'p') AND c.relpersistence <> 'p' AND c.relname <> 'outbox_server_run'
    AND c.relname ~ '^(outbox|inbox|idempotency|saga)(_|$)'
ORDER BY c.relname
