//! Crash points, at which a test kills a producer: see [`message::crash_points`].

message::places! {
    /// All places. [`Outbox::enqueue`](crate::Outbox::enqueue) passes the first two.
    /// [`OutboxTransaction`](crate::OutboxTransaction) and
    /// [`Outbox::transaction`](crate::Outbox::transaction) pass all four.
    #[cfg(feature = "testing")]
    ALL:
    /// The business rows are written, and a message is not written yet.
    BEFORE_ENQUEUE = "outbox::before_enqueue";
    /// A message is written; COMMIT is not sent.
    AFTER_ENQUEUE = "outbox::after_enqueue";
    /// All messages are written, staged ones included; COMMIT is not sent.
    BEFORE_COMMIT = "outbox::before_commit";
    /// Business rows and messages are committed, but the caller does not know.
    AFTER_COMMIT = "outbox::after_commit";
}
