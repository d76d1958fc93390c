//! Entries that the SQS gateway has passed to the server, one by one.

use serde::{Deserialize, Serialize};

/// An entry of a request that sends, settles or extends messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// The time at which the server answered; see [`crate::clock`].
    pub at: u64,
    /// The operation, such as `SendMessageBatch`.
    pub operation: String,
    /// The id of the entry within the request.
    pub entry: String,
    /// The message id, if the entry sends a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The group of the message in a FIFO queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether the server reports the entry as done. The client may have got another answer, or
    /// none.
    pub is_done: bool,
}
