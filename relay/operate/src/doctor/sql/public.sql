-- Tables of the toolkit on which every role has rights.
SELECT c.relname::text || ': ' || string_agg(DISTINCT right_of.privilege_type, ', ')
FROM pg_class AS c CROSS JOIN aclexplode(c.relacl) AS right_of
WHERE right_of.grantee = 0 AND c.relkind IN ('r', 'p')
    AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass)
    AND (c.relname LIKE 'outbox\_%' OR c.relname LIKE 'inbox\_%' OR c.relname LIKE 'idempotency\_%')
GROUP BY c.relname ORDER BY 1 LIMIT 10
