-- Replication slots of a server that does not report its log position.
SELECT slot_name::text AS slot, active, 0::bigint AS log_bytes,
    coalesce(greatest(age(xmin), age(catalog_xmin)), 0)::bigint AS transactions
FROM pg_replication_slots ORDER BY 4 DESC, 1 LIMIT 20
