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

-- What must not change under one id, each part after its length.
CREATE OR REPLACE FUNCTION pg_temp.fingerprint(kind text, content_type text, payload bytea) RETURNS bytea LANGUAGE sql
RETURN sha256(int8send(octet_length(kind)) || convert_to(kind, 'UTF8')
    || int8send(octet_length(content_type)) || convert_to(content_type, 'UTF8')
    || int8send(octet_length(payload)) || payload);

SELECT pg_temp.fingerprint(:'kind', :'content_type', convert_to(:'payload', 'UTF8')) AS fingerprint \gset

BEGIN;
-- The guard: one row per consumer and message. It waits for a transaction that applies the same message. A message that
-- is older than the inbox remembers has no place: the INSERT fails, and there is no effect.
WITH admitted AS (
    INSERT INTO inbox_message (message_id, consumer, fingerprint) VALUES (:'id', 'billing', :'fingerprint')
    ON CONFLICT DO NOTHING RETURNING message_id)
SELECT count(*) AS is_new FROM admitted \gset

\if :is_new
    INSERT INTO invoice (order_id, cents)
    SELECT (message ->> 'order')::bigint, (message ->> 'cents')::bigint FROM CAST(:'payload' AS json) AS message
    RETURNING 'order ' || order_id || ': billed';
\else
    -- A duplicate, unless it is something else under the same id.
    SELECT CASE WHEN fingerprint <> :'fingerprint' THEN 'refused: another message has this id'
        WHEN dead_letter IS NOT NULL THEN 'nothing done: given up as a dead letter'
        ELSE 'nothing done: a duplicate' END
    FROM inbox_message WHERE message_id = :'id' AND consumer = 'billing';
\endif
COMMIT;
