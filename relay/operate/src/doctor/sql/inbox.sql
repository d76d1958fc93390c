-- How far back an inbox remembers.
SELECT extract(epoch FROM clock_timestamp() - retained_from)::double precision FROM {schema}inbox_retention
