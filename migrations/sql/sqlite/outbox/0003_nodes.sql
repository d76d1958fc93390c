-- Numbers for nodes that make ids by themselves: processes that share this file. A row is never removed, because its epoch
-- must not begin anew.
CREATE TABLE outbox_node (
    number      INTEGER NOT NULL,
    epoch       INTEGER NOT NULL, -- the fencing token, a part of every id: a later holder of the number has a larger one
    holder      TEXT,
    lease_until INTEGER,
    taken_at    INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT outbox_node_pkey PRIMARY KEY (number),
    CONSTRAINT outbox_node_number_has_16_bits CHECK (number BETWEEN 0 AND 65535),
    CONSTRAINT outbox_node_epoch_has_32_bits CHECK (epoch BETWEEN 1 AND 4294967295),
    CONSTRAINT outbox_node_holder_has_1_to_255_bytes CHECK (octet_length(holder) BETWEEN 1 AND 255),
    CONSTRAINT outbox_node_holder_has_a_lease CHECK ((holder IS NULL) = (lease_until IS NULL))
) STRICT;
