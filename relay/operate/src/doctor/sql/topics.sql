-- The topics of the latest messages, without names that no topic can have: in a database without an
-- encoding they may not even be text.
SELECT DISTINCT topic FROM (SELECT topic FROM {schema}outbox_message ORDER BY id DESC LIMIT 10000) AS latest
WHERE topic ~ '^[A-Za-z0-9._/:#-]+$' ORDER BY topic LIMIT 100
