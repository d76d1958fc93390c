-- The audit: the cause of what was decided about, and a way from a message to its decisions.

-- Why the entry was dead when the decision was made; a discarded one leaves no other trace of it.
ALTER TABLE outbox_audit ADD COLUMN fault TEXT;
ALTER TABLE outbox_audit ADD COLUMN error TEXT;
-- what was decided about a message: for each row that a replay, a tail, a verification or a list looks at
CREATE INDEX outbox_audit_message_idx ON outbox_audit (relay, message_id, seq);
