-- A reply has to prove that its sender has seen the request: the request carries a token, made of this secret and of the step.
ALTER TABLE saga ADD COLUMN secret BLOB NOT NULL DEFAULT x'';
UPDATE saga SET secret = randomblob(16);
