//! The event that the order service sends and billing understands.

use message::Event;
use serde::{Deserialize, Serialize};

/// An order was placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderPlaced {
    /// The order.
    pub order: i64,
    /// The price, in cents.
    pub cents: i64,
}

impl Event for OrderPlaced {
    const TOPIC: &'static str = "orders";
    const KIND: &'static str = "order.placed";

    /// Keeps the messages of one order in sequence.
    fn key(&self) -> Option<String> {
        Some(format!("order-{}", self.order))
    }
}
