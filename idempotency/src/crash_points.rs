//! Places where a test ends a service that holds a key, before it sends the answer: see
//! [`message::crash_points`].

message::places! {
    /// All of them. The second one is in the HTTP layer.
    #[cfg(feature = "testing")]
    ALL:
    /// The key is held; nothing was done.
    AFTER_CLAIM = "keys::after_claim";
    /// The key is held, and the handler has answered: its effect is written in a transaction, its
    /// outcome is not written.
    #[cfg(any(feature = "http", feature = "testing"))]
    AFTER_EFFECT = "keys::after_effect";
    /// Effect and outcome are written but not committed. Only for keys held by a transaction.
    AFTER_OUTCOME = "keys::after_outcome";
    /// Effect and outcome are committed; the caller has no answer yet.
    AFTER_COMPLETE = "keys::after_complete";
}
