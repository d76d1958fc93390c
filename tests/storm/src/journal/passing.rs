//! Entries that the gateway of SQS has handed to the server, one by one.

use serde::{Deserialize, Serialize};

/// An entry of a request that sent, settled or extended something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// When the server answered: see [`crate::clock`].
    pub at: u64,
    /// The operation, such as `SendMessageBatch`.
    pub operation: String,
    /// Its id within the request.
    pub entry: String,
    /// The message id, if the entry sends a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its group in a FIFO queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether the server reports it as done. The client may have got another answer, or none.
    pub is_done: bool,
}
