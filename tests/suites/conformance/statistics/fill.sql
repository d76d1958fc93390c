-- Tables after a bad week: {rows} dead letters. Half of them are of a consumer with a quarter as many keys: each key has an
-- open one, one that is held behind it, and two that were discarded. There are as many decisions and sagas as dead letters,
-- and half of the sagas of one type have ended.
--
-- Others have what these have not, so that the planner takes it for common everywhere: a consumer whose messages have a
-- single key has all others of the dead letters; one without a process has requested redrives; one decision was about half
-- of the dead letters that were discarded; and a type without a worker has sagas that are all due.
INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, message_id, topic, key, kind, source,
    time, content_type, headers, payload, reason, error, attempts, origin, resolution, resolved_at)
SELECT gen_random_uuid(), CASE WHEN of_billing THEN 'billing' ELSE 'warehouse' END, '', m, decode(repeat('00', 32), 'hex'),
    m, 'orders', CASE WHEN of_billing THEN 'old-' || n / 8 ELSE 'the only one' END, 'order.placed', '/shop', now(),
    'application/json', '[]', '{}', CASE WHEN of_billing AND n % 4 <> 1 THEN 'poison' ELSE 'held' END, 'no such price', 1,
    'orders', CASE WHEN of_billing AND n % 4 > 1 THEN 'discarded' END,
    CASE WHEN of_billing AND n % 4 > 1 THEN now() - interval '1 hour' END
FROM generate_series(0, {rows} - 1) n, LATERAL (SELECT outbox_new_message_id() AS m, n % 8 < 4 AS of_billing WHERE n >= 0) id;
INSERT INTO inbox_audit (actor, note, dead_letter, consumer, action)
SELECT 'ann', 'prices are back', gen_random_uuid(), 'shipping', 'redrive' FROM generate_series(1, 300);
INSERT INTO inbox_audit (actor, note, dead_letter, consumer, action, outcome, done_at, decision)
SELECT 'ann', 'a bad week', gen_random_uuid(), 'billing', 'discard', 'discarded', now(),
    CASE WHEN n % 2 = 0 THEN uuid '0193a1c0-0000-7000-8000-000000000001' END FROM generate_series(1, {rows}) n;
INSERT INTO inbox_attempt (consumer, scope, message_id, attempts, last_error, next_at)
SELECT 'billing', '', outbox_new_message_id(), 1, 'no', clock_timestamp() FROM generate_series(1, {rows});
INSERT INTO inbox_message (message_id, consumer, scope, fingerprint)
SELECT outbox_new_message_id(), 'billing', '', decode(repeat('00', 32), 'hex') FROM generate_series(1, {rows});
INSERT INTO idempotency_key (scope, operation, key, fingerprint, state, attempt, holder, outcome, claimed_at,
    processed_at, expires_at)
SELECT 't', 'charge', 'old-' || n, decode(repeat('00', 32), 'hex'), 'succeeded', 1, gen_random_uuid(), '', now(),
    now(), now() + interval '1 day' FROM generate_series(1, {rows}) n;
INSERT INTO idempotency_audit (actor, note, action, scope, operation, key)
SELECT 'ann', 'a bad week', 'discard', 't', 'charge', 'old-' || n FROM generate_series(1, {rows}) n;
INSERT INTO saga (type, id, version, input, wake_at, state, output, ended_at)
SELECT 'checkout', 'old-' || n, 1, '1', CASE WHEN n % 2 = 0 THEN now() + interval '1 day' END,
    CASE WHEN n % 2 = 0 THEN 'running' ELSE 'finished' END, CASE WHEN n % 2 = 1 THEN '1' END,
    CASE WHEN n % 2 = 1 THEN now() END FROM generate_series(1, {rows}) n;
INSERT INTO saga (type, id, version, input, wake_at, state)
SELECT 'refund', 'old-' || n, 1, '1', now() - interval '1 hour', 'running' FROM generate_series(1, {rows} / 2) n;
INSERT INTO saga_step (type, id, name, position, kind, state, undo, result)
SELECT 'checkout', 'old-' || n, 'pay', 1, 'step', 'done', 'none', '1' FROM generate_series(1, {rows}) n;
INSERT INTO saga_reply (type, id, step, payload)
SELECT 'checkout', 'old-' || n, 'ship', '1' FROM generate_series(1, {rows}) n;
INSERT INTO saga_audit (actor, note, action, type, id)
SELECT 'ann', 'a bad week', 'retry', 'checkout', 'old-' || n FROM generate_series(1, {rows}) n;
