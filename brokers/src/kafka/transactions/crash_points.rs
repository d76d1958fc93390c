//! Places at which a test ends a process that publishes in transactions: see
//! [`message::crash_points`].

message::places! {
    /// All crash points.
    ALL:
    /// The brokers have all records of a batch, and the coordinator has an open transaction.
    BEFORE_MARK = "kafka::before_mark";
    /// The brokers have the mark as well, and the coordinator has an open transaction.
    BEFORE_COMMIT = "kafka::before_commit";
    /// The coordinator has answered that the transaction is committed, and the brokers show it.
    AFTER_COMMIT = "kafka::after_commit";
}
