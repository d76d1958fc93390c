-- Prepared transactions of this database, oldest first.
SELECT gid, owner::text AS role_name,
    extract(epoch FROM clock_timestamp() - prepared)::double precision AS seconds
FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 10
