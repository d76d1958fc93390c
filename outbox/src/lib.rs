//! The transactional outbox.

pub mod log;
