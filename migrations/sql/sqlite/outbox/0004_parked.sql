-- What stands beside the log has a copy of its content, so that history does not wait for it; and held entries are found
-- by their key. Relays of the version before would park without a copy: their leases are taken away here.
UPDATE outbox_relay SET epoch = epoch + 1, holder = NULL, lease_until = NULL;

CREATE TABLE outbox_parked (
    relay        TEXT    NOT NULL,
    shard        INTEGER NOT NULL DEFAULT 0,
    id           INTEGER NOT NULL,
    kind         TEXT,
    content_type TEXT    NOT NULL,
    headers      TEXT,
    traceparent  TEXT,
    tracestate   TEXT,
    payload      BLOB    NOT NULL,
    enqueued_at  INTEGER NOT NULL,
    edited_at    INTEGER, -- when an operator replaced the content
    CONSTRAINT outbox_parked_pkey PRIMARY KEY (relay, shard, id),
    CONSTRAINT outbox_parked_headers_are_an_object CHECK (json_type(headers) = 'object')
) STRICT;

INSERT INTO outbox_parked
    (relay, shard, id, kind, content_type, headers, traceparent, tracestate, payload, enqueued_at, edited_at)
SELECT e.relay, e.shard, e.id, m.kind, m.content_type, coalesce(e.edited_headers, m.headers), m.traceparent, m.tracestate,
    coalesce(e.edited_payload, m.payload), m.enqueued_at,
    CASE WHEN e.edited_payload IS NOT NULL OR e.edited_headers IS NOT NULL THEN e.updated_at END
FROM outbox_exception AS e JOIN outbox_message AS m ON m.id = e.id;
ALTER TABLE outbox_exception DROP COLUMN edited_payload;
ALTER TABLE outbox_exception DROP COLUMN edited_headers;

-- the held entries of a key, or of a topic without a key, in the order of ids; which queues there are
DROP INDEX outbox_exception_held_idx;
CREATE INDEX outbox_exception_queue_idx ON outbox_exception (relay, shard, coalesce('k' || key, 't' || topic), id)
    WHERE state = 'held';
-- what keys wait for, when a relay takes over; lists dead entries for operators
DROP INDEX outbox_exception_dead_idx;
CREATE INDEX outbox_exception_stuck_idx ON outbox_exception (relay, shard, id) WHERE state IN ('retrying', 'dead');
-- history need not know what is parked any more
DROP INDEX outbox_exception_id_idx;
