-- The topics of the latest messages.
SELECT DISTINCT topic FROM (SELECT topic FROM {schema}outbox_message ORDER BY id DESC LIMIT 10000) AS latest
ORDER BY topic LIMIT 100
