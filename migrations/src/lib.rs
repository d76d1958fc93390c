//! Schema migrations for outbox and inbox, in versioned lines
