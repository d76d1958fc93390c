-- The version of the database's collation when it was made or refreshed, and that of the operating system or of ICU now; null
-- for collations that have none. From PostgreSQL 15 on.
SELECT datcollversion AS recorded, pg_database_collation_actual_version(oid) AS actual
FROM pg_database WHERE datname = current_database()
