-- The days that an inbox made and that are no partitions of it any more.
SELECT lost.name FROM {schema}inbox_day AS d
    CROSS JOIN LATERAL (SELECT 'inbox_message_' || to_char(d.day, 'YYYYMMDD')) AS lost (name)
WHERE d.day <= (clock_timestamp() AT TIME ZONE 'UTC')::date + 2 AND NOT EXISTS (
    SELECT FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = '{schema}inbox_message'::regclass AND c.relname = lost.name)
ORDER BY d.day
