-- Serves the list of sagas, the oldest first.
CREATE INDEX saga_open_idx ON saga (started_at, type, id);
