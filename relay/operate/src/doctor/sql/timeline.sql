-- The timeline that the server writes. Some cloud services refuse this query.
SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline
