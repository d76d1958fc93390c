SELECT seqcache FROM pg_sequence WHERE seqrelid = '{schema}outbox_message_id_seq'::regclass
