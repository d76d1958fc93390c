-- Creating days gives up waiting, as dropping them does: a consumer's transaction may wait for its day meanwhile. Longer than a
-- drop, because nobody queues behind a creator, and every process that starts may have to wait for one that creates.
ALTER FUNCTION {schema}inbox_create_days(date, date) SET lock_timeout = '2s';
