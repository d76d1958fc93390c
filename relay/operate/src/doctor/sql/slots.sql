-- Replication slots of the server, and the bytes of log that each retains.
SELECT slot_name::text AS slot, active,
    coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint AS log_bytes,
    coalesce(greatest(age(xmin), age(catalog_xmin)), 0)::bigint AS transactions
FROM pg_replication_slots ORDER BY 3 DESC, 1 LIMIT 20
