-- A duplicate leaves no row of its own. So that its rate can be told by whoever looks at the tables, consumers store how many there
-- were, and how many messages took effect, in each minute.
CREATE TABLE {schema}inbox_minute (
    consumer   text        NOT NULL,
    minute     timestamptz NOT NULL,
    applied    bigint      NOT NULL,
    duplicates bigint      NOT NULL,
    CONSTRAINT inbox_minute_pkey PRIMARY KEY (consumer, minute),
    CONSTRAINT inbox_minute_counts_are_not_negative CHECK (applied >= 0 AND duplicates >= 0)
);
COMMENT ON TABLE {schema}inbox_minute IS
    'what consumers counted in each minute of the last day; a process that is killed takes what it counted last with it';
