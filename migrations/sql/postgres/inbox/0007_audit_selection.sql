-- A decision tells by which filter its dead letter was chosen, and with how many others.
ALTER TABLE {schema}inbox_audit ADD COLUMN selection text;
COMMENT ON COLUMN {schema}inbox_audit.selection IS
    'the filter by which the dead letter was chosen, and how many it chose; null when no filter was told';
