//! The payload of a message, and the behaviour that it requests from its consumer.

/// The behaviour of the consumers' handler for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hint {
    /// The handler fails the first time.
    FailOnce,
    /// The handler always fails.
    FailAlways,
    /// The handler refuses the message.
    Reject,
    /// The handler takes longer than every timeout.
    Hang,
}

/// The payload of a message.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Payload {
    /// The business row that caused the message.
    pub row: String,
    /// The number of the message within its key.
    pub seq: u64,
    /// Whether the message may be published out of its turn because it is scheduled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// The behaviour of the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<Hint>,
    /// The amount in the business row.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cents: u64,
    /// Padding.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pad: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(cents: &u64) -> bool {
    *cents == 0
}
