-- Written by consumers that compare JSON by its content (PayloadComparison::CanonicalJson), beside the fingerprint of the bytes.
ALTER TABLE inbox_message ADD COLUMN canonical_fingerprint BLOB;
