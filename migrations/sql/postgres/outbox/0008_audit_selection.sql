-- A decision tells by which filter its entry was chosen, and with how many others.
ALTER TABLE {schema}outbox_audit ADD COLUMN selection text;
COMMENT ON COLUMN {schema}outbox_audit.selection IS
    'the filter by which the entry was chosen, and how many it chose; null when no filter was told';
