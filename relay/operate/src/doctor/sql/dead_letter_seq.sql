-- The last number that a dead letter got, and the largest of those that are open. The last one is
-- null for a role that may not read it. No index has the numbers: up to 200,000 open ones are
-- compared, and the open ones among the 200,000 that died last, which have the largest numbers.
SELECT CASE WHEN has_sequence_privilege(s.id, 'USAGE, SELECT')
        THEN coalesce(pg_sequence_last_value(s.id), 0) END AS last,
    (SELECT coalesce(max(seq), 0) FROM (
        (SELECT seq FROM {schema}inbox_dead_letter WHERE resolution IS NULL LIMIT 200000)
        UNION ALL
        (SELECT seq FROM (SELECT seq, resolution FROM {schema}inbox_dead_letter ORDER BY id DESC LIMIT 200000) AS late
        WHERE resolution IS NULL)) AS open) AS largest
FROM (SELECT pg_get_serial_sequence('{schema}inbox_dead_letter', 'seq')::regclass AS id) AS s
