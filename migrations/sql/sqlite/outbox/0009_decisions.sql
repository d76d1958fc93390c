-- Retention has looked at the decisions up to this one in its present round; 0 at the beginning of a round.
ALTER TABLE outbox_retention ADD COLUMN decisions_after INTEGER NOT NULL DEFAULT 0;
