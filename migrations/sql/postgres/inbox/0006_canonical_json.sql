-- Written by consumers that compare JSON by its content (PayloadComparison::CanonicalJson), beside the fingerprint of the bytes.
ALTER TABLE {schema}inbox_message ADD COLUMN canonical_fingerprint bytea;
