-- The holder's own, so that others can tell a lease that a clock has put ahead from one that lasts: for how long the
-- holder asked, in seconds.
ALTER TABLE outbox_relay ADD COLUMN lease_seconds REAL;
