//! Places where a test ends a consumer: see [`message::crash_points`].

message::places! {
    /// All of them. The first one is also in [`Inbox::admit`](crate::Inbox::admit); the others are
    /// only in the [runner](crate::Consumer).
    #[cfg(feature = "testing")]
    ALL:
    /// A message is admitted, in an open transaction: its inbox row is written, the effect is not.
    AFTER_ADMIT = "inbox::after_admit";
    /// Inbox row and effect are written but not committed.
    AFTER_EFFECT = "inbox::after_effect";
    /// Inbox row and effect are committed; the delivery is not settled.
    AFTER_COMMIT = "inbox::after_commit";
    /// The delivery is settled at the broker as well.
    AFTER_SETTLE = "inbox::after_settle";
}
