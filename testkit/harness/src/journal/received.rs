//! Deliveries as a consumer received them.

use std::sync::Arc;

use checker::Content;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A delivery, before it was processed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// When it was received: see [`crate::clock`].
    pub at: u64,
    /// The name under which the process consumes.
    pub consumer: Arc<str>,
    /// The message id; `None` for a delivery that cannot be read.
    pub id: Option<Uuid>,
    /// Its content.
    pub content: Content,
    /// Whether the broker says that it is redelivered.
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
    /// Whether its handler ran; otherwise the inbox knew it already.
    pub handled: bool,
}

/// A part of a message that came in chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its index.
    pub index: u32,
    /// The number of parts.
    pub count: u32,
    /// Its payload: those of a storm are texts.
    pub payload: String,
}
