//! The transactional outbox: enqueue in the caller's transaction, and the log the relay reads.
