//! The messages at the broker.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Content;

/// The messages seen at the broker by a reader that takes none away: of its log, or of a queue
/// beside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopicRead {
    /// Whether the broker promises an order within a place.
    pub ordered: bool,
    /// Whether nothing is missing: the topic_read began before the first message, and nothing was
    /// removed under it.
    pub complete: bool,
    /// The messages that were seen, copies included. In the broker's order within each place.
    pub occurrences: Vec<Occurrence>,
}

/// One message at the broker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Occurrence {
    /// The message id; `None` when it has none that can be read.
    pub id: Option<Uuid>,
    /// Partition or queue: within it, occurrences have an order.
    pub place: Arc<str>,
    /// Its content.
    pub content: Content,
}
