-- A reply has to prove that its sender has seen the request: the request carries a token, made of this secret and of the step.
-- Programs make the secret; the default is for sagas that are there already.
ALTER TABLE {schema}saga ADD COLUMN secret bytea NOT NULL DEFAULT uuid_send(gen_random_uuid());
