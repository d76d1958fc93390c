//! Places at which a test ends a relay: see [`message::crash_points`].
//!
//! | place | the broker | the cursor |
//! |---|---|---|
//! | [`AFTER_READ`] | knows nothing | before the entries |
//! | [`BEFORE_PUBLISH`] | knows nothing | before the entries |
//! | [`AFTER_PUBLISH`] | may have them | before the entries |
//! | [`AFTER_CHUNK`] | has some chunks of a message, not all | before the entry |
//! | [`AFTER_CONFIRM`] | has some | before the entries |
//! | [`BEFORE_CHECKPOINT`] | has those of the checkpoint | before the entries |
//! | [`AFTER_CHECKPOINT`] | has those of the checkpoint | behind them |

/// A page of the log is read.
pub const AFTER_READ: &str = "relay::after_read";
/// Messages are about to be handed to the broker's client.
pub const BEFORE_PUBLISH: &str = "relay::before_publish";
/// Messages are handed over.
pub const AFTER_PUBLISH: &str = "relay::after_publish";
/// The broker has confirmed a chunk of a message, but not all of its chunks.
pub const AFTER_CHUNK: &str = "relay::after_chunk";
/// The broker has confirmed messages, but the relay has not handled the receipts.
pub const AFTER_CONFIRM: &str = "relay::after_confirm";
/// Messages are settled in memory, and the checkpoint is about to be stored.
pub const BEFORE_CHECKPOINT: &str = "relay::before_checkpoint";
/// The checkpoint is stored.
pub const AFTER_CHECKPOINT: &str = "relay::after_checkpoint";

/// All places. [`AFTER_CHUNK`] is reached only with messages in chunks.
#[cfg(feature = "testing")]
pub const ALL: [&str; 7] = [
    AFTER_READ,
    BEFORE_PUBLISH,
    AFTER_PUBLISH,
    AFTER_CHUNK,
    AFTER_CONFIRM,
    BEFORE_CHECKPOINT,
    AFTER_CHECKPOINT,
];
