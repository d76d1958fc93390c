//! Plain clients of the brokers. They share no code with the toolkit's adapters, so what they read
//! is evidence. A reader returns what the client library hands out; [`PlainRecord`] is the part
//! that every broker has.
//!
//! | module | contents |
//! |---|---|
//! | [`kafka`] | a cluster: its logs from their beginning, the offsets of groups, records |
//! | `rabbitmq` (feature `rabbitmq`) | a server: its queues, emptied, and confirmed messages |
//! | `sqs` (feature `sqs`) | an account: its queues, emptied and counted, and messages |

pub mod kafka;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "sqs")]
pub mod sqs;

/// A message as a plain client reads or writes it. Bytes that are not UTF-8 are replaced, except in
/// the payload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlainRecord {
    /// The broker's own key or group.
    pub key: Option<String>,
    /// The broker's own message id, where it has one.
    pub message_id: Option<String>,
    /// Headers and properties in their order, and for SQS the members of the CloudEvent around the
    /// data.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Vec<u8>,
}

impl PlainRecord {
    /// Returns the first header with this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}
