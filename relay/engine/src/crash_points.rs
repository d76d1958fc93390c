//! Places at which a test ends a relay: see [`message::crash_points`].

message::places! {
    /// All places. [`AFTER_CHUNK`] is reached only with messages in chunks.
    #[cfg(feature = "testing")]
    ALL:
    /// A page of the log is read; the cursor is before its entries.
    AFTER_READ = "relay::after_read";
    /// Messages are about to be handed to the broker's client: the broker knows nothing.
    BEFORE_PUBLISH = "relay::before_publish";
    /// Messages are handed over: the broker may have them.
    AFTER_PUBLISH = "relay::after_publish";
    /// The broker has confirmed a chunk of a message, but not all of its chunks.
    AFTER_CHUNK = "relay::after_chunk";
    /// The broker has confirmed messages, but the relay has not handled the receipts.
    AFTER_CONFIRM = "relay::after_confirm";
    /// Messages are settled in memory, and the checkpoint is about to be stored: the broker has
    /// them, and the cursor is before their entries.
    BEFORE_CHECKPOINT = "relay::before_checkpoint";
    /// The checkpoint is stored: the cursor is behind the entries.
    AFTER_CHECKPOINT = "relay::after_checkpoint";
}
