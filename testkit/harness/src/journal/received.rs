//! Deliveries as a consumer got them.

use std::sync::Arc;

use checker::Content;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A delivery, before anything was done with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// When: see [`crate::clock`].
    pub at: u64,
    /// Under which name the process consumes.
    pub consumer: Arc<str>,
    /// The message id; `None` for a delivery that cannot be read.
    pub id: Option<Uuid>,
    /// Its content.
    pub content: Content,
    /// Whether the broker says that it was delivered before.
    pub redelivered: bool,
    /// Which part of a larger message it is, where that is written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
}

/// A delivery that was settled as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The message id.
    pub settled: Uuid,
    /// Whether its handler ran: otherwise the inbox knew it already.
    pub handled: bool,
}

/// A part of a message that came in chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Which.
    pub index: u32,
    /// Of how many.
    pub count: u32,
    /// Its payload: a storm's are texts.
    pub payload: String,
}
