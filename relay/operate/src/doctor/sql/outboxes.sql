-- Other schemas that have an outbox.
SELECT n.nspname::text
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = 'outbox_message' AND c.relkind = 'p' AND c.oid <> '{schema}outbox_message'::regclass
ORDER BY n.nspname
