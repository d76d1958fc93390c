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
    /// What it says.
    pub content: Content,
    /// Whether the broker says that it was delivered before.
    pub redelivered: bool,
}
