-- By which filter the entry was chosen, and how many it chose; null when no filter was told.
ALTER TABLE outbox_audit ADD COLUMN selection TEXT;
