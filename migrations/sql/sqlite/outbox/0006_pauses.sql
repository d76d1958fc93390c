-- Operators pause a pipeline, one of its topics, or an ordering key; a running relay looks here twice a second. What they
-- do besides decisions about dead entries is kept.
CREATE TABLE outbox_pause (
    relay     TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    name      TEXT    NOT NULL, -- of the topic or key; empty for the whole pipeline
    actor     TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    paused_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT outbox_pause_pkey PRIMARY KEY (relay, kind, name),
    CONSTRAINT outbox_pause_kind_is_known CHECK (kind IN ('pipeline', 'topic', 'key')),
    CONSTRAINT outbox_pause_names_a_topic_or_key CHECK ((kind = 'pipeline') = (name = '')),
    CONSTRAINT outbox_pause_has_a_reason CHECK (reason <> '')
) STRICT;

CREATE TABLE outbox_operation (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    actor     TEXT    NOT NULL,
    relay     TEXT    NOT NULL,
    action    TEXT    NOT NULL,
    selection TEXT    NOT NULL,
    note      TEXT    NOT NULL
) STRICT;
