-- By which filter the dead letter was chosen, and how many it chose; null when no filter was told.
ALTER TABLE inbox_audit ADD COLUMN selection TEXT;
