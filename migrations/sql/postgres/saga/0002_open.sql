-- Serves the list of sagas that have not ended, the oldest first.
CREATE INDEX saga_open_idx ON {schema}saga (started_at, type, id) WHERE ended_at IS NULL;
