//! Deliveries as a consumer received them.

use std::sync::Arc;

use checker::Content;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A delivery, before it was processed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// The time of receipt; see [`crate::clock`].
    pub at: u64,
    /// The name under which the process consumes.
    pub consumer: Arc<str>,
    /// The message id, or `None` for a delivery that cannot be read.
    pub id: Option<Uuid>,
    /// The content of the message.
    pub content: Content,
    /// Whether the broker reports the delivery as redelivered.
    pub redelivered: bool,
    /// The part of a larger message, if that is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
}

/// A delivery that was settled as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The message id.
    pub settled: Uuid,
    /// Whether the handler ran. Otherwise the inbox already knew the message.
    pub handled: bool,
}

/// A chunk of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The index of the chunk.
    pub index: u32,
    /// The number of chunks.
    pub count: u32,
    /// The payload of the chunk. Payloads in a storm are texts.
    pub payload: String,
}
