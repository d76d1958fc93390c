-- Source and id together identify a message: the same id from another source is refused. Rows that are there have no source and
-- are compared as before.
ALTER TABLE inbox_message ADD COLUMN source TEXT;
