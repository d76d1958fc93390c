-- History that every relay has passed goes in small runs of rows, oldest first.

-- which rows stand beside the log and stay
CREATE INDEX outbox_exception_id_idx ON outbox_exception (id);

-- The largest message id that retention has removed: of smaller ones the log knows nothing.
CREATE TABLE outbox_retention (
    singleton       INTEGER NOT NULL DEFAULT 1,
    expired_through TEXT,
    expired_at      INTEGER,
    CONSTRAINT outbox_retention_pkey PRIMARY KEY (singleton),
    CONSTRAINT outbox_retention_has_one_row CHECK (singleton = 1)
) STRICT;
INSERT INTO outbox_retention DEFAULT VALUES;
