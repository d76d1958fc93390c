-- A duplicate leaves no row of its own. So that its rate can be told by whoever looks at the tables, consumers store how many there
-- were, and how many messages took effect, in each minute of the last day.
CREATE TABLE inbox_minute (
    consumer   TEXT    NOT NULL,
    minute     INTEGER NOT NULL,
    applied    INTEGER NOT NULL,
    duplicates INTEGER NOT NULL,
    CONSTRAINT inbox_minute_pkey PRIMARY KEY (consumer, minute),
    CONSTRAINT inbox_minute_counts_are_not_negative CHECK (applied >= 0 AND duplicates >= 0)
) WITHOUT ROWID;
