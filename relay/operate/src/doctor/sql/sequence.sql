-- What decides which ids the outbox gives out. The last one is null for a role that may not read it.
SELECT s.seqcache AS cache, s.seqincrement AS increment, s.seqmax AS maximum, s.seqcycle AS cycles,
    CASE WHEN has_sequence_privilege(s.seqrelid, 'USAGE, SELECT') THEN pg_sequence_last_value(s.seqrelid) END AS last
FROM pg_sequence AS s WHERE s.seqrelid = '{schema}outbox_message_id_seq'::regclass
