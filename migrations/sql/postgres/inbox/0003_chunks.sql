-- Messages that arrive in chunks wait here until all chunks are there.

-- One row per consumer, scope and message of which chunks are kept. Its lock makes one transaction at a time look whether
-- the chunks are all there: of two that bring the last two, the second waits and then sees the first one's.
CREATE TABLE {schema}inbox_chunk_set (
    message_id   uuid        NOT NULL,
    consumer     text        NOT NULL,
    scope        text        NOT NULL DEFAULT '',
    -- of the whole message, as each chunk promises it
    fingerprint  bytea       NOT NULL,
    -- of the whole payload
    bytes        bigint      NOT NULL,
    topic        text        NOT NULL,
    key          text,
    kind         text        NOT NULL,
    source       text        NOT NULL,
    time         timestamptz NOT NULL,
    content_type text        NOT NULL,
    begun_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT inbox_chunk_set_pkey PRIMARY KEY (message_id, consumer, scope, fingerprint),
    CONSTRAINT inbox_chunk_set_consumer_has_1_to_255_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    CONSTRAINT inbox_chunk_set_scope_has_at_most_255_bytes CHECK (octet_length(scope) <= 255),
    CONSTRAINT inbox_chunk_set_fingerprint_has_32_bytes CHECK (octet_length(fingerprint) = 32),
    CONSTRAINT inbox_chunk_set_bytes_are_positive CHECK (bytes > 0)
);

-- Serves the expiry of what stays incomplete, and listing it, oldest first.
CREATE INDEX inbox_chunk_set_begun_at_idx ON {schema}inbox_chunk_set (begun_at);

-- The chunks. A message that was split anew (the limit was changed) has chunks of two splits, told apart by how many.
CREATE TABLE {schema}inbox_chunk (
    message_id  uuid    NOT NULL,
    consumer    text    NOT NULL,
    scope       text    NOT NULL,
    fingerprint bytea   NOT NULL,
    chunks      integer NOT NULL,
    number      integer NOT NULL,
    payload     bytea   NOT NULL,
    -- Serves keeping each chunk once, counting them and reading them in their order.
    CONSTRAINT inbox_chunk_pkey PRIMARY KEY (message_id, consumer, scope, fingerprint, chunks, number),
    CONSTRAINT inbox_chunk_set_fkey FOREIGN KEY (message_id, consumer, scope, fingerprint)
        REFERENCES {schema}inbox_chunk_set (message_id, consumer, scope, fingerprint),
    CONSTRAINT inbox_chunk_number_is_one_of_chunks CHECK (number >= 0 AND number < chunks)
);

-- They stay for moments: compressing them would only cost time.
ALTER TABLE {schema}inbox_chunk ALTER COLUMN payload SET STORAGE EXTERNAL;

ALTER TABLE {schema}inbox_dead_letter
    DROP CONSTRAINT inbox_dead_letter_reason_is_known,
    ADD CONSTRAINT inbox_dead_letter_reason_is_known CHECK (reason IN
        ('poison', 'rejected', 'key_reused', 'too_old', 'from_the_future', 'malformed', 'incomplete'));
