//! A window: messages that are published and confirmed together.

use std::collections::HashSet;
use std::sync::Arc;

use message::{Message, MessageId};

use crate::pending::Pending;

/// A message and the receipt it owes.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) message: Arc<Message>,
    pub(super) pending: Pending,
}

/// The limits of one window.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowLimit {
    pub(super) messages_max: usize,
    /// Payloads are copied into frames, so this bounds the memory of a window. A single message may
    /// exceed it.
    pub(super) bytes_max: usize,
}

/// Messages of one window. Returned messages are matched by id, so an id occurs once.
#[derive(Debug)]
pub(super) struct Window {
    limit: WindowLimit,
    items: Vec<Item>,
    ids: HashSet<MessageId>,
    bytes: usize,
}

/// The memory of one header in the client's table, besides its own bytes, rounded up.
const TABLE_ENTRY_BYTES: usize = 256;

impl Window {
    pub(super) fn new(limit: WindowLimit) -> Self {
        Self { limit, items: Vec::new(), ids: HashSet::new(), bytes: 0 }
    }

    /// Adds an item, or returns it when it must go into the next window.
    pub(super) fn push(&mut self, item: Item) -> Option<Item> {
        let bytes = item.message.wire_bytes() + item.message.headers.len() * TABLE_ENTRY_BYTES;
        let full = self.is_full() || (!self.items.is_empty() && self.bytes + bytes > self.limit.bytes_max);
        if full || !self.ids.insert(item.message.id) {
            return Some(item);
        }
        self.bytes += bytes;
        self.items.push(item);
        None
    }

    pub(super) fn is_full(&self) -> bool {
        self.items.len() >= self.limit.messages_max
    }

    pub(super) fn into_items(self) -> Vec<Item> {
        self.items
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use message::{EventType, Receipts, Ticket, Topic};

    pub(in crate::rabbitmq) fn item(topic: &str, bytes: usize) -> Item {
        let message = Message::new(
            Topic::new(topic).unwrap(),
            EventType::new("order.placed").unwrap(),
            vec![b'x'; bytes],
        );
        Item { message: message.into(), pending: Pending::new(Ticket(0), Receipts::channel().0) }
    }

    const LIMIT: WindowLimit = WindowLimit { messages_max: 3, bytes_max: 10_000 };

    #[test]
    fn the_second_of_one_id_goes_into_the_next_window() {
        let mut window = Window::new(LIMIT);
        let first = item("orders", 1);
        let mut again = item("orders", 1);
        Arc::make_mut(&mut again.message).id = first.message.id;
        assert!(window.push(first).is_none());
        assert!(window.push(again).is_some());
        assert!(window.push(item("orders", 1)).is_none());
        assert_eq!(window.into_items().len(), 2);
    }

    #[test]
    fn a_window_is_bounded_in_messages_and_bytes_but_takes_one_large_message() {
        let mut window = Window::new(LIMIT);
        for _ in 0..3 {
            assert!(window.push(item("orders", 1)).is_none());
        }
        assert!(window.is_full() && window.push(item("orders", 1)).is_some());
        let mut window = Window::new(LIMIT);
        assert!(window.push(item("orders", 50_000)).is_none());
        assert!(window.push(item("orders", 1)).is_some());
    }
}
