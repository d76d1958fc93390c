//! The relay: publishes every committed outbox row, and the command line around it.
