//! The business of the examples: orders that are placed, and billed.

use std::error::Error;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use statements::message::{ContentType, Event, InvalidText, Message, MessageId};

/// An order was placed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OrderPlaced {
    pub order: i64,
    pub customer: String,
    pub cents: i64,
}

impl Event for OrderPlaced {
    const TOPIC: &'static str = "orders";
    const KIND: &'static str = "order.placed";

    fn key(&self) -> Option<String> {
        Some(self.customer.clone())
    }
}

impl OrderPlaced {
    /// Reads the event of a message.
    ///
    /// # Errors
    /// The message is of another kind, which may have the same fields and mean something else, or
    /// its payload is not the JSON of this event.
    pub fn read(message: &Message) -> Result<Self, Box<dyn Error + Send + Sync>> {
        if message.kind.as_str() != Self::KIND {
            return Err(format!("no handler for {}", message.kind).into());
        }
        Ok(serde_json::from_slice(&message.payload)?)
    }

    /// Returns the message of an enqueued event, as the relay of the pipeline `orders` publishes
    /// it. Its delivery is then a duplicate: with another source, the inbox would refuse the id.
    ///
    /// # Errors
    /// The key is not valid.
    pub fn delivered(&self, id: MessageId) -> Result<Message, InvalidText> {
        let payload = serde_json::to_vec(self).unwrap_or_default();
        let mut message = Message::new(Self::TOPIC.parse()?, Self::KIND.parse()?, payload).with_id(id);
        message.source = "/orders".parse()?;
        message.content_type = ContentType::json();
        message.key = Some(self.customer.parse()?);
        Ok(message)
    }
}

/// Returns how long to wait after this many failures: a second, then twice as long each time, up to
/// about a minute.
#[must_use]
pub fn pause(attempts: u32) -> Duration {
    Duration::from_secs(1 << attempts.saturating_sub(1).min(6))
}
