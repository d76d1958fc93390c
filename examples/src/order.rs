//! The event that the order service sends and billing understands.

use serde::{Deserialize, Serialize};

/// An order was placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderPlaced {
    /// The order.
    pub order: i64,
    /// The price, in cents.
    pub cents: i64,
}

impl OrderPlaced {
    /// The event's type.
    pub const KIND: &'static str = "order.placed";

    /// Messages of one order leave in their order.
    #[must_use]
    pub fn key(&self) -> String {
        format!("order-{}", self.order)
    }
}
