-- A consumer that is not Rust: any language that speaks SQL applies a message once, in its own transaction. A client
-- of the broker gives it what arrived: the id (ce_id), the kind (ce_type), the content type and the payload.
--
--   psql "$DATABASE_URL" --set id=01900000-… --set kind=order.placed --set content_type=application/json
--       --set payload='{"order": 101, "cents": 1250}' --file bill_order.sql
--
-- Acknowledge the message after the COMMIT. When the transaction fails, do not: it comes again.
\set ON_ERROR_STOP on
\pset tuples_only on
\pset format unaligned
SET client_min_messages = warning;

CREATE TABLE IF NOT EXISTS invoice (order_id bigint NOT NULL, cents bigint NOT NULL);

BEGIN;
-- The guard: one row per consumer and message. It waits for a transaction that applies the same message, and makes the
-- COMMIT wait for the disk.
SELECT inbox_admit('billing', :'id', :'kind', :'content_type', convert_to(:'payload', 'UTF8')) AS verdict \gset
SELECT :'verdict' = 'new' AS is_new \gset

\if :is_new
    INSERT INTO invoice (order_id, cents)
    SELECT (message ->> 'order')::bigint, (message ->> 'cents')::bigint FROM CAST(:'payload' AS json) AS message
    RETURNING 'order ' || order_id || ': billed';
    -- The proof: an error, unless this transaction is the one that admitted the message, and has not failed. PostgreSQL
    -- answers COMMIT without an error otherwise, though nothing of the effect is left.
    SELECT inbox_finish('billing', :'id') \g /dev/null
\else
    -- Whatever is refused takes no effect; inbox_store_dead_letter would keep it for an operator.
    SELECT CASE :'verdict' WHEN 'duplicate' THEN 'nothing done: a duplicate'
        WHEN 'dead_letter' THEN 'nothing done: given up as a dead letter'
        ELSE 'refused: ' || :'verdict' END;
\endif
COMMIT;
