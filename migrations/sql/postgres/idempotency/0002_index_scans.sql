-- A key is looked up by the index, always. A session keeps the plan of a function's statement, and one that was made while a slot
-- held a handful of rows would read the slot row by row: still when it holds a million, until somebody analyses the table.
--
-- The ring's only row is read without the index all the same, at a cost that the planner only makes up. Without `jit = off` it
-- would take the statement for one that is worth compiling, each time.
ALTER FUNCTION {schema}idempotency_claim(text, text, text, bytea, uuid, interval, boolean, interval, interval)
    SET enable_seqscan = off SET jit = off;
ALTER FUNCTION {schema}idempotency_finish(text, text, text, bytea, uuid, interval, integer, text, bytea)
    SET enable_seqscan = off SET jit = off;
ALTER FUNCTION {schema}idempotency_complete(text, text, text, uuid, text, bytea, interval)
    SET enable_seqscan = off SET jit = off;
ALTER FUNCTION {schema}idempotency_decide(text, text, text, text, text)
    SET enable_seqscan = off SET jit = off;
