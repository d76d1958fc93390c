-- A producer in another language than Rust: any language that speaks SQL enqueues in its own transaction.
--
--   psql "$DATABASE_URL" --set topic=orders --file place_order.sql
\set ON_ERROR_STOP on
\pset tuples_only on
\pset format unaligned
SET client_min_messages = warning;

CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, cents bigint NOT NULL);

-- With the function: names and headers are checked, a message id is made and returned.
BEGIN;
INSERT INTO orders (id, cents) VALUES (101, 1250);
SELECT 'order 101: message of version ' || (get_byte(uuid_send(id), 6) >> 4)
FROM outbox_enqueue_json(topic => :'topic', payload => '{"order": 101, "cents": 1250}', key => 'order-101',
    kind => 'order.placed', headers => '{"tenant": "acme"}') AS id;
COMMIT;

-- With a plain INSERT: the same row, fewer checks.
BEGIN;
INSERT INTO orders (id, cents) VALUES (102, 990);
INSERT INTO outbox_message (topic, key, kind, payload)
VALUES (:'topic', 'order-102', 'order.placed', convert_to('{"order": 102, "cents": 990}', 'UTF8'));
COMMIT;

-- Rolled back: no order, no message.
BEGIN;
INSERT INTO orders (id, cents) VALUES (103, 100);
SELECT 'order 103: taken back' FROM outbox_enqueue_json(topic => :'topic', payload => '{"order": 103, "cents": 100}');
ROLLBACK;

SELECT count(*) || ' orders' FROM orders WHERE id BETWEEN 101 AND 103;
