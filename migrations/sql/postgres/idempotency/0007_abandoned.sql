-- A key in progress that the next request may take over anyway is forgotten when its lease and its retention are over. One
-- that waits for an operator stays.
DROP TRIGGER idempotency_key_keep_record ON {schema}idempotency_key;
CREATE TRIGGER idempotency_key_keep_record BEFORE DELETE ON {schema}idempotency_key
    FOR EACH ROW WHEN (OLD.expires_at > clock_timestamp()
        OR (OLD.state = 'in_progress' AND (OLD.refuses OR coalesce(OLD.lease_until, OLD.claimed_at) > clock_timestamp())))
    EXECUTE FUNCTION {schema}idempotency_keep_outcome();
