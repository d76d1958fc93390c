//! Everything that can be enqueued.

use serde::Serialize;

use crate::event::Event;
use crate::new_message::NewMessage;

/// Something that can be enqueued: a [`NewMessage`], or a reference to an [`Event`] that serde can
/// serialize.
///
/// ```
/// use message::{IntoMessage, NewMessage};
///
/// #[derive(serde::Serialize)]
/// struct OrderPlaced {
///     order: i64,
/// }
///
/// impl message::Event for OrderPlaced {
///     const TOPIC: &'static str = "orders";
///     const KIND: &'static str = "order.placed";
/// }
///
/// fn enqueue(message: impl IntoMessage) {
///     println!("{:?}", message.into_message());
/// }
/// enqueue(&OrderPlaced { order: 7 });
/// enqueue(NewMessage::event(&OrderPlaced { order: 8 }).header("tenant", "acme"));
/// enqueue(NewMessage::new("orders").payload("anything"));
/// ```
pub trait IntoMessage {
    /// Makes the message. Enqueueing reports any mistake in it.
    fn into_message(self) -> NewMessage;
}

impl IntoMessage for NewMessage {
    fn into_message(self) -> NewMessage {
        self
    }
}

impl<E: Event + Serialize> IntoMessage for &E {
    fn into_message(self) -> NewMessage {
        NewMessage::event(self)
    }
}
