-- What operators ask of one message is found by its id, however many others fail; and tables whose rows come and go are cleaned
-- before the rows that are gone make up a fifth of them.
--
-- Serves the look for one message.
CREATE INDEX inbox_attempt_message_idx ON {schema}inbox_attempt (message_id);
-- Serves `relay verify`, which asks what became of many.
CREATE INDEX inbox_dead_letter_subject_idx ON {schema}inbox_dead_letter (subject);

ALTER TABLE {schema}inbox_attempt SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
ALTER TABLE {schema}inbox_dead_letter SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
