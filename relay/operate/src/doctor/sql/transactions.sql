-- Open transactions of this database that hold a snapshot or an id, oldest first. Without
-- pg_read_all_stats, sessions of other roles are hidden, and their age is null: of those, the ones
-- that have written come first, in the order of their transaction ids, which every role sees.
SELECT pid, coalesce(usename::text, '') AS role_name, coalesce(application_name, '') AS application,
    coalesce(state, '') AS state,
    extract(epoch FROM clock_timestamp() - xact_start)::double precision AS seconds
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND (backend_type IS NULL OR backend_type = 'client backend')
    AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
ORDER BY xact_start NULLS LAST, age(backend_xid) DESC NULLS LAST, pid LIMIT 10
