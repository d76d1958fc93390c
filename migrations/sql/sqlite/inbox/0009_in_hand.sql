-- A message whose handler ends its process leaves no failure behind. A consumer notes which process has a message in hand where
-- another one may have ended with it; the next process that takes it counts that. A row without an error says nothing else.
ALTER TABLE inbox_attempt ADD COLUMN in_hand TEXT;
ALTER TABLE inbox_attempt ADD COLUMN ends INTEGER NOT NULL DEFAULT 0 CHECK (ends >= 0);
