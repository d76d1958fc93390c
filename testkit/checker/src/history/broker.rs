//! The messages at the broker.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Content;

/// The messages that were read at the broker without removing any: from its log, or from an
/// additional queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopicRead {
    /// Whether the broker promises an order within a place.
    pub ordered: bool,
    /// Whether the list is complete: reading began before the first message, and no message was
    /// removed before it was read.
    pub complete: bool,
    /// The messages that were read, copies included, in the broker's order within each place.
    pub occurrences: Vec<Occurrence>,
}

/// One message at the broker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Occurrence {
    /// The message id, or `None` if the message has no readable id.
    pub id: Option<Uuid>,
    /// The partition or queue. Occurrences are ordered within it.
    pub place: Arc<str>,
    /// The content of the message.
    pub content: Content,
}
